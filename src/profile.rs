//! What lowering knows of a device: plain data, made by `gpu`, or by hand to plan for a device that is not here.

use crate::tuning::Tuning;
use crate::{Error, Result};

/// The class of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceClass {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory, or a virtual one.
    Integrated,
    /// A software adapter.
    Cpu,
}

/// A limit of a device that plans may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Storage buffers a shader stage.
    StorageBuffers,
    /// Bytes of workgroup memory.
    WorkgroupBytes,
    /// Invocations a workgroup.
    Invocations,
    /// Workgroups a dimension.
    Groups,
    /// Bytes of one storage binding.
    BindingBytes,
    /// Bytes of one buffer.
    BufferBytes,
}

impl Limit {
    /// Its name in WebGPU's terms.
    pub fn name(self) -> &'static str {
        match self {
            Limit::StorageBuffers => "max_storage_buffers_per_shader_stage",
            Limit::WorkgroupBytes => "max_compute_workgroup_storage_size",
            Limit::Invocations => "max_compute_invocations_per_workgroup",
            Limit::Groups => "max_compute_workgroups_per_dimension",
            Limit::BindingBytes => "max_storage_buffer_binding_size",
            Limit::BufferBytes => "max_buffer_size",
        }
    }
}

/// What lowering knows of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    /// The class of the adapter.
    pub class: DeviceClass,
    /// Sub-group operations may be used.
    pub subgroups: bool,
    /// The smallest sub-group size that a kernel may meet.
    pub subgroup_min: u32,
    /// The largest sub-group size that a kernel may meet.
    pub subgroup_max: u32,
    /// 16-bit floats may be used in shaders.
    pub f16: bool,
    /// The compiler keeps a function's arrays in memory, and unrolls no loops.
    pub arrays_in_memory: bool,
    /// Storage buffers a shader stage.
    pub max_storage_buffers: u32,
    /// Bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
    /// Invocations a workgroup.
    pub max_invocations: u32,
    /// Workgroups a dimension.
    pub max_groups: u32,
    /// Bytes of one storage binding.
    pub max_binding_bytes: u64,
    /// Bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// What chooses among the variants of kernels that the device can run.
    pub tuning: Tuning,
}

impl DeviceProfile {
    /// Whether kernels may store 16-bit floats, as `what` needs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where not.
    pub fn check_f16(&self, what: &str) -> Result<()> {
        if self.f16 {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: what.into(),
            needs: "16-bit floats in shaders (the feature SHADER_F16)".into(),
            remedy: ": use the precision f32".into(),
        })
    }

    /// A GPU with WebGPU's default limits and no features: what every adapter can do.
    pub fn portable() -> Self {
        DeviceProfile {
            class: DeviceClass::Discrete,
            subgroups: false,
            subgroup_min: 4,
            subgroup_max: 128,
            f16: false,
            arrays_in_memory: false,
            max_storage_buffers: 8,
            max_workgroup_bytes: 16384,
            max_invocations: 256,
            max_groups: 65535,
            max_binding_bytes: 128 << 20,
            max_buffer_bytes: 256 << 20,
            tuning: Tuning::default(),
        }
    }

    /// How much the device allows.
    pub fn allows(&self, limit: Limit) -> u64 {
        match limit {
            Limit::StorageBuffers => self.max_storage_buffers.into(),
            Limit::WorkgroupBytes => self.max_workgroup_bytes.into(),
            Limit::Invocations => self.max_invocations.into(),
            Limit::Groups => self.max_groups.into(),
            Limit::BindingBytes => self.max_binding_bytes,
            Limit::BufferBytes => self.max_buffer_bytes,
        }
    }

    /// The one size that all sub-groups of the device have, where they can be used and there is one.
    pub fn subgroup_size(&self) -> Option<u32> {
        (self.subgroups && self.subgroup_min == self.subgroup_max).then_some(self.subgroup_min)
    }
}
