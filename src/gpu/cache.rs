//! Pipelines that a driver has compiled, as bytes that the host keeps between runs of its program.

use super::{Gpu, Shared, lock};
use crate::rng::fnv1a;
use crate::{Error, Result};

/// What the bytes begin with.
const MAGIC: [u8; 8] = *b"wgfpipes";
/// Changes with what follows [`MAGIC`].
const VERSION: u32 = 1;
/// [`MAGIC`], [`VERSION`], the key's hash, the driver's bytes: how many, and their hash with what stands before it.
const HEADER: usize = 8 + 4 + 8 + 8 + 8;

/// The most bytes of a pipeline cache.
pub const MAX_PIPELINE_CACHE_BYTES: u64 = 64 << 20;

/// The driver's bytes, with a header.
fn pack(key: &str, payload: &[u8]) -> Option<Vec<u8>> {
    if (HEADER + payload.len()) as u64 > MAX_PIPELINE_CACHE_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(fnv1a(key.as_bytes()).to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(checksum(&bytes, payload).to_le_bytes());
    bytes.extend(payload);
    Some(bytes)
}

fn checksum(head: &[u8], payload: &[u8]) -> u64 {
    // Two numbers into one: neither part may make up for the other.
    fnv1a(&[fnv1a(head).to_le_bytes(), fnv1a(payload).to_le_bytes()].concat())
}

/// The driver's bytes in what [`pack`] made, or what is wrong with it.
fn unpack<'a>(key: &str, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
    if bytes.len() as u64 > MAX_PIPELINE_CACHE_BYTES {
        return Err("is too large");
    }
    let Some((head, payload)) = bytes.split_at_checked(HEADER) else { return Err("is truncated") };
    let (head, sum) = head.split_at(HEADER - 8);
    let number = |from: usize| head[from..].iter().take(8).rev().fold(0, |n, &b| n << 8 | u64::from(b));
    if head[..8] != MAGIC {
        return Err("is no pipeline cache");
    }
    if head[8..12] != VERSION.to_le_bytes() {
        return Err("is of another version");
    }
    if number(12) != fnv1a(key.as_bytes()) {
        return Err("is of another adapter, driver or version");
    }
    match (payload.len() as u64).cmp(&number(20)) {
        std::cmp::Ordering::Less => Err("is truncated"),
        std::cmp::Ordering::Greater => Err("has bytes behind its end"),
        std::cmp::Ordering::Equal if sum != checksum(head, payload).to_le_bytes() => Err("is corrupt"),
        std::cmp::Ordering::Equal => Ok(payload),
    }
}

impl Shared {
    /// What pipelines are of use for: adapter, driver, and what generates the code that the driver compiles.
    fn pipeline_cache_key(&self) -> Option<String> {
        if !self.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let info = &self.info;
        let key = wgpu::util::pipeline_cache_key(info)?;
        let (os, arch, version) = (std::env::consts::OS, std::env::consts::ARCH, env!("CARGO_PKG_VERSION"));
        Some(
            [&key, &info.name, &info.driver, &info.driver_info, os, arch, version]
                .map(|part| part.to_string())
                .join("\n"),
        )
    }
}

impl Gpu {
    /// A name for the file in which a host keeps [`Gpu::pipeline_cache`]: letters, digits, `_` and `-`, another one for each
    /// adapter, driver, and version of this crate. `None` where the driver's pipelines cannot be kept: it is possible on
    /// Vulkan, on a device with the feature `PIPELINE_CACHE` ([`required_features`](super::required_features)).
    pub fn pipeline_cache_name(&self) -> Option<String> {
        let key = self.shared.pipeline_cache_key()?;
        Some(format!("{}-{:016x}", key.split('\n').next()?, fnv1a(key.as_bytes())))
    }

    /// From now on kernels are compiled with the help of what [`Gpu::pipeline_cache`] gave in an earlier run, and what is
    /// compiled is added to it. Without bytes the cache begins empty.
    ///
    /// # Safety
    /// The bytes must be what [`Gpu::pipeline_cache`] gave, since drivers trust them. A header and a checksum find bytes that
    /// were damaged, and those of another adapter, driver or version; they are no protection from bytes that somebody forged.
    /// So keep them where nobody else can write.
    ///
    /// # Errors
    /// Says what is wrong with the bytes, or that this device cannot keep pipelines; then all stays as it was.
    pub unsafe fn set_pipeline_cache(&self, bytes: Option<&[u8]>) -> Result<()> {
        let shared = &self.shared;
        let wrong = |problem: &str| Error::config("pipeline cache", problem);
        let key = shared.pipeline_cache_key().ok_or_else(|| wrong("this device cannot keep pipelines"))?;
        let data = bytes.map(|bytes| unpack(&key, bytes)).transpose().map_err(wrong)?;
        let descriptor = wgpu::PipelineCacheDescriptor { label: Some("wgformer"), data, fallback: true };
        // SAFETY: the caller says that the bytes come from `PipelineCache::get_data` on some adapter. `pack` has put a header
        // before them that names it and its driver, and a checksum: what is damaged or of others was refused above. wgpu and the
        // driver compare adapter and driver version once more.
        let cache = shared
            .scoped(&"pipeline cache", || unsafe { shared.device.create_pipeline_cache(&descriptor) })?;
        *lock(&shared.pipeline_cache) = Some(cache);
        Ok(())
    }

    /// The pipelines that were compiled since [`Gpu::set_pipeline_cache`], and those that it was given, for the next run of
    /// the program: [`MAX_PIPELINE_CACHE_BYTES`] at most. `None` before that call, when the device was lost, and where they are
    /// too many.
    pub fn pipeline_cache(&self) -> Option<Vec<u8>> {
        let cache = lock(&self.shared.pipeline_cache).clone()?;
        pack(&self.shared.pipeline_cache_key()?, &cache.get_data()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_found_again() {
        for payload in [&b""[..], b"x", &[7; 5000]] {
            let bytes = pack("adapter", payload).unwrap();
            assert_eq!(unpack("adapter", &bytes), Ok(payload));
            assert_eq!(unpack("other", &bytes), Err("is of another adapter, driver or version"));
        }
        assert_eq!(pack("adapter", &vec![0; MAX_PIPELINE_CACHE_BYTES as usize]), None);
    }

    #[test]
    fn every_damage_is_noticed() {
        let bytes = pack("adapter", &[1, 2, 3, 4, 5]).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(unpack("adapter", &bytes[..end]), Err("is truncated"), "{end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack("adapter", &bytes).is_err(), "bit {bit}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(unpack("adapter", &longer), Err("has bytes behind its end"));
        assert_eq!(unpack("adapter", &vec![0; MAX_PIPELINE_CACHE_BYTES as usize + 1]), Err("is too large"));
        assert_eq!(unpack("adapter", &[b'a'; 100]), Err("is no pipeline cache"));
        let mut newer = bytes;
        newer[8] += 1;
        assert_eq!(unpack("adapter", &newer), Err("is of another version"));
    }
}
