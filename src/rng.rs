//! A small deterministic random number generator, for everything in this crate that is drawn by chance.
//!
//! The same seed gives the same numbers on every platform and in every build, so that a training run can be
//! repeated. The generator is xoshiro256++ by David Blackman and Sebastiano Vigna ("Scrambled Linear
//! Pseudorandom Number Generators", ACM Transactions on Mathematical Software 47(4), 2021;
//! <https://prng.di.unimi.it>), its state filled by SplitMix64 (Steele, Lea and Flood, "Fast Splittable
//! Pseudorandom Number Generators", OOPSLA 2014). It is not meant for cryptography.

/// A generator of random numbers: xoshiro256++.
///
/// ```
/// use wgformer::rng::Rng;
///
/// let mut one = Rng::new(7);
/// let mut two = Rng::new(7);
/// assert_eq!(one.next_u64(), two.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// The next number of SplitMix64, whose whole state is `state`.
fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator whose numbers follow from `seed` alone. Every seed is a good one, 0 too.
    pub fn new(seed: u64) -> Self {
        let mut mixer = seed;
        Rng { state: [(); 4].map(|()| split_mix_64(&mut mixer)) }
    }

    /// The generator number `stream` of `seed`: for things that need numbers of their own, such as each epoch of
    /// a training run. Streams of one seed, and the same stream of two seeds, have nothing to do with each other.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut seed_mixer = seed;
        let mut stream_mixer = stream ^ 0x6a09_e667_f3bc_c909;
        Rng::new(split_mix_64(&mut seed_mixer) ^ split_mix_64(&mut stream_mixer).rotate_left(32))
    }

    /// A generator that goes on from a `state` that [`Rng::state`] returned. The state of four zeros, which never
    /// comes from there and gives only zeros, is replaced by that of seed 0.
    pub fn from_state(state: [u64; 4]) -> Self {
        if state == [0; 4] { Rng::new(0) } else { Rng { state } }
    }

    /// The whole state, to go on from later.
    pub fn state(&self) -> [u64; 4] {
        self.state
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number from 0 up to but without 1, a multiple of 2^-53.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number from 0 up to but without 1, a multiple of 2^-24.
    pub fn uniform_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// A number from 0 up to but without `n`, each equally likely; 0 where `n` is 0.
    ///
    /// The method is Lemire's ("Fast Random Integer Generation in an Interval", 2019): the high half of a product,
    /// drawn again in the rare case that would favour some numbers.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            let unfair = n.wrapping_neg() % n;
            while (product as u64) < unfair {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A number of the normal distribution with mean 0 and standard deviation 1, by the method of Box and Muller.
    ///
    /// It takes two numbers of the generator. The last bits depend on the platform's logarithm and cosine.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform_f64()).cos()
    }

    /// Puts `items` in a random order, each order equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// FNV-1a over bytes, 64 bits: a number that stands for a text.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generators_give_the_published_numbers() {
        let mut mixer = 1_234_567;
        let mixed = [(); 5].map(|()| split_mix_64(&mut mixer));
        assert_eq!(
            mixed,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423,
                4593380528125082431,
                16408922859458223821
            ]
        );
        let mut rng = Rng::from_state([1, 2, 3, 4]);
        let drawn = [(); 10].map(|()| rng.next_u64());
        assert_eq!(
            drawn,
            [
                41943041,
                58720359,
                3588806011781223,
                3591011842654386,
                9228616714210784205,
                9973669472204895162,
                14011001112246962877,
                12406186145184390807,
                15849039046786891736,
                10450023813501588000
            ]
        );
    }

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        let first = |mut rng: Rng| rng.next_u64();
        let mut seen = std::collections::HashSet::new();
        for seed in 0..50 {
            assert!(seen.insert(first(Rng::new(seed))));
            for stream in 0..50 {
                assert!(seen.insert(first(Rng::stream(seed, stream))));
                assert_eq!(Rng::stream(seed, stream), Rng::stream(seed, stream));
            }
        }
        let mut rng = Rng::new(3);
        rng.next_u64();
        let mut later = Rng::from_state(rng.state());
        assert_eq!(rng.next_u64(), later.next_u64());
        assert_eq!(Rng::from_state([0; 4]), Rng::new(0));
    }

    #[test]
    fn uniform_numbers_stay_in_range_and_are_even() {
        let mut rng = Rng::new(1);
        let count = 100_000;
        let (mut sum, mut sum_f32) = (0.0, 0.0);
        for _ in 0..count {
            let (x, y) = (rng.uniform_f64(), rng.uniform_f32());
            assert!((0.0..1.0).contains(&x) && (0.0..1.0).contains(&y));
            sum += x;
            sum_f32 += f64::from(y);
        }
        assert!((sum / f64::from(count) - 0.5).abs() < 0.005);
        assert!((sum_f32 / f64::from(count) - 0.5).abs() < 0.005);
    }

    #[test]
    fn below_reaches_every_number_equally() {
        let mut rng = Rng::new(2);
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        let huge = u64::MAX / 2 + 2;
        assert!((0..100).all(|_| rng.below(huge) < huge));
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut rng = Rng::new(4);
        let drawn: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!(drawn.iter().all(|x| x.is_finite()));
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let outside = drawn.iter().filter(|x| x.abs() > 2.0).count();
        assert!((4_200..4_900).contains(&outside), "{outside}");
    }

    #[test]
    fn shuffle_keeps_everything_and_gives_every_order() {
        let mut rng = Rng::new(5);
        let mut items: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let mut orders = std::collections::HashMap::new();
        for _ in 0..6_000 {
            let mut three = [1, 2, 3];
            rng.shuffle(&mut three);
            *orders.entry(three).or_insert(0) += 1;
        }
        assert_eq!(orders.len(), 6);
        assert!(orders.values().all(|&count| (880..1_120).contains(&count)), "{orders:?}");
        rng.shuffle::<u32>(&mut []);
    }
}
