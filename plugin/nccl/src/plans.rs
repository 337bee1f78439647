//! Calls that plans serve in NCCL's place.
//!
//! The principal function is [`choose`]. Whether a plan serves a call follows from the call's collective, size, type, reduction and
//! root, which are the same on all ranks, and never from where its buffers lie: ranks may call in place or not as they like. So a
//! collective has one kind of program. Where it works in the caller's one buffer, a call that is not in place is copied there first;
//! the others work out of place, and a call in place gets its results from elsewhere.

use crate::background::REMOTE_ERROR;
use crate::members::{SeenMember, find, table};
use crate::peers::PeerKernelCall;
use crate::places::MemberPlaces;
use crate::prepared::{PlanRefusal, PreparedKey, PreparedPlan, THREADS, dtype_of};
use crate::seen::PlanMember;
use crate::settings::{Settings, say};
use program::{LowerOptions, check, lower};
use runtime::{DType, GpuDevice, GpuError, NcclError, NcclRounds, RoundFailure, RoundPlan};
use schedule::{Collective, ReduceOp, Request};
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::{Arc, PoisonError};
use topology::Rank;

/// Results of NCCL's functions.
const SUCCESS: c_int = 0;
const CUDA_ERROR: c_int = 1;
const INTERNAL_ERROR: c_int = 3;
/// The bytes of the work of a block of the kernel.
const BLOCK_BYTES: u64 = 128 << 10;
/// How many prepared plans a communicator keeps. Each has memory on the GPU.
const MOST_PLANS: usize = 64;

// SAFETY: its addresses are only handed on to NCCL and the driver, which take them on any thread.
unsafe impl Send for AskedCall {}

/// A call of a collective, as NCCL's functions take it.
#[derive(Clone, Copy)]
pub(crate) struct AskedCall {
    pub(crate) collective: Collective,
    /// Elements of one block.
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) op: c_int,
    pub(crate) root: c_int,
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) comm: *mut c_void,
    pub(crate) stream: *mut c_void,
}

/// A call that a plan has served, or the kernel over mapped memory.
pub(crate) struct PlannedCall {
    pub(crate) plan: Arc<str>,
    pub(crate) is_function: bool,
    /// What the caller gets.
    pub(crate) code: c_int,
}

/// The reduction of a call, by NCCL's number.
fn op_of(collective: Collective, number: c_int) -> Result<Option<ReduceOp>, PlanRefusal> {
    if !collective.combines() {
        return Ok(None);
    }
    match number {
        0 => Ok(Some(ReduceOp::Sum)),
        1 => Ok(Some(ReduceOp::Prod)),
        2 => Ok(Some(ReduceOp::Max)),
        3 => Ok(Some(ReduceOp::Min)),
        4 => Ok(Some(ReduceOp::Avg)),
        _ => Err(PlanRefusal::Reduction),
    }
}

/// Whether plans can serve the calls of a collective.
fn has_plans(collective: Collective) -> bool {
    match collective {
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast => true,
        Collective::AllToAll | Collective::Reduce => true,
        Collective::AllToAllV | Collective::Gather | Collective::Scatter | Collective::SendRecv => false,
        Collective::Custom => false,
    }
}

/// A call that a plan serves.
pub(crate) struct CallForPlan {
    pub(crate) call: AskedCall,
    key: PreparedKey,
    /// If it is no plan.
    function: Option<PeerKernelCall>,
    pub(crate) seen: SeenMember,
    /// The number of its communicator.
    pub(crate) number: u64,
    pub(crate) gpu: Arc<GpuDevice>,
    pub(crate) is_blocking: bool,
}

