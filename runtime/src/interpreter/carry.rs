//! How an interpreter moves bytes: pieces of steps, and one instruction at a time.

use super::{Cursor, Extent, Interpreter, PIECE};
use crate::error::{RunError, RunResult};
use crate::memory::{MemoryFault, Span};
use schedule::program::{Instruction, Slice, Step};

impl Interpreter<'_> {
    /// Moves up to a piece of the current step; whether anything moved. Of a fused step, what has been received is
    /// sent on as far as there is room; the receive never waits for that room.
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
        if let Some(keeper) = &mut self.keeper {
            // Where there is one, no step is fused.
            keeper.passed(block, step, cursor.step, tile, received.1);
        }
        Ok((received.0, sent.0) != (done, forwarded))
    }

    /// Carries out up to a piece of what lies between two extents; where it stopped, and how many bytes
    /// moved.
    fn piecewise(
        &mut self,
        instruction: &Instruction,
        tile: usize,
        from: Extent,
        to: Extent,
    ) -> RunResult<(Extent, usize)> {
        let shape = instruction.shape();
        let (mut at, mut moved) = (from, 0);
        // A lane may deliver a part of an element, which is not sent on before the rest is there.
        let to = Extent { offset: to.offset - to.offset % self.plan.dtype.size(), ..to };
        while moved < PIECE && (at.slot, at.offset) < (to.slot, to.offset) {
            let whole = self.plan.geometry.piece(shape, at.slot, tile).len();
            let end = if at.slot == to.slot { to.offset } else { whole };
            let length = end - at.offset;
            let take = if length == 0 { 0 } else { self.execute(instruction, tile, at.slot, at.offset, length)? };
            if take < length && take == 0 {
                break;
            }
            moved += take;
            at.offset += take;
            if at.offset == whole {
                at = Extent { slot: at.slot + 1, offset: 0 };
            }
        }
        Ok((at, moved))
    }

    /// Carries out one instruction on at most `length` bytes from `offset` of a slot on; how many were done.
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
            Span { buffer: slice.buffer, bytes: start..start + bytes }
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
            // Their halves are carried out one by one.
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
