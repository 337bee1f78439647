//! What is executed, and at which size.
//!
//! The principal type is [`Work`]. Launcher and workers derive from it, each by itself, whatever both must agree on:
//! into how many tiles slots are cut, and how much a lane must hold.

use crate::dtype::DType;
use crate::error::RunResult;
use crate::geometry::{Geometry, tiles_of};
use crate::options::Options;
use schedule::program::{Program, VerifiedProgram};
use topology::Rank;

/// A program at one element count.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) program: &'a Program,
    /// How many messages a sender may have to be ahead of its receiver.
    pub(crate) window: u32,
    pub(crate) count: u64,
    pub(crate) dtype: DType,
}

impl<'a> Work<'a> {
    pub(crate) fn new(program: &'a VerifiedProgram, count: u64, dtype: DType) -> Self {
        Self { program: program.program(), window: program.window(), count, dtype }
    }

    /// Into how many tiles slots are cut.
    pub(crate) fn tiles(&self, options: &Options) -> u32 {
        let bytes = match (options.tile_bytes, &options.emulation) {
            (Some(bytes), _) => bytes,
            // An emulated machine stores and forwards whole chunks, as its schedule says.
            (None, Some(_)) => return 1,
            (None, None) if options.hosts.any_remote(self.program.ranks.len()) => Options::REMOTE_TILE_BYTES,
            (None, None) => Options::TILE_BYTES,
        };
        // A lane must hold `window` messages of several slots.
        let ahead = self.window as usize * self.sends().map(|(_, slice)| slice.count).max().unwrap_or(1) as usize;
        let limit = options.ring_bytes.checked_div(ahead).unwrap_or(bytes);
        tiles_of(self.program, self.count, self.dtype, bytes.min(limit).max(64))
    }

    /// How many bytes a lane must take that its receiver does not.
    ///
    /// # Errors
    /// Those of [`Geometry::new`].
    pub(crate) fn backlog(&self, tiles: u32) -> RunResult<usize> {
        if self.window == 0 {
            return Ok(0);
        }
        let mut largest = 0;
        for index in 0..self.program.ranks.len() {
            let rank = Rank::from_index(index);
            let geometry = Geometry::new(self.program, rank, self.count, self.dtype, tiles)?;
            let own = self.sends().filter(|(from, _)| *from == rank);
            let bytes = own.flat_map(|(_, slice)| {
                let tiles = [0, tiles as usize / 2, tiles as usize - 1];
                tiles.map(|tile| geometry.slice_bytes(slice, tile))
            });
            largest = largest.max(bytes.max().unwrap_or(0));
        }
        // Pieces of a balanced cut differ by an element, so those of a slice by its slots.
        let spare = 8 * self.sends().map(|(_, slice)| slice.count as usize).max().unwrap_or(0);
        Ok(self.window as usize * (largest + spare))
    }

    fn sends(&self) -> impl Iterator<Item = (Rank, schedule::program::Slice)> + use<'a> {
        let ranks = self.program.ranks.iter().enumerate();
        ranks.flat_map(|(index, own)| {
            let steps = own.threadblocks.iter().flat_map(|block| &block.steps);
            let sends = steps.filter(|step| step.instruction.sends_to().is_some());
            sends.map(move |step| (Rank::from_index(index), step.instruction.shape()))
        })
    }
}
