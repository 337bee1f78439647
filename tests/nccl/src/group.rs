//! Groups: calls between `ncclGroupStart` and `ncclGroupEnd` happen together, when the outermost group ends.
//!
//! The principal type is [`Group`].

use crate::comm::{Comm, Operation};
use crate::cuda::Driver;
use crate::wire::{CUDA_ERROR, Code, IN_PROGRESS, INVALID_USAGE, SUCCESS, SYSTEM_ERROR};
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a thread has collected.
#[derive(Default)]
struct Group {
    depth: u32,
    work: Vec<Collected>,
    /// Communicators that are being made.
    joining: Vec<(Arc<Comm>, JoinHandle<()>)>,
    /// The first error of a call inside.
    error: Code,
}

/// The operations of one communicator.
struct Collected {
    comm: Arc<Comm>,
    stream: usize,
    operations: Vec<Operation>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() -> Code {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

/// Ends a group; the outermost one gives its work to the streams.
pub(crate) fn end() -> Code {
    let ended = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(INVALID_USAGE),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    });
    match ended {
        Err(code) => code,
        Ok(None) => SUCCESS,
        Ok(Some(group)) => finish(group),
    }
}

/// Ends a group whose work is not done, because somebody only wants to know how long it would take.
pub(crate) fn drop_work() -> Code {
    GROUP.with_borrow_mut(|group| match group.depth {
        0 => INVALID_USAGE,
        1 => std::mem::take(group).error,
        _ => {
            group.depth -= 1;
            SUCCESS
        }
    })
}

fn finish(mut group: Group) -> Code {
    let mut code = group.error;
    for (comm, thread) in group.joining {
        let _ = thread.join();
        if code == SUCCESS {
            code = comm.code();
        }
    }
    if code != SUCCESS {
        return code;
    }
    // As NCCL does it, so ranks may name communicators in any order.
    group.work.sort_by_key(|work| work.comm.nonce());
    if !group.work.iter().all(|work| work.comm.is_blocking) {
        return push_later(group.work);
    }
    let pushed = group.work.into_iter().map(push);
    pushed.fold(SUCCESS, |first, code| if first == SUCCESS { code } else { first })
}

/// Gives work to the streams some time after the caller has gone on.
fn push_later(work: Vec<Collected>) -> Code {
    let Some(driver) = Driver::find() else { return CUDA_ERROR };
    work.iter().for_each(|work| work.comm.begin_launch());
    let context = driver.context();
    std::thread::spawn(move || {
        driver.use_context(context);
        let delay = if std::env::var_os("FAKE_CUDA_CLOCK").is_some() { 0 } else { 64 };
        for _ in 0..delay {
            std::thread::yield_now();
        }
        for work in work {
            let comm = work.comm.clone();
            let code = if comm.fails_to_launch() { SYSTEM_ERROR } else { push(work) };
            comm.end_launch(code);
        }
    });
    IN_PROGRESS
}

/// Gives work to its stream.
fn push(work: Collected) -> Code {
    let Some(driver) = Driver::find() else { return CUDA_ERROR };
    let Collected { comm, stream, operations } = work;
    let runner = comm.clone();
    if driver.is_recording(stream) {
        let work = move || {
            runner.expect_work();
            runner.run(&operations, driver);
        };
        return if driver.record(stream, Box::new(work)).is_some() { SUCCESS } else { CUDA_ERROR };
    }
    if comm.connects(&operations) {
        // NCCL allocates memory for its connections, and that waits for the GPU.
        driver.synchronize(stream);
    }
    comm.expect_work();
    match driver.push(stream, Box::new(move || runner.run(&operations, driver))) {
        Some(()) => SUCCESS,
        None => {
            comm.run(&[], driver);
            CUDA_ERROR
        }
    }
}

/// Takes an operation into the group of this thread, or does it by itself.
pub(crate) fn take(comm: Arc<Comm>, stream: usize, operation: Operation) -> Code {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            let is_blocking = comm.is_blocking;
            let work = Collected { comm, stream, operations: vec![operation] };
            return if is_blocking { push(work) } else { push_later(vec![work]) };
        }
        match group.work.iter_mut().find(|work| Arc::ptr_eq(&work.comm, &comm)) {
            // NCCL would have to synchronize the streams.
            Some(work) if work.stream != stream => return fail_in(group, INVALID_USAGE),
            Some(work) => work.operations.push(operation),
            None => group.work.push(Collected { comm, stream, operations: vec![operation] }),
        }
        SUCCESS
    })
}

fn fail_in(group: &mut Group, code: Code) -> Code {
    if group.depth > 0 && group.error == SUCCESS {
        group.error = code;
    }
    code
}

/// An error of a call; inside of a group its end fails too.
pub(crate) fn fail(code: Code) -> Code {
    GROUP.with_borrow_mut(|group| fail_in(group, code))
}

/// A communicator that is being made: inside of a group its end waits for it.
pub(crate) fn join(comm: Arc<Comm>, thread: JoinHandle<()>) -> Code {
    let outside = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Some((comm, thread)),
        _ => {
            group.joining.push((comm, thread));
            None
        }
    });
    outside.map_or(SUCCESS, |(comm, thread)| {
        let _ = thread.join();
        comm.code()
    })
}
