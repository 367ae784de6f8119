//! The device that the tests of a process share.

use crate::gpu::{AdapterDescription, Gpu, Request, adapters, choose, request};
use crate::{DeviceClass, Error, Result};
use std::sync::OnceLock;

/// The variable that names the adapter to test on.
const ADAPTER: &str = "WGFORMER_TEST_ADAPTER";

/// The device that all tests of this process share: a software adapter where there is one, so that the results are those
/// of a machine without a GPU, else the best adapter. `WGFORMER_TEST_ADAPTER` names another: its number in
/// [`adapters`], or a part of its name.
///
/// This harness is the one place of the library that reads the environment and keeps something for the process: tests
/// run in many threads, and some software drivers do not bear several devices in one process.
///
/// # Errors
/// When there is no adapter, or none of that name; the message says what to install. That is a failure, not a reason to
/// leave tests out.
pub fn device() -> Result<Gpu> {
    static DEVICE: OnceLock<std::result::Result<Gpu, String>> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        let wanted = std::env::var(ADAPTER).ok().filter(|name| !name.is_empty());
        let number = choice(wanted.as_deref(), &adapters(None)).map_err(|e| e.to_string())?;
        let name = Some(number.to_string());
        request(&Request { name, ..Default::default() }).map_err(|e| e.to_string())
    });
    made.clone().map_err(Error::Adapter)
}

/// The place of the adapter in a list.
fn choice(wanted: Option<&str>, list: &[AdapterDescription]) -> Result<usize> {
    let Some(name) = wanted else {
        let software = list.iter().position(|d| d.profile.class == DeviceClass::Cpu);
        return software.map_or_else(|| choose(&Request::default(), list), Ok);
    };
    let request = Request { name: Some(name.to_string()), ..Default::default() };
    choose(&request, list).map_err(|e| Error::Adapter(format!("{ADAPTER}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceProfile;
    use crate::gpu::Backend;

    fn adapter(name: &str, class: DeviceClass) -> AdapterDescription {
        AdapterDescription {
            name: name.into(),
            backend: Backend::Vulkan,
            driver: String::new(),
            driver_info: String::new(),
            timestamps: false,
            profile: DeviceProfile { class, ..DeviceProfile::portable() },
        }
    }

    #[test]
    fn software_unless_another_is_named() {
        let list = [adapter("GeForce", DeviceClass::Discrete), adapter("llvmpipe", DeviceClass::Cpu)];
        assert_eq!(choice(None, &list).unwrap(), 1);
        assert_eq!(choice(None, &list[..1]).unwrap(), 0);
        assert_eq!(choice(Some("geforce"), &list).unwrap(), 0);
        assert_eq!(choice(Some("1"), &list).unwrap(), 1);
    }

    #[test]
    fn no_adapter_is_an_error_that_says_what_to_do() {
        let none = choice(None, &[]).unwrap_err().to_string();
        assert!(none.contains("apt install mesa-vulkan-drivers"), "{none}");
        let list = [adapter("llvmpipe", DeviceClass::Cpu)];
        let wrong = choice(Some("Radeon"), &list).unwrap_err().to_string();
        assert_eq!(wrong, "WGFORMER_TEST_ADAPTER: no adapter \"Radeon\"; there are: 0: llvmpipe (vulkan)");
    }
}
