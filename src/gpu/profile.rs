//! What lowering knows of a device: read from the device, or from the adapter before there is one.

use crate::Result;
use crate::plan::Plan;
use crate::profile::{DeviceClass, DeviceProfile, Limit};
use crate::tuning::Tuning;

fn class(kind: wgpu::DeviceType) -> DeviceClass {
    match kind {
        wgpu::DeviceType::DiscreteGpu => DeviceClass::Discrete,
        wgpu::DeviceType::Cpu => DeviceClass::Cpu,
        wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => {
            DeviceClass::Integrated
        }
    }
}

/// The features and limits are those the device was made with, which may be less than the adapter has.
pub(super) fn of(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> DeviceProfile {
    from(device.features(), &device.limits(), info)
}

pub(super) fn from(
    features: wgpu::Features,
    limits: &wgpu::Limits,
    info: &wgpu::AdapterInfo,
) -> DeviceProfile {
    DeviceProfile {
        class: class(info.device_type),
        subgroups: features.contains(wgpu::Features::SUBGROUP),
        subgroup_min: info.subgroup_min_size,
        subgroup_max: info.subgroup_max_size,
        f16: features.contains(wgpu::Features::SHADER_F16),
        arrays_in_memory: info.driver.contains("SwiftShader"),
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        max_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_groups: limits.max_compute_workgroups_per_dimension,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
        tuning: Tuning::default(),
    }
}

/// The features of this adapter that are of use here, for `wgpu::DeviceDescriptor::required_features`: with sub-groups
/// there are faster kernels, with timestamps [`Gpu::time`](super::Gpu::time) asks the device, with a pipeline cache
/// [`Gpu::pipeline_cache`](super::Gpu::pipeline_cache) gives what was compiled. None is needed: what a device was made without,
/// plans for its profile do without.
pub fn required_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    let useful = wgpu::Features::SUBGROUP
        | wgpu::Features::SHADER_F16
        | wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::PIPELINE_CACHE;
    adapter.features() & useful
}

/// The profile of a device on this adapter with all useful features ([`required_features`]) and the adapter's limits, for a
/// plan before there is a device.
pub fn profile_of(adapter: &wgpu::Adapter) -> DeviceProfile {
    profile_with(adapter, required_features(adapter), &adapter.limits())
}

/// The profile of a device on this adapter with these features and limits, for a plan before there is a device: one that
/// other parts of the host keep small, say.
pub fn profile_with(
    adapter: &wgpu::Adapter,
    features: wgpu::Features,
    limits: &wgpu::Limits,
) -> DeviceProfile {
    from(features, limits, &adapter.get_info())
}

/// The least limits with which a device on this adapter runs the plan, for `wgpu::DeviceDescriptor::required_limits`:
/// `wgpu::Limits::downlevel_defaults`, and more where the plan needs more, reading all its outputs included. A host that
/// needs more for itself joins its own: `limits.or_better_values_from(&own)`.
///
/// # Errors
/// [`Error::Limit`](crate::Error::Limit) where the adapter does not allow what the plan needs.
pub fn required_limits(adapter: &wgpu::Adapter, plan: &Plan) -> Result<wgpu::Limits> {
    let allowed = adapter.limits();
    let profile = profile_with(adapter, wgpu::Features::empty(), &allowed);
    let mut limits = wgpu::Limits::downlevel_defaults().or_worse_values_from(&allowed);
    for need in plan.needs() {
        need.within(profile.allows(need.limit))?;
        raise(&mut limits, need.limit, need.needed);
    }
    // Outputs that do not fit into one buffer together can still be read one by one.
    let outputs = plan.outputs.iter().map(|o| o.ty.bytes()).sum();
    raise(&mut limits, Limit::BufferBytes, allowed.max_buffer_size.min(outputs));
    Ok(limits)
}

fn raise(limits: &mut wgpu::Limits, limit: Limit, needed: u64) {
    // What is larger than the field was refused before.
    let most = |value: &mut u32| *value = (*value).max(u32::try_from(needed).unwrap_or(u32::MAX));
    match limit {
        Limit::StorageBuffers => most(&mut limits.max_storage_buffers_per_shader_stage),
        Limit::WorkgroupBytes => most(&mut limits.max_compute_workgroup_storage_size),
        Limit::Invocations => {
            most(&mut limits.max_compute_invocations_per_workgroup);
            most(&mut limits.max_compute_workgroup_size_x);
        }
        Limit::Groups => most(&mut limits.max_compute_workgroups_per_dimension),
        Limit::BindingBytes => {
            limits.max_storage_buffer_binding_size = limits.max_storage_buffer_binding_size.max(needed);
        }
        Limit::BufferBytes => limits.max_buffer_size = limits.max_buffer_size.max(needed),
    }
}
