//! A program as text that a person can read, one step a line.

use super::{Buffer, ConnectionId, Instruction, PartShape, Program, RankProgram, Slice, Slot, Step};
use std::fmt;

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

impl fmt::Display for Slice {
    /// `output[4]`, or `output[4..6]` for several slots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffer, index, count } = self;
        match count {
            1 => write!(f, "{buffer}[{index}]"),
            _ => write!(f, "{buffer}[{index}..{}]", u64::from(*index) + u64::from(*count)),
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slice(1).fmt(f)
    }
}

impl fmt::Display for PartShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal { parts } => write!(f, "blocks of {parts} slots"),
            Self::Weighted { cuts, .. } => write!(f, "slots of {} sizes", cuts.len()),
        }
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, src } => write!(f, "{to} <- {src}"),
            Self::Receive { from, dst } => write!(f, "{dst} <- {from}"),
            Self::ReceiveReduce { from, src, dst } => write!(f, "{dst} <- {src} + {from}"),
            Self::Copy { src, dst } => write!(f, "{dst} <- {src}"),
            Self::Reduce { src, dst } => write!(f, "{dst} <- {dst} + {src}"),
            Self::ReceiveSend { from, to, dst } => write!(f, "{to} <- {dst} <- {from}"),
            Self::ReceiveReduceSend { from, to, src, dst } => write!(f, "{to} <- {dst} <- {src} + {from}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instruction.fmt(f)?;
        if let Some(transfer) = self.transfer {
            write!(f, "  transfer {transfer}")?;
        }
        if let Some(transfer) = self.forwards {
            write!(f, "  forwards {transfer}")?;
        }
        for (index, after) in self.after.iter().enumerate() {
            let lead = if index == 0 { "  after" } else { "," };
            write!(f, "{lead} {}.{}", after.threadblock, after.step)?;
        }
        Ok(())
    }
}

impl fmt::Display for RankProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input_parts, output_parts, scratch_parts, threadblocks } = self;
        let (input, output, scratch) = (input_parts.len(), output_parts.len(), scratch_parts.len());
        writeln!(f, "input {input}, output {output}, scratch {scratch}")?;
        for (threadblock, block) in threadblocks.iter().enumerate() {
            for (number, step) in block.steps.iter().enumerate() {
                writeln!(f, "  {threadblock}.{number}  {step}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    /// The connections, then every rank: `threadblock.step  destination <- source`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.demand.request();
        write!(f, "{} over {} of {} ranks", request.collective, request.members.len(), request.ranks)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = request.root {
            write!(f, ", root {root}")?;
        }
        let place = if self.in_place { "in place" } else { "out of place" };
        let uniform = if self.uniform { ", all slots equal" } else { "" };
        writeln!(f, ", {place}, {}{uniform}", self.shape)?;
        for (index, lane) in self.connections.iter().enumerate() {
            let (from, to) = (lane.from, lane.to);
            writeln!(f, "c{index}: rank {from} -> rank {to}, channel {}, link {}", lane.channel, lane.link)?;
        }
        for (rank, content) in self.ranks.iter().enumerate() {
            write!(f, "rank {rank}: {content}")?;
        }
        Ok(())
    }
}
