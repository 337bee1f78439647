//! The device: its memory, what it can hold at once, and what was loaded.
//!
//! The principal type is [`Device`].

use crate::clock;
use crate::faults;
use ptx::{Launch, Machine, Module, OutsideMemory, Progress};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A result of the driver; the numbers are CUDA's.
pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const ALREADY_MAPPED: Code = 208;
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
pub(crate) const INVALID_PTX: Code = 218;
pub(crate) const UNSUPPORTED_PTX_VERSION: Code = 222;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const CAPTURE_UNMATCHED: Code = 903;
pub(crate) const CAPTURE_UNJOINED: Code = 904;
pub(crate) const CAPTURED_EVENT: Code = 907;

/// Names and meanings of the results.
pub(crate) const CODES: &[(Code, &str, &str)] = &[
    (SUCCESS, "CUDA_SUCCESS\0", "no error\0"),
    (OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE\0", "invalid device ordinal\0"),
    (INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT\0", "invalid device context\0"),
    (ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED\0", "resource already mapped\0"),
    (NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU\0", "no kernel image is available\0"),
    (INVALID_PTX, "CUDA_ERROR_INVALID_PTX\0", "a PTX JIT compilation failed\0"),
    (
        UNSUPPORTED_PTX_VERSION,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0",
        "the provided PTX was compiled with an unsupported toolchain.\0",
    ),
    (INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE\0", "invalid resource handle\0"),
    (ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE\0", "the operation cannot be performed in the present state\0"),
    (NOT_FOUND, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (NOT_READY, "CUDA_ERROR_NOT_READY\0", "device not ready\0"),
    (ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS\0", "an illegal memory access was encountered\0"),
    (NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED\0", "operation not supported\0"),
    (LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED\0", "unspecified launch failure\0"),
    (
        COOPERATIVE_LAUNCH_TOO_LARGE,
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE\0",
        "too many blocks in cooperative launch\0",
    ),
    (
        CAPTURE_UNSUPPORTED,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0",
        "operation not permitted while a stream records\0",
    ),
    (
        CAPTURE_INVALIDATED,
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0",
        "operation failed due to a previous error during capture\0",
    ),
    (CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0", "capture was not initiated in this stream\0"),
    (CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0", "capturing stream has unjoined work\0"),
    (
        CAPTURED_EVENT,
        "CUDA_ERROR_CAPTURED_EVENT\0",
        "operation not permitted on an event last recorded in a capturing stream\0",
    ),
];

/// No host has memory here: the upper half of the address is neither all zeros nor all ones.
const FIRST_ADDRESS: u64 = 0x0400_0000_0000_0000;
pub(crate) const MULTIPROCESSORS: u32 = 16;
/// Registers of a multiprocessor, and what a thread is taken to need: the limit of the interpreter kernel.
const REGISTERS: u32 = 65536;
const THREAD_REGISTERS: u32 = 128;
pub(crate) const MOST_THREADS: u32 = 1024;
/// Turns of threads between which a kernel lets others use the memory.
const TURNS: u64 = 256;
/// How long a kernel that waits for other processes rests before it looks again.
const REST: Duration = Duration::from_micros(50);
/// How long a kernel may wait for other processes, unless `FAKE_CUDA_LIMIT_MS` says otherwise.
const PATIENCE: Duration = Duration::from_secs(120);

/// A loaded kernel.
#[derive(Clone)]
pub(crate) struct LoadedKernel {
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
}

/// A launch, as it waits in a stream.
pub(crate) struct KernelLaunch {
    pub(crate) kernel: LoadedKernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) parameters: Vec<u64>,
}

/// The only device.
pub(crate) struct Device {
    machine: Mutex<Machine>,
    /// How many wait for the machine, apart from kernels.
    waiting: AtomicUsize,
    pub(crate) modules: Mutex<BTreeMap<usize, Arc<Module>>>,
    pub(crate) kernels: Mutex<BTreeMap<usize, LoadedKernel>>,
    /// The fault after which nothing works.
    fault: Mutex<Code>,
    seeds: Mutex<u64>,
}

/// The next random number of a state [splitmix64: Steele et al., OOPSLA 2014].
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            // No two processes have the same addresses.
            machine: Mutex::new(Machine::beginning_at(FIRST_ADDRESS + (u64::from(std::process::id()) << 28))),
            waiting: AtomicUsize::new(0),
            modules: Mutex::default(),
            kernels: Mutex::default(),
            fault: Mutex::new(SUCCESS),
            seeds: Mutex::new(seed),
        }
    }

    /// The seed of another stream or launch.
    pub(crate) fn next_seed(&self) -> u64 {
        draw(&mut locked(&self.seeds))
    }

    /// The fault, or success.
    pub(crate) fn fault(&self) -> Code {
        *locked(&self.fault)
    }

    /// All later calls fail; what happened is said on the standard error.
    #[expect(clippy::print_stderr, reason = "a driver's log has no other place")]
    pub(crate) fn fail(&self, code: Code, what: &str) {
        let mut fault = locked(&self.fault);
        if *fault == SUCCESS {
            *fault = code;
            eprintln!("fake CUDA driver: {what}");
        }
    }

    /// How many blocks of so many threads a multiprocessor holds.
    pub(crate) fn blocks_at_once(&self, threads: u32) -> u32 {
        match threads {
            0 => 0,
            _ if threads > MOST_THREADS => 0,
            _ => (REGISTERS / (THREAD_REGISTERS * threads.next_multiple_of(32))).min(32),
        }
    }

    /// The machine, for others than kernels, which let it go from time to time.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let machine = locked(&self.machine);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        machine
    }

    /// Puts memory that other processes may have too at an address; false if there is some already.
    pub(crate) fn put(&self, address: u64, memory: Arc<dyn OutsideMemory>) -> bool {
        self.machine().put(address, memory)
    }

    /// Takes away what lies at an address; false if nothing does.
    pub(crate) fn take(&self, address: u64) -> bool {
        self.machine().release(address)
    }

    /// Memory of so many bytes.
    pub(crate) fn allocate(&self, bytes: usize) -> u64 {
        self.machine().allocate(bytes, 256)
    }

    pub(crate) fn release(&self, address: u64) {
        if !self.machine().release(address) {
            self.fail(INVALID_VALUE, &format!("{address:#x} was freed, and is no allocation"));
        }
    }

    /// How many allocations were not freed.
    pub(crate) fn allocations(&self) -> usize {
        self.machine().allocations()
    }

    /// Whether so many bytes at an address are inside of one allocation.
    pub(crate) fn holds(&self, address: u64, bytes: usize) -> bool {
        self.machine().holds(address, bytes)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        if let Err(fault) = self.machine().write(address, bytes) {
            self.fail(ILLEGAL_ADDRESS, &fault.to_string());
        }
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let read = self.machine().read(address, bytes);
        read.map_err(|fault| self.fail(ILLEGAL_ADDRESS, &fault.to_string())).ok()
    }

    pub(crate) fn launch(&self, launch: &KernelLaunch, seed: u64) {
        if self.fault() != SUCCESS {
            return;
        }
        let KernelLaunch { kernel, blocks, threads, parameters } = launch;
        clock::launch(&kernel.name);
        faults::launch(&kernel.name);
        let devices = vec![0; *blocks as usize];
        let terms = Launch { kernel: &kernel.name, devices: &devices, threads: *threads, parameters, seed };
        if let Err(fault) = self.run(&kernel.module, terms) {
            self.fail(LAUNCH_FAILED, &format!("{}: {fault}", kernel.name));
        }
    }

    /// Runs a kernel to its end, or until the device has a fault.
    fn run(&self, module: &Module, terms: Launch<'_>) -> Result<(), ptx::Fault> {
        let mut running = self.machine().begin(&[(module, terms)])?;
        let (mut idle_since, slow) = (None, milliseconds("FAKE_CUDA_SLOW_MS"));
        // Others overtake a slow one wherever it is.
        let turns = if slow.is_some() { TURNS / 16 } else { TURNS };
        while self.fault() == SUCCESS {
            while self.waiting.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            let progress = running.go_on(&mut locked(&self.machine), turns)?;
            match progress {
                Progress::Ended(_) => break,
                Progress::Runs => {
                    idle_since = None;
                    // A GPU that is slower than others.
                    slow.into_iter().for_each(std::thread::sleep);
                }
                Progress::Idles if idle_since.get_or_insert_with(Instant::now).elapsed() > patience() => {
                    return Err(running.deadlock());
                }
                // What it waits for comes from another process, and perhaps from this core.
                Progress::Idles => std::thread::sleep(REST),
            }
        }
        Ok(())
    }
}

fn milliseconds(variable: &str) -> Option<Duration> {
    std::env::var(variable).ok()?.parse().ok().map(Duration::from_millis)
}

fn patience() -> Duration {
    milliseconds("FAKE_CUDA_LIMIT_MS").unwrap_or(PATIENCE)
}
