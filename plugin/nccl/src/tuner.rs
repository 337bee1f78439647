//! What NCCL calls.
//!
//! The principal type is [`Tuner`]. The functions of all versions end in [`Tuner::choice`].

use crate::abi::{Logger, TunerContext, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6};
use crate::rules::{FoundRules, from_environment};
use schedule::Collective;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tune::{NcclAlgorithm, NcclCall, NcclChoice, NcclProtocol, NcclRule};

/// What one communicator of NCCL asks.
pub(crate) struct Tuner {
    rules: Vec<NcclRule>,
    ranks: u64,
    nodes: u64,
}

/// A call, as NCCL describes it.
#[derive(Clone, Copy)]
struct Asked {
    collective: c_int,
    bytes: usize,
    pipe_ops: c_int,
    registered: Option<c_int>,
}

impl Tuner {
    /// What is to run; `None` if there is no opinion.
    fn choice(&self, asked: Asked) -> Option<NcclChoice> {
        let collective: Collective = NcclCall::collective(asked.collective.into())?;
        let call = NcclCall {
            collective,
            bytes: asked.bytes as u64,
            ranks: self.ranks,
            nodes: self.nodes,
            pipe_ops: Some(asked.pipe_ops.into()),
            registered: asked.registered.map(i64::from),
        };
        self.rules.iter().find(|rule| rule.is_for(&call)).map(|rule| rule.choice)
    }
}

/// NCCL's results; a plugin without an opinion is a success.
const SUCCESS: c_int = 0;
/// Levels and flags of NCCL's logger.
const LOG_WARN: c_int = 2;
const LOG_INFO: c_int = 3;
const LOG_TUNING: u64 = 0x40;
/// The cost of an algorithm that NCCL cannot run here.
const FORBIDDEN: f32 = -1.0;
/// More algorithms or protocols than any NCCL has: a table of such a size is none.
const MOST_SIDES: c_int = 64;

const NAME: *const c_char = c"Antiphon".as_ptr();

fn say(logger: Logger, level: c_int, text: &str) {
    let Some(log) = logger else { return };
    let Ok(text) = CString::new(text.replace('\0', "?")) else { return };
    // SAFETY: NCCL gave its logger, which takes a format and arguments that fit it.
    unsafe { log(level, LOG_TUNING, c"antiphon".as_ptr(), 0, c"TUNER/Antiphon: %s".as_ptr(), text.as_ptr()) };
}

/// Runs a function that NCCL has called. A panic ends here; then there is no opinion.
fn guarded(run: impl FnOnce()) -> c_int {
    let _ = catch_unwind(AssertUnwindSafe(run));
    SUCCESS
}

/// # Safety
/// `context` is null or writable.
unsafe fn begin(context: *mut TunerContext, ranks: usize, nodes: usize, logger: Logger) -> c_int {
    if context.is_null() {
        return SUCCESS;
    }
    // SAFETY: the caller promises it. Without a tuner, all that follows has no opinion.
    unsafe { context.write(std::ptr::null_mut()) };
    guarded(|| {
        let FoundRules { rules, says, is_warning } = from_environment();
        if let Some(text) = says {
            say(logger, if is_warning { LOG_WARN } else { LOG_INFO }, &text);
        }
        let tuner = Box::new(Tuner { rules, ranks: ranks as u64, nodes: nodes as u64 });
        // SAFETY: as above.
        unsafe { context.write(Box::into_raw(tuner).cast()) };
    })
}

/// # Safety
/// `context` is null or came from [`begin`].
unsafe fn choice(context: TunerContext, asked: Asked) -> Option<NcclChoice> {
    // SAFETY: the caller promises it, and NCCL calls nothing after the end of the tuner.
    unsafe { context.cast::<Tuner>().as_ref() }?.choice(asked)
}

/// Makes the choice the cheapest of a table of costs.
///
/// # Safety
/// The addresses are null or valid; the table has `algorithms` rows of `protocols` costs, one row after the other.
unsafe fn put(choice: NcclChoice, table: *mut *mut f32, (algorithms, protocols): (c_int, c_int), channels: *mut c_int) {
    let (algorithm, protocol) = (choice.algorithm as c_int, choice.protocol as c_int);
    let is_table = (1..=MOST_SIDES).contains(&algorithms) && (1..=MOST_SIDES).contains(&protocols);
    if table.is_null() || !is_table || algorithm >= algorithms || protocol >= protocols {
        return;
    }
    // SAFETY: the place is inside the table, as was just checked.
    let cost = unsafe { table.cast::<f32>().add((algorithm * protocols + protocol) as usize).as_mut() };
    let Some(cost) = cost.filter(|cost| **cost != FORBIDDEN) else { return };
    *cost = 0.0;
    // SAFETY: null or valid.
    if let (Some(given), Some(out)) = (choice.channels, unsafe { channels.as_mut() }) {
        *out = given as c_int;
    }
}