/// Whether a plan serves a call.
///
/// # Errors
/// Why NCCL has to serve it. All ranks come to the same.
pub(crate) fn choose(call: &AskedCall) -> Result<CallForPlan, PlanRefusal> {
    let seen = find(call.comm).ok_or(PlanRefusal::Unseen)?;
    if seen.is_retired() {
        return Err(PlanRefusal::Never("its calls were given up".to_owned()));
    }
    let mut locked = seen.member.lock().unwrap_or_else(PoisonError::into_inner);
    let member = locked.as_mut().map_err(|why| PlanRefusal::Never(why.clone()))?;
    let key = key_of(call)?;
    let function = member.peers.as_ref().and_then(|peers| peers.serving(&key));
    if function.is_none() {
        prepared(member, key)?;
    }
    let (number, gpu) = (member.number, member.gpu.clone());
    let is_blocking = seen.is_blocking;
    drop(locked);
    Ok(CallForPlan { call: *call, key, function, seen, number, gpu, is_blocking })
}

/// What a plan has to be prepared for.
///
/// # Errors
/// Why no plan serves such calls.
fn key_of(call: &AskedCall) -> Result<PreparedKey, PlanRefusal> {
    if !has_plans(call.collective) {
        return Err(PlanRefusal::Collective);
    }
    if call.count == 0 {
        return Err(PlanRefusal::Empty);
    }
    let op = op_of(call.collective, call.op)?;
    dtype_of(call.dtype, op)?;
    let root = call.collective.is_rooted().then_some(call.root);
    let root = root.map(|root| u32::try_from(root).map(Rank).map_err(|_| PlanRefusal::NotChosen)).transpose()?;
    Ok(PreparedKey { collective: call.collective, root, op, dtype: call.dtype, count: call.count })
}

/// The plan for such calls, which is made at the first of them. No rank has to be asked, and no memory of the GPU is needed.
///
/// # Errors
/// Why there is none. All ranks come to the same.
fn prepared(member: &mut PlanMember, key: PreparedKey) -> Result<&mut PreparedPlan, PlanRefusal> {
    let PlanMember { comm, places, plans, domains, .. } = member;
    if plans.plans.len() >= MOST_PLANS && !plans.plans.contains_key(&key) {
        // The memory of each is given back when its calls are done.
        plans.plans.clear();
    }
    let within = domains.as_ref().map(|domains| domains.memory.domains());
    let prepare = || planned(&key, comm.rank(), places, within);
    plans.plans.entry(key).or_insert_with(prepare).as_mut().map_err(|why| why.clone())
}

/// A rank's part of the plan for such calls. The kernel moves messages within domains, if there are any.
fn planned(
    key: &PreparedKey,
    rank: Rank,
    places: &MemberPlaces,
    domains: Option<&[u32]>,
) -> Result<PreparedPlan, PlanRefusal> {
    let dtype = dtype_of(key.dtype, key.op)?;
    let (program, name) = program_of(key, dtype, places)?;
    let count = key.count as u64;
    let plan = match domains {
        Some(domains) => RoundPlan::within(domains, &program, rank, (count, dtype), BLOCK_BYTES),
        None => RoundPlan::new(&program, rank, count, dtype, BLOCK_BYTES),
    };
    let plan = plan.map_err(|why| PlanRefusal::Unfit(format!("{name}: {why}")))?;
    Ok(PreparedPlan { name, plan, rounds: None })
}

/// The plan of a call that begins, with a place for messages in mapped memory if it needs one. If there is none any more, NCCL moves all
/// of them. Ranks begin the same calls in the same order, whatever they ask for besides.
///
/// # Errors
/// As for [`prepared`].
fn begun(member: &mut PlanMember, key: PreparedKey) -> Result<Arc<str>, PlanRefusal> {
    let plan = prepared(member, key)?;
    let (name, needs) = (plan.name.clone(), plan.plan.mapped_needs());
    let PlanMember { comm, places, plans, domains, .. } = member;
    if let (Some(needs), Some(domains)) = (needs, domains)
        && !domains.take_place(key, &needs)
    {
        if comm.rank() == Rank(0) && Settings::of_process().says_decisions {
            say(&format!("{name}: too little mapped memory is left for its messages, so NCCL moves them"));
        }
        plans.plans.insert(key, planned(&key, comm.rank(), places, None));
    }
    Ok(name)
}

