//! What lowering knows of a device, read from the device itself.

use crate::profile::{DeviceClass, DeviceProfile};

pub(super) fn class(kind: wgpu::DeviceType) -> DeviceClass {
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
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        max_invocations: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_groups: limits.max_compute_workgroups_per_dimension,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
    }
}