unsafe extern "C" fn init(ranks: usize, nodes: usize, logger: Logger, context: *mut TunerContext) -> c_int {
    // SAFETY: NCCL gives the address of its context.
    unsafe { begin(context, ranks, nodes, logger) }
}

unsafe extern "C" fn init_with_domains(
    context: *mut TunerContext,
    _comm: u64,
    ranks: usize,
    nodes: usize,
    logger: Logger,
    _domains: *const c_void,
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives the address of its context.
    unsafe { begin(context, ranks, nodes, logger) }
}

unsafe extern "C" fn info_v2(
    context: TunerContext,
    collective: c_int,
    bytes: usize,
    collnet: c_int,
    nvls: c_int,
    pipe_ops: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> c_int {
    guarded(|| {
        let asked = Asked { collective, bytes, pipe_ops, registered: None };
        // SAFETY: the context is ours, as NCCL keeps it.
        let Some(choice) = (unsafe { choice(context, asked) }) else { return };
        let is_there = match choice.algorithm {
            NcclAlgorithm::Tree | NcclAlgorithm::Ring => true,
            NcclAlgorithm::CollNetDirect | NcclAlgorithm::CollNetChain => collnet != 0,
            NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => nvls != 0,
            // NCCL had none when it had this version.
            NcclAlgorithm::Pat => false,
        };
        // Only trees and rings have protocols other than Simple.
        let is_plain = matches!(choice.algorithm, NcclAlgorithm::Tree | NcclAlgorithm::Ring);
        if !is_there || !is_plain && choice.protocol != NcclProtocol::Simple {
            return;
        }
        // SAFETY: NCCL gives the addresses of its numbers; null is left alone.
        let (Some(algorithm), Some(protocol)) = (unsafe { (algorithm.as_mut(), protocol.as_mut()) }) else { return };
        (*algorithm, *protocol) = (choice.algorithm as c_int, choice.protocol as c_int);
        // SAFETY: as above.
        if let (Some(given), Some(out)) = (choice.channels, unsafe { channels.as_mut() }) {
            *out = given as c_int;
        }
    })
}

/// Answers a question with a table of costs, as all versions from 3 on do.
///
/// # Safety
/// The context is null or ours; the rest as [`put`].
unsafe fn answer(
    context: TunerContext,
    asked: Asked,
    table: *mut *mut f32,
    sides: (c_int, c_int),
    channels: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(choice) = choice(context, asked) {
                put(choice, table, sides, channels);
            }
        }
    })
}

unsafe extern "C" fn info_v3(
    context: TunerContext,
    collective: c_int,
    bytes: usize,
    pipe_ops: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    let asked = Asked { collective, bytes, pipe_ops, registered: None };
    // SAFETY: NCCL gives our context, and its table and number.
    unsafe { answer(context, asked, table, (algorithms, protocols), channels) }
}

unsafe extern "C" fn info_with_registration(
    context: TunerContext,
    collective: c_int,
    bytes: usize,
    pipe_ops: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> c_int {
    let asked = Asked { collective, bytes, pipe_ops, registered: Some(registered) };
    // SAFETY: NCCL gives our context, and its table and number.
    unsafe { answer(context, asked, table, (algorithms, protocols), channels) }
}

unsafe extern "C" fn end(context: TunerContext) -> c_int {
    guarded(|| {
        if !context.is_null() {
            // SAFETY: it came from `begin`, and NCCL ends a tuner once.
            drop(unsafe { Box::from_raw(context.cast::<Tuner>()) });
        }
    })
}

/// Version 2, for NCCL 2.21.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v2: TunerV2 = TunerV2 { name: NAME, init, info: info_v2, destroy: end };

/// Version 3, for NCCL 2.22 to 2.25.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v3: TunerV3 = TunerV3 { name: NAME, init, info: info_v3, destroy: end };

/// Version 4, for NCCL 2.26 and 2.27.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: TunerV4 = TunerV4 { name: NAME, init, info: info_with_registration, destroy: end };

/// Version 5, for NCCL 2.28 and 2.29.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: TunerV5 =
    TunerV5 { name: NAME, init: init_with_domains, info: info_with_registration, finalize: end };

/// Version 6, for NCCL 2.30 and newer.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v6: TunerV6 =
    TunerV6 { name: NAME, init: init_with_domains, info: info_with_registration, finalize: end, chunk: None };
