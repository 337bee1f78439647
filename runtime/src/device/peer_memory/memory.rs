//! Memory of all ranks, each with addresses of its own for it.
//!
//! The principal type is [`PeerMemory`].

use super::driver::{
    HANDLE, MappedMemory, OpenedMemory, PhysicalMemory, PlainMemory, VirtualRange, granular, has_descriptors, identity,
    may_access,
};
use super::error::PeerMemoryError;
use super::gather::{PeerGather, RankFailure, RankOutcome, gathered, meet};
use super::sockets::{PeerListener, PeerSockets, SocketDeadline, SocketName, process_number};
use crate::device::cuda::{GpuDevice, GpuError};
use cudarc::driver::result;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// How memory is shared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PeerWay {
    /// As file descriptors of virtual memory (`cuMemCreate`). It lives until all ranks have unmapped it.
    Descriptors,
    /// As handles of allocations (`cuIpcGetMemHandle`). It must not be freed before all ranks have closed it.
    Handles,
}

impl PeerWay {
    /// The better one first.
    const ALL: [Self; 2] = [Self::Descriptors, Self::Handles];

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// What ranks ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerTerms {
    /// The bytes of each rank; the same on all.
    pub bytes: usize,
    /// What else must be the same on all ranks, such as a hash of the call that uses the memory.
    pub number: u64,
    /// Whether this rank can take part at all, or why not.
    pub ready: Result<(), String>,
    /// How long this rank may wait for the sockets of others. Gathering has a deadline of its own.
    pub limit: Duration,
}

/// The memory of all ranks. Each has allocated its own part, and has mapped those of all others.
///
/// Nothing may use the memory when the value is dropped, or given to [`Self::close`].
#[derive(Debug)]
pub struct PeerMemory {
    rank: Rank,
    way: PeerWay,
    bytes: usize,
    /// Of this rank its own memory; unmapped and dropped before the others' can be freed.
    ranks: Vec<Option<MappedMemory>>,
    sockets: Arc<PeerSockets>,
}

/// The version of what ranks tell each other.
const VERSION: u32 = 1;

/// What a rank says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Introduction {
    version: u32,
    /// The ways that its driver has.
    ways: u32,
    bytes: u64,
    number: u64,
    computer: [u8; 16],
    process: [u8; 16],
    gpu: [u8; 16],
    socket: SocketName,
}

impl Introduction {
    fn encoded(&self) -> Vec<u8> {
        let Self { version, ways, bytes, number, computer, process, gpu, socket } = self;
        let words = [&version.to_le_bytes()[..], &ways.to_le_bytes(), &bytes.to_le_bytes(), &number.to_le_bytes()];
        [&words.concat()[..], computer, process, gpu, &socket.name, &socket.secret].concat()
    }

    fn decoded(bytes: &[u8]) -> Self {
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|byte| bytes.get(at + byte).copied().unwrap_or(0)) };
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| part(at)[byte]));
        Self {
            version: long(0) as u32,
            ways: (long(0) >> 32) as u32,
            bytes: long(8),
            number: long(16),
            computer: part(24),
            process: part(40),
            gpu: part(56),
            socket: SocketName { name: part(72), secret: part(88) },
        }
    }
}

/// The computer, as long as it runs.
fn computer() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    std::array::from_fn(|at| {
        let pair = digits.get(2 * at..2 * at + 2).and_then(|pair| std::str::from_utf8(pair).ok());
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0)
    })
}

/// What all ranks find in the same introductions: the way.
fn decide(all: &[Introduction]) -> Result<PeerWay, PeerMemoryError> {
    let rank_of = |wrong: &dyn Fn(&Introduction) -> bool| all.iter().position(wrong).map(Rank::from_index);
    if let Some(rank) = rank_of(&|of| of.version != VERSION) {
        return Err(PeerMemoryError::Version { rank });
    }
    if let Some(rank) = rank_of(&|of| (of.bytes, of.number) != (all[0].bytes, all[0].number)) {
        return Err(PeerMemoryError::Disagree { rank });
    }
    if let Some(rank) = rank_of(&|of| of.computer != all[0].computer) {
        return Err(PeerMemoryError::OtherComputer { rank });
    }
    for (at, one) in all.iter().enumerate() {
        if let Some(other) = all[..at].iter().position(|other| other.process == one.process) {
            let (rank, other) = (Rank::from_index(other), Rank::from_index(at));
            return Err(PeerMemoryError::SameProcess { rank, other });
        }
    }
    let all_have = |way: &PeerWay| all.iter().all(|of| of.ways & way.bit() != 0);
    let has = |way: PeerWay| all.iter().filter(|of| of.ways & way.bit() != 0).count();
    PeerWay::ALL.into_iter().find(all_have).ok_or_else(|| {
        let most =
            if has(PeerWay::Descriptors) >= has(PeerWay::Handles) { PeerWay::Descriptors } else { PeerWay::Handles };
        let rank = all.iter().position(|of| of.ways & most.bit() == 0).unwrap_or(0);
        PeerMemoryError::NoWay { rank: Rank::from_index(rank) }
    })
}

