//! Whether the plan of a table is still faster than stock, in the calls of the program itself.
//!
//! The principal type is [`Confirmation`]. A few calls are timed, some with the plan and some with stock, so both see the
//! program as it is. Which calls these are follows from their numbers alone, and all ranks learn the same times. So all ranks
//! decide alike, and change plans before the same call.

use crate::numbers::mixed;
use tune::{Choice, LEAST_GAIN, decide, summarize};

/// So many timed calls of each side are compared.
const PROBES: usize = 20;
/// Before the first comparison, so many tell how much the slower side costs. They decide nothing.
const LOOKS: usize = 3;
/// In so many comparisons in a row a side must win to replace the other one. Equal ones differ beyond the noise in one comparison
/// of thousands, but hardly ever twice in a row in the same direction.
const WINS: u32 = 2;
/// To cost no more time than was asked for, timed calls are at most so many times rarer.
const MOST_STRETCH: f64 = 1024.0;

/// Which of the two that are compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PlanSide {
    /// The plan of the table.
    Table,
    /// The textbook algorithm.
    Stock,
}

impl PlanSide {
    fn other(self) -> Self {
        if self == Self::Table { Self::Stock } else { Self::Table }
    }
}

/// What serves a call that was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ComparedTurn {
    pub(crate) side: PlanSide,
    /// If the call is timed: the number of the comparison, and which time of it this is.
    pub(crate) sample: Option<(u32, usize)>,
}

/// That a side replaces the other one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PlanSwitch {
    pub(crate) to: PlanSide,
    /// By which factor it is faster.
    pub(crate) gain: f64,
}

/// What is known of one kind of call, for sizes that differ little. Calls are counted from 1, in slots of equal lengths. Somewhere
/// in each slot is one timed call. Where it is looks random, so that it does not follow a rhythm of the program. One call in
/// `every` is timed, and what the slower side takes longer is at most one part in `every` of the time of all calls: where that
/// asks for it, slots are longer. Only before the first comparison, nobody knows what a call of the other side costs.
pub(crate) struct Confirmation {
    every: u64,
    /// How many calls a slot has.
    slot: u64,
    /// The last call of this slot.
    slot_end: u64,
    calls: u64,
    /// The next call with which something has to be done.
    next: u64,
    /// The call that is timed in this slot, if its rank waits for it.
    probe: u64,
    /// Whether it was.
    is_timed: bool,
    serving: PlanSide,
    sides: Vec<PlanSide>,
    /// In nanoseconds; 0 if not known.
    times: Vec<i64>,
    pairs: usize,
    /// Comparisons so far.
    number: u32,
    /// What the last comparison has found. It holds from the next slot on.
    found: Option<Option<PlanSwitch>>,
    wins: u32,
}

impl Confirmation {
    /// One call in `every` is timed, and first the table's plan serves.
    pub(crate) fn new(every: u32) -> Self {
        let every = u64::from(every.max(1));
        let mut new = Self {
            every,
            slot: every,
            slot_end: 0,
            calls: 0,
            next: 1,
            probe: 0,
            is_timed: false,
            serving: PlanSide::Table,
            sides: Vec::new(),
            times: Vec::new(),
            pairs: LOOKS,
            number: 0,
            found: None,
            wins: 0,
        };
        new.begin_slot();
        new
    }

    fn begin_slot(&mut self) {
        let first = self.slot_end + 1;
        self.slot_end += self.slot;
        self.probe = first + mixed(first, u64::from(self.number)) % self.slot;
        (self.next, self.is_timed) = (self.probe, false);
    }

    fn is_full(&self) -> bool {
        self.sides.len() == 2 * self.pairs
    }

    /// Counts a call with which nothing has to be done. If this says no, [`Self::next_turn`] counts it.
    #[inline]
    pub(crate) fn passes(&mut self) -> bool {
        let passes = self.calls + 1 < self.next;
        self.calls += u64::from(passes);
        passes
    }

    /// What serves the calls that are not timed.
    pub(crate) fn serving(&self) -> PlanSide {
        self.serving
    }

    /// Whether ranks have to tell each other their times before the next call, if they wait for it: the thread of the last timed call
    /// is still in it when the slot is over.
    pub(crate) fn is_due_before(&self) -> bool {
        self.is_due() && self.calls >= self.slot_end
    }

    /// Whether all calls of a comparison were made, and what they took was not yet told.
    pub(crate) fn is_due(&self) -> bool {
        self.is_full() && self.found.is_none()
    }

