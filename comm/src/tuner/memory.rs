//! The memory of a trial: what a rank gives, what it must get, and guards around both.
//!
//! The principal type is [`TrialMemory`].

use crate::error::{CommError, CommResult};
use crate::operation::CollectiveCall;
use crate::stock::CallKind;
use runtime::{Call, DType, Reference};
use schedule::{Demand, Request};
use topology::Rank;

/// So many bytes before and behind a buffer tell whether a function writes beyond it, and keep the rest of the memory as it is.
pub(super) const GUARD: usize = 1 << 16;
/// What stands there.
const GUARDED: u8 = 0xc3;
static GUARDS: [u8; GUARD] = [GUARDED; GUARD];
/// What stands in results before a call.
const UNWRITTEN: u8 = 0x5a;
/// From one call to the next the numbers change by so much, so that no result is right twice: 2⁶⁴ divided by the golden ratio.
const NEXT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A buffer with guards.
struct GuardedBytes(Vec<u8>);

impl GuardedBytes {
    fn new(length: usize) -> Self {
        let mut bytes = vec![GUARDED; length + 2 * GUARD];
        bytes[GUARD..GUARD + length].fill(UNWRITTEN);
        Self(bytes)
    }

    /// The buffer, of which a call may use less.
    fn take(&mut self, length: usize) -> &mut [u8] {
        &mut self.0[GUARD..GUARD + length]
    }

    fn get(&self, length: usize) -> &[u8] {
        &self.0[GUARD..GUARD + length]
    }

    /// How many bytes of the guards have changed, and of the buffer behind its first `length` bytes.
    fn overwritten(&self, length: usize) -> usize {
        let end = self.0.len() - GUARD;
        let changed = |bytes: &[u8], was: u8| bytes.iter().filter(|byte| **byte != was).count();
        // Nearly always they are as they were, and comparing is faster than counting.
        let of_guard = |bytes: &[u8]| if bytes == GUARDS { 0 } else { changed(bytes, GUARDED) };
        let rest = changed(&self.0[GUARD + length..end], UNWRITTEN);
        of_guard(&self.0[..GUARD]) + rest + of_guard(&self.0[end..])
    }

    fn clear(&mut self) {
        let end = self.0.len() - GUARD;
        self.0[GUARD..end].fill(UNWRITTEN);
        for begin in [0, end] {
            let guard = &mut self.0[begin..begin + GUARD];
            // They nearly always are as they were.
            if guard != GUARDS {
                guard.fill(GUARDED);
            }
        }
    }
}

/// A rank's memory for the calls of one size, and for smaller ones.
pub(super) struct TrialMemory {
    rank: Rank,
    demand: Demand,
    kind: CallKind,
    call: CollectiveCall,
    seed: u64,
    input: GuardedBytes,
    output: GuardedBytes,
}

impl TrialMemory {
    /// For calls of at most `count` elements.
    ///
    /// # Errors
    /// [`CommError::NoPlan`] if there are no such calls.
    pub(super) fn new(
        (rank, ranks): (usize, usize),
        kind: CallKind,
        (count, dtype): (usize, DType),
        seed: u64,
    ) -> CommResult<Self> {
        let mut request = Request::new(kind.collective, ranks, 0);
        (request.root, request.op) = (kind.root, kind.op);
        let demand = Demand::new(request).map_err(|error| CommError::NoPlan(error.to_string()))?;
        let call = CollectiveCall {
            collective: kind.collective,
            root: kind.root.map(Rank::index),
            op: kind.op,
            count,
            dtype,
            in_place: kind.in_place,
        };
        let empty = || GuardedBytes::new(0);
        let mut made = Self { rank: Rank::from_index(rank), demand, kind, call, seed, input: empty(), output: empty() };
        let [input, output] = made.lengths();
        (made.input, made.output) = (GuardedBytes::new(input), GuardedBytes::new(output));
        Ok(made)
    }

    /// The call, as it was [set up](Self::refill) last.
    pub(super) fn call(&self) -> &CollectiveCall {
        &self.call
    }

