//! The communicators of this process, as far as they run plans.
//!
//! The principal function is [`made`]. When a communicator is made, its ranks compare what they would decide by: the tables, the
//! versions of this library and of NCCL, and whether their GPU has the kernel. Where all have the same, they tell each other what their
//! GPUs are called. Only then plans run, so all ranks decide each call alike without asking each other again.

use crate::background::{Background, IN_PROGRESS, spawn};
use crate::domains;
use crate::names::NcclName;
use crate::peers::PeerFunctions;
use crate::places::{MemberPlaces, NAME_WORDS, name_of, words_of};
use crate::prepared::PreparedPlans;
use crate::real::{address, real};
use crate::seen::{PlanMember, SeenCommunicator};
use crate::settings::{Settings, say};
use comm::PlanTable;
use runtime::{GpuDevice, Machine, NcclCommunicator, NcclError};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How long all ranks may take to compare their tables.
const PATIENCE: Duration = Duration::from_secs(60);
const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
/// How many numbers a rank tells the others. They stay as many for ever, so that ranks with other versions are told, and do not wait.
const WORDS: usize = 4;

/// What a thread holds of a communicator.
pub(crate) type SeenMember = Arc<SeenCommunicator>;

/// How a communicator was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Making {
    Blocking,
    /// Its functions return at once.
    NonBlocking,
    /// By a split that blocks.
    Split,
    /// Where it will be is not known while NCCL makes it.
    NonBlockingSplit,
}

static MEMBERS: Mutex<BTreeMap<usize, SeenMember>> = Mutex::new(BTreeMap::new());
/// Whether there is any, so that calls of others cost nothing.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

fn members() -> MutexGuard<'static, BTreeMap<usize, SeenMember>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plans of this process; none without a table that can be read.
pub(crate) fn table() -> Option<&'static PlanTable> {
    static TABLE: OnceLock<Option<PlanTable>> = OnceLock::new();
    let read = || {
        let path = Settings::of_process().table.as_ref()?;
        // What is wrong with the tuning tables is said where calls are counted.
        crate::rules::tables(path).ok()?;
        let read = PlanTable::read_for(path, None);
        read.map_err(|why| say(&format!("no plans: {why}"))).ok().filter(|table| !table.is_empty())
    };
    TABLE.get_or_init(read).as_ref()
}

/// A GPU by its number, whether it can run the kernel or not, which is loaded once.
fn gpu(ordinal: usize) -> Result<Arc<GpuDevice>, String> {
    static GPUS: Mutex<BTreeMap<usize, Arc<GpuDevice>>> = Mutex::new(BTreeMap::new());
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = gpus.get(&ordinal) {
        return Ok(known.clone());
    }
    let opened = Arc::new(GpuDevice::open_anyway(ordinal).map_err(|error| error.to_string())?);
    gpus.insert(ordinal, opened.clone());
    Ok(opened)
}

/// Whether this process compares tables with the other ranks. All ranks of a communicator do, or none.
pub(crate) fn compares() -> bool {
    let settings = Settings::of_process();
    !settings.is_disabled && settings.table.is_some()
}

/// The member of a communicator.
pub(crate) fn find(comm: *mut c_void) -> Option<SeenMember> {
    if !ARE_THERE.load(Ordering::Acquire) {
        return None;
    }
    members().get(&(comm as usize)).cloned()
}

fn insert(comm: *mut c_void, member: Result<PlanMember, String>, is_blocking: bool) -> SeenMember {
    let seen = Arc::new(SeenCommunicator::new(member, is_blocking));
    members().insert(comm as usize, seen.clone());
    ARE_THERE.store(true, Ordering::Release);
    seen
}

/// A communicator is about to end. What is returned gives its memory back when it is dropped; that waits for NCCL, so NCCL has to end
/// first.
pub(crate) fn take(comm: *mut c_void) -> Option<SeenMember> {
    if !ARE_THERE.load(Ordering::Acquire) {
        return None;
    }
    members().remove(&(comm as usize))
}

/// NCCL has refused to end a communicator.
pub(crate) fn give_back(comm: *mut c_void, seen: SeenMember) {
    members().insert(comm as usize, seen);
}

