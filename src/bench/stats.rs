//! What is learnt from a row's samples, on a machine that does other things too.
//!
//! Whatever disturbs a measurement adds time to it, often to whole rounds and sometimes to most of them: a mean or a
//! median of all samples tells how busy the machine was. So each round counts by its fastest sample, and the rounds by
//! their lower decile: it stays with undisturbed rounds as long as a few of them have one undisturbed sample. Unlike the
//! fastest of all it does not hang on one sample, and does not fall when more rounds are run.

/// The share of the rounds that are taken to be undisturbed. With a quarter instead of a tenth, half of the rounds
/// disturbed at random would hide a kernel that is 15 % slower twice as often.
const QUIET: f64 = 0.1;

/// The chance, at each end, that the interval leaves out what it should hold.
const MISSED: f64 = 0.025;

/// What the rounds of a row say of the time of an undisturbed repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The time, in the samples' unit.
    pub time: f64,
    /// The interval that holds it with 95 % confidence.
    pub interval: [f64; 2],
}

/// The median of `values`; none of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values.iter().copied());
    quantile(&sorted, 0.5)
}

/// The median of the distances of `values` from their median; none of none.
pub fn mad(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&distances)
}

/// A round whose control took this much longer than the fastest control of the run was disturbed.
const DISTURBED: f64 = 1.15;

/// The least number of rounds that must have been undisturbed.
const CALM: usize = 3;

/// The time of an undisturbed repetition: the lower decile of the rounds' fastest samples. None without samples.
///
/// `control` is what the control took beside each round, and `quiet` its fastest in the whole run: rounds that it shows to
/// be disturbed do not count. Where too few are left, all count, and the interval reaches down to what the time might have
/// been, were every round slowed down like its control.
///
/// The interval assumes only that rounds are independent: of n of them, the number that are faster than the true lower
/// decile has the binomial distribution B(n, 1/10), so that the decile lies between two of the sorted rounds that follow
/// from n alone. Fewer than 36 rounds cannot give 97.5 % confidence at the lower end; it is the fastest round then, which
/// is little to ask, as no disturbance makes a repetition faster. The upper end is the fourth of 10 sorted rounds, so six
/// may be disturbed; it is the third of 5.
pub fn estimate(rounds: &[Vec<f64>], control: &[f64], quiet: f64) -> Option<Estimate> {
    let slowed = |i: usize| control.get(i).map_or(1.0, |time| (time / quiet).max(1.0));
    let fastest = rounds
        .iter()
        .enumerate()
        .filter_map(|(i, round)| Some((round.iter().copied().min_by(f64::total_cmp)?, slowed(i))));
    let fastest: Vec<(f64, f64)> = fastest.collect();
    let calm: Vec<f64> =
        fastest.iter().filter(|(_, slowed)| *slowed <= DISTURBED).map(|(time, _)| *time).collect();
    let enough = calm.len() >= CALM.min(fastest.len());
    let counted =
        sorted(if enough { calm } else { fastest.iter().map(|(time, _)| *time).collect() }.into_iter());
    let [low, high] = ends(counted.len())?;
    let mut interval = [*counted.get(low)?, *counted.get(high)?];
    if !enough {
        interval[0] = fastest.iter().map(|(time, slowed)| time / slowed).fold(interval[0], f64::min);
    }
    Some(Estimate { time: quantile(&counted, QUIET)?, interval })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile `q` of sorted values, between two of them by their distances.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let place = q * sorted.len().checked_sub(1)? as f64;
    let (low, share) = (place.floor() as usize, place.fract());
    let (a, b) = (*sorted.get(low)?, *sorted.get(low + 1).or(sorted.get(low))?);
    Some(a + (b - a) * share)
}