impl CallForPlan {
    /// Puts the call into its stream.
    ///
    /// # Errors
    /// Why no plan serves it now: its communicator has ended.
    pub(crate) fn start(&self) -> Result<PlannedCall, PlanRefusal> {
        let is_there = find(self.call.comm).is_some_and(|seen| Arc::ptr_eq(&seen, &self.seen));
        if !is_there || self.seen.is_retired() {
            return Err(PlanRefusal::Unseen);
        }
        let mut member = self.seen.member.lock().unwrap_or_else(PoisonError::into_inner);
        let member = member.as_mut().map_err(|why| PlanRefusal::Never(why.clone()))?;
        let (plan, done) = match &self.function {
            Some(function) => (function.name.clone(), run_function(&self.call, function, member)),
            None => {
                let plan = begun(member, self.key)?;
                (plan, enqueue(&self.call, self.key, member))
            }
        };
        let code = match done {
            Ok(()) => SUCCESS,
            Err(error) => {
                say(&format!("{plan}: {error}"));
                code_of(&error)
            }
        };
        Ok(PlannedCall { plan, is_function: self.function.is_some(), code })
    }
}

/// What the caller gets.
fn code_of(error: &NcclError) -> c_int {
    match error {
        NcclError::Refused { code, .. } | NcclError::Round { why: RoundFailure::Failed { code, .. }, .. } => *code,
        NcclError::Gpu(GpuError::PeerGone { .. }) => REMOTE_ERROR,
        NcclError::Gpu(_) => CUDA_ERROR,
        _ => INTERNAL_ERROR,
    }
}

/// Puts a call into its stream that the kernel serves over mapped memory.
fn run_function(call: &AskedCall, function: &PeerKernelCall, member: &mut PlanMember) -> Result<(), NcclError> {
    let PlanMember { comm, gpu, peers, .. } = member;
    let peers = peers.as_mut().ok_or(NcclError::Aborted)?;
    let buffers = [call.send as u64, call.recv as u64];
    // SAFETY: NCCL's caller gives a stream of the communicator's GPU, and buffers of this length, which keep until the stream has done
    // the work, or the graph is gone. They are the same or do not overlap.
    unsafe { peers.staged.enqueue(comm, gpu, call.stream, &function.call, buffers) }
}

/// The program for a call, and its name.
fn program_of(
    key: &PreparedKey,
    dtype: DType,
    places: &MemberPlaces,
) -> Result<(program::VerifiedProgram, Arc<str>), PlanRefusal> {
    let ranks = places.machines.len();
    let bytes = (key.count as u64).saturating_mul(dtype.size() as u64);
    let size = bytes.saturating_mul(key.collective.blocks(ranks));
    let request = Request { op: key.op, root: key.root, ..Request::new(key.collective, ranks, size) };
    let found = |places| table().and_then(|table| table.schedule_for(places, &request, dtype));
    let (schedule, name) = match found(places.ranks()) {
        Some(found) => found.map_err(PlanRefusal::Unfit)?,
        None if places.on_any_hardware().into_iter().any(|of| found(of).is_some()) => {
            return Err(PlanRefusal::OtherHardware);
        }
        None => return Err(PlanRefusal::NotChosen),
    };
    let unfit = |why: &dyn fmt::Display| PlanRefusal::Unfit(format!("{name}: {why}"));
    let in_place = is_planned_in_place(key.collective);
    let program = lower(&schedule, &LowerOptions { in_place, ..LowerOptions::default() });
    let program = check(program.map_err(|why| unfit(&why))?);
    Ok((program.map_err(|_| unfit(&"the program checker refuses it"))?, name.clone().into()))
}

