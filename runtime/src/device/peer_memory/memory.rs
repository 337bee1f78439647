//! Memory of all ranks, each with addresses of its own for it.
//!
//! The principal type is [`PeerMemory`].

use super::driver::{
    HANDLE, MappedMemory, OpenedMemory, PhysicalMemory, PlainMemory, VirtualRange, granular, may_access,
};
use super::error::PeerMemoryError;
use super::gather::{PeerGather, RankFailure, RankOutcome, gathered, meet};
use super::introduction::{Introduction, decide, introduced};
use super::kept;
use super::sockets::{PeerListener, PeerSockets, SocketDeadline, SocketName};
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
    pub(super) const ALL: [Self; 2] = [Self::Descriptors, Self::Handles];

    pub(super) fn bit(self) -> u32 {
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
    /// `None`: all ranks share memory. Otherwise those with the same number do, of which there are two at least somewhere. Ranks that share
    /// memory must be on one computer.
    pub machine: Option<u32>,
    /// How long this rank may wait for the sockets of others. Gathering has a deadline of its own.
    pub limit: Duration,
}

/// The memory of all ranks. Each has allocated its own part, and has mapped those of all others of its domain.
///
/// Nothing may use the memory when the value is dropped, or given to [`Self::close`].
#[derive(Debug)]
pub struct PeerMemory {
    rank: Rank,
    way: PeerWay,
    bytes: usize,
    /// For each rank the first one of those that share memory.
    domains: Vec<u32>,
    /// Of this rank its own memory; unmapped and dropped before the others' can be freed. Of ranks in other domains nothing.
    ranks: Vec<Option<MappedMemory>>,
    sockets: Arc<PeerSockets>,
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
pub(in crate::device) fn clear(gpu: &GpuDevice, address: u64, bytes: usize) -> Result<(), GpuError> {
    let clearing = GpuError::of_driver("clearing memory");
    gpu.bind()?;
    let stream = gpu.stream()?;
    // SAFETY: the caller has so many bytes there, and waits until they are written.
    unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) }.map_err(&clearing)?;
    stream.synchronize().map_err(&clearing)
}

