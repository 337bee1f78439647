//! The structures of the interpreter kernel, field by field as in `runtime/cuda/interpreter.cu`.

/// Bits of [`KernelStep::kind`].
pub(crate) const RECEIVES: u32 = 1;
pub(crate) const SENDS: u32 = 2;
pub(crate) const READS: u32 = 4;
pub(crate) const STORES: u32 = 8;
pub(crate) const REDUCES: u32 = 16;
pub(crate) const DIVIDES: u32 = 32;
pub(crate) const PUBLISHES: u32 = 64;

/// A structure of the kernel.
pub(crate) trait Encode {
    /// Its size in bytes.
    const BYTES: u64;
    fn encode(&self, out: &mut Vec<u8>);
}

/// Appends numbers as they lie in the memory of a GPU.
pub(super) fn words<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

pub(super) fn longs<const N: usize>(out: &mut Vec<u8>, longs: [u64; N]) {
    longs.iter().for_each(|long| out.extend(long.to_le_bytes()));
}

/// What a block of the grid does, by addresses.
pub(crate) struct KernelBlock {
    pub(crate) steps: u64,
    pub(crate) pieces: u64,
    pub(crate) waits: u64,
    pub(crate) channels: u64,
    pub(crate) buffers: u64,
    pub(crate) epoch: u64,
    pub(crate) progress: u64,
    pub(crate) abort: u64,
    pub(crate) report: u64,
    pub(crate) poll_limit: u64,
    pub(crate) step_count: u32,
    pub(crate) tiles: u32,
    pub(crate) operation: u32,
}

impl Encode for KernelBlock {
    const BYTES: u64 = 96;

    fn encode(&self, out: &mut Vec<u8>) {
        longs(out, [self.steps, self.pieces, self.waits, self.channels, self.buffers]);
        longs(out, [self.epoch, self.progress, self.abort, self.report, self.poll_limit]);
        words(out, [self.step_count, self.tiles, self.operation, 0]);
    }
}

/// A step. Channels are indices into the channels of the rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KernelStep {
    pub(crate) kind: u32,
    pub(crate) first_piece: u32,
    pub(crate) piece_count: u32,
    pub(crate) first_wait: u32,
    pub(crate) wait_count: u32,
    pub(crate) in_channel: u32,
    pub(crate) in_ordinal: u32,
    pub(crate) out_channel: u32,
    pub(crate) out_ordinal: u32,
    pub(crate) divisor: u32,
}

impl Encode for KernelStep {
    const BYTES: u64 = 48;

    fn encode(&self, out: &mut Vec<u8>) {
        words(out, [self.kind, self.first_piece, self.piece_count, self.first_wait, self.wait_count]);
        words(out, [self.in_channel, self.in_ordinal, self.out_channel, self.out_ordinal, self.divisor, 0, 0]);
    }
}

/// A slot, in elements of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelPiece {
    pub(crate) length: u64,
    pub(crate) source: u64,
    pub(crate) destination: u64,
    pub(crate) source_buffer: u32,
    pub(crate) destination_buffer: u32,
}

impl Encode for KernelPiece {
    const BYTES: u64 = 32;

    fn encode(&self, out: &mut Vec<u8>) {
        longs(out, [self.length, self.source, self.destination]);
        words(out, [self.source_buffer, self.destination_buffer]);
    }
}

/// A wait for another block: until it has finished `steps` of its `step_count` steps of the same tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelWait {
    pub(crate) progress: u64,
    pub(crate) steps: u32,
    pub(crate) step_count: u32,
}

impl Encode for KernelWait {
    const BYTES: u64 = 16;

    fn encode(&self, out: &mut Vec<u8>) {
        longs(out, [self.progress]);
        words(out, [self.steps, self.step_count]);
    }
}

/// A connection, as one of its two ranks sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelChannel {
    pub(crate) inbox: u64,
    pub(crate) arrived: u64,
    pub(crate) taken: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) mask: u32,
    pub(crate) per_tile: u32,
}

impl Encode for KernelChannel {
    const BYTES: u64 = 40;

    fn encode(&self, out: &mut Vec<u8>) {
        longs(out, [self.inbox, self.arrived, self.taken, self.slot_bytes]);
        words(out, [self.mask, self.per_tile]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        fn bytes<T: Encode>(value: &T) {
            let mut out = Vec::new();
            value.encode(&mut out);
            assert_eq!(out.len() as u64, T::BYTES);
        }
        bytes(&KernelStep::default());
        bytes(&KernelPiece { length: 0, source: 0, destination: 0, source_buffer: 0, destination_buffer: 0 });
        bytes(&KernelWait { progress: 0, steps: 0, step_count: 0 });
        bytes(&KernelChannel { inbox: 0, arrived: 0, taken: 0, slot_bytes: 0, mask: 0, per_tile: 0 });
        let block = KernelBlock {
            steps: 0,
            pieces: 0,
            waits: 0,
            channels: 0,
            buffers: 0,
            epoch: 0,
            progress: 0,
            abort: 0,
            report: 0,
            poll_limit: 0,
            step_count: 0,
            tiles: 0,
            operation: 0,
        };
        bytes(&block);
    }
}
