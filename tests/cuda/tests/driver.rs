//! The fake driver keeps what it promises: it refuses what a real one refuses, and no use of its memory goes unnoticed.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "calls a driver")]

use fake_cuda::*;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Writes 7 where its parameter says, from one thread.
const KERNEL: &str = ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry seven(\n.param .u64 p\n)\n{\n\
    ld.param.u64 %rd1, [p];\nst.global.u32 [%rd1], 7;\nret;\n}\n";

fn ok(code: i32) {
    assert_eq!(code, 0);
}

/// One process has one driver, and a fault is for ever: so this is one test, in order.
#[test]
fn what_is_wrong_is_refused() {
    let (mut number, mut context) = (0, 0);
    // SAFETY: all addresses are those of variables, or null, which the driver checks.
    unsafe {
        assert_eq!(cuDeviceGet(&raw mut number, 0), 3, "before cuInit");
        ok(cuInit(0));
        assert_eq!(cuDeviceGet(&raw mut number, 1), 101, "there is one device");
        ok(cuDeviceGet(&raw mut number, 0));
        let mut name = [0; 100];
        ok(cuDeviceGetName(name.as_mut_ptr(), 100, number));
        assert!(CStr::from_ptr(name.as_ptr()).to_str().unwrap().contains("fake"));
        let mut stream = 0;
        assert_eq!(cuStreamCreate(&raw mut stream, 1), 201, "without a context");
        ok(cuDevicePrimaryCtxRetain(&raw mut context, number));
        ok(cuCtxSetCurrent(context));
        ok(cuStreamCreate(&raw mut stream, 1));
        memory_is_guarded(stream);
        recordings_are_guarded(stream);
        recordings_fork_and_join(stream);
        kernels_are_guarded(stream);
        assert_eq!(fakeCudaHeld(), 1, "the stream");
    }
}

