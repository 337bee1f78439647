//! Memory of other processes is as strict in the fake driver as it may be in a real one.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "calls a driver")]

use fake_cuda::*;
use std::ffi::c_void;
use std::process::{Child, Command, Stdio};

const BYTES: usize = 64 << 10;
const CHILD: &str = "FAKE_CUDA_TEST_CHILD";

fn ok(code: i32) {
    assert_eq!(code, 0);
}

/// `CUmemAllocationProp` and `CUmemAccessDesc`, as C has them.
#[repr(C)]
struct Properties([i32; 4], u64, u64);
static SHAREABLE: Properties = Properties([1, 1, 1, 0], 0, 0);
static ACCESS: [i32; 3] = [1, 0, 3];

/// A context, and a stream.
fn begin() -> usize {
    let (mut context, mut stream) = (0, 0);
    // SAFETY: the addresses are those of variables.
    unsafe {
        ok(cuInit(0));
        ok(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        ok(cuCtxSetCurrent(context));
        ok(cuStreamCreate(&raw mut stream, 1));
    }
    stream
}

fn set_access(address: u64) -> i32 {
    // SAFETY: the address is that of one description.
    unsafe { cuMemSetAccess(address, BYTES, (&raw const ACCESS).cast(), 1) }
}

/// Physical memory at an address; the handle is released.
fn mapped(handle: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the address is that of a variable.
    unsafe { ok(cuMemAddressReserve(&raw mut address, BYTES, 0, 0, 0)) };
    ok(cuMemMap(address, BYTES, 0, handle, 0));
    ok(set_access(address));
    ok(cuMemRelease(handle));
    address
}

fn created() -> usize {
    let mut handle = 0;
    // SAFETY: the addresses are those of variables.
    unsafe { ok(cuMemCreate(&raw mut handle, BYTES, (&raw const SHAREABLE).cast(), 0)) };
    handle
}

fn byte_at(address: u64, stream: usize) -> u8 {
    let mut byte = 0u8;
    // SAFETY: the address is that of a variable.
    unsafe { ok(cuMemcpyDtoHAsync_v2(&raw mut byte, address, 1, stream)) };
    byte
}

/// This test again, as another process that does what the words say, and waits for a line before it ends.
fn child(words: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "other_process", "--nocapture"]).env(CHILD, words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until a child has done its part; the address at which it has seen the memory.
fn done(child: &mut Child) -> u64 {
    use std::io::{BufRead, BufReader};
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("at ").map(str::to_owned));
    line.unwrap().parse().unwrap()
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The other process. It is a test only so that it can be started.
#[test]
fn other_process() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let (what, given) = words.split_once(' ').unwrap();
    let (stream, mut address) = (begin(), 0);
    // SAFETY: all addresses are those of variables; the descriptor was inherited.
    unsafe {
        if what == "descriptor" {
            let (mut handle, descriptor): (_, usize) = (0, given.parse().unwrap());
            ok(cuMemImportFromShareableHandle(&raw mut handle, descriptor as *mut c_void, 1));
            address = mapped(handle);
        } else {
            let bytes: Vec<u8> = given.split(',').map(|byte| byte.parse().unwrap()).collect();
            ok(cuIpcOpenMemHandle_v2(&raw mut address, bytes.as_ptr().cast::<MemoryHandle>().read_unaligned(), 1));
        }
    }
    assert_eq!(byte_at(address + 1, stream), 5, "what the owner has written");
    ok(cuMemsetD8Async(address, 6, 1, stream));
    ok(cuStreamSynchronize(stream));
    println!("\nat {address}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    if what == "descriptor" {
        ok(cuMemUnmap(address, BYTES));
        ok(cuMemAddressFree(address, BYTES));
    } else {
        ok(cuIpcCloseMemHandle(address));
        assert_eq!(cuIpcCloseMemHandle(address), 1, "it is closed");
    }
    assert_eq!(cuMemsetD8Async(address, 6, 1, stream), 1, "it is no memory any more");
    assert_eq!(fakeCudaHeld(), 1, "the stream");
}

/// One process has one driver, and a fault is for ever: so this is one test, in order.
#[test]
fn memory_of_several_processes_is_guarded() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let stream = begin();
    mapping_is_guarded(stream);
    descriptors_are_shared(stream);
    handles_are_shared(stream);
    questions_are_answered();
}

