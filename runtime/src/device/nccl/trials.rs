//! Timed work of a rank over NCCL: calls of plans, of NCCL's own collectives and of kernels over mapped memory, and messages between
//! pairs.
//!
//! The principal type is [`NcclTrials`]. Before what is timed, all ranks meet in a small collective in the same stream. So they begin at
//! about the same moment, and each measures its own time by events on its GPU; no clocks of different GPUs are compared. Single calls and
//! messages stand behind a gate until the host has put them into the stream, so that its own time is not in theirs. Calls in a row do
//! not: how fast the host puts them there is a part of what they take.

use super::calls::NcclId;
use super::collectives::{NcclCollectives, NcclStockCall};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::domain::{DomainMemory, DomainTerms};
use super::error::NcclError;
use super::exchanges::NcclExchanges;
use super::library::NcclLibrary;
use super::rounds::NcclRounds;
use super::staged::{StagedAllReduce, StagedCall, StagedTerms};
use crate::device::cuda::{GpuDevice, GpuError, GpuMemory, StreamGate};
use crate::device::peer_memory::PeerFault;
use crate::device::rounds::plan::RoundPlan;
use crate::dtype::DType;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use schedule::Collective;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;
use topology::{Exchange, Micros};

/// So many launches and groups may stand behind a closed gate: the driver has room for about a thousand.
const MOST_HELD: usize = 256;
/// A launch of the kernel, and one of NCCL's.
const HELD_PER_ROUND: usize = 2;
/// Before messages are timed, they are sent so often.
const WARMUPS: u32 = 1;