/// A communicator that was made in a way in which its ranks do not compare their tables.
pub(crate) fn refuse(comm: *mut c_void, why: &str, is_blocking: bool) {
    if compares() && !comm.is_null() {
        insert(comm, Err(why.to_owned()), is_blocking);
    }
}

/// A communicator was made, with this result. All its ranks come here; the result for the caller.
pub(crate) fn made(comm: *mut c_void, result: c_int, making: Making) -> c_int {
    if !compares() || comm.is_null() || ![SUCCESS, IN_PROGRESS].contains(&result) {
        return result;
    }
    match (making, result) {
        (Making::NonBlockingSplit, _) | (Making::Split, IN_PROGRESS) => {
            refuse(comm, "it came of a split without blocking", false);
        }
        (Making::Blocking | Making::Split, SUCCESS) => return compare_now(comm),
        _ => {
            let seen = insert(comm, Err("its ranks have not compared their tables".to_owned()), false);
            let (background, comm) = (seen.background.clone(), comm as usize);
            return spawn(vec![background], move || vec![compare_later(comm as *mut c_void, &seen)]);
        }
    }
    result
}

/// Why ranks that do not meet make a communicator useless.
fn say_apart(why: &NcclError) {
    say(&format!(
        "making a communicator fails: its ranks do not compare their tables: {why} (hint: ANTIPHON_TABLE must be set on all ranks, or \
         on none)"
    ));
}

/// One rank says why a communicator runs no plans.
fn say_refused(comm: *mut c_void, member: &Result<PlanMember, String>) {
    if let Err(why) = member
        && asked(NcclName::ncclCommUserRank, comm) == Some(0)
        && Settings::of_process().says_decisions
    {
        say(&format!("a communicator runs no plans: {why}"));
    }
}

fn compare_now(comm: *mut c_void) -> c_int {
    match compare(comm, None) {
        Ok(member) => {
            say_refused(comm, &member);
            insert(comm, member, true);
            SUCCESS
        }
        Err(why) => {
            say_apart(&why);
            // SAFETY: NCCL's function takes a communicator, which its caller has not got yet.
            unsafe {
                let abort: unsafe extern "C" fn(*mut c_void) -> c_int =
                    std::mem::transmute(address(NcclName::ncclCommAbort));
                abort(comm);
            }
            SYSTEM_ERROR
        }
    }
}

/// When NCCL has made the communicator. Its caller has got it already, and ends it if this fails.
fn compare_later(comm: *mut c_void, seen: &SeenCommunicator) -> c_int {
    if !seen.background.wait_for_nccl(comm) {
        return SUCCESS;
    }
    match compare(comm, Some(&seen.background)) {
        Ok(member) => {
            say_refused(comm, &member);
            seen.become_member(member);
            SUCCESS
        }
        Err(NcclError::Aborted) => SUCCESS,
        // Its caller ends it, wherever its ranks have been.
        Err(_) if seen.background.is_stopped() => SUCCESS,
        Err(why) => {
            say_apart(&why);
            SYSTEM_ERROR
        }
    }
}

/// A number that a function of NCCL tells about a communicator.
pub(crate) fn asked(name: NcclName, comm: *mut c_void) -> Option<usize> {
    let mut number: c_int = -1;
    // SAFETY: all functions that this library asks so take a communicator and the address of a number.
    let result = unsafe {
        let function: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int = std::mem::transmute(address(name));
        function(comm, &raw mut number)
    };
    if result == SUCCESS { usize::try_from(number).ok() } else { None }
}

/// A number that nobody else has.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: there is room for so many bytes.
    let given = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if given == 8 { u64::from_le_bytes(bytes) } else { 0 }
}

/// What this rank would decide by: 0 if it cannot run plans, and why not.
fn ready(gpu: &Result<Arc<GpuDevice>, String>, nccl_version: &str) -> (u64, String) {
    match (table(), gpu) {
        (None, _) => (0, "there is no table with plans".to_owned()),
        (_, Err(why)) => (0, why.clone()),
        (Some(table), Ok(gpu)) => {
            if let Err(why) = gpu.check_kernel() {
                return (0, why.to_string());
            }
            // Ranks that compare their GPUs with tables, and ranks that do not, would decide differently.
            let compares = if Settings::of_process().takes_any_hardware { "" } else { " here" };
            let words = [env!("CARGO_PKG_VERSION"), nccl_version, compares];
            let bytes = words.iter().flat_map(|word| word.bytes());
            let number = bytes.fold(table.digest(), |number, byte| number.rotate_left(8) ^ u64::from(byte));
            (number.max(1), String::new())
        }
    }
}

