//! Looking for things in WGSL text, where naga's tree does not say where they stand.

/// The text with comments and what stands in string literals turned to spaces, every byte of code where it was.
pub(super) fn code(wgsl: &str) -> String {
    let mut out: Vec<u8> = wgsl.bytes().collect();
    let (mut i, mut depth) = (0, 0);
    while i < out.len() {
        let two = out.get(i..i + 2).unwrap_or(&[]);
        if depth == 0 && two == b"//" {
            while i < out.len() && out[i] != b'\n' {
                out[i] = b' ';
                i += 1;
            }
        } else if two == b"/*" || (depth > 0 && two == b"*/") {
            if two == b"/*" {
                depth += 1
            } else {
                depth -= 1
            }
            out[i] = b' ';
            out[i + 1] = b' ';
            i += 2;
        } else if depth == 0 && out[i] == b'"' {
            i += 1;
            // A literal ends on its line.
            while i < out.len() && out[i] != b'"' && out[i] != b'\n' {
                let bytes = if out[i] == b'\\' { 2 } else { 1 };
                for _ in 0..bytes {
                    if i < out.len() && out[i] != b'\n' {
                        out[i] = b' ';
                        i += 1;
                    }
                }
            }
            i += 1;
        } else {
            if depth > 0 && out[i] != b'\n' {
                out[i] = b' ';
            }
            i += 1;
        }
    }
    // Bytes of characters beyond ASCII are kept or blanked all together.
    String::from_utf8(out).unwrap_or_default()
}

/// Where an identifier stands in a code text (see [`code`]), each time.
pub(super) fn identifiers<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let whole = move |&(at, _): &(usize, &str)| {
        !code[..at].ends_with(part) && !code[at + name.len()..].starts_with(part)
    };
    code.match_indices(name).filter(whole).map(|(at, _)| at)
}

/// The line of a place in a text, counted from 1.
pub(super) fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&b| b == b'\n').count()
}

/// Where the parameter list of a function begins, and where it has ended. Comments are skipped.
pub(super) fn parameter_list(wgsl: &str, function: &str) -> Option<(usize, usize)> {
    let code = code(wgsl);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    loop {
        let at = from + code[from..].find("fn ")?;
        from = at + 3;
        let whole = !code[..at].ends_with(is_name);
        let rest = code[at + 3..].trim_start();
        let after = rest.strip_prefix(function).map(str::trim_start);
        let Some(after) = after.filter(|a| whole && a.starts_with('(')) else { continue };
        let open = code.len() - after.len();
        let mut depth = 0;
        for (i, c) in code[open..].char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some((open, open + i + 1));
            }
        }
        return None;
    }
}
