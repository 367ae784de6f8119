//! Devices to plan for.

use super::Case;
use crate::gpu::Gpu;
use crate::plan::Plan;
use crate::{DeviceClass, DeviceProfile, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a device's own profile.
pub(super) const OWN: &str = "own";

/// That of the least that a software adapter has.
pub(super) const SOFTWARE: &str = "portable software";

/// The profiles to lower for on a device: its own, and the least that every device has, on a GPU and on a CPU; with 16-bit
/// floats where its own has them.
pub fn profiles(gpu: &Gpu) -> Vec<(&'static str, DeviceProfile)> {
    let own = gpu.profile().clone();
    let portable = DeviceProfile {
        max_binding_bytes: own.max_binding_bytes,
        max_buffer_bytes: own.max_buffer_bytes,
        f16: own.f16,
        ..DeviceProfile::portable()
    };
    let software = DeviceProfile { class: DeviceClass::Cpu, arrays_in_memory: true, ..portable.clone() };
    vec![(OWN, own), ("portable", portable), (SOFTWARE, software)]
}

/// Devices that there are: what a kernel is made of may depend on any of these numbers.
pub fn known_profiles() -> Vec<(&'static str, DeviceProfile)> {
    let portable = DeviceProfile::portable();
    let software = |lanes: u32| DeviceProfile {
        class: DeviceClass::Cpu,
        subgroups: true,
        subgroup_min: lanes,
        subgroup_max: lanes,
        ..DeviceProfile::portable()
    };
    let gpu = |class: DeviceClass, min: u32, max: u32| DeviceProfile {
        class,
        subgroups: true,
        subgroup_min: min,
        subgroup_max: max,
        f16: true,
        max_storage_buffers: 16,
        max_workgroup_bytes: 32768,
        max_invocations: 1024,
        max_binding_bytes: 1 << 31,
        max_buffer_bytes: 1 << 32,
        ..DeviceProfile::portable()
    };
    // Mesa's is of the width of the CPU's vectors.
    let lavapipe = |lanes: u32| DeviceProfile {
        f16: true,
        max_storage_buffers: 32,
        max_workgroup_bytes: 32768,
        max_invocations: 1024,
        max_buffer_bytes: 1 << 31,
        ..software(lanes)
    };
    vec![
        ("WebGPU's default limits", portable.clone()),
        ("WebGPU's default limits on a CPU", DeviceProfile { class: DeviceClass::Cpu, ..portable }),
        ("lavapipe with AVX", lavapipe(8)),
        ("lavapipe with AVX-512", lavapipe(16)),
        ("SwiftShader", DeviceProfile { max_storage_buffers: 10, arrays_in_memory: true, ..software(4) }),
        ("a discrete GPU with sub-groups of 32", gpu(DeviceClass::Discrete, 32, 32)),
        ("a discrete GPU with sub-groups of 16 to 64", gpu(DeviceClass::Discrete, 16, 64)),
        ("an integrated GPU with sub-groups of 8 to 32", gpu(DeviceClass::Integrated, 8, 32)),
        ("an integrated GPU with sub-groups of 64", gpu(DeviceClass::Integrated, 64, 64)),
    ]
}

/// The kernels that cases have on other devices ([`known_profiles`]) and that this one cannot run in any form, each with
/// the reason.
///
/// # Errors
/// When a case's graph is wrong.
pub fn not_runnable<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    gpu: &Gpu,
) -> Result<BTreeMap<String, String>> {
    let (mut here, mut elsewhere) = (BTreeSet::new(), BTreeMap::<String, Requirements>::new());
    for case in cases {
        let (graph, outputs) = case.graph(1)?;
        let able = |(_, profile): &(&str, DeviceProfile)| graph.fits(profile);
        for (_, profile) in profiles(gpu).into_iter().filter(able) {
            here.extend(Plan::new(&graph, &outputs, &profile)?.kernels.into_iter().map(|k| k.name));
        }
        for (_, profile) in known_profiles().into_iter().filter(able) {
            for kernel in Plan::new(&graph, &outputs, &profile)?.kernels {
                let entry = elsewhere.entry(kernel.name).or_default();
                entry.sizes.extend(kernel.requires.subgroup_size);
                entry.f16 |= kernel.requires.f16;
            }
        }
    }
    elsewhere.retain(|name, _| !here.contains(name));
    let own = gpu.profile().subgroup_size();
    let has = own.map_or("none of one size".to_string(), |n| format!("sub-groups of {n}"));
    let reason = |Requirements { sizes, f16 }| {
        if f16 && !gpu.profile().f16 {
            return "needs 16-bit floats (SHADER_F16), which this adapter has not".to_string();
        }
        let list: Vec<String> = sizes.iter().map(u32::to_string).collect();
        if sizes.is_empty() || own.is_some_and(|size| sizes.contains(&size)) {
            return "is never chosen on an adapter of this kind".to_string();
        }
        format!("needs sub-groups of {}; this adapter has {has}", list.join(" or "))
    };
    Ok(elsewhere.into_iter().map(|(name, requires)| (name, reason(requires))).collect())
}

/// What a kernel of some name needs.
#[derive(Default)]
struct Requirements {
    /// Sub-groups of one of these sizes.
    sizes: BTreeSet<u32>,
    f16: bool,
}
