//! The three buffers of a rank while a collective runs.
//!
//! The principal type is [`CallMemory`]. It lends disjoint views, so that no instruction, not even of a wrong program,
//! can alias memory. Operands that overlap without being equal are refused.

use crate::dtype::Kernel;
use crate::plan::ByteSpan;
use program::Buffer;
use std::ops::Range;

/// The buffers that the caller of a collective lends.
pub enum Call<'a> {
    /// Separate buffers; the input is only read.
    OutOfPlace {
        /// The data that the caller sends.
        input: &'a [u8],
        /// The memory that receives the result.
        output: &'a mut [u8],
    },
    /// One buffer for input and output. It has the layout of the larger of the two.
    InPlace(&'a mut [u8]),
}

/// An access that no verified program makes.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum MemoryFault {
    #[error("the program writes the input of a call that is not in place")]
    WritesInput,
    #[error("the operands {0:?} and {1:?} overlap in part")]
    Overlap(ByteSpan, ByteSpan),
}

/// A source and a destination.
enum Operands<'m> {
    Same(&'m mut [u8]),
    Two { src: &'m [u8], dst: &'m mut [u8] },
}

/// The caller's buffers and the program's scratch.
pub(crate) struct CallMemory<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) scratch: &'a mut [u8],
}

impl CallMemory<'_> {
    pub(crate) fn read(&self, span: &ByteSpan) -> &[u8] {
        let buffer = match (&self.call, span.buffer) {
            (_, Buffer::Scratch) => &*self.scratch,
            (Call::InPlace(both), _) => both,
            (Call::OutOfPlace { input, .. }, Buffer::Input) => input,
            (Call::OutOfPlace { output, .. }, Buffer::Output) => output,
        };
        &buffer[span.bytes.clone()]
    }

    pub(crate) fn write(&mut self, span: &ByteSpan) -> Result<&mut [u8], MemoryFault> {
        let buffer = match (&mut self.call, span.buffer) {
            (_, Buffer::Scratch) => &mut *self.scratch,
            (Call::InPlace(both), _) => both,
            (Call::OutOfPlace { .. }, Buffer::Input) => return Err(MemoryFault::WritesInput),
            (Call::OutOfPlace { output, .. }, Buffer::Output) => output,
        };
        Ok(&mut buffer[span.bytes.clone()])
    }

    fn operands(&mut self, src: &ByteSpan, dst: &ByteSpan) -> Result<Operands<'_>, MemoryFault> {
        let in_place = matches!(self.call, Call::InPlace(_));
        let place =
            |span: &ByteSpan| if in_place && span.buffer == Buffer::Input { Buffer::Output } else { span.buffer };
        let (from, to) = (src.bytes.clone(), dst.bytes.clone());
        if place(src) == place(dst) {
            let whole = match (&mut self.call, dst.buffer) {
                (_, Buffer::Scratch) => &mut *self.scratch,
                (Call::InPlace(both), _) => both,
                (Call::OutOfPlace { output, .. }, Buffer::Output) => output,
                (Call::OutOfPlace { .. }, Buffer::Input) => return Err(MemoryFault::WritesInput),
            };
            return split(whole, from, to).ok_or_else(|| MemoryFault::Overlap(src.clone(), dst.clone()));
        }
        let (src, dst) = match (&mut self.call, src.buffer, dst.buffer) {
            (Call::OutOfPlace { .. }, _, Buffer::Input) => return Err(MemoryFault::WritesInput),
            (Call::InPlace(both), Buffer::Scratch, _) => (&*self.scratch, &mut **both),
            (Call::InPlace(both), _, _) => (&**both, &mut *self.scratch),
            (Call::OutOfPlace { input, .. }, Buffer::Input, Buffer::Scratch) => (*input, &mut *self.scratch),
            (Call::OutOfPlace { output, .. }, _, Buffer::Scratch) => (&**output, &mut *self.scratch),
            (Call::OutOfPlace { input, output }, Buffer::Input, _) => (*input, &mut **output),
            (Call::OutOfPlace { output, .. }, _, _) => (&*self.scratch, &mut **output),
        };
        Ok(Operands::Two { src: &src[from], dst: &mut dst[to] })
    }

    /// `dst = src`.
    pub(crate) fn copy(&mut self, src: &ByteSpan, dst: &ByteSpan) -> Result<(), MemoryFault> {
        if let Operands::Two { src, dst } = self.operands(src, dst)? {
            dst.copy_from_slice(src);
        }
        Ok(())
    }

    /// `dst = dst ⊕ src`.
    pub(crate) fn accumulate(&mut self, kernel: Kernel, src: &ByteSpan, dst: &ByteSpan) -> Result<(), MemoryFault> {
        match self.operands(src, dst)? {
            Operands::Two { src, dst } => (kernel.accumulate)(dst, src),
            Operands::Same(_) => return Err(MemoryFault::Overlap(src.clone(), dst.clone())),
        }
        Ok(())
    }

    /// `dst = src ⊕ data`.
    pub(crate) fn combine(
        &mut self,
        kernel: Kernel,
        src: &ByteSpan,
        data: &[u8],
        dst: &ByteSpan,
    ) -> Result<(), MemoryFault> {
        match self.operands(src, dst)? {
            Operands::Two { src, dst } => (kernel.combine)(dst, src, data),
            Operands::Same(both) => (kernel.accumulate)(both, data),
        }
        Ok(())
    }
}

