//! The clock of rank 0, as another rank reads it.
//!
//! The principal type is [`CommonClock`]. Ranks of one machine have one clock. For the others the difference is measured by
//! questions and answers: the fastest one counts, and half of its way is the largest error.

use crate::communicator::Communicator;
use crate::error::CommResult;
use runtime::Moment;
use schedule::ReduceOp;

/// How many questions a rank asks.
const QUESTIONS: u32 = 12;
/// Within so many nanoseconds ranks of one machine know what rank 0 says, also where they share cores.
const LEAD: i64 = 400_000;

/// A clock that all ranks have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommonClock {
    /// How many nanoseconds rank 0's clock is ahead.
    ahead: i64,
    /// So many nanoseconds a question and its answer take, on the rank that is the farthest from rank 0. The same on all ranks.
    round_trip: i64,
}

impl CommonClock {
    /// Measures. All ranks do this together.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn measure(control: &Communicator) -> CommResult<Self> {
        let is_elsewhere = |rank: usize| control.machine(rank) != control.machine(0);
        let mut clock = Self::default();
        let mut shortest = u64::MAX;
        if control.rank() == 0 {
            for rank in (1..control.size()).filter(|rank| is_elsewhere(*rank)) {
                for _ in 0..QUESTIONS {
                    control.receive::<u8>(&mut [], rank)?;
                    control.send(&[Moment::now().0 as i64], rank)?;
                }
            }
        } else if is_elsewhere(control.rank()) {
            for _ in 0..QUESTIONS {
                let (asked, mut there) = (Moment::now().0, [0_i64]);
                control.send::<u8>(&[], 0)?;
                control.receive(&mut there, 0)?;
                let way = Moment::now().0 - asked;
                if way < shortest {
                    shortest = way;
                    clock.ahead = there[0] - (asked + way / 2) as i64;
                }
            }
        }
        let own = if shortest == u64::MAX { 0 } else { shortest as i64 };
        let mut longest = [own];
        control.all_reduce(&mut longest, ReduceOp::Max)?;
        clock.round_trip = longest[0];
        Ok(clock)
    }

    /// So many nanoseconds after rank 0 says something to all ranks, all of them know it.
    pub(super) fn lead(self, ranks: usize) -> i64 {
        LEAD.max(2 * self.round_trip * i64::from(ranks.max(2).ilog2() + 1))
    }

    /// The present.
    pub(super) fn now(self) -> i64 {
        Moment::now().0 as i64 + self.ahead
    }

    /// Waits until a moment.
    pub(super) fn wait(self, until: i64) {
        Moment((until - self.ahead).max(0) as u64).wait();
    }
}