    /// Counts a call, and says what serves it. `waits` is whether its rank waits for it: otherwise it is not timed. Also whether a
    /// side has replaced the other one.
    pub(crate) fn next_turn(&mut self, waits: bool) -> (ComparedTurn, Option<PlanSwitch>) {
        self.calls += 1;
        let mut switch = None;
        if self.calls > self.slot_end && !self.is_due() {
            if let Some(found) = self.found.take() {
                switch = found;
                self.serving = found.map_or(self.serving, |switch| switch.to);
                self.sides.clear();
                self.times.clear();
                self.number += 1;
                self.pairs = PROBES;
            }
            self.begin_slot();
        }
        if self.is_full() || self.calls != self.probe || !waits {
            let comes_later = !self.is_full() && self.calls < self.probe;
            self.next = if comes_later { self.probe } else { self.slot_end + 1 };
            return (ComparedTurn { side: self.serving, sample: None }, switch);
        }
        let sample = self.sides.len();
        // In each pair, either side may come first.
        let side = match sample % 2 {
            0 if mixed(self.probe, !u64::from(self.number)).is_multiple_of(2) => PlanSide::Table,
            0 => PlanSide::Stock,
            _ => self.sides[sample - 1].other(),
        };
        self.sides.push(side);
        self.times.push(0);
        self.is_timed = true;
        // What serves may change back, so the next call is not passed.
        self.next = self.calls + 1;
        (ComparedTurn { side, sample: Some((self.number, sample)) }, switch)
    }

    /// The last call was not made after all.
    pub(crate) fn uncount(&mut self) {
        if self.calls == self.probe && std::mem::take(&mut self.is_timed) {
            self.sides.pop();
            self.times.pop();
        }
        self.calls = self.calls.saturating_sub(1);
        self.next = self.calls + 1;
    }

    /// How long a timed call took on this rank.
    pub(crate) fn took(&mut self, (number, sample): (u32, usize), nanoseconds: i64) {
        if number == self.number
            && let Some(time) = self.times.get_mut(sample)
        {
            *time = nanoseconds.max(1);
        }
    }

    /// What this rank tells the others, and the number of the comparison, from 1.
    pub(crate) fn told(&self) -> (u32, Vec<i64>) {
        (self.number + 1, self.times.clone())
    }