    /// From which the numbers of the last problem follow; the same on all ranks.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn reference(&self) -> Reference<'_> {
        Reference::new(&self.demand, self.kind.op, self.call.count, self.call.dtype, self.seed)
    }

    /// Bytes of input and output.
    pub(super) fn lengths(&self) -> [usize; 2] {
        let places = self.reference().places(self.rank);
        let elements = match self.kind.in_place {
            true => [0, places.input.max(places.output)],
            false => [places.input, places.output],
        };
        elements.map(|elements| elements * self.call.dtype.size())
    }

    /// Writes this rank's part of the next problem, of `count` elements. All ranks do so equally often.
    pub(super) fn refill(&mut self, count: usize) {
        self.call.count = count;
        self.seed = self.seed.wrapping_add(NEXT_SEED);
        let [given, got] = self.lengths();
        let Self { rank, demand, kind, call, seed, input, output } = self;
        let reference = Reference::new(demand, kind.op, call.count, call.dtype, *seed);
        input.clear();
        output.clear();
        match kind.in_place {
            true => reference.fill(*rank, output.take(got), reference.places(*rank).input_at),
            false => reference.fill(*rank, input.take(given), 0),
        }
    }

    /// All bytes of input and output, with the guards.
    pub(super) fn whole(&mut self) -> [&mut [u8]; 2] {
        [&mut self.input.0, &mut self.output.0]
    }

    /// What a call works on.
    pub(super) fn buffers(&mut self) -> Call<'_> {
        let [given, got] = self.lengths();
        match self.kind.in_place {
            true => Call::InPlace(self.output.take(got)),
            false => Call::OutOfPlace { input: self.input.take(given), output: self.output.take(got) },
        }
    }

    /// What is wrong after a call, of this rank.
    pub(super) fn fault(&self) -> Option<String> {
        let (reference, [given, got], rank) = (self.reference(), self.lengths(), self.rank);
        let at = if self.kind.in_place { reference.places(rank).output_at } else { 0 };
        let wrong = reference.wrong(rank, self.output.get(got), at);
        let changed = if self.kind.in_place { 0 } else { reference.changed(rank, self.input.get(given)) };
        let beyond = self.input.overwritten(given) + self.output.overwritten(got);
        let (rank, count) = (rank.index(), self.call.count);
        let what = match (wrong, changed, beyond) {
            (0, 0, 0) => return None,
            (0, 0, beyond) => format!("{beyond} bytes beyond the buffers of rank {rank} are overwritten"),
            (0, changed, _) => format!("{changed} elements of the input of rank {rank} are overwritten"),
            (wrong, ..) => format!("{wrong} elements of rank {rank} are wrong"),
        };
        Some(format!("{what} in a call of {count}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::Collective;

    fn memory(collective: Collective, count: usize) -> TrialMemory {
        TrialMemory::new((0, 1), CallKind::plain(collective), (count, DType::F32), 7).unwrap()
    }

    /// As the only rank there is.
    fn copy(memory: &mut TrialMemory) {
        let Call::OutOfPlace { input, output } = memory.buffers() else { panic!("it is in place") };
        output.copy_from_slice(input);
    }

    #[test]
    fn a_result_is_right_only_for_its_own_numbers() {
        let mut memory = memory(Collective::AllGather, 100);
        memory.refill(100);
        assert!(memory.fault().unwrap().contains("100 elements of rank 0 are wrong in a call of 100"));
        copy(&mut memory);
        assert_eq!(memory.fault(), None);
        let old = memory.output.get(400).to_vec();
        memory.refill(100);
        memory.output.take(400).copy_from_slice(&old);
        assert!(memory.fault().unwrap().contains("are wrong"), "yesterday's result is not today's");
    }

    #[test]
    fn what_is_written_elsewhere_is_noticed() {
        let mut memory = memory(Collective::AllGather, 100);
        for (count, place) in [(100, 400), (100, 400 + GUARD - 1), (60, 240), (60, 399)] {
            memory.refill(count);
            copy(&mut memory);
            assert_eq!(memory.fault(), None);
            memory.output.0[GUARD + place] ^= 1;
            assert!(memory.fault().unwrap().contains("1 bytes beyond"), "{count} {place}");
        }
        // What a timed call overwrites is not blamed on the next one that is looked at.
        copy(&mut memory);
        memory.output.0[GUARD - 1] ^= 1;
        memory.refill(100);
        copy(&mut memory);
        assert_eq!(memory.fault(), None);
        memory.refill(100);
        copy(&mut memory);
        memory.output.0[GUARD - 1] = 0;
        memory.input.0[GUARD + 400] = 0;
        assert!(memory.fault().unwrap().contains("2 bytes beyond"));
        memory.refill(100);
        copy(&mut memory);
        memory.input.take(400)[5] ^= 1;
        assert!(memory.fault().unwrap().contains("1 elements of the input of rank 0"));
    }
}
