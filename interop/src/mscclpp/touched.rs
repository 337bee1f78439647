//! The slots that the instructions of a converted plan read and write.

use program::{Buffer, Instruction, Slice};

/// The slices that an instruction reads, and the slice that it writes.
pub(super) fn accesses(instruction: &Instruction) -> (Vec<Slice>, Option<Slice>) {
    match *instruction {
        Instruction::Send { src, .. } => (vec![src], None),
        Instruction::Receive { dst, .. } | Instruction::ReceiveSend { dst, .. } => (Vec::new(), Some(dst)),
        Instruction::ReceiveReduce { src, dst, .. }
        | Instruction::ReceiveReduceSend { src, dst, .. }
        | Instruction::Copy { src, dst } => (vec![src], Some(dst)),
        Instruction::Reduce { src, dst } => (vec![src, dst], Some(dst)),
    }
}

/// The slots of slices.
pub(super) fn slots(slices: impl IntoIterator<Item = Slice>) -> impl Iterator<Item = (Buffer, u32)> {
    slices.into_iter().flat_map(|slice| {
        (slice.index..slice.index.saturating_add(slice.count)).map(move |index| (slice.buffer, index))
    })
}
