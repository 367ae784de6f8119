//! Finding an adapter. Hardware before software; within a class the native interfaces before OpenGL.

use super::compile::Helpers;
use super::wait::Watch;
use super::{Gpu, profile_of, required_features};
use crate::profile::{DeviceClass, DeviceProfile};
use crate::tuning::AdapterKey;
use crate::{Error, Result};
use std::sync::Arc;

/// An interface through which an adapter is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Vulkan.
    Vulkan,
    /// Apple's Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
    /// OpenGL ES.
    Gl,
}

impl Backend {
    /// All of them, in the order in which they are preferred.
    pub const ALL: [Backend; 4] = [Backend::Vulkan, Backend::Metal, Backend::Dx12, Backend::Gl];

    fn name(self) -> &'static str {
        match self {
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
            Backend::Dx12 => "dx12",
            Backend::Gl => "gl",
        }
    }

    fn of(backend: wgpu::Backend) -> Option<Backend> {
        match backend {
            wgpu::Backend::Vulkan => Some(Backend::Vulkan),
            wgpu::Backend::Metal => Some(Backend::Metal),
            wgpu::Backend::Dx12 => Some(Backend::Dx12),
            wgpu::Backend::Gl => Some(Backend::Gl),
            _ => None,
        }
    }

    fn bits(self) -> wgpu::Backends {
        match self {
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
            Backend::Gl => wgpu::Backends::GL,
        }
    }
}

impl AdapterDescription {
    /// What measurements on this adapter are known by.
    pub fn key(&self) -> AdapterKey {
        AdapterKey {
            name: self.name.clone(),
            backend: self.backend.to_string(),
            driver: self.driver.clone(),
            driver_version: self.driver_info.clone(),
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Backend {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wanted = s.to_ascii_lowercase();
        Backend::ALL.into_iter().find(|b| b.name() == wanted).ok_or_else(|| {
            let names: Vec<_> = Backend::ALL.iter().map(|b| b.name()).collect();
            Error::config("backend", format!("{s:?} is none; there are {}", names.join(", ")))
        })
    }
}

/// Which adapter to take.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number in [`adapters`], or a part of its name in any case; `None` is the best one.
    pub name: Option<String>,
    /// Only adapters of this interface; `None` is any.
    pub backend: Option<Backend>,
    /// Whether a software adapter will do where it was not asked for by name.
    pub allow_software: bool,
}

impl Default for Request {
    fn default() -> Self {
        Request { name: None, backend: None, allow_software: true }
    }
}

/// What there is to know of an adapter before a device is made on it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterDescription {
    /// Its name.
    pub name: String,
    /// The interface.
    pub backend: Backend,
    /// The driver's name; empty where the interface does not tell.
    pub driver: String,
    /// The driver's version, likewise.
    pub driver_info: String,
    /// Whether passes can be timed on the device.
    pub timestamps: bool,
    /// Class, features and limits that a device on it has.
    pub profile: DeviceProfile,
}

fn describe(adapter: &wgpu::Adapter, backend: Backend) -> AdapterDescription {
    let info = adapter.get_info();
    AdapterDescription {
        profile: profile_of(adapter),
        name: info.name,
        backend,
        driver: info.driver,
        driver_info: info.driver_info,
        timestamps: adapter.features().contains(wgpu::Features::TIMESTAMP_QUERY),
    }
}

/// OpenGL is tried only when asked for or when nothing else is there: it shows the same adapters once more, and its
/// libraries may write to the terminal where there is no display.
async fn found(backend: Option<Backend>) -> Vec<(wgpu::Adapter, AdapterDescription)> {
    if let Some(b) = backend {
        return found_in(b.bits()).await;
    }
    let native = [Backend::Vulkan, Backend::Metal, Backend::Dx12];
    let list = found_in(native.iter().fold(wgpu::Backends::empty(), |all, b| all | b.bits())).await;
    if list.is_empty() { found_in(Backend::Gl.bits()).await } else { list }
}

/// An instance without the extensions for windows: nothing is shown here, and with them Mesa's layer that chooses a
/// device looks for a display and complains on the terminal when there is none.
#[cfg(all(target_os = "linux", feature = "vulkan"))]
fn instance(descriptor: wgpu::InstanceDescriptor) -> wgpu::Instance {
    use wgpu::hal::{InstanceDescriptor, vulkan};
    if !descriptor.backends.contains(wgpu::Backends::VULKAN) {
        return wgpu::Instance::new(descriptor);
    }
    let windows = [c"VK_KHR_wayland_surface", c"VK_KHR_xcb_surface", c"VK_KHR_xlib_surface"];
    let description = InstanceDescriptor {
        name: "wgformer",
        flags: descriptor.flags,
        memory_budget_thresholds: descriptor.memory_budget_thresholds,
        backend_options: descriptor.backend_options.clone(),
        telemetry: None,
        display: None,
    };
    let omit: Box<vulkan::CreateInstanceCallback> =
        Box::new(move |args| args.extensions.retain(|e| !windows.contains(e)));
    // SAFETY: only extensions for surfaces are left out, and no surface is ever made on this instance.
    match unsafe { vulkan::Instance::init_with_callback(&description, Some(omit)) } {
        // SAFETY: it was made a line above.
        Ok(raw) => unsafe { wgpu::Instance::from_hal::<wgpu::hal::api::Vulkan>(raw) },
        // Without Vulkan's loader: an instance that finds nothing.
        Err(_) => wgpu::Instance::new(descriptor),
    }
}