/// Two ranges of one buffer; `None` if they overlap without being equal.
fn split(whole: &mut [u8], src: Range<usize>, dst: Range<usize>) -> Option<Operands<'_>> {
    if src == dst {
        return Some(Operands::Same(&mut whole[dst]));
    }
    if src.end <= dst.start {
        let (low, high) = whole.split_at_mut(dst.start);
        return Some(Operands::Two { src: &low[src], dst: &mut high[..dst.len()] });
    }
    if dst.end <= src.start {
        let (low, high) = whole.split_at_mut(src.start);
        return Some(Operands::Two { src: &high[..src.len()], dst: &mut low[dst] });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(buffer: Buffer, bytes: Range<usize>) -> ByteSpan {
        ByteSpan { buffer, bytes }
    }

    #[test]
    fn copies_reach_every_pair_of_buffers_that_may_be_written() {
        for src in [Buffer::Input, Buffer::Output, Buffer::Scratch] {
            for dst in [Buffer::Output, Buffer::Scratch] {
                let (input, mut output, mut scratch) = ([1; 8], [2; 8], [3; 8]);
                let call = Call::OutOfPlace { input: &input, output: &mut output };
                let mut memory = CallMemory { call, scratch: &mut scratch };
                memory.copy(&span(src, 0..4), &span(dst, 4..8)).unwrap();
                let expected = memory.read(&span(src, 0..4)).to_vec();
                assert_eq!(memory.read(&span(dst, 4..8)), expected, "{src:?} to {dst:?}");
            }
        }
    }

    #[test]
    fn the_input_is_read_only_unless_in_place() {
        let (input, mut output) = ([1; 8], [2; 8]);
        let call = Call::OutOfPlace { input: &input, output: &mut output };
        let mut memory = CallMemory { call, scratch: &mut [] };
        let to_input = span(Buffer::Input, 0..4);
        assert_eq!(memory.copy(&span(Buffer::Output, 0..4), &to_input), Err(MemoryFault::WritesInput));
        assert_eq!(memory.write(&to_input), Err(MemoryFault::WritesInput));
        let mut both = [1, 2, 3, 4];
        let mut memory = CallMemory { call: Call::InPlace(&mut both), scratch: &mut [] };
        memory.copy(&span(Buffer::Output, 0..2), &span(Buffer::Input, 2..4)).unwrap();
        assert_eq!(both, [1, 2, 1, 2]);
    }

    #[test]
    fn operands_that_overlap_in_part_are_refused() {
        let mut both = [0; 8];
        let mut memory = CallMemory { call: Call::InPlace(&mut both), scratch: &mut [] };
        let fault = memory.copy(&span(Buffer::Input, 0..4), &span(Buffer::Output, 2..6));
        assert!(matches!(fault, Err(MemoryFault::Overlap(..))));
    }
}
