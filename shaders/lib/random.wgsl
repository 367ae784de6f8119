// Counter-based random numbers: the same (seed, step, site, index) gives the same number in every kernel, forward and
// backward, on every adapter. Integers only, so the host (src/ops/random.rs) has the same bits.

// A bijection of 32 bits in which each input bit flips each output bit with a probability near one half ("lowbias32", from
// C. Wellons' search for such functions).
fn mix32(x: u32) -> u32 {
    var h = x;
    h ^= h >> 16u;
    h *= 0x7feb352du;
    h ^= h >> 15u;
    h *= 0x846ca68bu;
    h ^= h >> 16u;
    return h;
}

// The key of one site (one dropout of the model) in one step; seed = (seed of the run, step). Two separate chains of 32
// bits: that two sites or steps share a key has a probability of 2^-64.
fn random_key(seed: vec2<u32>, site: u32) -> vec2<u32> {
    return vec2<u32>(
        mix32(mix32(mix32(seed.x ^ 0x9e3779b9u) + seed.y) ^ site),
        mix32(mix32(mix32(seed.x + 0x85ebca6bu) ^ seed.y) + site),
    );
}

// The number at `index` in the stream of `key`, uniform over all u32.
fn random_u32(key: vec2<u32>, index: u32) -> u32 {
    return mix32(mix32(index ^ key.x) + key.y);
}

// Dropout's factor at `index`: `scale` = 1 / (1 - p) where the element is kept, 0 where it is dropped, which happens
// with probability threshold / 2^32.
fn dropout_factor(key: vec2<u32>, index: u32, threshold: u32, scale: f32) -> f32 {
    return select(0.0, scale, random_u32(key, index) >= threshold);
}