/// What a rank has before it maps anything.
struct OwnMemory {
    mapped: MappedMemory,
    /// As descriptors.
    exported: Option<(PhysicalMemory, OwnedFd)>,
    handle: [u8; HANDLE],
}

fn said(error: impl ToString) -> RankFailure {
    RankFailure::Said(error.to_string())
}

impl OwnMemory {
    /// Allocates memory of zeros, and makes what others get at it by.
    fn new(gpu: &GpuDevice, way: PeerWay, bytes: usize) -> Result<Self, GpuError> {
        let made = match way {
            PeerWay::Descriptors => {
                let physical = PhysicalMemory::new(gpu, bytes)?;
                let mapped = MappedMemory::Virtual(VirtualRange::new(gpu, &physical)?);
                let descriptor = physical.export()?;
                Self { mapped, exported: Some((physical, descriptor)), handle: [0; HANDLE] }
            }
            PeerWay::Handles => {
                let memory = PlainMemory::new(gpu, bytes)?;
                let handle = memory.handle()?;
                Self { mapped: MappedMemory::Plain(memory), exported: None, handle }
            }
        };
        clear(gpu, made.mapped.address(), bytes)?;
        Ok(made)
    }
}

/// Zeros, which are there when this returns.
pub(super) fn clear(gpu: &GpuDevice, address: u64, bytes: usize) -> Result<(), GpuError> {
    let clearing = GpuError::of_driver("clearing memory");
    gpu.bind()?;
    let stream = gpu.stream()?;
    // SAFETY: the caller has so many bytes there, and waits until they are written.
    unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) }.map_err(&clearing)?;
    stream.synchronize().map_err(&clearing)
}

impl PeerMemory {
    /// Shares memory of zeros with all ranks that gather. All ranks call it, and all come to the same: all have it, or none.
    ///
    /// # Errors
    /// [`PeerMemoryError`]; nothing is mapped then.
    pub fn new(gpu: &GpuDevice, gather: &mut dyn PeerGather, terms: &PeerTerms) -> Result<Self, PeerMemoryError> {
        let rank = gather.rank();
        let mut ready: RankOutcome = terms.ready.clone().map_err(RankFailure::Said);
        let listener = note(&mut ready, PeerListener::new());
        let own = introduced(gpu, terms, listener.as_ref(), &mut ready);
        let told = gathered(gather, "comparing what drivers have", &own.encoded())?;
        let all: Vec<Introduction> = told.iter().map(|bytes| Introduction::decoded(bytes)).collect();
        let way = decide(&all)?;
        let deadline = SocketDeadline::after(terms.limit);
        let prepared = prepare(gpu, (way, terms.bytes), &all, rank, (listener, deadline), ready);
        let handle = prepared.as_ref().map_or([0; HANDLE], |(own, _)| own.handle);
        let handles = meet(gather, "allocating memory", &outcome_of(&prepared), &handle)?;
        // Whoever has failed has told it, and does not come here.
        let (own, sockets) = prepared.map_err(|why| PeerMemoryError::Failed { rank, why: format!("{why:?}") })?;
        let deadline = SocketDeadline::after(terms.limit);
        let mapped = map_all(gpu, (way, terms.bytes), rank, &own, &sockets, (&handles, deadline));
        let met = meet(gather, "mapping memory", &outcome_of(&mapped), &[]);
        let mut ranks = mapped.unwrap_or_default();
        if let Err(why) = met {
            // What others have opened is freed when they have closed it.
            drop(ranks);
            let is_closed = gathered(gather, "unmapping memory", &[0]).is_ok();
            if !is_closed && way == PeerWay::Handles {
                std::mem::forget(own.mapped);
            }
            return Err(why);
        }
        ranks[rank.index()] = Some(own.mapped);
        Ok(Self { rank, way, bytes: terms.bytes, ranks, sockets: Arc::new(sockets) })
    }

    /// Which rank this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How the memory is shared.
    pub fn way(&self) -> PeerWay {
        self.way
    }

    /// The bytes of each rank that were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the memory of a rank is, for this rank's GPU.
    pub fn address(&self, of: Rank) -> u64 {
        self.ranks[of.index()].as_ref().map_or(0, MappedMemory::address)
    }

    /// Where the memory of all ranks is.
    pub fn addresses(&self) -> Vec<u64> {
        (0..self.ranks.len()).map(|index| self.address(Rank::from_index(index))).collect()
    }

    /// A rank whose process has ended without having closed its memory. Its memory stays mapped here.
    pub fn gone(&self) -> Option<Rank> {
        self.sockets.gone()
    }

    pub(in crate::device) fn sockets(&self) -> &Arc<PeerSockets> {
        &self.sockets
    }

    /// Unmaps the memory of others, and frees this rank's own when all ranks have done so.
    ///
    /// # Errors
    /// [`PeerMemoryError::Gather`] if they do not all come. As descriptors, the memory is freed all the same; an allocation that has
    /// a handle is kept until the process ends, because another process may still use it.
    pub fn close(mut self, gather: &mut dyn PeerGather) -> Result<(), PeerMemoryError> {
        self.unmap();
        gathered(gather, "unmapping memory", &[0])?;
        self.ranks.clear();
        Ok(())
    }