/// What is run and timed.
#[derive(Debug)]
pub enum NcclWork<'a> {
    /// NCCL's own collective.
    Stock(NcclStockCall),
    /// A plan.
    Plan(&'a mut NcclRounds),
    /// An AllReduce by one kernel over memory that all ranks have mapped, with the copies to it and from it.
    Kernel(&'a mut StagedAllReduce, StagedCall),
}

/// A rank's GPU and communicator, for work that is timed.
#[derive(Debug)]
pub struct NcclTrials {
    comm: NcclCommunicator,
    collectives: NcclCollectives,
    gpu: Arc<GpuDevice>,
    stream: Arc<CudaStream>,
    /// For the meeting: a word of this rank, and one of each.
    words: [GpuMemory; 2],
    /// For messages.
    memory: Option<GpuMemory>,
    /// How many communicators there were.
    epoch: u64,
    /// The stream does not end, even after an abort.
    is_stuck: bool,
}

/// One piece of work, as it goes into the stream.
type PutWork<'a> = dyn FnMut(&mut NcclCommunicator, NcclDeadline) -> Result<(), NcclError> + 'a;

impl NcclTrials {
    /// Of a communicator that all its ranks give to such a value. They meet once.
    ///
    /// # Errors
    /// [`NcclError`] if NCCL lacks a function, or a rank does not come.
    pub fn new(
        library: &NcclLibrary,
        gpu: GpuDevice,
        comm: NcclCommunicator,
        limit: Duration,
    ) -> Result<Self, NcclError> {
        let (collectives, stream, gpu) = (NcclCollectives::of(library)?, gpu.stream()?, Arc::new(gpu));
        let words = [GpuMemory::new(&gpu, 4)?, GpuMemory::new(&gpu, 4 * comm.ranks())?];
        let mut made = Self { comm, collectives, gpu, stream, words, memory: None, epoch: 1, is_stuck: false };
        let deadline = NcclDeadline::after(limit);
        made.meet(deadline)?;
        made.wait("meeting all ranks", deadline)?;
        Ok(made)
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuDevice {
        &self.gpu
    }

    /// The number of the communicator, from 1. What has not run in this one makes its connections at the first call.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a call so long that it would not fit behind a gate is among those of a plan.
    pub fn is_too_long_to_hold(plan: &RoundPlan) -> bool {
        HELD_PER_ROUND * plan.launches().len() > MOST_HELD
    }

    /// Meets the other ranks in another communicator, after an error. All of them do this together.
    ///
    /// # Errors
    /// As for [`NcclCommunicator::join`] and [`Self::new`]; [`GpuError::Stuck`] if the stream does not end even after the abort.
    pub fn rejoin(&mut self, library: &NcclLibrary, id: NcclId, limit: Duration) -> Result<(), NcclError> {
        let (place, deadline) = ((self.comm.rank(), self.comm.ranks()), NcclDeadline::after(limit));
        self.end();
        if self.is_stuck {
            // Nobody knows when it goes on, and what it writes then.
            return Err(GpuError::Stuck { limit: super::rounds::GRACE }.into());
        }
        self.epoch += 1;
        self.comm = NcclCommunicator::join(library, &self.gpu, id, place, limit)?;
        self.meet(deadline)?;
        self.wait("meeting all ranks", deadline)
    }

    /// Shares memory with all ranks, for [`NcclWork::Kernel`]. All of them do this together, and come to the same.
    ///
    /// # Errors
    /// As for [`StagedAllReduce::new`].
    pub fn share_memory(&mut self, terms: &StagedTerms) -> Result<StagedAllReduce, NcclError> {
        StagedAllReduce::new(&self.gpu, &mut self.comm, terms)
    }

    /// Shares memory within domains, for plans. All of them do this together, and come to the same.
    ///
    /// # Errors
    /// As for [`DomainMemory::new`].
    pub fn share_domains(&mut self, terms: &DomainTerms) -> Result<DomainMemory, NcclError> {
        DomainMemory::new(&self.gpu, &mut self.comm, terms)
    }

    /// Whether the communicator was aborted. [`Self::rejoin`] makes another one.
    pub fn has_failed(&self) -> bool {
        self.comm.is_aborted()
    }

    /// Gives all places of this memory back, whose regions nobody uses any more. All of them do this together.
    ///
    /// # Errors
    /// As for [`DomainMemory::clear`].
    pub fn clear_domains(&mut self, memory: &mut DomainMemory, limit: Duration) -> Result<(), NcclError> {
        memory.clear(&self.gpu, &mut self.comm, limit)
    }

    /// Which of NCCL's functions does a collective; `None` if none does.
    pub fn stock_name(&self, collective: Collective) -> Option<&'static str> {
        self.collectives.name(collective)
    }

    /// Runs work once. Buffers are input and output; `None` for one that is the same as the other.
    ///
    /// # Errors
    /// [`NcclError::Late`] if it takes longer than `limit`, [`NcclError::Refused`]; the communicator is aborted then. Of a kernel
    /// [`GpuError::PeerMissing`] and [`GpuError::PeerGone`] name the rank for which it has waited in vain; its memory is of no use then.
    pub fn run(
        &mut self,
        work: &mut NcclWork<'_>,
        buffers: [Option<&GpuMemory>; 2],
        limit: Duration,
    ) -> Result<(), NcclError> {
        let (deadline, places) = (NcclDeadline::after(limit), self.places(work, buffers)?);
        let stream = self.stream.clone();
        self.comm.fault = work.fault();
        // SAFETY: the places were checked. This waits for the end of the work, or keeps the buffers.
        let put = unsafe { put(&mut self.comm, (&self.collectives, &self.gpu), &stream, work, places, deadline) };
        let ended = put.and_then(|()| self.wait("running a call", deadline)).and_then(|()| work.check());
        self.comm.fault = None;
        ended.map_err(|error| self.end_with(work, buffers, error))
    }

    /// Runs work `repetitions` times, each time after all ranks have met, and each time `calls` calls in a row. It must have run before
    /// in this [epoch](Self::epoch). Returns the time of each repetition on this rank. The host's own time is in it, unless it is one
    /// call and `is_held`.
    ///
    /// # Errors
    /// As for [`Self::run`]; each repetition may take so long.
    pub fn time(
        &mut self,
        work: &mut NcclWork<'_>,
        buffers: [Option<&GpuMemory>; 2],
        (repetitions, calls, is_held): (usize, usize, bool),
        limit: Duration,
    ) -> Result<Vec<Micros>, NcclError> {
        let places = self.places(work, buffers)?;
        let (collectives, gpu, stream) = (self.collectives, self.gpu.clone(), self.stream.clone());
        let held = if is_held && calls == 1 { 1 } else { 0 };
        let fault = work.fault();
        let mut time = || {
            self.comm.fault.clone_from(&fault);
            let mut put = |comm: &mut NcclCommunicator, deadline: NcclDeadline| {
                // SAFETY: the places were checked. Whoever calls this waits for the end of the work, or keeps the buffers.
                unsafe { put(comm, (&collectives, &gpu), &stream, work, places, deadline) }
            };
            let time = self.timed(&mut put, (calls, held), limit)?;
            work.check().map(|()| time)
        };
        let timed = (0..repetitions).map(|_| time()).collect::<Result<_, _>>();
        self.comm.fault = None;
        timed.map_err(|error| self.end_with(work, buffers, error))
    }

    /// Sends the messages of all exchanges at the same time, `repetitions` times. For each repetition, the exchanges that this rank receives,
    /// with the time from the common start to the end of all its messages with the number of the last one.
    ///
    /// # Errors
    /// As for [`Self::time`].
    pub fn exchange(
        &mut self,
        exchanges: &[Exchange],
        repetitions: u32,
        limit: Duration,
    ) -> Result<Vec<Vec<(usize, Micros)>>, NcclError> {
        let place = (self.comm.rank(), self.comm.ranks());
        let own = NcclExchanges::new(&self.gpu, place, exchanges, self.memory.take())?;
        let raw: *mut c_void = self.stream.cu_stream().cast();
        for _ in 0..WARMUPS {
            let deadline = NcclDeadline::after(limit);
            let sent = (0..own.groups()).try_for_each(|number| own.put(&mut self.comm, raw, number, deadline));
            sent.and_then(|()| self.wait("sending messages", deadline)).inspect_err(|_| self.end_of(&own))?;
        }
        let mut times = Vec::with_capacity(repetitions as usize);
        for _ in 0..repetitions {
            let mut number = 0;
            let mut put = |comm: &mut NcclCommunicator, deadline: NcclDeadline| {
                number += 1;
                own.put(comm, raw, number - 1, deadline)
            };
            let groups = own.groups() as usize;
            let time = self.timed(&mut put, (groups, MOST_HELD), limit).inspect_err(|_| self.end_of(&own))?;
            times.push(own.received.iter().map(|index| (*index, time)).collect());
        }
        self.memory = Some(own.into_memory());
        Ok(times)
    }

    /// Times pieces of work in a row, of which the first stand behind a gate: so many, at most.
    fn timed(&mut self, put: &mut PutWork<'_>, pieces: (usize, usize), limit: Duration) -> Result<Micros, NcclError> {
        let [begin, end] = self.held(put, pieces, limit)?;
        let millis = begin.elapsed_ms(&end).map_err(GpuError::of_driver("reading the time"))?;
        Ok(Micros(f64::from(millis).max(0.0) * 1e3))
    }

    /// The events before and behind this work, which is done when this returns without an error.
    fn held(
        &mut self,
        put: &mut PutWork<'_>,
        (pieces, held): (usize, usize),
        limit: Duration,
    ) -> Result<[CudaEvent; 2], NcclError> {
        let (deadline, stream) = (NcclDeadline::after(limit), self.stream.clone());
        let time = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let recording = GpuError::of_driver("recording an event");
        self.gpu.bind()?;
        let gate = Arc::new(StreamGate::close(&stream, limit)?);
        if held == 0 {
            gate.open();
        }
        self.comm.gate = Some(gate.clone());
        self.meet(deadline)?;
        let begin = stream.record_event(time).map_err(&recording)?;
        for piece in 0..pieces {
            put(&mut self.comm, deadline)?;
            if piece + 1 >= held {
                gate.open();
            }
        }
        let end = stream.record_event(time).map_err(&recording)?;
        gate.open();
        self.comm.gate = None;
        self.wait("timing calls", deadline)?;
        Ok([begin, end])
    }

    /// Where the work finds its buffers.
    fn places(&self, work: &NcclWork<'_>, buffers: [Option<&GpuMemory>; 2]) -> Result<[u64; 2], NcclError> {
        let [input, output] = buffers;
        let (input, output) = (input.or(output), output.or(input));
        let needed = match work {
            NcclWork::Stock(call) => call.bytes(self.comm.rank(), self.comm.ranks()),
            NcclWork::Plan(rounds) => {
                let [given, got, ..] = rounds.plan().buffer_bytes();
                [given as usize, got as usize]
            }
            NcclWork::Kernel(_, call) => [call.bytes(); 2],
        };
        let place = |memory: Option<&GpuMemory>, given: usize| match memory {
            Some(memory) if memory.bytes() >= given => Ok(memory.address()),
            _ => Err(GpuError::Room { has: memory.map_or(0, GpuMemory::bytes), given }),
        };
        Ok([place(input, needed[0])?, place(output, needed[1])?])
    }

    /// Puts the meeting of all ranks into the stream.
    fn meet(&mut self, deadline: NcclDeadline) -> Result<(), NcclError> {
        let call =
            NcclStockCall { collective: Collective::AllGather, root: None, op: None, count: 1, dtype: DType::I32 };
        let places = [self.words[0].address(), self.words[1].address()];
        // SAFETY: the words live as long as this value, which waits for the stream or keeps them.
        unsafe { self.collectives.put(&mut self.comm, self.stream.cu_stream().cast(), &call, places, deadline) }
    }

    /// Waits until the stream has done everything.
    fn wait(&mut self, doing: &'static str, deadline: NcclDeadline) -> Result<(), NcclError> {
        let stream = self.stream.clone();
        self.comm.finish(doing, &stream, deadline)
    }

    /// After an error: ends the work, so that nothing uses its buffers any more. If the stream does not end, they are kept. Returns the
    /// error, or what the kernel knows besides.
    fn end_with(&mut self, work: &NcclWork<'_>, buffers: [Option<&GpuMemory>; 2], error: NcclError) -> NcclError {
        if let Some(fault) = work.fault() {
            // An abort of NCCL waits for the stream, and the stream for a kernel. Without a driver that works, nothing waits.
            let _ = fault.end();
        }
        self.end();
        if self.is_stuck {
            buffers.into_iter().flatten().for_each(GpuMemory::keep);
            return error;
        }
        match work {
            NcclWork::Kernel(staged, call) => staged.missing(call).map_or(error, NcclError::Gpu),
            NcclWork::Plan(rounds) => rounds.explained(error),
            NcclWork::Stock(_) => error,
        }
    }

    /// The same for messages.
    fn end_of(&mut self, exchanges: &NcclExchanges) {
        self.end();
        if self.is_stuck {
            exchanges.keep();
        }
    }

    fn end(&mut self) {
        self.comm.abort();
        let grace = NcclDeadline::after(super::rounds::GRACE);
        let done = self.stream.record_event(None);
        let is_done = || done.as_ref().is_ok_and(|done| matches!(done.try_is_complete(), Ok(true)));
        let goes_on = || done.as_ref().is_ok_and(|done| matches!(done.try_is_complete(), Ok(false)));
        while !grace.is_over() && goes_on() {
            grace.pause();
        }
        self.is_stuck = !is_done();
        if self.is_stuck {
            self.words.iter().chain(&self.memory).for_each(GpuMemory::keep);
        }
    }
}

impl NcclWork<'_> {
    /// What ends it where it waits for other ranks in a kernel.
    fn fault(&self) -> Option<Arc<PeerFault>> {
        match self {
            Self::Kernel(staged, _) => Some(staged.fault().clone()),
            Self::Plan(rounds) => rounds.fault(),
            Self::Stock(_) => None,
        }
    }

    /// Whether what has ended has done its work: a kernel ends too where a rank is gone.
    ///
    /// # Errors
    /// [`GpuError::PeerGone`], [`NcclError::Aborted`].
    fn check(&self) -> Result<(), NcclError> {
        match self {
            Self::Kernel(staged, _) => staged.check(),
            Self::Plan(rounds) => rounds.check(),
            Self::Stock(_) => Ok(()),
        }
    }
}

/// Puts work into a stream.
///
/// # Safety
/// The places are those of the buffers that the work needs, which live until the stream has done it.
unsafe fn put(
    comm: &mut NcclCommunicator,
    (collectives, gpu): (&NcclCollectives, &GpuDevice),
    stream: &Arc<CudaStream>,
    work: &mut NcclWork<'_>,
    places: [u64; 2],
    deadline: NcclDeadline,
) -> Result<(), NcclError> {
    comm.check()?;
    match work {
        // SAFETY: the caller promises it.
        NcclWork::Stock(call) => unsafe { collectives.put(comm, stream.cu_stream().cast(), call, places, deadline) },
        NcclWork::Plan(rounds) => rounds.put_in_time(comm, stream, places, deadline),
        // SAFETY: as above.
        NcclWork::Kernel(staged, call) => unsafe { staged.enqueue(comm, gpu, stream.cu_stream().cast(), call, places) },
    }
}
