//! The tables of a rank's rounds, as the interpreter kernel takes them.
//!
//! Tables have the addresses of one caller. What counts calls lies elsewhere if messages are mapped: tables for several callers then
//! have the same counters, as their calls follow each other.

use super::mapped::ALIGNMENT;
use super::plan::{BUFFERS, RoundPlan, StageLaunch};
use crate::device::rank_tables::VECTOR;
use crate::device::tables::{Encode, KernelBlock, KernelChannel, KernelPiece, KernelStep, RECEIVES, SENDS};
use topology::Rank;

const LONG: u64 = 8;
/// Of each block: calls, steps, and where it gave up.
const COUNTERS: u64 = 3;

/// What a plan needs besides its tables where ranks have mapped each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedNeeds {
    /// Bytes of each rank that the others of its domain map. They are zero before the first call.
    pub shared_bytes: u64,
    /// Bytes for itself, zero before the first call.
    pub counter_bytes: u64,
    /// So many blocks of the kernel are on the GPU at the same time.
    pub blocks: usize,
}

/// Where they are, for the GPU of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedAddresses {
    /// The shared memory of each rank, at multiples of 128; of ranks in other domains anything.
    pub shared: Vec<u64>,
    /// The counters.
    pub counters: u64,
    /// The word that ends all waits when it is not zero.
    pub abort: u64,
}

/// A launch of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundLaunch {
    /// Where its blocks begin in the tables.
    pub begin: u64,
    /// How many it has; 0 for no launch.
    pub blocks: u32,
    /// They wait for those of other ranks, so all of them must be on the GPU at the same time.
    pub waits: bool,
    /// The most vectors of 16 bytes that a block has at once: more threads have nothing to do.
    pub vectors: u64,
}

/// Where the parts of the tables begin.
struct TableLayout {
    counters: u64,
    steps: u64,
    pieces: u64,
    stages: Vec<StagePlaces>,
    end: u64,
}

struct StagePlaces {
    blocks: u64,
    channels: u64,
    /// Its first one among the counters of mapped stages.
    counters: u64,
}

impl StageLaunch {
    fn channels(&self) -> u64 {
        self.blocks.iter().map(|block| block.messages.len() as u64).sum()
    }
}

