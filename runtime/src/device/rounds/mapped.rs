//! Where mapped messages lie: rings in the memory of their receivers, and counters at both ends.
//!
//! The principal type is [`MappedLayout`]. Every rank computes it alike. Each block of a stage has channels of its own, because block
//! `b` of a rank exchanges messages with block `b` of others only: so all ranks have as many blocks in such a stage.

use super::derive::{RoundMessage, Rounds, StageWork};
use crate::device::kernel_plan::FLAG_BYTES;
use crate::device::rank_tables::VECTOR;
use crate::device::tables::KernelChannel;
use crate::dtype::DType;
use crate::plan::geometry::Geometry;
use program::ConnectionId;
use std::collections::BTreeMap;
use topology::Rank;

/// Pieces and inboxes begin at multiples of so many bytes, as vectors of the kernel want.
pub(super) const ALIGNMENT: u64 = 256;
/// At most so many blocks work on a stage with mapped messages. All of them must be on the GPU at the same time.
pub(in crate::device) const MOST_BLOCKS: u64 = 16;
/// About so many bytes of a message a block moves at once.
const TILE_BYTES: u64 = 32 << 10;

/// How work is divided, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaunchBytes {
    /// About so many of a stage for a block.
    pub(crate) block: u64,
    /// At most about so many of a mapped message for a block at once.
    pub(crate) tile: u64,
}

impl LaunchBytes {
    pub(crate) fn of_block(block: u64) -> Self {
        Self { block, tile: TILE_BYTES }
    }
}

/// How a stage with mapped messages is launched, on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MappedShape {
    pub(super) blocks: u64,
    pub(super) tiles: u32,
}

/// The messages of a connection in a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MappedRing {
    pub(super) stage: u32,
    pub(super) connection: ConnectionId,
    pub(super) from: Rank,
    pub(super) to: Rank,
    slots: u32,
    slot_bytes: u64,
    /// For block 0, in the memory of the receiver.
    arrived: u64,
    inbox: u64,
    /// For block 0, in the memory of the sender.
    taken: u64,
}

/// All mapped messages of a program at one size.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct MappedLayout {
    /// By their numbers, the stages that have some.
    pub(super) stages: BTreeMap<u32, MappedShape>,
    /// In the order of stages and connections.
    pub(super) rings: Vec<MappedRing>,
    /// The shared memory that each rank has, as much as the one that needs most.
    pub(super) bytes: u64,
}

/// The elements of a slot that each of so many blocks works on; the last ones may have fewer.
pub(super) fn share_of(length: u64, blocks: u64, element: u64) -> u64 {
    length.div_ceil(blocks).next_multiple_of(ALIGNMENT / element)
}

/// The lengths of slots, for each rank.
struct SlotLengths<'a> {
    ranks: &'a [Geometry],
    element: u64,
}

impl SlotLengths<'_> {
    /// The most bytes of a message that one of so many blocks moves in a tile.
    fn message(&self, message: &RoundMessage, blocks: u64, tiles: u32) -> u64 {
        let geometry = &self.ranks[message.to.index()];
        let slot = |slot| {
            let length = geometry.piece(message.shape, slot, 0).len() as u64 / self.element;
            let share = share_of(length, blocks, self.element).min(length);
            (share.div_ceil(u64::from(tiles)) * self.element).next_multiple_of(VECTOR)
        };
        (0..message.shape.count).map(slot).sum()
    }
}

