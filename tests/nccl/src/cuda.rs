//! The fake CUDA driver, as far as the fake NCCL needs it.
//!
//! The principal type is [`Driver`].

use libloading::{Library, Symbol};
use std::ffi::c_void;
use std::sync::OnceLock;

/// `cuLaunchHostFunc`: the stream, the function, and what it is given.
type HostLaunch = unsafe extern "C" fn(usize, unsafe extern "C" fn(*mut c_void), *mut c_void) -> i32;

/// The driver of this process, if it is the fake one.
pub(crate) struct Driver {
    library: Library,
}

impl Driver {
    /// The driver that the process has loaded, or that the system finds. A real driver is none of ours.
    pub(crate) fn find() -> Option<&'static Self> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        let find = || {
            // SAFETY: the driver has no constructors that matter.
            let library = ["libcuda.so", "libcuda.so.1"].iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
            let driver = Self { library };
            driver.function::<unsafe extern "C" fn()>(b"fakeCudaRead\0")?;
            Some(driver)
        };
        DRIVER.get_or_init(find).as_ref()
    }

    fn function<F>(&self, name: &[u8]) -> Option<Symbol<'_, F>> {
        // SAFETY: each caller gives the type that the function of this name has.
        unsafe { self.library.get(name) }.ok()
    }

    /// The context of this thread.
    pub(crate) fn context(&self) -> usize {
        let mut context = 0usize;
        let get = self.function::<unsafe extern "C" fn(*mut usize) -> i32>(b"cuCtxGetCurrent\0");
        // SAFETY: it takes the address of a handle.
        get.map_or(0, |get| if unsafe { get(&raw mut context) } == 0 { context } else { 0 })
    }

    /// Gives this thread a context.
    pub(crate) fn use_context(&self, context: usize) {
        let set = self.function::<unsafe extern "C" fn(usize) -> i32>(b"cuCtxSetCurrent\0");
        // SAFETY: it takes a context, or none.
        let _ = set.map(|set| unsafe { set(context) });
    }

    /// Whether the calling thread has a context.
    pub(crate) fn has_context(&self) -> bool {
        self.context() != 0
    }

    pub(crate) fn read(&self, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut data = vec![0; bytes];
        let read = self.function::<unsafe extern "C" fn(u64, *mut u8, usize) -> i32>(b"fakeCudaRead\0")?;
        // SAFETY: there is room for so many bytes.
        (unsafe { read(from, data.as_mut_ptr(), bytes) } == 0).then_some(data)
    }

    pub(crate) fn write(&self, to: u64, data: &[u8]) -> Option<()> {
        let write = self.function::<unsafe extern "C" fn(u64, *const u8, usize) -> i32>(b"fakeCudaWrite\0")?;
        // SAFETY: so many bytes are given.
        (unsafe { write(to, data.as_ptr(), data.len()) } == 0).then_some(())
    }

    /// What the clock of the stream says whose work this thread does, in nanoseconds.
    pub(crate) fn clock(&self) -> u64 {
        let clock = self.function::<unsafe extern "C" fn() -> u64>(b"fakeCudaClock\0");
        // SAFETY: it takes nothing.
        clock.map_or(0, |clock| unsafe { clock() })
    }

    /// What this thread does for a stream ends then.
    pub(crate) fn advance(&self, to: u64) {
        let advance = self.function::<unsafe extern "C" fn(u64)>(b"fakeCudaAdvance\0");
        // SAFETY: it takes any number.
        let _ = advance.map(|advance| unsafe { advance(to) });
    }

    /// Waits until a stream has done everything.
    pub(crate) fn synchronize(&self, stream: usize) {
        let wait = self.function::<unsafe extern "C" fn(usize) -> i32>(b"cuStreamSynchronize\0");
        // SAFETY: it takes a stream.
        let _ = wait.map(|wait| unsafe { wait(stream) });
    }

    /// Whether a stream records a graph.
    pub(crate) fn is_recording(&self, stream: usize) -> bool {
        let mut status = 0;
        let asked = self.function::<unsafe extern "C" fn(usize, *mut i32) -> i32>(b"cuStreamIsCapturing\0");
        // SAFETY: it takes the address of a number.
        asked.is_some_and(|asked| unsafe { asked(stream, &raw mut status) } == 0 && status != 0)
    }

    /// Puts work into the graph that a stream records, which does it as often as it is launched.
    pub(crate) fn record(&self, stream: usize, work: Box<dyn Fn() + Send + Sync>) -> Option<()> {
        unsafe extern "C" fn run(work: *mut c_void) {
            // SAFETY: it is the box that `record` gave, and nobody frees it.
            let work = unsafe { &*work.cast::<Box<dyn Fn() + Send + Sync>>() };
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        }
        let launch = self.function::<HostLaunch>(b"cuLaunchHostFunc\0")?;
        // Nobody says when a graph ends.
        let work: *mut Box<dyn Fn() + Send + Sync> = Box::leak(Box::new(work));
        // SAFETY: `run` takes this box.
        (unsafe { launch(stream, run, work.cast()) } == 0).then_some(())
    }

    /// Puts work at the end of a stream.
    pub(crate) fn push(&self, stream: usize, work: Box<dyn FnOnce() + Send>) -> Option<()> {
        unsafe extern "C" fn run(work: *mut c_void) {
            // SAFETY: it is the box that `push` gave, and the driver calls it once.
            let work = unsafe { Box::from_raw(work.cast::<Box<dyn FnOnce() + Send>>()) };
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        }
        let launch = self.function::<HostLaunch>(b"cuLaunchHostFunc\0")?;
        let work = Box::into_raw(Box::new(work));
        // SAFETY: `run` takes this box.
        if unsafe { launch(stream, run, work.cast()) } == 0 {
            return Some(());
        }
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(work) });
        None
    }
}