impl RoundPlan {
    fn layout(&self) -> TableLayout {
        let mut end = BUFFERS as u64 * LONG;
        let mut take = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            start
        };
        // After the counters of stages in which nobody waits there is an abort word, which nobody sets.
        let counters = take((self.most_blocks(false) * COUNTERS + 1) * LONG);
        let steps = take(self.steps.len() as u64 * KernelStep::BYTES);
        let pieces = take(self.pieces.len() as u64 * KernelPiece::BYTES);
        let (mut stages, mut mapped) = (Vec::new(), 0);
        for stage in &self.stages {
            let blocks = stage.blocks.len() as u64;
            let (of_stage, channels) =
                (take(blocks * KernelBlock::BYTES), take(stage.channels() * KernelChannel::BYTES));
            stages.push(StagePlaces { blocks: of_stage, channels, counters: mapped });
            mapped += if stage.is_mapped { blocks * COUNTERS * LONG } else { 0 };
        }
        TableLayout { counters, steps, pieces, stages, end: take(0) }
    }

    /// The most blocks of a stage that is mapped, or of one that is not.
    fn most_blocks(&self, is_mapped: bool) -> u64 {
        let stages = self.stages.iter().filter(|stage| stage.is_mapped == is_mapped);
        stages.map(|stage| stage.blocks.len() as u64).max().unwrap_or(0)
    }

    /// The bytes of the tables.
    pub fn table_bytes(&self) -> u64 {
        self.layout().end
    }

    /// What it needs if the kernel moves messages; `None` if NCCL moves all. All ranks need as many shared bytes.
    pub fn mapped_needs(&self) -> Option<MappedNeeds> {
        let mapped = self.stages.iter().filter(|stage| stage.is_mapped);
        let blocks: u64 = mapped.map(|stage| stage.blocks.len() as u64).sum();
        let needs = MappedNeeds {
            shared_bytes: self.mapped.bytes,
            counter_bytes: (blocks * COUNTERS * LONG).max(LONG),
            blocks: self.most_blocks(true) as usize,
        };
        (!self.mapped.rings.is_empty()).then_some(needs)
    }

    /// The tables for these addresses of input, output, scratch and inboxes. They lie at `at`, which is a multiple of 256.
    /// `mapped` is for a plan that has [needs](Self::mapped_needs).
    pub fn tables(&self, at: u64, buffers: [u64; 4], mapped: Option<&MappedAddresses>) -> Vec<u8> {
        let layout = self.layout();
        let mut tables = buffers.map(u64::to_le_bytes).concat();
        tables.resize(layout.steps as usize, 0);
        self.steps.iter().for_each(|step| step.encode(&mut tables));
        tables.resize(layout.pieces as usize, 0);
        self.pieces.iter().for_each(|piece| piece.encode(&mut tables));
        for (stage, places) in self.stages.iter().zip(&layout.stages) {
            tables.resize(places.blocks as usize, 0);
            let mapped = mapped.filter(|_| stage.is_mapped);
            let counters = mapped.map_or(at + layout.counters, |mapped| mapped.counters + places.counters);
            let unset = at + layout.counters + self.most_blocks(false) * COUNTERS * LONG;
            let mut channels = at + places.channels;
            for (number, of) in stage.blocks.iter().enumerate() {
                let counter = |which: u64| counters + (number as u64 * COUNTERS + which) * LONG;
                let block = KernelBlock {
                    steps: at + layout.steps + of.steps.start as u64 * KernelStep::BYTES,
                    pieces: at + layout.pieces,
                    waits: 0,
                    channels,
                    buffers: at,
                    epoch: counter(0),
                    progress: counter(1),
                    report: counter(2),
                    abort: mapped.map_or(unset, |mapped| mapped.abort),
                    poll_limit: u64::MAX,
                    step_count: of.steps.len() as u32,
                    tiles: stage.tiles,
                    operation: self.operation,
                };
                block.encode(&mut tables);
                channels += of.messages.len() as u64 * KernelChannel::BYTES;
            }
            tables.resize(places.channels as usize, 0);
            mapped.into_iter().for_each(|mapped| self.encode_channels(stage, mapped, &mut tables));
        }
        tables.resize(layout.end as usize, 0);
        tables
    }

    fn most_vectors(&self, stage: &StageLaunch) -> u64 {
        let steps = stage.blocks.iter().flat_map(|block| &self.steps[block.steps.clone()]);
        let pieces = steps.flat_map(|step| &self.pieces[step.first_piece as usize..][..step.piece_count as usize]);
        let longest = pieces.map(|piece| piece.length.div_ceil(u64::from(stage.tiles))).max().unwrap_or(0);
        (longest * self.dtype().size() as u64).div_ceil(VECTOR)
    }

    fn encode_channels(&self, stage: &StageLaunch, mapped: &MappedAddresses, tables: &mut Vec<u8>) {
        for block in &stage.blocks {
            let rings = self.mapped.of_rank(self.rank(), stage.number);
            for (ring, messages) in rings.zip(&block.messages) {
                ring.channel(block.number, *messages, &mapped.shared).encode(tables);
            }
        }
    }

    /// The ranks for which blocks wait that have given up, from the counters.
    pub fn waited_for(&self, counters: &[u8]) -> Vec<Rank> {
        let (layout, mut ranks) = (self.layout(), Vec::new());
        for (stage, places) in self.stages.iter().zip(&layout.stages).filter(|(stage, _)| stage.is_mapped) {
            let rings: Vec<_> = self.mapped.of_rank(self.rank(), stage.number).collect();
            for (number, block) in stage.blocks.iter().enumerate() {
                let at = (places.counters + (number as u64 * COUNTERS + 2) * LONG) as usize;
                let report = counters.get(at..at + LONG as usize).and_then(|bytes| bytes.try_into().ok());
                // The tile and the step, counted from 1.
                let Some(step) = report.map_or(0, u64::from_le_bytes).checked_sub(1) else { continue };
                let step = block.steps.start + (step & u64::from(u32::MAX)) as usize;
                let Some(step) = self.steps.get(step) else { continue };
                let ring = |is_one: u32, channel: u32| rings.get(channel as usize).filter(|_| step.kind & is_one != 0);
                ranks.extend(ring(RECEIVES, step.in_channel).map(|ring| ring.from));
                ranks.extend(ring(SENDS, step.out_channel).map(|ring| ring.to));
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// The launch of each stage.
    pub fn launches(&self) -> Vec<RoundLaunch> {
        let begins = self.layout().stages.into_iter().map(|places| places.blocks);
        let launch = |(begin, stage): (u64, &StageLaunch)| RoundLaunch {
            begin,
            blocks: stage.blocks.len() as u32,
            waits: stage.is_mapped,
            vectors: self.most_vectors(stage),
        };
        begins.zip(&self.stages).map(launch).collect()
    }
}
