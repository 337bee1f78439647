//! Timed work of a rank over NCCL: calls of plans and of NCCL's own collectives, and messages between pairs.
//!
//! The principal type is [`NcclTrials`]. Before what is timed, all ranks meet in a small collective in the same stream. So they begin at
//! about the same moment, and each measures its own time by events on its GPU; no clocks of different GPUs are compared. What is timed
//! stands behind a gate until the host has put it into the stream.

use super::calls::NcclId;
use super::collectives::{NcclCollectives, NcclStockCall};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::error::NcclError;
use super::exchanges::NcclExchanges;
use super::library::NcclLibrary;
use super::rounds::NcclRounds;
use crate::device::cuda::{GpuDevice, GpuError, GpuMemory, StreamGate};
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
/// Before messages are timed, they are sent so often.
const WARMUPS: u32 = 1;

/// What is run and timed.
#[derive(Debug)]
pub enum NcclWork<'a> {
    /// NCCL's own collective.
    Stock(NcclStockCall),
    /// A plan.
    Plan(&'a mut NcclRounds),
}

/// A rank's GPU and communicator, for work that is timed.
#[derive(Debug)]
pub struct NcclTrials {
    comm: NcclCommunicator,
    collectives: NcclCollectives,
    gpu: GpuDevice,
    stream: Arc<CudaStream>,
    /// For the meeting: a word of this rank, and one of each.
    words: [GpuMemory; 2],
    /// For messages.
    memory: Option<GpuMemory>,
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
        let (collectives, stream) = (NcclCollectives::of(library)?, gpu.stream()?);
        let words = [GpuMemory::new(&gpu, 4)?, GpuMemory::new(&gpu, 4 * comm.ranks())?];
        let mut made = Self { comm, collectives, gpu, stream, words, memory: None };
        let deadline = NcclDeadline::after(limit);
        made.meet(deadline)?;
        made.wait("meeting all ranks", deadline)?;
        Ok(made)
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuDevice {
        &self.gpu
    }

    /// Meets the other ranks in another communicator, after an error. All of them do this together.
    ///
    /// # Errors
    /// As for [`NcclCommunicator::join`] and [`Self::new`].
    pub fn rejoin(&mut self, library: &NcclLibrary, id: NcclId, limit: Duration) -> Result<(), NcclError> {
        let (place, deadline) = ((self.comm.rank(), self.comm.ranks()), NcclDeadline::after(limit));
        if !self.end() {
            // Nobody knows when it goes on.
            self.stream = self.gpu.stream()?;
        }
        self.comm = NcclCommunicator::join(library, &self.gpu, id, place, limit)?;
        self.meet(deadline)?;
        self.wait("meeting all ranks", deadline)
    }

    /// Which of NCCL's functions does a collective; `None` if none does.
    pub fn stock_name(&self, collective: Collective) -> Option<&'static str> {
        self.collectives.name(collective)
    }

    /// Runs work once. Buffers are input and output; `None` for one that is the same as the other.
    ///
    /// # Errors
    /// [`NcclError::Late`] if it takes longer than `limit`, [`NcclError::Refused`]; the communicator is aborted then.
    pub fn run(
        &mut self,
        work: &mut NcclWork<'_>,
        buffers: [Option<&GpuMemory>; 2],
        limit: Duration,
    ) -> Result<(), NcclError> {
        let (deadline, places) = (NcclDeadline::after(limit), self.places(work, buffers)?);
        let stream = self.stream.clone();
        // SAFETY: the places were checked, and this waits for the end of the work.
        let put = unsafe { put(&mut self.comm, &self.collectives, &stream, work, places, deadline) };
        put.and_then(|()| self.wait("running a call", deadline)).inspect_err(|_| {
            self.end();
        })
    }

    /// Runs work `repetitions` times, each time after all ranks have met, and each time `calls` calls in a row. It must have run before
    /// with these buffers. Returns the time of each repetition on this rank.
    ///
    /// # Errors
    /// As for [`Self::run`]; each repetition may take so long.
    pub fn time(
        &mut self,
        work: &mut NcclWork<'_>,
        buffers: [Option<&GpuMemory>; 2],
        (repetitions, calls): (usize, usize),
        limit: Duration,
    ) -> Result<Vec<Micros>, NcclError> {
        let places = self.places(work, buffers)?;
        let (collectives, stream) = (self.collectives, self.stream.clone());
        let held = match work {
            NcclWork::Stock(_) => 1,
            NcclWork::Plan(rounds) => 2 * rounds.plan().launches().len(),
        };
        let mut put = |comm: &mut NcclCommunicator, deadline: NcclDeadline| {
            // SAFETY: the places were checked, and whoever calls this waits for the end of the work.
            unsafe { put(comm, &collectives, &stream, work, places, deadline) }
        };
        (0..repetitions).map(|_| self.timed(&mut put, (calls, held), limit)).collect()
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
            sent.and_then(|()| self.wait("sending messages", deadline)).inspect_err(|_| {
                self.end();
            })?;
        }
        let mut times = Vec::with_capacity(repetitions as usize);
        for _ in 0..repetitions {
            let mut number = 0;
            let mut put = |comm: &mut NcclCommunicator, deadline: NcclDeadline| {
                number += 1;
                own.put(comm, raw, number - 1, deadline)
            };
            let time = self.timed(&mut put, (own.groups() as usize, 1), limit)?;
            times.push(own.received.iter().map(|index| (*index, time)).collect());
        }
        self.memory = Some(own.into_memory());
        Ok(times)
    }

    /// Times pieces of work in a row, of which each has about so many launches.
    fn timed(&mut self, put: &mut PutWork<'_>, pieces: (usize, usize), limit: Duration) -> Result<Micros, NcclError> {
        let [begin, end] = self.held(put, pieces, limit).inspect_err(|_| {
            self.end();
        })?;
        let millis = begin.elapsed_ms(&end).map_err(GpuError::of_driver("reading the time"))?;
        Ok(Micros(f64::from(millis).max(0.0) * 1e3))
    }

    /// The events before and behind this work, which is done when this returns.
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
        let gate = StreamGate::close(&stream, limit)?;
        if held > MOST_HELD {
            gate.open();
        }
        self.meet(deadline)?;
        let begin = stream.record_event(time).map_err(&recording)?;
        for piece in 0..pieces {
            put(&mut self.comm, deadline)?;
            if (piece + 1) * held >= MOST_HELD {
                gate.open();
            }
        }
        let end = stream.record_event(time).map_err(&recording)?;
        gate.open();
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
        // SAFETY: the words live as long as this value, which waits for the stream.
        unsafe { self.collectives.put(&mut self.comm, self.stream.cu_stream().cast(), &call, places, deadline) }
    }

    /// Waits until the stream has done everything.
    fn wait(&mut self, doing: &'static str, deadline: NcclDeadline) -> Result<(), NcclError> {
        let stream = self.stream.clone();
        self.comm.finish(doing, &stream, deadline)
    }

    /// After an error, nothing uses the buffers any more. Whether it has come so far.
    fn end(&mut self) -> bool {
        self.comm.abort();
        let Ok(done) = self.stream.record_event(None) else { return false };
        let grace = NcclDeadline::after(super::rounds::GRACE);
        while !grace.is_over() && matches!(done.try_is_complete(), Ok(false)) {
            grace.pause();
        }
        matches!(done.try_is_complete(), Ok(true))
    }
}

/// Puts work into a stream.
///
/// # Safety
/// The places are those of the buffers that the work needs, and keep until the stream has done it.
unsafe fn put(
    comm: &mut NcclCommunicator,
    collectives: &NcclCollectives,
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
    }
}