impl MappedLayout {
    /// `ranks` has the buffers of each rank.
    pub(super) fn of(rounds: &Rounds, ranks: &[Geometry], dtype: DType, sizes: LaunchBytes) -> Self {
        let mapped: Vec<&RoundMessage> = rounds.messages.iter().filter(|message| message.is_mapped).collect();
        if mapped.is_empty() {
            return Self::default();
        }
        let lengths = SlotLengths { ranks, element: dtype.size() as u64 };
        let mut layout = Self { stages: shapes(rounds, &mapped, &lengths, sizes), ..Self::default() };
        let mut carried: BTreeMap<(u32, ConnectionId), Vec<&RoundMessage>> = BTreeMap::new();
        mapped.iter().for_each(|of| carried.entry((of.round, of.connection)).or_default().push(of));
        let mut ends = vec![0; lengths.ranks.len()];
        for ((stage, connection), messages) in carried {
            let Some(&MappedShape { blocks, tiles }) = layout.stages.get(&stage) else { continue };
            let longest = messages.iter().map(|message| lengths.message(message, blocks, tiles)).max();
            let slot_bytes = longest.unwrap_or(0).max(VECTOR);
            let (from, to) = (messages[0].from, messages[0].to);
            let slots = 2 * most_waiting(&messages).next_power_of_two();
            let mut place = |rank: Rank, bytes: u64| {
                let start = ends[rank.index()];
                ends[rank.index()] = start + (bytes * blocks).next_multiple_of(FLAG_BYTES);
                start
            };
            let arrived = place(to, FLAG_BYTES);
            let inbox = place(to, slot_bytes * u64::from(slots));
            let taken = place(from, FLAG_BYTES);
            layout.rings.push(MappedRing { stage, connection, from, to, slots, slot_bytes, arrived, inbox, taken });
        }
        layout.bytes = ends.into_iter().max().unwrap_or(0);
        layout
    }

    /// The rings of a rank in a stage, in the order of connections.
    pub(super) fn of_rank(&self, rank: Rank, stage: u32) -> impl Iterator<Item = &MappedRing> {
        let first = self.rings.partition_point(|ring| ring.stage < stage);
        let rings = self.rings[first..].iter().take_while(move |ring| ring.stage == stage);
        rings.filter(move |ring| ring.from == rank || ring.to == rank)
    }
}

impl MappedRing {
    /// The channel of a block that has so many of the messages in a tile. `shared` is where each rank's memory is.
    pub(super) fn channel(&self, block: u64, per_tile: u32, shared: &[u64]) -> KernelChannel {
        let (sender, receiver) = (shared[self.from.index()], shared[self.to.index()]);
        KernelChannel {
            inbox: receiver + self.inbox + block * self.slot_bytes * u64::from(self.slots),
            arrived: receiver + self.arrived + block * FLAG_BYTES,
            taken: sender + self.taken + block * FLAG_BYTES,
            slot_bytes: self.slot_bytes,
            mask: self.slots - 1,
            per_tile,
        }
    }
}

/// The most messages of a connection that are put in a tile before the first of them is taken, if all ranks go level by level. With room
/// for as many, no ranks wait for each other in a circle: who waits for room waits for what has a lower level.
fn most_waiting(messages: &[&RoundMessage]) -> u32 {
    let mut taken = 0;
    let waiting = messages.iter().enumerate().map(|(put, message)| {
        // Both kinds of levels ascend along a connection.
        while messages[taken].levels[1] < message.levels[0] {
            taken += 1;
        }
        put - taken + 1
    });
    waiting.max().unwrap_or(1) as u32
}

/// How stages with mapped messages are launched: blocks as the rank with the most work in it needs them, tiles as the longest message does.
fn shapes(
    rounds: &Rounds,
    mapped: &[&RoundMessage],
    lengths: &SlotLengths<'_>,
    sizes: LaunchBytes,
) -> BTreeMap<u32, MappedShape> {
    let mut most: BTreeMap<u32, u64> = mapped.iter().map(|message| (message.round, 0)).collect();
    for (work, geometry) in rounds.work.iter().zip(lengths.ranks) {
        for stage in work.chunk_by(|one, other| one.stage == other.stage) {
            let Some(most) = most.get_mut(&stage[0].stage) else { continue };
            *most = stage_bytes(stage, geometry).max(*most);
        }
    }
    let blocks = |bytes: u64| bytes.div_ceil(sizes.block.max(1)).clamp(1, MOST_BLOCKS);
    let mut shapes: BTreeMap<u32, MappedShape> =
        most.into_iter().map(|(stage, bytes)| (stage, MappedShape { blocks: blocks(bytes), tiles: 1 })).collect();
    for message in mapped {
        let Some(shape) = shapes.get_mut(&message.round) else { continue };
        let tiles = lengths.message(message, shape.blocks, 1).div_ceil(sizes.tile);
        shape.tiles = shape.tiles.max(u32::try_from(tiles).unwrap_or(u32::MAX));
    }
    shapes
}

/// The bytes that the kernel moves in a stage.
pub(super) fn stage_bytes(work: &[StageWork], geometry: &Geometry) -> u64 {
    work.iter().map(|work| geometry.whole(work.shape).len() as u64).sum()
}