/// A number of the machine, or of the one that ranks are told to pretend.
fn machine() -> u64 {
    let host = std::env::var("ANTIPHON_HOST").ok().filter(|host| !host.is_empty());
    let machine = host.map_or_else(Machine::here, |host| Ok(Machine::named(&host)));
    machine.map_or(0, |machine| machine.number())
}

/// What is other at a rank that would decide by this number.
fn difference(number: u64) -> &'static str {
    match number {
        0 => "has no plans",
        _ => "has another table, or another version of this library or of NCCL, or another ANTIPHON_TABLE_ANY_HARDWARE",
    }
}

/// Compares tables with all ranks: a member, or why it runs no plans.
///
/// # Errors
/// If the ranks do not meet, and so the communicator is of no use.
fn compare(comm: *mut c_void, later: Option<&Background>) -> Result<Result<PlanMember, String>, NcclError> {
    let library = real().map_err(|why| NcclError::Library(why.clone()))?;
    if let Err(why) = library.can_run_plans() {
        // Its version is the same on all ranks, or communicators would not work.
        return Ok(Err(why.to_string()));
    }
    let Some(ordinal) = asked(NcclName::ncclCommCuDevice, comm) else {
        return Ok(Err("NCCL does not tell its GPU".to_owned()));
    };
    let gpu = gpu(ordinal);
    let nccl_version = library.version().to_string();
    let (number, why) = ready(&gpu, &nccl_version);
    let opened = match gpu {
        Ok(gpu) => gpu,
        // Without a GPU nothing can be sent; communicators do not work there either.
        Err(why) => return Ok(Err(why)),
    };
    // SAFETY: the communicator was made just now. Its caller has not got it yet, or may not use it before this is done.
    let mut ours = unsafe { NcclCommunicator::borrowed(library, comm) }?;
    if let Some(background) = later {
        ours.stop_when(background.stop_flag());
    }
    static PROCESS: LazyLock<u64> = LazyLock::new(random);
    let own: [u64; WORDS] = [number, machine(), *PROCESS, random()];
    let words = ours.gather(&opened, &own, PATIENCE)?;
    let column = |which: usize| words.iter().copied().skip(which).step_by(WORDS);
    let (numbers, hosts): (Vec<u64>, Vec<u64>) = column(0).zip(column(1)).unzip();
    let processes: BTreeSet<u64> = column(2).collect();
    if number == 0 {
        return Ok(Err(why));
    }
    // One thread may have several of its ranks, and would put the whole plan of one into a stream before that of the next. It has to
    // call in groups, and other processes need not: so this must not depend on groups.
    if processes.len() < numbers.len() || processes.contains(&0) {
        return Ok(Err("several of its ranks are in one process".to_owned()));
    }
    if let Some(other) = numbers.iter().position(|other| *other != number) {
        return Ok(Err(format!("rank {other} {}", difference(numbers[other]))));
    }
    let names = ours.gather(&opened, &words_of(opened.name()), PATIENCE)?;
    let names: Vec<String> = names.chunks(NAME_WORDS).map(name_of).collect();
    let mut places = MemberPlaces::new(&hosts, &names, &nccl_version);
    let domains = domains::shared(&mut ours, &opened, (table(), &places), PATIENCE)?;
    places.is_mapped = domains.is_some();
    if ours.rank() == Rank(0) && Settings::of_process().says_decisions {
        table().into_iter().for_each(|table| places.say_others(table));
    }
    let peers = PeerFunctions::shared(&mut ours, &opened, (table(), &places), PATIENCE)?;
    Ok(Ok(PlanMember {
        comm: ours,
        gpu: opened,
        places,
        number: column(3).next().unwrap_or(0),
        plans: PreparedPlans::default(),
        peers,
        domains,
    }))
}
