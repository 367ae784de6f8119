//! The date task: dates in seven written forms, to be translated to ISO 8601. It needs no data and is learned within
//! minutes, so it shows whether training works.
//!
//! | form | example |
//! |---|---|
//! | weekday, month day, year | `Wednesday, March 3, 1999` |
//! | day month year | `3 March 1999` |
//! | short month day, year | `Mar 3, 1999` |
//! | MM/DD/YYYY | `03/03/1999` |
//! | D.M.YYYY | `3.3.1999` |
//! | month ordinal day, year | `March 3rd, 1999` |
//! | year month day | `1999 March 3` |
//!
//! All of these are `1999-03-03`. With slashes the month always comes first, with dots the day.

use std::collections::HashSet;

use super::corpus::Pair;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// The first year of a date.
pub const FIRST_YEAR: u32 = 1900;
/// The last year of a date.
pub const LAST_YEAR: u32 = 2099;
/// How many written forms there are.
pub const FORMS: usize = 7;
/// The characters of the longest source: `Wednesday, September 30, 2099`.
pub const LONGEST_SOURCE: usize = 29;
/// The characters of every target: `2099-09-30`.
pub const LONGEST_TARGET: usize = 10;
/// How many different sources there are: every day of every year in every form.
pub const SOURCES: usize = DAYS as usize * FORMS;

/// The days from the first day of [`FIRST_YEAR`] to the last of [`LAST_YEAR`]: 200 years, 49 of them leap years.
const DAYS: u32 = 200 * 365 + 49;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The first is that of 1 January 1900.
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

fn days_of_year(year: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

/// A day of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Date {
    year: u32,
    /// From 0.
    month: usize,
    /// From 1.
    day: u32,
    weekday: &'static str,
}

impl Date {
    /// The day `number` days after the first of [`FIRST_YEAR`].
    fn new(number: u32) -> Self {
        let (mut year, mut rest) = (FIRST_YEAR, number);
        while rest >= days_of_year(year) {
            rest -= days_of_year(year);
            year += 1;
        }
        let february = days_of_year(year) - 337;
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while rest >= lengths[month] && month < 11 {
            rest -= lengths[month];
            month += 1;
        }
        Date { year, month, day: rest + 1, weekday: WEEKDAYS[(number % 7) as usize] }
    }

    fn write(self, form: usize) -> String {
        let Date { year, month: index, day, weekday } = self;
        let (name, month) = (MONTHS[index], index + 1);
        match form {
            0 => format!("{weekday}, {name} {day}, {year}"),
            1 => format!("{day} {name} {year}"),
            2 => format!("{} {day}, {year}", &name[..3]),
            3 => format!("{month:02}/{day:02}/{year}"),
            4 => format!("{day}.{month}.{year}"),
            5 => format!("{name} {day}{}, {year}", ordinal_ending(day)),
            _ => format!("{year} {name} {day}"),
        }
    }

    fn iso(self) -> String {
        format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day)
    }
}

fn ordinal_ending(day: u32) -> &'static str {
    match (day / 10, day % 10) {
        (1, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    }
}

/// A date in a written form, both by chance.
fn draw(rng: &mut Rng, line: usize) -> Pair {
    let date = Date::new(rng.below(u64::from(DAYS)) as u32);
    let form = rng.below(FORMS as u64) as usize;
    Pair { source: date.write(form), target: date.iso(), line }
}

/// `count` dates by chance, some of them perhaps more than once. A longer list of the same `seed` starts like a
/// shorter one.
///
/// ```
/// let pairs = wgformer::text::dates::generate(1, 3);
/// assert_eq!(pairs.len(), 3);
/// assert_eq!(pairs[0].target.len(), 10);
/// ```
pub fn generate(seed: u64, count: usize) -> Vec<Pair> {
    let mut rng = Rng::new(seed);
    (1..=count).map(|line| draw(&mut rng, line)).collect()
}

