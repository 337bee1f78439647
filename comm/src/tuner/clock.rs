//! The clock of rank 0, as another rank reads it.
//!
//! The principal type is [`CommonClock`]. Ranks of one machine have one clock. For the others the difference is measured by
//! questions and answers: the fastest one counts, and half of its way is the largest error.

use crate::communicator::Communicator;
use crate::error::CommResult;
use runtime::Moment;

/// How many questions a rank asks.
const QUESTIONS: u32 = 12;

/// A clock that all ranks have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommonClock {
    /// How many nanoseconds rank 0's clock is ahead.
    ahead: i64,
}

impl CommonClock {
    /// Measures. All ranks do this together.
    ///
    /// # Errors
    /// As any call.
    pub(super) fn measure(control: &Communicator) -> CommResult<Self> {
        let is_elsewhere = |rank: usize| control.machine(rank) != control.machine(0);
        let mut clock = Self::default();
        if control.rank() == 0 {
            for rank in (1..control.size()).filter(|rank| is_elsewhere(*rank)) {
                for _ in 0..QUESTIONS {
                    control.receive::<u8>(&mut [], rank)?;
                    control.send(&[Moment::now().0 as i64], rank)?;
                }
            }
        } else if is_elsewhere(control.rank()) {
            let mut shortest = u64::MAX;
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
        Ok(clock)
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