    fn unmap(&mut self) {
        let own = self.rank.index();
        self.ranks.iter_mut().enumerate().filter(|(index, _)| *index != own).for_each(|(_, peer)| *peer = None);
    }

    /// Something may use the memory for ever: it stays as it is until the process ends.
    pub(in crate::device) fn keep(&mut self) {
        self.ranks.drain(..).for_each(std::mem::forget);
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.unmap();
        let own = self.ranks.get_mut(self.rank.index()).and_then(Option::take);
        if self.way == PeerWay::Handles {
            // Nobody knows whether others have closed it.
            std::mem::forget(own);
        }
    }
}

fn outcome_of<T>(of: &Result<T, RankFailure>) -> RankOutcome {
    of.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// What came of something; the first failure is noted.
fn note<T, E: ToString>(outcome: &mut RankOutcome, of: Result<T, E>) -> Option<T> {
    match of {
        Ok(value) => Some(value),
        Err(error) => {
            if outcome.is_ok() {
                *outcome = Err(said(error));
            }
            None
        }
    }
}

/// Who this rank is, and what it wants. What it cannot tell is zero, and noted.
fn introduced(
    gpu: &GpuDevice,
    terms: &PeerTerms,
    listener: Option<&PeerListener>,
    ready: &mut RankOutcome,
) -> Introduction {
    let descriptors = if has_descriptors(gpu) { PeerWay::Descriptors.bit() } else { 0 };
    // Nothing tells but a try, which waits for the GPU when it frees its memory. A driver with descriptors has handles, as a rule.
    let has_handles = || PlainMemory::new(gpu, 1).is_ok_and(|memory| memory.handle().is_ok());
    let handles = if descriptors != 0 || has_handles() { PeerWay::Handles.bit() } else { 0 };
    Introduction {
        version: VERSION,
        ways: descriptors | handles,
        bytes: terms.bytes as u64,
        number: terms.number,
        computer: computer(),
        process: note(ready, process_number()).unwrap_or_default(),
        gpu: note(ready, identity(gpu)).unwrap_or_default(),
        socket: listener.map(|listener| listener.name).unwrap_or_default(),
    }
}

/// Connects with all ranks and allocates.
fn prepare(
    gpu: &GpuDevice,
    (way, bytes): (PeerWay, usize),
    all: &[Introduction],
    rank: Rank,
    (listener, deadline): (Option<PeerListener>, SocketDeadline),
    ready: RankOutcome,
) -> Result<(OwnMemory, PeerSockets), RankFailure> {
    // Others wait for the connection, whatever is wrong here.
    let names: Vec<SocketName> = all.iter().map(|of| of.socket).collect();
    let sockets = listener.map(|listener| listener.connect(rank, &names, deadline));
    ready?;
    for (index, of) in all.iter().enumerate() {
        // Two processes on one GPU need no access.
        if of.gpu != all[rank.index()].gpu && !may_access(gpu, of.gpu).map_err(said)? {
            return Err(RankFailure::NoAccess(Rank::from_index(index)));
        }
    }
    let sockets = sockets.ok_or_else(|| said("no socket"))?.map_err(said)?;
    let bytes = match way {
        PeerWay::Descriptors => granular(gpu, bytes).map_err(said)?,
        PeerWay::Handles => bytes,
    };
    Ok((OwnMemory::new(gpu, way, bytes).map_err(said)?, sockets))
}

/// Maps the memory of all other ranks.
fn map_all(
    gpu: &GpuDevice,
    (way, bytes): (PeerWay, usize),
    rank: Rank,
    own: &OwnMemory,
    sockets: &PeerSockets,
    (handles, deadline): (&[Vec<u8>], SocketDeadline),
) -> Result<Vec<Option<MappedMemory>>, RankFailure> {
    if let Some((_, descriptor)) = &own.exported {
        sockets.send(descriptor.as_fd()).map_err(said)?;
    }
    let mut ranks = Vec::new();
    for (index, handle) in handles.iter().enumerate() {
        let of = Rank::from_index(index);
        let mapping = |error: GpuError| said(format!("the memory of rank {of}: {error}"));
        if of == rank {
            ranks.push(None);
            continue;
        }
        let mapped = match way {
            PeerWay::Descriptors => {
                let descriptor = sockets.receive(of, deadline).map_err(said)?;
                let bytes = granular(gpu, bytes).map_err(mapping)?;
                let physical = PhysicalMemory::import(gpu, descriptor.as_fd(), bytes).map_err(mapping)?;
                MappedMemory::Virtual(VirtualRange::new(gpu, &physical).map_err(mapping)?)
            }
            PeerWay::Handles => {
                let handle = std::array::from_fn(|at| handle.get(at).copied().unwrap_or(0));
                MappedMemory::Opened(OpenedMemory::new(gpu, handle).map_err(mapping)?)
            }
        };
        ranks.push(Some(mapped));
    }
    Ok(ranks)
}