fn mapping_is_guarded(stream: usize) {
    let (mut address, handle, odd) = (0, created(), &raw const SHAREABLE);
    // SAFETY: all addresses are those of variables.
    unsafe {
        let mut other = 0;
        assert_eq!(cuMemCreate(&raw mut other, BYTES + 1, odd.cast(), 0), 1, "not granular");
        assert_eq!(cuMemAddressReserve(&raw mut address, 100, 0, 0, 0), 1, "not granular");
        ok(cuMemAddressReserve(&raw mut address, BYTES, 0, 0, 0));
    }
    assert_eq!(cuMemsetD8Async(address, 0, 1, stream), 1, "nothing is there");
    assert_eq!(set_access(address), 1, "nothing is mapped");
    assert_eq!(cuMemMap(address + BYTES as u64, BYTES, 0, handle, 0), 1, "not reserved");
    ok(cuMemMap(address, BYTES, 0, handle, 0));
    assert_eq!(cuMemMap(address, BYTES, 0, handle, 0), 208, "mapped twice");
    assert_eq!(cuMemsetD8Async(address, 0, 1, stream), 1, "no access was given");
    ok(set_access(address));
    ok(cuMemRelease(handle));
    assert_eq!(cuMemRelease(handle), 1, "released twice");
    ok(cuMemsetD8Async(address, 4, BYTES, stream));
    assert_eq!(byte_at(address + BYTES as u64 - 1, stream), 4, "a mapping keeps the memory");
    assert_eq!(cuMemAddressFree(address, BYTES), 1, "still mapped");
    assert_eq!(fakeCudaHeld(), 1 + 1 + 2, "stream, memory, reservation and mapping");
    ok(cuMemUnmap(address, BYTES));
    assert_eq!(cuMemUnmap(address, BYTES), 1, "unmapped twice");
    assert_eq!(cuMemsetD8Async(address, 4, 1, stream), 1, "unmapped");
    ok(cuMemAddressFree(address, BYTES));
    assert_eq!(cuMemAddressFree(address, BYTES), 1, "freed twice");
    assert_eq!(fakeCudaHeld(), 1);
}

fn descriptors_are_shared(stream: usize) {
    let (handle, mut descriptor, mut imported) = (created(), -1, 0);
    // SAFETY: all addresses are those of variables.
    unsafe {
        ok(cuMemExportToShareableHandle(&raw mut descriptor, handle, 1, 0));
        let null = std::fs::File::open("/dev/null").unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&null) as usize as *mut c_void;
        assert_eq!(cuMemImportFromShareableHandle(&raw mut imported, other, 1), 1, "no memory");
        // The child inherits it.
        assert_eq!(libc::fcntl(descriptor, libc::F_SETFD, 0), 0);
    }
    let address = mapped(handle);
    ok(cuMemsetD8Async(address, 5, 8, stream));
    ok(cuStreamSynchronize(stream));
    let mut other = child(&format!("descriptor {descriptor}"));
    assert_ne!(done(&mut other), address, "each process has other addresses");
    assert_eq!((byte_at(address, stream), byte_at(address + 1, stream)), (6, 5), "the bytes are the same");
    // It lives on in the other process.
    ok(cuMemUnmap(address, BYTES));
    ok(cuMemAddressFree(address, BYTES));
    // SAFETY: it was exported to this process.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
    end(other);
    assert_eq!(fakeCudaHeld(), 1);
}

fn handles_are_shared(stream: usize) {
    let (mut address, mut pooled, mut bytes) = (0, 0, [0u8; 64]);
    let handle = (&raw mut bytes).cast::<MemoryHandle>();
    // SAFETY: all addresses are those of variables.
    unsafe {
        ok(cuMemAlloc_v2(&raw mut address, 100));
        ok(cuMemAllocAsync(&raw mut pooled, 100, stream));
        assert_eq!(cuIpcGetMemHandle(handle, pooled), 1, "memory of a pool has no handle");
        ok(cuIpcGetMemHandle(handle, address));
        let mut own = 0;
        assert_eq!(cuIpcOpenMemHandle_v2(&raw mut own, handle.read(), 1), 201, "one's own memory");
    }
    ok(cuMemFreeAsync(pooled, stream));
    ok(cuMemsetD8Async(address, 5, 100, stream));
    assert_eq!(cuMemsetD8Async(address, 5, 101, stream), 1, "past the end");
    ok(cuStreamSynchronize(stream));
    let words: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let words = format!("handle {}", words.join(","));
    let mut other = child(&words);
    assert_ne!(done(&mut other), address);
    assert_eq!((byte_at(address, stream), byte_at(address + 1, stream)), (6, 5));
    end(other);
    ok(cuMemFree_v2(address));
    assert_eq!(cuMemFree_v2(address), 1, "freed twice");
    assert_eq!(fakeCudaHeld(), 1);
    // SAFETY: as above.
    unsafe {
        ok(cuMemAlloc_v2(&raw mut address, 100));
        ok(cuIpcGetMemHandle(handle, address));
    }
    ok(cuMemsetD8Async(address, 5, 100, stream));
    ok(cuStreamSynchronize(stream));
    let words: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let mut other = child(&format!("handle {}", words.join(",")));
    done(&mut other);
    assert_eq!(cuMemFree_v2(address), 700, "another process has it open");
    end(other);
}

fn questions_are_answered() {
    let (mut can, mut uuid) = (7, [0; 16]);
    // SAFETY: all addresses are those of variables.
    unsafe {
        ok(cuDeviceGetUuid_v2(&raw mut uuid, 0));
        assert_eq!(uuid[8..12], std::process::id().to_le_bytes());
        assert_eq!(cuDeviceGetUuid_v2(&raw mut uuid, 1), 101);
        assert_eq!(cuDeviceCanAccessPeer(&raw mut can, 0, 1), 101);
        ok(cuDeviceCanAccessPeer(&raw mut can, 0, 0));
    }
    assert_eq!(can, 0, "to itself");
}