/// Whether plans work in the receive buffer alone. It must hold all of a rank's input, which it does not where ranks
/// receive a part of the sum, or nothing; and all blocks of an all-to-all that are not sent yet.
fn is_planned_in_place(collective: Collective) -> bool {
    match collective {
        Collective::ReduceScatter | Collective::Reduce | Collective::AllToAll => false,
        Collective::AllReduce | Collective::AllGather | Collective::Broadcast => true,
        Collective::AllToAllV | Collective::Gather | Collective::Scatter => true,
        Collective::SendRecv | Collective::Custom => true,
    }
}

/// Where a plan finds the data of a call, and leaves the results.
struct CallPlaces {
    /// Input and output of the plan; the results come from elsewhere if it is staged.
    buffers: [u64; 2],
    is_staged: bool,
    /// What is copied first: where to, where from, and how many bytes.
    copy: Option<(u64, u64, usize)>,
}

/// The places of a call for a rank; `block` are the bytes of one block.
fn places(call: &AskedCall, (rank, ranks): (Rank, usize), block: usize) -> CallPlaces {
    let (send, recv) = (call.send as u64, call.recv as u64);
    let is_root = Ok(rank.0) == u32::try_from(call.root);
    if !is_planned_in_place(call.collective) {
        let [sent, received] = call.collective.buffer_blocks(ranks as u64).map(|blocks| blocks * block as u64);
        // Elsewhere than at the root the place for results may be anything.
        let is_given = is_root || !call.collective.ends_at_root();
        let overlaps = recv < send.saturating_add(sent) && send < recv.saturating_add(received);
        let buffers = [send, if is_given { recv } else { 0 }];
        return CallPlaces { buffers, is_staged: is_given && overlaps, copy: None };
    }
    let own = match call.collective {
        Collective::AllGather => Some(recv + u64::from(rank.0) * block as u64),
        Collective::Broadcast => is_root.then_some(recv),
        Collective::AllReduce | Collective::ReduceScatter | Collective::AllToAll | Collective::AllToAllV => Some(recv),
        Collective::Reduce | Collective::Gather | Collective::Scatter => Some(recv),
        Collective::SendRecv | Collective::Custom => Some(recv),
    };
    let copy = own.filter(|own| *own != send).map(|own| (own, send, block));
    CallPlaces { buffers: [recv, recv], is_staged: false, copy }
}

/// Puts the call into its stream, or into the graph that the stream records, with the copies that it needs where the caller's buffers
/// lie. Its plan is prepared.
fn enqueue(call: &AskedCall, key: PreparedKey, member: &mut PlanMember) -> Result<(), NcclError> {
    let PlanMember { comm, gpu, plans, domains, .. } = member;
    let Some(Ok(prepared)) = plans.plans.get_mut(&key) else { return Ok(()) };
    let block = call.count * prepared.plan.dtype().size();
    let CallPlaces { buffers, is_staged, copy } = places(call, (comm.rank(), comm.ranks()), block);
    // SAFETY: NCCL's caller gives a stream of the communicator's GPU.
    let is_recorded = unsafe { gpu.is_captured(call.stream) }?;
    let mut make = |plan| {
        let region = domains.as_mut().map_or(Ok(None), |domains| domains.region(gpu, &key))?;
        NcclRounds::new(gpu, plan, THREADS, region)
    };
    let rounds = match is_recorded {
        false => prepared.rounds(make)?,
        true => match plans.recorded.entry((key, buffers)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(make(prepared.plan.clone())?),
        },
    };
    // SAFETY: NCCL's caller gives buffers of these lengths, which keep until the stream has done the work, or the graph is gone. They do
    // not overlap in other ways.
    unsafe {
        if let Some((to, from, bytes)) = copy {
            gpu.copy(call.stream, to, from, bytes)?;
        }
        match (is_recorded, is_staged) {
            (false, false) => rounds.enqueue(comm, gpu, call.stream, buffers),
            (false, true) => rounds.enqueue_staged(comm, gpu, call.stream, buffers),
            (true, false) => rounds.record(comm, gpu, call.stream, buffers),
            (true, true) => rounds.record_staged(comm, gpu, call.stream, buffers),
        }
    }
}
