//! Finds and loads the real NCCL.
//!
//! The principal type is [`NcclLibrary`]. NCCL has each function under two names: programs call `ncclX`, which others may
//! define before it, and `pncclX` is always NCCL's own.

use super::error::NcclLibraryError;
use super::exports;
use super::version::NcclVersion;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{CStr, CString, OsStr, OsString, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The only name of the library in all packages.
const FILE: &str = "libnccl.so.2";
/// A name that Antiphon's library of NCCL's functions has, and NCCL does not have.
const OUR_MARK: &CStr = c"antiphon_nccl_version";

/// Where to look for NCCL.
#[derive(Clone, Debug, Default)]
pub struct NcclSearch {
    /// The library; nothing else is tried if it is given.
    pub named: Option<PathBuf>,
    /// Folders to look in where the system's loader has found none, or the wrong one.
    pub folders: Vec<PathBuf>,
}

impl NcclSearch {
    /// As the environment says: `ANTIPHON_NCCL` names the library, `LD_LIBRARY_PATH` has folders.
    pub fn from_environment() -> Self {
        let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folders = |list: OsString| std::env::split_paths(&list).collect();
        Self {
            named: value("ANTIPHON_NCCL").map(PathBuf::from),
            folders: value("LD_LIBRARY_PATH").map(folders).unwrap_or_default(),
        }
    }
}

/// The real NCCL in this process. It stays loaded until the process ends, because its threads run on.
#[derive(Debug)]
pub struct NcclLibrary {
    library: ManuallyDrop<Library>,
    path: PathBuf,
    version: NcclVersion,
}

impl NcclLibrary {
    /// Looks at the library that is named, or else at the one that the process has loaded, or else where the system's loader and
    /// `search` look.
    ///
    /// # Errors
    /// [`NcclLibraryError`] with everything that was tried.
    pub fn find(search: &NcclSearch) -> Result<Self, NcclLibraryError> {
        if let Some(path) = &search.named {
            return Self::load(path.as_os_str(), RTLD_NOW | RTLD_LOCAL);
        }
        let files = search.folders.iter().map(|folder| folder.join(FILE)).filter(|file| file.exists());
        let loaded = (PathBuf::from(FILE), RTLD_NOW | libc::RTLD_NOLOAD);
        let wanted = files.chain([PathBuf::from(FILE)]).map(|path| (path, RTLD_NOW | RTLD_LOCAL));
        // The system's loader looks into the same folders first. They come before it, because under this name it may know a library
        // of Antiphon already.
        let mut tried = Vec::new();
        for (path, flags) in std::iter::once(loaded).chain(wanted) {
            match Self::load(path.as_os_str(), flags) {
                Ok(library) => return Ok(library),
                Err(_) if flags & libc::RTLD_NOLOAD != 0 => tried.push("none is loaded".to_owned()),
                Err(why) => tried.push(why.to_string()),
            }
        }
        Err(NcclLibraryError::Missing { tried })
    }

    fn load(name: &OsStr, flags: c_int) -> Result<Self, NcclLibraryError> {
        let path = PathBuf::from(name);
        // SAFETY: what is loaded is NCCL or what the user names instead; it runs its constructors as in any program.
        let library = match unsafe { Library::open(Some(name), flags) } {
            Ok(library) => ManuallyDrop::new(library),
            Err(why) => {
                // What the system's loader says is the source of the error.
                let why = why.source().map_or_else(|| why.to_string(), ToString::to_string);
                return Err(NcclLibraryError::Unusable { path, why });
            }
        };
        if symbol(&library, OUR_MARK).is_some() {
            return Err(NcclLibraryError::Ourselves { path });
        }
        let odd = |what: String| NcclLibraryError::Odd { path: path.clone(), what };
        let get_version = symbol(&library, c"pncclGetVersion").or_else(|| symbol(&library, c"ncclGetVersion"));
        let get_version = get_version.ok_or_else(|| odd("it has no ncclGetVersion".to_owned()))?;
        // SAFETY: a function of this name takes the address of a number and returns a result.
        let call: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(get_version.as_ptr()) };
        let mut code = 0;
        // SAFETY: the address is that of a number.
        let result = unsafe { call(&raw mut code) };
        if result != 0 {
            return Err(odd(format!("ncclGetVersion gives the error {result}")));
        }
        let version = NcclVersion::of_code(code).ok_or_else(|| odd(format!("ncclGetVersion says {code}")))?;
        let path = file_of(get_version).unwrap_or(path);
        Ok(Self { library, path, version })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// Whether plans can run with it.
    ///
    /// # Errors
    /// [`NcclLibraryError::Old`].
    pub fn can_run_plans(&self) -> Result<(), NcclLibraryError> {
        match self.version >= NcclVersion::OLDEST {
            true => Ok(()),
            false => Err(NcclLibraryError::Old { path: self.path.clone(), version: self.version }),
        }
    }

    /// NCCL's own function of a name, such as `ncclAllReduce`.
    pub fn function(&self, name: &str) -> Option<NonNull<c_void>> {
        let own = CString::new(format!("p{name}")).ok()?;
        let public = CString::new(name).ok()?;
        symbol(&self.library, &own).or_else(|| symbol(&self.library, &public))
    }

    /// The names that it offers to programs.
    ///
    /// # Errors
    /// What is wrong with its file.
    pub fn exports(&self) -> Result<BTreeSet<String>, String> {
        exports::exports(&self.path)
    }
}

fn symbol(library: &Library, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: only the address is taken; whoever calls it knows what is there.
    let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
    NonNull::new(*found.ok()?)
}

/// The file of the library that an address is in.
fn file_of(address: NonNull<c_void>) -> Option<PathBuf> {
    // SAFETY: all of it are addresses, and zero is a value of each.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address of a function, and of a structure to be written.
    let found = unsafe { libc::dladdr(address.as_ptr(), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a text that lives as long as the library is loaded, which is until the process ends.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
