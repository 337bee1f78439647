//! The functions of NCCL, by their names and arguments.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "NCCL's documentation describes its functions")]

use crate::comm::{Comm, Operation};
use crate::cuda::Driver;
use crate::group;
use crate::hub::Hub;
use crate::reduce::{OPS, SIZES};
use crate::wire::{CUDA_ERROR, Code, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Kind, SUCCESS, SYSTEM_ERROR, Terms};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The version whose functions it has. `FAKE_NCCL_VERSION` makes it say another one.
const VERSION: c_int = 23007;
const MAGIC: &[u8; 8] = b"FAKENCCL";
const CONFIG_MAGIC: u32 = 0xcafe_beef;

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT_COMM: AtomicUsize = AtomicUsize::new(0x10);

/// An `ncclUniqueId`: who it is, the port of the hub, and a number that only its ranks know.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub(crate) [u8; 128]);

/// The beginning of an `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

pub(crate) fn comm_of(handle: usize) -> Result<Arc<Comm>, Code> {
    let comms = COMMS.lock().unwrap_or_else(PoisonError::into_inner);
    comms.get(&handle).cloned().ok_or(INVALID_ARGUMENT)
}

/// A communicator gets its handle.
pub(crate) fn added(comm: Arc<Comm>) -> usize {
    let handle = NEXT_COMM.fetch_add(0x10, Ordering::Relaxed);
    COMMS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, comm);
    handle
}

