//! NVML, found at run time: which NVLinks a GPU has, and where they lead.
//!
//! The principal type is [`NvmlLibrary`]. The library comes with NVIDIA's driver and needs no CUDA context. It names GPUs by their
//! address on the PCI bus.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;

/// The name of the library in all drivers.
const FILE: &str = "libnvidia-ml.so.1";
/// Links have numbers below this on every GPU so far; NVML says at which one it ends.
const MOST_LINKS: c_uint = 64;
const SUCCESS: c_int = 0;
/// There is no such link.
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
/// What stands at the other end of a link.
const TO_GPU: c_uint = 0;
const TO_SWITCH: c_uint = 2;
const ENABLED: c_uint = 1;

type Device = *mut c_void;

/// An `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    bus_id: [c_char; 32],
}

/// Why NVML says nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NvmlError {
    /// The system does not find it.
    #[error("{FILE} was not found")]
    Missing,
    /// The system cannot load it.
    #[error("{FILE} cannot be loaded: {why}")]
    Unusable {
        /// What the loader of the system says.
        why: String,
    },
    /// It lacks a function.
    #[error("{FILE} has no {name}")]
    Lacks {
        /// The function.
        name: &'static str,
    },
    /// It refuses something.
    #[error("{doing}: NVML says {what}")]
    Refused {
        /// What was asked.
        doing: &'static str,
        /// What it says.
        what: String,
    },
}

/// Where an NVLink leads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NvLinkEnd {
    /// To the GPU at this address on the PCI bus, written as CUDA's driver writes it.
    Gpu(String),
    /// To a switch.
    Switch,
    /// To something else.
    Other,
}

impl fmt::Display for NvLinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(bus_id) => f.write_str(bus_id),
            Self::Switch => f.write_str("switch"),
            Self::Other => f.write_str("other"),
        }
    }
}

/// The NVLinks of a GPU that are up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NvLinks {
    /// How many lead where.
    pub ends: BTreeMap<NvLinkEnd, u32>,
    /// Of so many, NVML does not tell whether they are up or where they lead.
    pub unknown: u32,
}

/// The library, until this value is dropped.
pub struct NvmlLibrary {
    library: Library,
    is_initialized: bool,
}

impl fmt::Debug for NvmlLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmlLibrary").finish_non_exhaustive()
    }
}

/// An address on the PCI bus as CUDA's driver writes it: NVML writes more digits, and other letters.
fn plain_bus_id(text: &str) -> String {
    let upper = text.to_ascii_uppercase();
    match upper.split_once(':') {
        Some((domain, rest)) => {
            let digits = domain.trim_start_matches('0');
            format!("{digits:0>4}:{rest}")
        }
        None => upper,
    }
}