/// # Safety
/// The stream is one of the driver.
unsafe fn memory_is_guarded(stream: usize) {
    let (mut first, mut second, bytes) = (0, 0, [1u8, 2, 3, 4]);
    // SAFETY: as above.
    unsafe {
        ok(cuMemAllocAsync(&raw mut first, 4, stream));
        ok(cuMemAllocAsync(&raw mut second, 4, stream));
        // The host has no memory there.
        let own = std::fs::File::open("/proc/self/mem").unwrap();
        assert!(own.read_at(&mut [0], first).is_err());
        let mut read = [0u8; 4];
        ok(cuMemcpyDtoHAsync_v2(read.as_mut_ptr(), first, 4, stream));
        assert_ne!(read, [0; 4], "new memory is not zeroed");
        ok(cuMemcpyHtoDAsync_v2(first, bytes.as_ptr(), 4, stream));
        ok(cuMemcpyDtoHAsync_v2(read.as_mut_ptr(), first, 4, stream));
        assert_eq!(read, bytes);
        // Past the end, between allocations, from nowhere.
        assert_eq!(cuMemcpyHtoDAsync_v2(first, [0u8; 5].as_ptr(), 5, stream), 1);
        assert_eq!(cuMemcpyHtoDAsync_v2(first + 1, bytes.as_ptr(), 4, stream), 1);
        assert_eq!(cuMemsetD8Async(first + 64, 0, 1, stream), 1);
        assert_eq!(cuMemcpyDtoHAsync_v2(null_mut(), first, 4, stream), 1);
        assert_eq!(cuMemcpyDtoHAsync_v2(read.as_mut_ptr(), first, 4, 12345), 400, "no such stream");
        ok(cuMemFreeAsync(second, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(cuMemsetD8Async(second, 0, 4, stream), 1, "freed");
        ok(cuMemFreeAsync(first, stream));
        ok(cuStreamSynchronize(stream));
    }
}

/// While a stream records, nobody may wait or allocate, unless they say that they know what they do.
///
/// # Safety
/// The stream is one of the driver.
unsafe fn recordings_are_guarded(stream: usize) {
    let (mut other, mut event, mut graph, mut made, mut address) = (0, 0, 0, 0, 0u64);
    // SAFETY: as above.
    unsafe {
        ok(cuStreamCreate(&raw mut other, 1));
        ok(cuEventCreate(&raw mut event, 0));
        assert_eq!(cuEventRecordWithFlags(event, stream, 1), 1, "no graph is recorded");
        assert_eq!(cuStreamWaitEvent(stream, event, 1), 1, "no graph is recorded");
        for forbidden in [|other, _| cuStreamSynchronize(other), |other, address| cuMemAllocAsync(address, 4, other)] {
            ok(cuStreamBeginCapture_v2(stream, 0));
            assert_eq!(forbidden(other, &raw mut address), 900);
            assert_eq!(cuStreamEndCapture(stream, &raw mut graph), 901, "it was spoilt");
        }
        ok(cuStreamBeginCapture_v2(stream, 0));
        ok(cuStreamWaitEvent(stream, event, 0));
        assert_eq!(cuStreamEndCapture(stream, &raw mut graph), 901, "the event is none of the graph");
        ok(cuStreamBeginCapture_v2(stream, 0));
        let mut mode = 2;
        ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(mode, 0);
        ok(cuStreamSynchronize(other));
        ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        ok(cuStreamWaitEvent(stream, event, 1));
        ok(cuEventRecordWithFlags(event, stream, 1));
        ok(cuStreamEndCapture(stream, &raw mut graph));
        ok(cuGraphInstantiateWithFlags(&raw mut made, graph, 0));
        for _ in 0..2 {
            ok(cuGraphLaunch(made, stream));
        }
        ok(cuStreamSynchronize(stream));
        ok(cuEventQuery(event));
        ok(cuGraphDestroy(graph));
        ok(cuGraphExecDestroy(made));
        ok(cuEventDestroy_v2(event));
        ok(cuStreamDestroy_v2(other));
    }
}

/// Streams that join a recording are recorded too. What nothing orders happens at the same time, and what is ordered does not.
///
/// # Safety
/// The stream is one of the driver.
unsafe fn recordings_fork_and_join(stream: usize) {
    unsafe extern "C" fn note(number: *mut c_void) {
        if number as usize == 4 {
            // Until the other one has come, which runs at the same time.
            let begin = Instant::now();
            while ORDER.lock().unwrap().is_empty() && begin.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
        }
        ORDER.lock().unwrap().push(number as usize);
    }
    static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let (mut other, mut event, mut last, mut graph, mut made, mut status) = (0, 0, 0, 0, 0, 0);
    let (none, number) = ((null_mut(), null_mut(), null_mut()), std::ptr::without_provenance_mut::<c_void>);
    // SAFETY: as above.
    unsafe {
        ok(cuStreamCreate(&raw mut other, 1));
        ok(cuEventCreate(&raw mut event, 0));
        ok(cuEventCreate(&raw mut last, 0));
        for (is_ordered, first, order) in [(false, 4, [2, 4, 3]), (true, 1, [1, 2, 3])] {
            ok(cuStreamBeginCapture_v2(stream, 0));
            ok(cuEventRecord(event, stream));
            ok(cuStreamWaitEvent(other, event, 0));
            let mut recording = [0, 0];
            for (of, recording) in [stream, other].into_iter().zip(&mut recording) {
                ok(cuStreamGetCaptureInfo_v2(of, &raw mut status, recording, none.0, none.1, none.2));
            }
            assert!(status == 1 && recording[0] > 0 && recording[0] == recording[1]);
            ok(cuLaunchHostFunc(stream, Some(note), number(first)));
            ok(cuEventRecord(last, stream));
            if is_ordered {
                // Twice the same is once.
                (0..2).for_each(|_| ok(cuStreamWaitEvent(other, last, 0)));
            }
            ok(cuLaunchHostFunc(other, Some(note), number(2)));
            ok(cuEventRecord(event, other));
            ok(cuStreamWaitEvent(stream, event, 0));
            ok(cuLaunchHostFunc(stream, Some(note), number(3)));
            assert_eq!(cuStreamEndCapture(other, &raw mut graph), 903, "it did not begin");
            ok(cuStreamEndCapture(stream, &raw mut graph));
            assert_eq!(cuEventQuery(event), 907, "it is one of the graph");
            ok(cuGraphInstantiateWithFlags(&raw mut made, graph, 0));
            for _ in 0..10 {
                ok(cuGraphLaunch(made, stream));
                ok(cuStreamSynchronize(stream));
                assert_eq!(std::mem::take(&mut *ORDER.lock().unwrap()), order);
            }
            ok(cuGraphDestroy(graph));
            ok(cuGraphExecDestroy(made));
        }
        ok(cuStreamBeginCapture_v2(stream, 0));
        ok(cuEventRecord(event, stream));
        ok(cuStreamWaitEvent(other, event, 0));
        ok(cuLaunchHostFunc(other, Some(note), number(2)));
        assert_eq!(cuStreamEndCapture(stream, &raw mut graph), 904, "the other stream has not come back");
        assert_eq!(cuStreamWaitEvent(other, event, 0), 907, "its recording has ended");
        [event, last].iter().for_each(|event| ok(cuEventDestroy_v2(*event)));
        ok(cuStreamDestroy_v2(other));
    }
}

/// # Safety
/// The stream is one of the driver.
unsafe fn kernels_are_guarded(stream: usize) {
    let (mut module, mut function, mut address) = (0, 0, 0u64);
    let image = CString::new(KERNEL).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(cuModuleLoadData(&raw mut module, c"no PTX".as_ptr()), 218);
        assert_eq!(cuModuleLoadData(&raw mut module, c"\x7fELF".as_ptr()), 209);
        ok(cuModuleLoadData(&raw mut module, image.as_ptr()));
        assert_eq!(cuModuleGetFunction(&raw mut function, module, c"eight".as_ptr()), 500);
        ok(cuModuleGetFunction(&raw mut function, module, c"seven".as_ptr()));
        ok(cuMemAllocAsync(&raw mut address, 4, stream));
        let launch = |blocks, threads, mut at: u64| {
            let mut parameters = [(&raw mut at).cast()];
            cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.as_mut_ptr())
        };
        // 16 multiprocessors hold one block of 512 threads each.
        assert_eq!(launch(17, 512, address), 720);
        assert_eq!((launch(1, 0, address), launch(1, 1025, address), launch(0, 1, address)), (1, 1, 1));
        let mut event = 0;
        ok(cuEventCreate(&raw mut event, 0));
        ok(launch(1, 1, address));
        ok(cuEventRecord(event, stream));
        ok(cuEventSynchronize(event));
        ok(cuEventQuery(event));
        let mut read = [0u8; 4];
        ok(cuMemcpyDtoHAsync_v2(read.as_mut_ptr(), address, 4, stream));
        assert_eq!(read, [7, 0, 0, 0], "the PTX has run");
        ok(cuEventDestroy_v2(event));
        ok(cuMemFreeAsync(address, stream));
        ok(cuStreamSynchronize(stream));
        // A kernel that writes elsewhere ends everything.
        ok(launch(1, 1, address));
        assert_eq!(cuStreamSynchronize(stream), 719);
        assert_eq!(cuMemAllocAsync(&raw mut address, 4, stream), 719);
        assert_eq!(cuCtxSynchronize(), 719);
        let mut text = std::ptr::null();
        ok(cuGetErrorName(719, &raw mut text));
        assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_LAUNCH_FAILED");
    }
}