/// Which of `n` sorted rounds are the ends of the interval: the decile is above the first of them unless at most
/// that many rounds are faster than it, and below the second unless more are.
fn ends(n: usize) -> Option<[usize; 2]> {
    let last = n.checked_sub(1)?;
    // P(exactly k rounds are faster), from k = 0 on, and the sum of all before.
    // As a logarithm, which many rounds cannot make 0.
    let mut log_exactly = n as f64 * (1.0 - QUIET).ln();
    let mut fewer = 0.0;
    let mut low = 0;
    for k in 0..n {
        // The k-th round (from 0) is above the decile when k or fewer are faster.
        let at_most = fewer + log_exactly.exp();
        if at_most <= MISSED {
            low = k;
        }
        // It is below the decile when more than k are.
        if 1.0 - at_most <= MISSED {
            return Some([low, k]);
        }
        fewer = at_most;
        log_exactly += ((n - k) as f64 / (k + 1) as f64 * QUIET / (1.0 - QUIET)).ln();
    }
    Some([low, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles() {
        assert_eq!((median(&[]), mad(&[])), (None, None));
        assert_eq!((median(&[3.0]), mad(&[3.0])), (Some(3.0), Some(0.0)));
        assert_eq!((median(&[4.0, 1.0, 2.0, 100.0]), mad(&[4.0, 1.0, 2.0, 100.0])), (Some(3.0), Some(1.5)));
    }

    #[test]
    fn the_ends_hold_the_decile_with_95_percent() {
        assert_eq!(ends(0), None);
        assert_eq!(ends(1), Some([0, 0]));
        // By tables of the binomial distribution: P(B(5, 1/10) > 2) = 0.9 %, P(B(10, 1/10) > 3) = 1.3 %.
        assert_eq!(ends(5), Some([0, 2]));
        assert_eq!(ends(10), Some([0, 3]));
        // P(B(60, 1/10) <= 1) = 1.4 %, P(B(60, 1/10) > 10) = 3.4 %, P(B(60, 1/10) > 11) = 1.4 %.
        assert_eq!(ends(60), Some([1, 11]));
        for n in 1..200 {
            let [low, high] = ends(n).unwrap();
            assert!(low <= n / 10 && high >= n / 10 && high < n, "{n}: {low} {high}");
        }
        // So many rounds that (9/10)^n is 0 as a f64. By the normal distribution: 1000 +- 1.96 sqrt(10000 * 9/100).
        assert!(
            ends(10_000).is_some_and(|[low, high]| (939..943).contains(&low) && (1057..1061).contains(&high))
        );
    }

    #[test]
    fn an_estimate_ignores_disturbed_samples_and_rounds() {
        assert_eq!(estimate(&[], &[], 1.0), None);
        assert_eq!(estimate(&[vec![]], &[], 1.0), None);
        let quiet = [10.0, 10.5, 30.0];
        let rounds: Vec<Vec<f64>> =
            (0..10).map(|i| quiet.iter().map(|t| if i < 6 { 3.0 * t } else { *t }).collect()).collect();
        assert_eq!(estimate(&rounds, &[], 1.0), Some(Estimate { time: 10.0, interval: [10.0, 10.0] }));
    }

    #[test]
    fn rounds_that_the_control_shows_to_be_disturbed_do_not_count() {
        let rounds: Vec<Vec<f64>> = (0..10).map(|i| vec![if i < 6 { 19.0 } else { 10.0 }]).collect();
        let control: Vec<f64> = (0..10).map(|i| if i < 6 { 2.0 } else { 1.0 }).collect();
        assert_eq!(estimate(&rounds, &control, 1.0), Some(Estimate { time: 10.0, interval: [10.0; 2] }));
        // All of them disturbed: the time may be half of it.
        let control = [2.0; 10];
        let all = vec![vec![19.0]; 10];
        assert_eq!(estimate(&all, &control, 1.0), Some(Estimate { time: 19.0, interval: [9.5, 19.0] }));
        // As slow as ever in this run: nothing is known of any disturbance.
        assert_eq!(estimate(&all, &control, 2.0), Some(Estimate { time: 19.0, interval: [19.0; 2] }));
    }
}