impl NvmlLibrary {
    /// Loads and initializes it.
    ///
    /// # Errors
    /// [`NvmlError`] if there is none, or it does not work.
    pub fn open() -> Result<Self, NvmlError> {
        // SAFETY: the driver's library runs its constructors as in any program.
        let library = unsafe { Library::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            let why = runtime_text(&error);
            if why.contains("No such file") { NvmlError::Missing } else { NvmlError::Unusable { why } }
        })?;
        let mut made = Self { library, is_initialized: false };
        let init: unsafe extern "C" fn() -> c_int = made.function("nvmlInit_v2")?;
        // SAFETY: it takes nothing.
        made.checked("initializing", unsafe { init() })?;
        made.is_initialized = true;
        Ok(made)
    }

    /// A function that has the type `F`, a pointer to a function.
    fn function<F: Copy>(&self, name: &'static str) -> Result<F, NvmlError> {
        let text = CString::new(name).map_err(|_| NvmlError::Lacks { name })?;
        // SAFETY: each caller gives the type that the function of this name has.
        let found = unsafe { self.library.get::<F>(text.as_bytes_with_nul()) };
        found.map(|found| *found).map_err(|_| NvmlError::Lacks { name })
    }

    fn checked(&self, doing: &'static str, code: c_int) -> Result<(), NvmlError> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = self.function::<unsafe extern "C" fn(c_int) -> *const c_char>("nvmlErrorString");
        // SAFETY: it takes any number.
        let text = text.map_or(std::ptr::null(), |text| unsafe { text(code) });
        let what = match text.is_null() {
            true => format!("the error {code}"),
            // SAFETY: the text lives as long as the library.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(NvmlError::Refused { doing, what })
    }

    /// The version of the driver.
    ///
    /// # Errors
    /// [`NvmlError`].
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        let mut text = [0; 96];
        let ask: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int = self.function("nvmlSystemGetDriverVersion")?;
        // SAFETY: there is room for so many bytes.
        self.checked("asking for the driver's version", unsafe { ask(text.as_mut_ptr(), text.len() as c_uint) })?;
        Ok(text_of(&text))
    }

    /// The NVLinks of a GPU that are up, by where they lead. A link of which NVML does not tell that is counted as unknown.
    ///
    /// # Errors
    /// [`NvmlError`] if there is no such GPU, or NVML lacks a function.
    pub fn links(&self, bus_id: &str) -> Result<NvLinks, NvmlError> {
        let device = self.device(bus_id)?;
        let state: unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int =
            self.function("nvmlDeviceGetNvLinkState")?;
        let mut links = NvLinks::default();
        for link in 0..MOST_LINKS {
            let mut is_up = 0;
            // SAFETY: the device is one, and the address is that of a number.
            match unsafe { state(device, link, &raw mut is_up) } {
                SUCCESS if is_up != ENABLED => {}
                SUCCESS => match self.end_of(device, link) {
                    Ok(end) => *links.ends.entry(end).or_default() += 1,
                    Err(_) => links.unknown += 1,
                },
                INVALID_ARGUMENT => break,
                NOT_SUPPORTED => {}
                _ => links.unknown += 1,
            }
        }
        Ok(links)
    }

    fn device(&self, bus_id: &str) -> Result<Device, NvmlError> {
        let doing = "finding a GPU";
        let text = CString::new(bus_id).map_err(|_| NvmlError::Refused { doing, what: "no such GPU".to_owned() })?;
        let find: unsafe extern "C" fn(*const c_char, *mut Device) -> c_int =
            self.function("nvmlDeviceGetHandleByPciBusId_v2")?;
        let mut device = std::ptr::null_mut();
        // SAFETY: a text, and the address of a device.
        self.checked(doing, unsafe { find(text.as_ptr(), &raw mut device) })?;
        Ok(device)
    }

    fn end_of(&self, device: Device, link: c_uint) -> Result<NvLinkEnd, NvmlError> {
        // Older drivers know no switches.
        let kind: Result<unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int, _> =
            self.function("nvmlDeviceGetNvLinkRemoteDeviceType");
        let mut is = TO_GPU;
        if let Ok(kind) = kind {
            // SAFETY: the device is one, and the address is that of a number.
            self.checked("asking where an NVLink leads", unsafe { kind(device, link, &raw mut is) })?;
        }
        match is {
            TO_SWITCH => return Ok(NvLinkEnd::Switch),
            TO_GPU => {}
            _ => return Ok(NvLinkEnd::Other),
        }
        let ask: unsafe extern "C" fn(Device, c_uint, *mut PciInfo) -> c_int =
            self.function("nvmlDeviceGetNvLinkRemotePciInfo_v2")?;
        let mut info = PciInfo { legacy: [0; 16], domain: 0, bus: 0, device: 0, ids: [0; 2], bus_id: [0; 32] };
        // SAFETY: the device is one, and the address is that of such a structure.
        self.checked("asking where an NVLink leads", unsafe { ask(device, link, &raw mut info) })?;
        Ok(NvLinkEnd::Gpu(plain_bus_id(&text_of(&info.bus_id))))
    }
}

impl Drop for NvmlLibrary {
    fn drop(&mut self) {
        if !self.is_initialized {
            return;
        }
        if let Ok(end) = self.function::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") {
            // SAFETY: it takes nothing, and nobody uses a device any more.
            let _ = unsafe { end() };
        }
    }
}

/// What the loader says, without what it was asked.
fn runtime_text(error: &libloading::Error) -> String {
    crate::chain(error)
}

fn text_of(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_in_one_way() {
        assert_eq!(plain_bus_id("00000000:17:00.0"), "0000:17:00.0");
        assert_eq!(plain_bus_id("00010000:c8:00.0"), "10000:C8:00.0");
        assert_eq!(plain_bus_id("0000:AF:00.0"), "0000:AF:00.0");
        assert_eq!(plain_bus_id("nonsense"), "NONSENSE");
    }
}
