//! Counter-based random numbers, the twin of `shaders/lib/random.wgsl` bit by bit, and the setting of a dropout.
//!
//! The number at an index depends on nothing but (seed, step, site, index): no state is kept, no mask is stored, forward
//! and backward agree, and so do all adapters and the host. It serves for dropout, not for cryptography.

use crate::{DType, Error, Result, TensorType};

/// A bijection of 32 bits in which each input bit flips each output bit with a probability near one half ("lowbias32",
/// from C. Wellons' search for such functions).
pub fn mix32(x: u32) -> u32 {
    let mut h = x;
    h ^= h >> 16;
    h = h.wrapping_mul(0x7feb_352d);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846c_a68b);
    h ^= h >> 16;
    h
}

/// The key of one stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomKey([u32; 2]);

impl RandomKey {
    /// The key of a site (one dropout of the model, say) in one step; `seed` is (seed of the run, step). Two sites or
    /// steps share a key with a probability of 2^-64.
    pub fn new(seed: [u32; 2], site: u32) -> Self {
        RandomKey([
            mix32(mix32(mix32(seed[0] ^ 0x9e37_79b9).wrapping_add(seed[1])) ^ site),
            mix32(mix32(mix32(seed[0].wrapping_add(0x85eb_ca6b)) ^ seed[1]).wrapping_add(site)),
        ])
    }

    /// The number at `index`, uniform over all u32.
    pub fn u32(self, index: u32) -> u32 {
        mix32(mix32(index ^ self.0[0]).wrapping_add(self.0[1]))
    }
}

/// A dropout: each element is zero with probability `p`, else divided by 1 - p (Srivastava et al., 2014, scaled in
/// training as everyone does). Which ones follows from the site, the element's flat index, and an input `seed` `u32[2]`
/// (seed of the run, step) that the caller writes before each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability, in 0 <= p < 1.
    pub p: f64,
    /// A number of its own for each dropout of a model.
    pub site: u32,
}

impl Dropout {
    /// An element is dropped when its random number is below this: p 2^32.
    pub fn threshold(self) -> u32 {
        (self.p * 4_294_967_296.0) as u32
    }

    /// What a kept element is multiplied with: 1 / (1 - p).
    pub fn scale(self) -> f64 {
        1.0 / (1.0 - self.p)
    }

    /// The factor of the element at `index`: 0 or [`Dropout::scale`]. `key` is that of this dropout's site.
    pub fn factor(self, key: RandomKey, index: u32) -> f64 {
        if key.u32(index) >= self.threshold() { self.scale() } else { 0.0 }
    }

    /// Checks p and the type of the seed input.
    ///
    /// # Errors
    /// When p is outside 0 <= p < 1, or `seed` is no `u32[2]`.
    pub fn check(self, seed: &TensorType) -> Result<()> {
        if !(0.0..1.0).contains(&self.p) {
            let problem = format!("{} is not a probability below 1; 0 switches it off", self.p);
            return Err(Error::config("dropout", problem));
        }
        if seed.dtype != DType::U32 || seed.shape.dims() != [2] {
            return Err(Error::shape("", "seed", TensorType::u32([2]), seed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(key: RandomKey, n: u32) -> Vec<f64> {
        (0..n).map(|i| if key.u32(i) >> 31 == 1 { 1.0 } else { -1.0 }).collect()
    }

    #[test]
    fn known_answers() {
        assert_eq!([0, 1, 2, u32::MAX].map(mix32), KNOWN_MIX);
        let key = RandomKey::new([7, 3], 11);
        assert_eq!([0, 1, 1000].map(|i| key.u32(i)), KNOWN_NUMBERS);
    }

    const KNOWN_MIX: [u32; 4] = [0x0000_0000, 0x6889_90c0, 0xd113_2181, 0x6768_824a];
    const KNOWN_NUMBERS: [u32; 3] = [0x56d2_6eae, 0x54ac_8bb1, 0x1747_0c49];

    #[test]
    fn mean_is_p() {
        let n = 1 << 18;
        for p in [0.0, 0.1, 0.5, 0.9] {
            let d = Dropout { p, site: 5 };
            let key = RandomKey::new([1, 2], d.site);
            let mean = (0..n).map(|i| d.factor(key, i)).sum::<f64>() / n as f64;
            // Five standard errors of the mean of kept / (1 - p).
            let bound = 5.0 * (p / (1.0 - p) / n as f64).sqrt();
            assert!((mean - 1.0).abs() <= bound, "p {p}: mean {mean}, bound {bound}");
        }
    }

    #[test]
    fn streams_are_unrelated() {
        let n = 1 << 16;
        let bound = 5.0 / (n as f64).sqrt();
        let base = signs(RandomKey::new([1, 1], 1), n);
        for (seed, site) in [([1, 1], 2), ([1, 2], 1), ([2, 1], 1), ([2, 2], 2), ([0, 1], 1)] {
            let other = signs(RandomKey::new(seed, site), n);
            for lag in [0, 1, 2, 3, 8, 64, 1024] {
                let sum: f64 = base.iter().zip(other.iter().cycle().skip(lag)).map(|(a, b)| a * b).sum();
                let r = sum / n as f64;
                assert!(r.abs() < bound, "{seed:?} site {site} lag {lag}: correlation {r}");
            }
        }
        for lag in [1, 2, 3, 7, 8, 64, 128, 512, 1024, 4096] {
            let sum: f64 = base.iter().zip(base.iter().cycle().skip(lag)).map(|(a, b)| a * b).sum();
            let r = sum / n as f64;
            assert!(r.abs() < bound, "lag {lag}: autocorrelation {r}");
        }
    }

    #[test]
    fn keys_differ() {
        let mut keys = std::collections::HashSet::new();
        for seed in 0..8 {
            for step in 0..64 {
                for site in 0..64 {
                    assert!(keys.insert(RandomKey::new([seed, step], site).0), "{seed} {step} {site}");
                }
            }
        }
    }
}