/// `train` dates to train on and `held_out` other ones to test with: no source is in both. Those to test with are
/// all different, and at most half of [`SOURCES`].
pub fn train_and_held_out(seed: u64, train: usize, held_out: usize) -> Result<(Vec<Pair>, Vec<Pair>)> {
    if held_out > SOURCES / 2 {
        let problem = format!("is {held_out}, must be at most {}: half of all dates", SOURCES / 2);
        return Err(Error::config("held-out dates", problem));
    }
    let mut rng = Rng::new(seed);
    let mut test: Vec<Pair> = Vec::with_capacity(held_out);
    let mut seen = HashSet::with_capacity(held_out);
    while test.len() < held_out {
        let pair = draw(&mut rng, test.len() + 1);
        if seen.insert(pair.source.clone()) {
            test.push(pair);
        }
    }
    let mut pairs = Vec::new();
    while pairs.len() < train {
        let pair = draw(&mut rng, pairs.len() + 1);
        if !seen.contains(&pair.source) {
            pairs.push(pair);
        }
    }
    Ok((pairs, test))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a day, found without the code under test.
    fn number(iso: &str) -> u32 {
        (0..DAYS).find(|&number| Date::new(number).iso() == iso).unwrap()
    }

    #[test]
    fn days_have_the_right_date_and_weekday() {
        let cases = [
            (0, "1900-01-01", "Monday"),
            (58, "1900-02-28", "Wednesday"),
            (59, "1900-03-01", "Thursday"),
            (number("1969-07-20"), "1969-07-20", "Sunday"),
            (number("1999-03-03"), "1999-03-03", "Wednesday"),
            (number("2000-02-29"), "2000-02-29", "Tuesday"),
            (number("2024-12-31"), "2024-12-31", "Tuesday"),
            (number("2025-01-01"), "2025-01-01", "Wednesday"),
            (DAYS - 1, "2099-12-31", "Thursday"),
        ];
        for (number, iso, weekday) in cases {
            let date = Date::new(number);
            assert_eq!((date.iso().as_str(), date.weekday), (iso, weekday));
        }
        let all: HashSet<String> = (0..DAYS).map(|number| Date::new(number).iso()).collect();
        assert_eq!(all.len(), DAYS as usize);
        assert!(!all.contains("2100-01-01") && !all.contains("1900-02-29"));
    }

    #[test]
    fn the_forms() {
        let forms = |iso| [0, 1, 2, 3, 4, 5, 6].map(|form| Date::new(number(iso)).write(form));
        assert_eq!(
            forms("1999-03-03"),
            [
                "Wednesday, March 3, 1999",
                "3 March 1999",
                "Mar 3, 1999",
                "03/03/1999",
                "3.3.1999",
                "March 3rd, 1999",
                "1999 March 3"
            ]
        );
        assert_eq!(forms("2024-12-31")[3..5], ["12/31/2024", "31.12.2024"]);
        let endings = [1, 2, 3, 4, 10, 11, 12, 13, 20, 21, 22, 23, 24, 30, 31].map(ordinal_ending);
        assert_eq!(endings.join(" "), "st nd rd th th th th th th st nd rd th th st");
    }

    #[test]
    fn every_source_is_written_once_and_the_longest_is_known() {
        let mut sources = HashSet::new();
        let (mut longest, mut longest_target) = (0, 0);
        for number in 0..DAYS {
            let date = Date::new(number);
            assert!((FIRST_YEAR..=LAST_YEAR).contains(&date.year));
            longest_target = longest_target.max(date.iso().len());
            for form in 0..FORMS {
                let source = date.write(form);
                assert!(source.is_ascii());
                longest = longest.max(source.len());
                assert!(sources.insert(source));
            }
        }
        assert_eq!((sources.len(), longest, longest_target), (SOURCES, LONGEST_SOURCE, LONGEST_TARGET));
    }

    #[test]
    fn the_seed_decides() {
        let pairs = generate(1, 200);
        assert_eq!(pairs, generate(1, 200));
        assert_eq!(pairs[..50], generate(1, 50));
        assert_ne!(pairs, generate(2, 200));
        assert!(generate(1, 0).is_empty());
        assert!(pairs.iter().enumerate().all(|(index, pair)| pair.line == index + 1));
        // So that a change that would give other data on the same seed does not go unseen.
        assert_eq!((&*pairs[0].source, &*pairs[0].target), ("April 28th, 2062", "2062-04-28"));
    }

    #[test]
    fn training_and_held_out_dates_differ() {
        for (train, held_out) in [(2_000, 500), (0, 3), (3, 0), (2_000, SOURCES / 2)] {
            let (pairs, test) = train_and_held_out(7, train, held_out).unwrap();
            assert_eq!((pairs.len(), test.len()), (train, held_out));
            let sources: HashSet<&str> = test.iter().map(|pair| &*pair.source).collect();
            assert_eq!(sources.len(), held_out);
            assert!(pairs.iter().all(|pair| !sources.contains(&*pair.source)));
        }
        assert!(train_and_held_out(7, 1, SOURCES / 2 + 1).is_err());
    }
}
