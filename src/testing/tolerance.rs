//! How far a result may be from its reference.

use super::values::Kind;
use crate::verify::reduction_bound;
use crate::{Error, Result};

/// What a reference says of one element: its value, and for [`Tolerance::sum`] the magnitude of what it is a sum of. Made
/// from an `f64`, or from a pair of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The value.
    pub value: f64,
    /// The sum of the magnitudes of the terms that it is the sum of; the value's own where all terms have one sign.
    pub magnitude: f64,
}

impl From<f64> for Expected {
    fn from(value: f64) -> Self {
        Expected { value, magnitude: value.abs() }
    }
}

impl From<(f64, f64)> for Expected {
    fn from((value, magnitude): (f64, f64)) -> Self {
        Expected { value, magnitude: magnitude.abs() }
    }
}

/// How far an element may be from its reference.
///
/// Integers are compared exactly, whatever the tolerance, unless it is [`Tolerance::absolute`]. NaN is wrong wherever the
/// reference is a number, and an infinity wherever it is not the same one.
///
/// | the kernel | tolerance | reason |
/// |---|---|---|
/// | moves values | [`exact`](Tolerance::exact) | nothing is rounded |
/// | one operation: `+`, `-`, `*` | [`ulp(1)`](Tolerance::ulp) | WGSL asks for correct rounding: half a unit |
/// | a division, `inverseSqrt`, `exp`, `log` | `ulp` of some units | WGSL allows 2.5, 2, 3 + 2 abs(x), 3 |
/// | a sum or product of sums | [`sum(terms)`](Tolerance::sum) | errors grow with the length |
/// | `sin`, `cos` | [`absolute`](Tolerance::absolute) | WGSL allows 2^-11, whatever the value |
#[derive(Clone, Debug, PartialEq)]
pub struct Tolerance(Rule);

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Exact,
    Ulp(u32),
    Absolute(f64),
    Relative(f64),
    Sum(usize),
    Either(Box<(Rule, Rule)>),
}

impl Tolerance {
    /// The reference, rounded to the type of the output.
    pub fn exact() -> Self {
        Tolerance(Rule::Exact)
    }

    /// So many units in the last place of the reference, as an f32. Below the smallest normal number, 1.2e-38, that number
    /// itself: a device may flush what is smaller to zero.
    pub fn ulp(units: u32) -> Self {
        Tolerance(Rule::Ulp(units))
    }

    /// This much, whatever the reference.
    pub fn absolute(error: f64) -> Self {
        Tolerance(Rule::Absolute(error))
    }

    /// This part of the reference: 1e-5, say. Zero must be met exactly; see [`or`](Tolerance::or).
    pub fn relative(part: f64) -> Self {
        Tolerance(Rule::Relative(part))
    }

    /// What a sum of so many products may be off in f32, added up in any order:
    /// `eps (16 + 4 sqrt(terms)) M + 1e-37`, where eps is 2^-23 and M the sum of the magnitudes of the terms.
    ///
    /// Random rounding errors add up like the square root of their number (Higham and Mary, 2019); 16 units are for
    /// functions in the terms. The reference gives M as the second of a pair, `(value, magnitude)`. Where it gives only
    /// the value, that stands for M: right where all terms have one sign, too strict where they cancel.
    pub fn sum(terms: usize) -> Self {
        Tolerance(Rule::Sum(terms))
    }

    /// Whichever of two allows more: `Tolerance::relative(1e-5).or(Tolerance::absolute(1e-8))`.
    pub fn or(self, other: Tolerance) -> Self {
        Tolerance(Rule::Either(Box::new((self.0, other.0))))
    }

    /// The error allowed.
    pub(super) fn bound(&self, expected: Expected, kind: Kind) -> f64 {
        let bound = self.0.bound(expected, kind);
        // Where there is no finite number to be near to, only the same value will do.
        if expected.value.is_finite() && bound.is_finite() { bound } else { 0.0 }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.0.check()
    }
}

impl Rule {
    fn bound(&self, expected: Expected, kind: Kind) -> f64 {
        let e = expected.value;
        let float = kind == Kind::F32;
        match self {
            Rule::Absolute(error) => *error,
            Rule::Either(two) => two.0.bound(expected, kind).max(two.1.bound(expected, kind)),
            _ if !float => 0.0,
            Rule::Exact => (e - e as f32 as f64).abs(),
            Rule::Ulp(units) => match e.abs() < f32::MIN_POSITIVE as f64 {
                true => f32::MIN_POSITIVE as f64,
                false => *units as f64 * unit(e),
            },
            Rule::Relative(part) => part * e.abs(),
            Rule::Sum(terms) => reduction_bound(*terms, expected.magnitude),
        }
    }

    fn check(&self) -> Result<()> {
        match self {
            Rule::Absolute(x) | Rule::Relative(x) if !(x.is_finite() && *x >= 0.0) => {
                Err(Error::config("tolerance", format!("{x} is no size of an error: give one from 0 on")))
            }
            Rule::Either(two) => two.0.check().and_then(|()| two.1.check()),
            _ => Ok(()),
        }
    }
}

/// The distance of neighbouring f32 at a value.
fn unit(value: f64) -> f64 {
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(-126) - 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_allows_what_it_says() {
        let bound = |t: Tolerance, e: f64| t.bound(e.into(), Kind::F32);
        assert_eq!(bound(Tolerance::exact(), 0.5), 0.0);
        assert_eq!(bound(Tolerance::exact(), 0.1), 0.1f32 as f64 - 0.1);
        assert_eq!(bound(Tolerance::ulp(3), -1.5), 3.0 * f32::EPSILON as f64);
        let next = f32::from_bits(7.3f32.to_bits() + 2);
        assert_eq!(bound(Tolerance::ulp(2), 7.3f32 as f64), (next - 7.3f32) as f64);
        assert_eq!(bound(Tolerance::ulp(1), 1e-40), f32::MIN_POSITIVE as f64);
        assert_eq!(bound(Tolerance::absolute(0.25), 100.0), 0.25);
        assert_eq!(bound(Tolerance::relative(0.5), -100.0), 50.0);
        let cancelled = Tolerance::sum(9).bound((0.0, 4.0).into(), Kind::F32);
        assert_eq!(cancelled, f32::EPSILON as f64 * 28.0 * 4.0 + 1e-37);
        assert_eq!(bound(Tolerance::relative(0.5).or(Tolerance::absolute(1.0)), 0.0), 1.0);
    }

    #[test]
    fn integers_and_what_is_no_number_are_exact() {
        for t in [Tolerance::exact(), Tolerance::ulp(9), Tolerance::relative(1.0), Tolerance::sum(9)] {
            assert_eq!(t.bound(7.0.into(), Kind::I32), 0.0, "{t:?}");
            assert_eq!(t.bound(f64::INFINITY.into(), Kind::F32), 0.0, "{t:?}");
            assert_eq!(t.bound(f64::NAN.into(), Kind::F32), 0.0, "{t:?}");
        }
        assert_eq!(Tolerance::exact().bound(1e39.into(), Kind::F32), 0.0);
        assert_eq!(Tolerance::absolute(1.0).bound(7.0.into(), Kind::U32), 1.0);
        for wrong in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(Tolerance::exact().or(Tolerance::absolute(wrong)).check().is_err());
            assert!(Tolerance::relative(wrong).check().is_err());
        }
        assert!(Tolerance::sum(3).check().is_ok());
    }
}