#[cfg(not(all(target_os = "linux", feature = "vulkan")))]
fn instance(descriptor: wgpu::InstanceDescriptor) -> wgpu::Instance {
    wgpu::Instance::new(descriptor)
}

async fn found_in(backends: wgpu::Backends) -> Vec<(wgpu::Adapter, AdapterDescription)> {
    // wgpu panics where it was built without any.
    if !wgpu::Instance::enabled_backend_features().intersects(backends) {
        return Vec::new();
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    descriptor.flags.remove(wgpu::InstanceFlags::DEBUG | wgpu::InstanceFlags::VALIDATION);
    let instance = instance(descriptor);
    let mut list: Vec<_> = instance
        .enumerate_adapters(wgpu::Backends::all())
        .await
        .into_iter()
        .filter_map(|a| {
            let backend = Backend::of(a.get_info().backend)?;
            let compute = wgpu::DownlevelFlags::COMPUTE_SHADERS;
            let description = describe(&a, backend);
            a.get_downlevel_capabilities().flags.contains(compute).then_some((a, description))
        })
        .collect();
    // A stable sort: within equals the driver's order stays.
    list.sort_by_key(|(_, d)| {
        let class = match d.profile.class {
            DeviceClass::Discrete => 0,
            DeviceClass::Integrated => 1,
            DeviceClass::Cpu => 2,
        };
        (class, d.backend == Backend::Gl)
    });
    list
}

/// The adapters of this machine, best first.
pub fn adapters(backend: Option<Backend>) -> Vec<AdapterDescription> {
    pollster::block_on(found(backend)).into_iter().map(|(_, d)| d).collect()
}

/// Makes a device on an adapter that fits.
///
/// # Errors
/// When no adapter fits, or the driver refuses.
pub fn request(request: &Request) -> Result<Gpu> {
    pollster::block_on(request_async(request))
}

/// [`request`] for a caller with an executor of its own.
///
/// # Errors
/// When no adapter fits, or the driver refuses.
pub async fn request_async(request: &Request) -> Result<Gpu> {
    let list = found(request.backend).await;
    let descriptions: Vec<_> = list.iter().map(|(_, d)| d.clone()).collect();
    let chosen = choose(request, &descriptions)?;
    let Some((adapter, description)) = list.into_iter().nth(chosen) else {
        return Err(Error::Internal("the adapter that was chosen is gone".into()));
    };
    let made = device(&adapter, Helpers::new(&adapter)).await;
    made.map_err(|e| Error::Adapter(format!("{} gives no device: {e}", description.name)))
}

/// A device with all that the adapter has.
pub(super) async fn device(adapter: &wgpu::Adapter, helpers: Option<Helpers>) -> Result<Gpu> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("wgformer"),
        required_features: required_features(adapter),
        required_limits: adapter.limits(),
        ..Default::default()
    };
    let made = adapter.request_device(&descriptor).await;
    let (device, queue) = made.map_err(|e| Error::Device(e.to_string()))?;
    let watch: Arc<Watch> = Arc::default();
    let told = watch.clone();
    device.set_device_lost_callback(move |reason, message| {
        let why = if message.is_empty() { format!("{reason:?}").to_lowercase() } else { message };
        told.lose(why);
    });
    Gpu::build(device, queue, adapter.get_info(), Some(watch), helpers)
}

/// The place of the adapter to take in a list that has the best one first, as [`adapters`] makes it.
///
/// # Errors
/// When none fits; the message names those that there are.
pub fn choose(request: &Request, list: &[AdapterDescription]) -> Result<usize> {
    let of = request.backend.map_or(String::new(), |b| format!(" for {b}"));
    if wgpu::Instance::enabled_backend_features().is_empty() {
        return Err(Error::Adapter(
            "built without an interface to adapters: turn on one of the features vulkan, metal, dx12 and gles of \
             wgformer, or hand over a device"
                .into(),
        ));
    }
    if list.is_empty() {
        return Err(Error::Adapter(format!(
            "no GPU adapter found{of}: install your GPU's driver, or a software adapter (Debian, Ubuntu: apt install \
             mesa-vulkan-drivers)"
        )));
    }
    let Some(name) = &request.name else {
        let fits = |d: &AdapterDescription| request.allow_software || d.profile.class != DeviceClass::Cpu;
        return list.iter().position(fits).ok_or_else(|| {
            Error::Adapter(format!(
                "only software adapters found{of} ({}), and those were excluded",
                names(list)
            ))
        });
    };
    let found = match name.parse::<usize>() {
        Ok(i) if i < list.len() => Some(i),
        _ => list.iter().position(|d| d.name.to_lowercase().contains(&name.to_lowercase())),
    };
    found.ok_or_else(|| Error::Adapter(format!("no adapter {name:?}{of}; there are: {}", names(list))))
}

fn names(list: &[AdapterDescription]) -> String {
    let names: Vec<_> =
        list.iter().enumerate().map(|(i, d)| format!("{i}: {} ({})", d.name, d.backend)).collect();
    names.join(", ")
}