    /// Learns the longest times of all ranks, in nanoseconds: 0 for a call that nobody has timed.
    pub(crate) fn learn(&mut self, longest: &[i64]) {
        let of = |side| {
            let all = self.sides.iter().zip(longest).filter(|(of, time)| **of == side && **time > 0);
            summarize(&all.map(|(_, time)| *time as f64 / 1e3).collect::<Vec<_>>())
        };
        let (serving, other) = (of(self.serving), of(self.serving.other()));
        self.next = self.slot_end + 1;
        let (Some(serving), Some(other)) = (serving, other) else {
            self.found = Some(None);
            return;
        };
        // The first calls of a plan take longer than others.
        let slower =
            if self.pairs == LOOKS { other.min_us / serving.min_us } else { other.median_us / serving.median_us };
        let decision = decide(&serving, &other);
        let wins = decision.choice == Choice::Candidate && decision.speedup >= LEAST_GAIN;
        self.wins = if wins { self.wins + 1 } else { 0 };
        let switches = self.wins == WINS;
        if switches {
            self.wins = 0;
        }
        let slower = if switches { decision.speedup } else { slower };
        // One call in two slots is one of the slower side.
        self.slot = (self.every as f64 * ((slower - 1.0) / 2.0).clamp(1.0, MOST_STRETCH)).ceil() as u64;
        self.found = Some(switches.then(|| PlanSwitch { to: self.serving.other(), gain: decision.speedup }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that make the same calls. What a call takes, in nanoseconds, depends on its number, on what serves it, and on the rank.
    struct SameCalls {
        ranks: Vec<Confirmation>,
        /// The timed calls: their numbers, and what served them.
        timed: Vec<(u64, PlanSide)>,
        switches: Vec<(u64, PlanSwitch)>,
        /// What all calls took, and what they would have taken without being compared.
        spent: [i64; 2],
    }

    impl SameCalls {
        fn new(every: u32, ranks: usize) -> Self {
            let ranks = (0..ranks).map(|_| Confirmation::new(every)).collect();
            Self { ranks, timed: Vec::new(), switches: Vec::new(), spent: [0; 2] }
        }

        fn tell_if(&mut self, is_due: impl Fn(&Confirmation) -> bool) {
            let due: Vec<bool> = self.ranks.iter().map(is_due).collect();
            assert!(due.iter().all(|of| *of == due[0]), "all ranks tell at the same call");
            if due[0] {
                let all: Vec<Vec<i64>> = self.ranks.iter().map(|rank| rank.told().1).collect();
                let longest = |sample| all.iter().map(|times: &Vec<i64>| times[sample]).max().unwrap();
                let longest: Vec<i64> = (0..all[0].len()).map(longest).collect();
                self.ranks.iter_mut().for_each(|rank| rank.learn(&longest));
            }
        }

        /// Makes a call for which all wait, or which is only begun; what served it.
        fn call(&mut self, number: u64, waits: bool, took: &impl Fn(u64, PlanSide, usize) -> i64) -> PlanSide {
            if self.ranks[0].calls + 1 >= self.ranks[0].next && waits {
                self.tell_if(Confirmation::is_due_before);
            }
            let mut served = Vec::new();
            for (rank, confirmation) in self.ranks.iter_mut().enumerate() {
                if confirmation.passes() {
                    served.push((confirmation.serving(), None, None));
                    continue;
                }
                let (ComparedTurn { side, sample }, switch) = confirmation.next_turn(waits);
                if let Some(sample) = sample {
                    confirmation.took(sample, took(number, side, rank));
                }
                served.push((side, sample, switch));
            }
            assert!(served.iter().all(|of| *of == served[0]), "call {number}: {served:?}");
            let (side, sample, switch) = served[0];
            self.timed.extend(sample.map(|_| (number, side)));
            self.switches.extend(switch.map(|switch| (number, switch)));
            let of = |side| (0..self.ranks.len()).map(|rank| took(number, side, rank)).max().unwrap();
            self.spent[0] += of(side);
            self.spent[1] += of(PlanSide::Table).min(of(PlanSide::Stock));
            if waits {
                self.tell_if(Confirmation::is_due);
            }
            side
        }

        fn calls(&mut self, numbers: std::ops::Range<u64>, took: impl Fn(u64, PlanSide, usize) -> i64) {
            numbers.for_each(|number| {
                self.call(number, true, &took);
            });
        }

        fn to(&self) -> Vec<PlanSide> {
            self.switches.iter().map(|(_, switch)| switch.to).collect()
        }
    }

    /// Times as they are on a computer: most near the shortest, some much longer.
    fn noise(number: u64, rank: usize) -> i64 {
        let random = mixed(number, 77 + rank as u64);
        let [wide, rare] = [random % 1000, random >> 32 & 31];
        (wide * wide / 1000 + if rare == 0 { 20_000 } else { 0 }) as i64
    }

    #[test]
    fn a_plan_that_became_slow_is_left_and_taken_again_when_stock_is_slower() {
        let mut all = SameCalls::new(4, 3);
        let slow = |of: PlanSide, by: i64| {
            move |number, side, rank: usize| 10_000 + noise(number, rank) + if side == of && rank == 1 { by } else { 0 }
        };
        all.calls(0..4000, slow(PlanSide::Stock, 5000));
        assert_eq!(all.to(), []);
        all.calls(4000..8000, slow(PlanSide::Table, 10_000));
        assert_eq!(all.to(), [PlanSide::Stock]);
        let (at, PlanSwitch { gain, .. }) = all.switches[0];
        assert!((4000..6000).contains(&at) && (1.5..2.5).contains(&gain), "{at} {gain}");
        all.calls(8000..12_000, slow(PlanSide::Stock, 10_000));
        assert_eq!(all.to(), [PlanSide::Stock, PlanSide::Table]);
        assert_eq!(all.call(12_000, true, &slow(PlanSide::Stock, 0)), PlanSide::Table);
    }

    /// Both are the same, and nothing is replaced, in 500 comparisons. Single ones would see a difference in some of them.
    #[test]
    fn of_two_that_are_the_same_neither_replaces_the_other() {
        let mut all = SameCalls::new(1, 2);
        all.calls(0..20_000, |number, _, rank| 10_000 + noise(number, rank));
        assert_eq!(all.to(), []);
        assert!(all.ranks[0].number >= 495, "{}", all.ranks[0].number);
    }

    /// The interval says that there is a difference, and it is too small to matter.
    #[test]
    fn a_small_gain_replaces_nothing() {
        for (least, expected) in [(10_150, vec![]), (10_300, vec![PlanSide::Stock])] {
            let mut all = SameCalls::new(2, 1);
            let took =
                |number, side, rank| (if side == PlanSide::Table { least } else { 10_000 }) + noise(number, rank) % 50;
            all.calls(0..2000, took);
            assert_eq!(all.to(), expected, "{least}");
        }
    }

    /// In a program with a rhythm, calls at all of its places are timed, with either side.
    #[test]
    fn what_is_timed_does_not_follow_the_rhythm_of_a_program() {
        for (every, period) in [(2, 2), (4, 2), (4, 3), (256, 3), (256, 5), (256, 255), (256, 256)] {
            let mut all = SameCalls::new(every, 1);
            all.calls(0..u64::from(every) * 1000, |number, _, rank| 10_000 + noise(number, rank));
            assert!((990..=1000).contains(&all.timed.len()), "{every}: {}", all.timed.len());
            // Where a period is long, its thirds.
            let thirds = period.min(3);
            for third in 0..thirds {
                let is_here = |number: u64| number % period * thirds / period == third;
                let places = (0..period).filter(|place| is_here(*place)).count() as u64;
                for side in [PlanSide::Table, PlanSide::Stock] {
                    let count = all.timed.iter().filter(|(at, of)| is_here(*at) && *of == side).count() as u64;
                    let expected = 500 * places / period;
                    assert!(count > expected * 3 / 4, "{third} of {period}, one in {every}: {count} of {expected}");
                }
            }
        }
    }

    /// Every third call is long, and stock is faster for all. Timed calls that followed the rhythm would see
    /// only some.
    #[test]
    fn a_plan_is_left_also_in_a_program_with_a_rhythm() {
        let mut all = SameCalls::new(256, 2);
        let took = |number: u64, side, rank| {
            let long = if number.is_multiple_of(3) { 3000 } else { 0 };
            long + noise(number, rank) / 4 + if side == PlanSide::Table { 20_000 } else { 10_000 }
        };
        all.calls(0..150_000, took);
        assert_eq!(all.to(), [PlanSide::Stock]);
    }

    #[test]
    fn comparing_costs_no_more_time_than_was_asked_for() {
        for (every, factor) in [(2, 2), (2, 30), (16, 10), (64, 100)] {
            let mut all = SameCalls::new(every, 1);
            let took = |number, side, rank| {
                noise(number, rank) / 10 + if side == PlanSide::Table { 10_000 } else { 10_000 * factor }
            };
            // What a call of the other side costs is not known before.
            all.calls(0..u64::from(every) * 6, took);
            (all.spent, all.timed) = ([0; 2], Vec::new());
            let calls = 80 * u64::from(every) * factor.cast_unsigned();
            all.calls(calls..2 * calls, took);
            let [spent, least] = all.spent;
            let share = (spent - least) as f64 / spent as f64 * f64::from(every);
            assert!(share < 1.1 && all.timed.len() > 50, "{every} {factor}: {share}, {} timed", all.timed.len());
            assert_eq!(all.to(), []);
        }
    }

    /// Calls that nobody waits for are not timed, and so the plan of the table serves them.
    #[test]
    fn calls_that_were_begun_are_counted_and_not_timed() {
        let took = |number, side, rank| noise(number, rank) + if side == PlanSide::Table { 20_000 } else { 10_000 };
        let mut all = SameCalls::new(3, 2);
        assert!((0..6000).all(|number| all.call(number, false, &took) == PlanSide::Table));
        assert!(all.timed.is_empty());
        let mut all = SameCalls::new(3, 2);
        for number in 0..6000 {
            all.call(number, mixed(number, 3).is_multiple_of(2), &took);
        }
        assert_eq!(all.to(), [PlanSide::Stock]);
    }

    fn turn(confirmation: &mut Confirmation) -> ComparedTurn {
        match confirmation.passes() {
            true => ComparedTurn { side: confirmation.serving(), sample: None },
            false => confirmation.next_turn(true).0,
        }
    }

    /// One rank refuses a call that makes no sense, and makes it again as it should be. The others do not know of that.
    #[test]
    fn calls_that_were_not_made_change_nothing() {
        let [mut refusing, mut other] = [3, 3].map(Confirmation::new);
        let mut last = PlanSide::Table;
        for number in 0..2000_u64 {
            for _ in 0..mixed(number, 5) % 3 {
                turn(&mut refusing);
                refusing.uncount();
            }
            let turns = [turn(&mut refusing), turn(&mut other)];
            assert_eq!(turns[0], turns[1], "call {number}");
            let ComparedTurn { side, sample } = turns[0];
            for confirmation in [&mut refusing, &mut other] {
                if let Some(sample) = sample {
                    confirmation.took(sample, if side == PlanSide::Table { 20_000 } else { 10_000 });
                }
                if confirmation.is_due() {
                    let times = confirmation.told().1;
                    confirmation.learn(&times);
                }
            }
            last = side;
        }
        assert_eq!((last, refusing.number), (PlanSide::Stock, other.number));
        assert!(other.number > 10);
    }
}
