//! What a test puts into a buffer, and what its reference is given of it.

use std::fmt;
use std::ops::Deref;

/// The kinds of numbers that a buffer is made of. Each takes four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    U32,
    I32,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::F32 => "f32",
            Kind::U32 => "u32",
            Kind::I32 => "i32",
        })
    }
}

impl Kind {
    /// The number that these bits are.
    pub(super) fn number(self, word: u32) -> f64 {
        match self {
            Kind::F32 => f32::from_bits(word) as f64,
            Kind::U32 => word as f64,
            Kind::I32 => word as i32 as f64,
        }
    }
}

/// The content of a buffer: 32-bit numbers in the order in which they stand in the text's type. Vectors, matrices (by
/// columns) and structs are flat; padding is not counted.
///
/// It is made from slices, arrays and vectors of `f32`, `u32` or `i32`, from one such number, and from tuples of up to
/// eight numbers of different kinds, as structs of parameters are:
///
/// ```
/// use wgformer::testing::Values;
///
/// let _: Values = vec![1.0f32, 2.0].into();
/// let _: Values = (&[1u32, 2, 3]).into();
/// let _: Values = (640u32, 480u32, 0.5f32).into(); // struct Params { width: u32, height: u32, scale: f32 }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Values(pub(super) Vec<(Kind, u32)>);

macro_rules! from_numbers {
    ($($number:ty, $kind:ident, $word:expr;)*) => {$(
        impl From<$number> for Values {
            fn from(x: $number) -> Self {
                Values(vec![(Kind::$kind, $word(x))])
            }
        }

        impl From<&[$number]> for Values {
            fn from(all: &[$number]) -> Self {
                Values(all.iter().map(|&x| (Kind::$kind, $word(x))).collect())
            }
        }

        impl From<&Vec<$number>> for Values {
            fn from(all: &Vec<$number>) -> Self {
                all.as_slice().into()
            }
        }

        impl From<Vec<$number>> for Values {
            fn from(all: Vec<$number>) -> Self {
                all.as_slice().into()
            }
        }

        impl<const N: usize> From<[$number; N]> for Values {
            fn from(all: [$number; N]) -> Self {
                all.as_slice().into()
            }
        }

        impl<const N: usize> From<&[$number; N]> for Values {
            fn from(all: &[$number; N]) -> Self {
                all.as_slice().into()
            }
        }
    )*};
}

from_numbers! {
    f32, F32, f32::to_bits;
    u32, U32, std::convert::identity;
    i32, I32, |x| x as u32;
}

macro_rules! from_tuples {
    ($($name:ident)*) => {
        impl<$($name: Into<Values>),*> From<($($name,)*)> for Values {
            fn from(($($name,)*): ($($name,)*)) -> Self {
                let mut all = Vec::new();
                $(all.extend($name.into().0);)*
                Values(all)
            }
        }
    };
}

#[allow(non_snake_case)]
mod tuples {
    use super::Values;
    from_tuples!(A B);
    from_tuples!(A B C);
    from_tuples!(A B C D);
    from_tuples!(A B C D E);
    from_tuples!(A B C D E F);
    from_tuples!(A B C D E F G);
    from_tuples!(A B C D E F G H);
}

/// Numbers in f64 for a reference to compute with: a slice (`x[i]`, `x.iter()`, `x.chunks(8)`), and an iterator of its own
/// (`x.map(|x| 2.0 * x)`).
#[derive(Clone, Debug, Default)]
pub struct Numbers(std::vec::IntoIter<f64>);

impl Numbers {
    pub(super) fn new(all: Vec<f64>) -> Self {
        Numbers(all.into_iter())
    }
}

impl Deref for Numbers {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        self.0.as_slice()
    }
}

impl Iterator for Numbers {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Numbers {}

impl DoubleEndedIterator for Numbers {
    fn next_back(&mut self) -> Option<f64> {
        self.0.next_back()
    }
}

impl<'a> IntoIterator for &'a Numbers {
    type Item = &'a f64;
    type IntoIter = std::slice::Iter<'a, f64>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.as_slice().iter()
    }
}