pub(crate) fn code_of(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// # Safety
/// The address is null or writable.
pub(crate) unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller promises it.
    unsafe { out.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    let said = std::env::var("FAKE_NCCL_VERSION").ok().and_then(|text| text.parse().ok());
    // SAFETY: as the caller of NCCL promises.
    code_of(unsafe { give(version, said.unwrap_or(VERSION)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    let Ok((port, nonce)) = Hub::start() else { return SYSTEM_ERROR };
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&nonce.to_le_bytes());
    bytes[16..18].copy_from_slice(&port.to_le_bytes());
    // SAFETY: as the caller of NCCL promises.
    code_of(unsafe { give(id, UniqueId(bytes)) })
}

/// # Safety
/// The address of the communicator is null or writable.
pub(crate) unsafe fn init(out: *mut usize, ranks: c_int, id: UniqueId, rank: c_int, blocking: bool) -> Code {
    let is_here = Driver::find().is_some_and(Driver::has_context);
    if !is_here {
        return group::fail(CUDA_ERROR);
    }
    let bytes = &id.0;
    if &bytes[..8] != MAGIC || ranks < 1 || !(0..ranks).contains(&rank) || out.is_null() {
        return group::fail(INVALID_ARGUMENT);
    }
    let nonce = bytes[8..16].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let port = u16::from_le_bytes([bytes[16], bytes[17]]);
    let comm = Comm::new(ranks as usize, rank as usize, blocking);
    // SAFETY: it is not null.
    unsafe { out.write(added(comm.clone())) };
    let joining = comm.clone();
    let thread = std::thread::spawn(move || joining.join(port, nonce));
    if blocking { group::join(comm, thread) } else { IN_PROGRESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(comm: *mut usize, ranks: c_int, id: UniqueId, rank: c_int) -> Code {
    // SAFETY: as the caller of NCCL promises.
    unsafe { init(comm, ranks, id, rank, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Code {
    // SAFETY: as the caller of NCCL promises: null, or a configuration.
    let config = unsafe { config.as_ref() };
    if config
        .is_some_and(|config| config.magic != CONFIG_MAGIC || config.size < size_of::<Config>() || config.version == 0)
    {
        return group::fail(INVALID_ARGUMENT);
    }
    // SAFETY: as above.
    unsafe { init(comm, ranks, id, rank, config.is_none_or(|config| config.blocking != 0)) }
}

/// One process has one fake device, so it can have one rank only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(comms: *mut usize, devices: c_int, list: *const c_int) -> Code {
    // SAFETY: as the caller of NCCL promises: null, or as many numbers as devices.
    let is_first = devices == 1 && unsafe { list.as_ref() }.is_none_or(|device| *device == 0);
    if !is_first {
        return INVALID_ARGUMENT;
    }
    let mut id = UniqueId([0; 128]);
    // SAFETY: the id is a variable.
    let code = unsafe { ncclGetUniqueId(&raw mut id) };
    if code != SUCCESS {
        return code;
    }
    // SAFETY: as the caller of NCCL promises.
    unsafe { init(comms, 1, id, 0, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: usize, count: *mut c_int) -> Code {
    // SAFETY: as the caller of NCCL promises.
    code_of(comm_of(comm).and_then(|comm| unsafe { give(count, comm.ranks as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: usize, rank: *mut c_int) -> Code {
    // SAFETY: as the caller of NCCL promises.
    code_of(comm_of(comm).and_then(|comm| unsafe { give(rank, comm.rank as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: usize, device: *mut c_int) -> Code {
    // SAFETY: as the caller of NCCL promises.
    code_of(comm_of(comm).and_then(|_| unsafe { give(device, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: usize, error: *mut Code) -> Code {
    // SAFETY: as the caller of NCCL promises.
    code_of(comm_of(comm).and_then(|comm| unsafe { give(error, comm.code()) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: usize) -> Code {
    code_of(comm_of(comm).and_then(|comm| match comm.is_finalized.swap(true, Ordering::AcqRel) {
        true => Err(INVALID_USAGE),
        false => Ok(()),
    }))
}

fn end(handle: usize, is_abort: bool) -> Code {
    if handle == 0 {
        return SUCCESS;
    }
    let comm = COMMS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    let Some(comm) = comm else { return INVALID_ARGUMENT };
    let is_idle = is_abort || comm.drain();
    comm.close(is_abort);
    if is_abort {
        // As NCCL does, it waits until its work is out of the streams.
        comm.drain();
    }
    if is_idle { SUCCESS } else { INVALID_USAGE }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: usize) -> Code {
    end(comm, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: usize) -> Code {
    end(comm, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    group::start()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    group::end()
}

/// It says nothing of times.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupSimulateEnd(_: *mut c_void) -> Code {
    group::drop_work()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The text lives until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: usize) -> *const c_char {
    let text = comm_of(comm).map_or_else(|_| String::new(), |comm| comm.text());
    CString::new(text).unwrap_or_default().into_raw()
}

/// What a call gives: addresses, elements, and on which communicator and stream.
struct Given {
    send: *const c_void,
    recv: *mut c_void,
    comm: usize,
    stream: *mut c_void,
}

/// Checks a call and gives it to the group or the stream.
fn ask(terms: Terms, given: &Given) -> Code {
    let checked = || -> Result<(Arc<Comm>, Operation), Code> {
        let comm = comm_of(given.comm)?;
        if comm.code() == IN_PROGRESS || comm.is_finalized.load(Ordering::Acquire) {
            return Err(INVALID_USAGE);
        }
        if comm.code() != SUCCESS {
            return Err(comm.code());
        }
        let size = usize::try_from(terms.dtype).ok().and_then(|dtype| SIZES.get(dtype).copied());
        let (size, count) = (size.ok_or(INVALID_ARGUMENT)?, terms.count as usize);
        if !(0..OPS).contains(&terms.op) || !(0..comm.ranks as c_int).contains(&terms.peer) {
            return Err(INVALID_ARGUMENT);
        }
        let is_root = terms.peer as usize == comm.rank;
        let (sent, received) = terms.kind.blocks(comm.ranks, is_root);
        let bytes = |blocks: usize| count.checked_mul(size).and_then(|block| block.checked_mul(blocks));
        let (send_bytes, recv_bytes) = bytes(sent).zip(bytes(received)).ok_or(INVALID_ARGUMENT)?;
        let (send, recv) = (given.send as u64, given.recv as u64);
        if send_bytes > 0 && send == 0 || recv_bytes > 0 && recv == 0 {
            return Err(INVALID_ARGUMENT);
        }
        Ok((comm, Operation { terms, send, send_bytes, recv, recv_bytes }))
    };
    match checked() {
        Ok((comm, operation)) => group::take(comm, given.stream as usize, operation),
        Err(code) => group::fail(code),
    }
}

/// Defines operations: their arguments, and what they are.
macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),+) = $kind:ident {
        send: $send:expr, recv: $recv:expr, op: $op:expr, peer: $peer:expr, rest: $count:ident $dtype:ident $comm:ident $stream:ident
    })+) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),+) -> Code {
            let terms = Terms { kind: Kind::$kind, count: $count as u64, dtype: $dtype, op: $op, peer: $peer };
            ask(terms, &Given { send: $send, recv: $recv, comm: $comm, stream: $stream })
        }
    )+ };
}

operations! {
    ncclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: usize, stream: *mut c_void)
        = AllReduce { send: send, recv: recv, op: op, peer: 0, rest: count dtype comm stream }
    ncclReduceScatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: usize, stream: *mut c_void)
        = ReduceScatter { send: send, recv: recv, op: op, peer: 0, rest: count dtype comm stream }
    ncclAllGather(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: usize, stream: *mut c_void)
        = AllGather { send: send, recv: recv, op: 0, peer: 0, rest: count dtype comm stream }
    ncclAlltoAll(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: usize, stream: *mut c_void)
        = AllToAll { send: send, recv: recv, op: 0, peer: 0, rest: count dtype comm stream }
    ncclBroadcast(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: usize, stream: *mut c_void)
        = Broadcast { send: send, recv: recv, op: 0, peer: root, rest: count dtype comm stream }
    ncclBcast(buffer: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: usize, stream: *mut c_void)
        = Broadcast { send: buffer, recv: buffer, op: 0, peer: root, rest: count dtype comm stream }
    ncclReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int, comm: usize, stream: *mut c_void)
        = Reduce { send: send, recv: recv, op: op, peer: root, rest: count dtype comm stream }
    ncclGather(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: usize, stream: *mut c_void)
        = Gather { send: send, recv: recv, op: 0, peer: root, rest: count dtype comm stream }
    ncclScatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: usize, stream: *mut c_void)
        = Scatter { send: send, recv: recv, op: 0, peer: root, rest: count dtype comm stream }
    ncclSend(send: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: *mut c_void)
        = Send { send: send, recv: std::ptr::null_mut(), op: 0, peer: peer, rest: count dtype comm stream }
    ncclRecv(recv: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: *mut c_void)
        = Receive { send: std::ptr::null(), recv: recv, op: 0, peer: peer, rest: count dtype comm stream }
}