impl PeerMemory {
    /// Shares memory of zeros with the ranks that gather, as the terms say. All ranks call it, and all come to the same: all have it, or none.
    ///
    /// # Errors
    /// [`PeerMemoryError`]; nothing is mapped then.
    pub fn new(gpu: &GpuDevice, gather: &mut dyn PeerGather, terms: &PeerTerms) -> Result<Self, PeerMemoryError> {
        kept::free_ended();
        let rank = gather.rank();
        let mut ready: RankOutcome = terms.ready.clone().map_err(RankFailure::Said);
        let listener = note(&mut ready, PeerListener::new());
        let own = introduced(gpu, terms, listener.as_ref(), &mut ready);
        let told = gathered(gather, "comparing what drivers have", &own.encoded())?;
        let all: Vec<Introduction> = told.iter().map(|bytes| Introduction::decoded(bytes)).collect();
        let (way, domains) = decide(&all)?;
        let deadline = SocketDeadline::after(terms.limit, gather.stop());
        let prepared = prepare(gpu, (way, terms.bytes), (&all, &domains), rank, (listener, &deadline), ready);
        let handle = prepared.as_ref().map_or([0; HANDLE], |(own, _)| own.handle);
        let handles = match meet(gather, "allocating memory", &outcome_of(&prepared), &handle) {
            Ok(handles) => handles,
            Err(why) => {
                if matches!((&why, way), (PeerMemoryError::Gather { .. }, PeerWay::Handles)) {
                    // Others may have got the handle.
                    prepared.into_iter().for_each(|(own, _)| std::mem::forget(own.mapped));
                }
                return Err(why);
            }
        };
        // Whoever has failed has told it, and does not come here.
        let (own, sockets) = prepared.map_err(|why| PeerMemoryError::Failed { rank, why: format!("{why:?}") })?;
        let deadline = SocketDeadline::after(terms.limit, gather.stop());
        let mapped = map_all(gpu, (way, terms.bytes), (rank, &domains), &own, &sockets, (&handles, &deadline));
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
        Ok(Self { rank, way, bytes: terms.bytes, domains, ranks, sockets: Arc::new(sockets) })
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

    /// For each rank, the first one of those that have mapped each other's memory.
    pub fn domains(&self) -> &[u32] {
        &self.domains
    }

    /// Where the memory of a rank is, for this rank's GPU; 0 for a rank of another domain.
    pub fn address(&self, of: Rank) -> u64 {
        self.ranks.get(of.index()).and_then(Option::as_ref).map_or(0, MappedMemory::address)
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
        if self.is_kept() {
            return Err(GpuError::Broken.into());
        }
        self.unmap();
        gathered(gather, "unmapping memory", &[0])?;
        self.ranks.clear();
        Ok(())
    }

    fn unmap(&mut self) {
        let own = self.rank.index();
        self.ranks.iter_mut().enumerate().filter(|(index, _)| *index != own).for_each(|(_, peer)| *peer = None);
    }

    /// Something may use the memory for ever: it stays as it is until the process ends, and so do the sockets, as the process has
    /// not left.
    pub(in crate::device) fn keep(&mut self) {
        std::mem::forget((std::mem::take(&mut self.ranks), self.sockets.clone()));
    }

    /// Whether it was given to [`Self::keep`], and can be used no more.
    pub(in crate::device) fn is_kept(&self) -> bool {
        self.ranks.is_empty()
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.unmap();
        let own = self.ranks.get_mut(self.rank.index()).and_then(Option::take);
        if let Some(own @ MappedMemory::Plain(_)) = own {
            kept::until_all_have_left(own, self.sockets.clone());
        }
    }
}

fn outcome_of<T>(of: &Result<T, RankFailure>) -> RankOutcome {
    of.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// What came of something; the first failure is noted.
pub(super) fn note<T, E: ToString>(outcome: &mut RankOutcome, of: Result<T, E>) -> Option<T> {
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

/// Connects with all ranks and allocates.
fn prepare(
    gpu: &GpuDevice,
    (way, bytes): (PeerWay, usize),
    (all, domains): (&[Introduction], &[u32]),
    rank: Rank,
    (listener, deadline): (Option<PeerListener>, &SocketDeadline),
    ready: RankOutcome,
) -> Result<(OwnMemory, PeerSockets), RankFailure> {
    // Others wait for the connection, whatever is wrong here.
    let is_near = |index: usize| domains[index] == domains[rank.index()];
    let names: Vec<Option<SocketName>> =
        all.iter().enumerate().map(|(index, of)| is_near(index).then_some(of.socket)).collect();
    let sockets = listener.map(|listener| listener.connect(rank, &names, deadline));
    ready?;
    for (index, of) in all.iter().enumerate() {
        // Two processes on one GPU need no access.
        if is_near(index) && of.gpu != all[rank.index()].gpu && !may_access(gpu, of.gpu).map_err(said)? {
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

/// Maps the memory of all other ranks of the domain.
fn map_all(
    gpu: &GpuDevice,
    (way, bytes): (PeerWay, usize),
    (rank, domains): (Rank, &[u32]),
    own: &OwnMemory,
    sockets: &PeerSockets,
    (handles, deadline): (&[Vec<u8>], &SocketDeadline),
) -> Result<Vec<Option<MappedMemory>>, RankFailure> {
    if let Some((_, descriptor)) = &own.exported {
        sockets.send(descriptor.as_fd()).map_err(said)?;
    }
    let mut ranks = Vec::new();
    for (index, handle) in handles.iter().enumerate() {
        let of = Rank::from_index(index);
        let mapping = |error: GpuError| said(format!("the memory of rank {of}: {error}"));
        if of == rank || domains[index] != domains[rank.index()] {
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
