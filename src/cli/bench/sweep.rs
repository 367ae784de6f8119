//! Lists of sizes on the command line: `1,8,32`, `128-2048*2`, `16-64+16`.

/// The most sizes of one option.
const MOST: usize = 64;

/// A list of sizes and ranges.
pub fn parse(text: &str) -> Result<Sweep, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        range(part.trim(), &mut all)?;
    }
    if all.len() > MOST {
        return Err(format!("{} sizes; {MOST} are the most", all.len()));
    }
    Ok(Sweep(all))
}

/// The sizes of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep(pub Vec<usize>);

/// One size, or `from-to*factor`, or `from-to+step`.
fn range(part: &str, all: &mut Vec<usize>) -> Result<(), String> {
    let number = |text: &str| {
        let n = text.trim().parse::<usize>().ok().filter(|n| (1..=1 << 20).contains(n));
        n.ok_or_else(|| format!("{text:?} is no size from 1 to {}", 1 << 20))
    };
    let Some((from, rest)) = part.split_once('-') else {
        all.push(number(part)?);
        return Ok(());
    };
    let how = rest.find(['*', '+']);
    let Some(how) = how else {
        return Err(format!("{part:?} needs a step: {part}*2 doubles, {part}+64 adds 64"));
    };
    let (from, to, step) = (number(from)?, number(&rest[..how])?, number(&rest[how + 1..])?);
    let multiply = rest[how..].starts_with('*');
    if from > to || (multiply && step < 2) {
        return Err(format!("{part:?} never gets from {from} to {to}"));
    }
    let mut at = from;
    while at <= to && all.len() <= MOST {
        all.push(at);
        at = if multiply { at.saturating_mul(step) } else { at.saturating_add(step) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        for (text, want) in [
            ("7", vec![7]),
            ("1,8, 32", vec![1, 8, 32]),
            ("128-2048*2", vec![128, 256, 512, 1024, 2048]),
            ("16-64+16,100", vec![16, 32, 48, 64, 100]),
            ("3-10*3", vec![3, 9]),
            ("5-5+1", vec![5]),
        ] {
            assert_eq!(parse(text), Ok(Sweep(want)), "{text}");
        }
        for text in ["", "0", "1,", "-3", "8-64", "64-8*2", "1-8*1", "1-8*x", "9999999", "1-1000+1", "1e3"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
