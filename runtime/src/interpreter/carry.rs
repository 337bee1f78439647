//! How an interpreter moves bytes: in pieces of steps, with one match arm for each instruction.

use super::{Cursor, Extent, Interpreter, PIECE};
use crate::error::{RunError, RunResult};
use crate::interpreter::buffers::MemoryFault;
use crate::plan::ByteSpan;
use program::{Buffer, Instruction, Slice, Step};

impl Interpreter<'_> {
    /// Moves up to [`PIECE`] bytes of the current step. Returns whether anything moved. A fused step sends on what it
    /// has received, as far as there is room. Its receive never waits for that room.
    pub(super) fn advance(&mut self, block: usize, step: &Step) -> RunResult<bool> {
        let (whole, send) = step.instruction.halves();
        let Cursor { tile, done, forwarded, .. } = self.cursors[block];
        let end = Extent { slot: whole.shape().count, offset: 0 };
        let received = self.piecewise(&whole, tile, done, end)?;
        let sent = match send {
            Some(send) => self.piecewise(&send, tile, forwarded, received.0)?,
            None => (forwarded, 0),
        };
        let cursor = &mut self.cursors[block];
        (cursor.done, cursor.forwarded) = (received.0, sent.0);
        if let Some(sequencer) = &mut self.sequencer {
            // With a sequencer, no step is fused.
            sequencer.passed(block, step, cursor.step, tile, received.1);
        }
        Ok((received.0, sent.0) != (done, forwarded))
    }

    /// Executes an instruction between two extents, up to about [`PIECE`] bytes. Works slot by slot, or on all slots
    /// together if they are neighbours. Returns where it stopped, and how many bytes moved.
    fn piecewise(
        &mut self,
        instruction: &Instruction,
        tile: usize,
        from: Extent,
        to: Extent,
    ) -> RunResult<(Extent, usize)> {
        let shape = instruction.shape();
        let (mut at, mut moved) = (from, 0);
        // A lane may deliver a part of an element. It is not sent on before the rest has arrived.
        let to = Extent { offset: to.offset - to.offset % self.plan.dtype.size(), ..to };
        let (together, is_send) = (self.are_neighbours(instruction), matches!(instruction, Instruction::Send { .. }));
        while moved < PIECE && (at.slot, at.offset) < (to.slot, to.offset) {
            let slot = self.plan.geometry.piece(shape, at.slot, tile);
            let end = match to.slot {
                last if last == at.slot => slot.start + to.offset,
                _ if !together => slot.end,
                last if last == shape.count => self.plan.geometry.whole(shape).end,
                last => self.plan.geometry.piece(shape, last, tile).start + to.offset,
            };
            let length = end - slot.start - at.offset;
            // A send may take everything at once. Others are limited, because other threadblocks wait.
            let length = if together && !is_send { length.min(PIECE) } else { length };
            let take = if length == 0 { 0 } else { self.execute(instruction, tile, at.slot, at.offset, length)? };
            if take < length && take == 0 {
                break;
            }
            moved += take;
            at.offset += take;
            while at.slot < shape.count
                && let whole = self.plan.geometry.piece(shape, at.slot, tile).len()
                && at.offset >= whole
            {
                at = Extent { slot: at.slot + 1, offset: at.offset - whole };
            }
        }
        Ok((at, moved))
    }

    /// Whether the slots of a step lie one after the other, and its source and destination do not overlap in part. Then
    /// one call of a lane moves a message of many slots.
    fn are_neighbours(&self, instruction: &Instruction) -> bool {
        let geometry = &self.plan.geometry;
        if geometry.tiles() > 1 {
            return false;
        }
        let (Instruction::ReceiveReduce { src, dst, .. }
        | Instruction::Copy { src, dst }
        | Instruction::Reduce { src, dst }) = *instruction
        else {
            return true;
        };
        let (from, to) = (geometry.whole(src), geometry.whole(dst));
        let apart = (src.buffer == Buffer::Scratch) != (dst.buffer == Buffer::Scratch);
        apart || from == to || from.end <= to.start || to.end <= from.start
    }

    /// Executes one instruction on at most `length` bytes of a slot, from `offset` on. Returns how many.
    fn execute(
        &mut self,
        instruction: &Instruction,
        tile: usize,
        slot: u32,
        offset: usize,
        length: usize,
    ) -> RunResult<usize> {
        let Self { plan, lanes, memory, .. } = self;
        let at = |slice: Slice, bytes: usize| {
            let start = plan.geometry.piece(slice, slot, tile).start + offset;
            ByteSpan { buffer: slice.buffer, bytes: start..start + bytes }
        };
        let piece = length.min(PIECE);
        let program_fault = |fault: String| RunError::Program { rank: plan.rank, fault };
        let fault = |fault: MemoryFault| program_fault(fault.to_string());
        let kernel = || plan.kernel.ok_or_else(|| program_fault("it reduces without an operator".to_owned()));
        Ok(match *instruction {
            Instruction::Send { to, src } => lanes.outgoing.send(to, memory.read(&at(src, length)))?,
            Instruction::Receive { from, dst } => {
                lanes.incoming.receive(from, memory.write(&at(dst, length)).map_err(fault)?)?
            }
            Instruction::ReceiveReduce { from, src, dst } => {
                let data = lanes.incoming.peek(from, piece)?;
                let take = data.len().min(piece) / plan.dtype.size() * plan.dtype.size();
                if take > 0 {
                    memory.combine(kernel()?, &at(src, take), &data[..take], &at(dst, take)).map_err(fault)?;
                    lanes.incoming.release(from, take)?;
                }
                take
            }
            Instruction::Copy { src, dst } => {
                memory.copy(&at(src, piece), &at(dst, piece)).map_err(fault)?;
                piece
            }
            Instruction::Reduce { src, dst } => {
                memory.accumulate(kernel()?, &at(src, piece), &at(dst, piece)).map_err(fault)?;
                piece
            }
            // `advance` executes their two halves one by one.
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => 0,
        })
    }

    pub(super) fn average(&mut self) -> RunResult<()> {
        for (span, by) in &self.plan.averages {
            let fault = |fault: MemoryFault| RunError::Program { rank: self.plan.rank, fault: fault.to_string() };
            self.plan.dtype.divide(self.memory.write(span).map_err(fault)?, *by);
        }
        Ok(())
    }
}
