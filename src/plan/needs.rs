//! What a plan needs of a device: for one that it was not made for.

use super::{BufferKind, Plan};
use crate::profile::{DeviceProfile, Limit};
use crate::{Error, Result};

/// What a plan needs of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The limit.
    pub limit: Limit,
    /// How much of it.
    pub needed: u64,
    /// The buffer or dispatch that needs so much.
    pub tensor: String,
}

impl Need {
    /// Nothing, where so much is allowed.
    ///
    /// # Errors
    /// [`Error::Limit`] where it is not.
    pub fn within(&self, allowed: u64) -> Result<()> {
        if self.needed <= allowed {
            return Ok(());
        }
        let (limit, needed, tensor) = (self.limit.name(), self.needed, self.tensor.clone());
        Err(Error::Limit { limit, needed, allowed, tensor })
    }
}

impl Plan {
    /// The most that the plan needs of each limit: of those that it touches, and in no particular order.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = Vec::new();
        let mut need = |limit: Limit, needed: u64, tensor: &str| {
            let known = needs.iter_mut().find(|n| n.limit == limit);
            match known {
                Some(n) if n.needed >= needed => {}
                Some(n) => (n.needed, n.tensor) = (needed, tensor.into()),
                None => needs.push(Need { limit, needed, tensor: tensor.into() }),
            }
        };
        for (i, buffer) in self.buffers.iter().enumerate() {
            need(Limit::BufferBytes, buffer.bytes, &self.buffer_name(i));
        }
        need(Limit::BufferBytes, self.params.len() as u64, "the parameter blocks");
        for step in &self.steps {
            let kernel = &self.kernels[step.kernel];
            let groups = step.groups.into_iter().max().unwrap_or(0);
            need(Limit::StorageBuffers, kernel.bindings.len() as u64, &step.label);
            need(Limit::WorkgroupBytes, kernel.requires.workgroup_bytes.into(), &step.label);
            need(Limit::Invocations, kernel.requires.invocations.into(), &step.label);
            need(Limit::Groups, groups.into(), &step.label);
            for place in &step.bindings {
                let name = || format!("{} in {}", self.buffer_name(place.buffer), step.label);
                need(Limit::BindingBytes, place.bytes, &name());
            }
        }
        needs
    }

    /// Whether a device that the plan was not made for can run it.
    ///
    /// # Errors
    /// [`Error::Limit`] where something is larger than the device allows, [`Error::Unsupported`] where it lacks a feature.
    pub fn check(&self, profile: &DeviceProfile) -> Result<()> {
        for kernel in &self.kernels {
            if kernel.requires.f16 {
                profile.check_f16(&format!("kernel {}", kernel.name))?;
            }
            if let Some(size) = kernel.requires.subgroup_size.filter(|&n| profile.subgroup_size() != Some(n))
            {
                return Err(Error::Unsupported {
                    what: format!("kernel {}", kernel.name),
                    needs: format!("sub-groups of {size}"),
                    remedy: "; make a plan for its own profile".into(),
                });
            }
        }
        self.needs().iter().try_for_each(|need| need.within(profile.allows(need.limit)))
    }

    /// What a buffer is, for a message.
    pub(crate) fn buffer_name(&self, buffer: usize) -> String {
        let of_port = |id: &crate::graph::ValueId| self.places.get(id).is_some_and(|p| p.buffer == buffer);
        match &self.buffers[buffer].kind {
            BufferKind::Input { name, .. } | BufferKind::State { name, .. } => name.clone(),
            BufferKind::Output => {
                let port = self.outputs.iter().find(|o| of_port(&o.value));
                port.map_or("an output".into(), |o| o.name.clone())
            }
            BufferKind::Constant(_) => "a constant".into(),
            BufferKind::Slot => "a slot of computed values".into(),
        }
    }
}
