//! New groups out of a group, and what is left of one after a failure.

use crate::communicator::{Communicator, Membership};
use crate::error::{CommError, CommResult};
use runtime::{Rebuilt, RunErrorKind};
use std::time::Duration;

/// Which kind of group an identifier means, where it is not the color of a split.
const SUBSET: u64 = u64::MAX - 2;
const REBUILT: u64 = u64::MAX - 1;
const DUPLICATE: u64 = u64::MAX;
/// How much later than others a rank may come to a group that is rebuilt, besides the time limit of the call that failed.
const REBUILDING: Duration = Duration::from_secs(5);

impl Communicator {
    /// Makes groups of the ranks that name the same color, in the order of their keys, then of their numbers. A rank that
    /// names no color is in none. All ranks of this group make the call.
    ///
    /// # Errors
    /// As any call.
    pub fn split(&self, color: Option<u32>, key: i64) -> CommResult<Option<Self>> {
        let own = [color.map_or(-1, i64::from), key];
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let splits = self.state().next_split();
        let Some(color) = color else { return Ok(None) };
        let named = all.chunks_exact(2).enumerate().filter(|(_, pair)| pair[0] == i64::from(color));
        let mut members: Vec<(i64, usize)> = named.map(|(number, pair)| (pair[1], number)).collect();
        members.sort_unstable();
        let number = members.iter().position(|&(_, number)| number == self.rank()).unwrap_or_default();
        let ranks = members.into_iter().map(|(_, number)| self.shared.members[number]).collect();
        let id = mixed(mixed(self.shared.id, splits), u64::from(color));
        let plans = self.state().plans.store();
        Ok(Some(Self::new(self.shared.session.clone(), id, (ranks, number), self.limit(), plans)))
    }

    /// A group of some members, by their numbers here and in the order given, of which this rank is one. No message is sent: all
    /// of them make this call, in any order with others, and give the same members and the same `tag`, which they use once.
    ///
    /// # Errors
    /// [`CommError::Argument`] if a number is no member's or stands twice, or this rank is not among them.
    pub fn subset(&self, members: &[usize], tag: u64) -> CommResult<Self> {
        let ranks = members.iter().map(|&number| self.member(number)).collect::<CommResult<Vec<_>>>()?;
        let own = members.iter().position(|&number| number == self.rank());
        let number = own.ok_or_else(|| CommError::Argument(format!("rank {} is not in the group", self.rank())))?;
        let mut once = members.to_vec();
        once.sort_unstable();
        if let Some(pair) = once.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CommError::Argument(format!("rank {} stands twice in the group", pair[0])));
        }
        let plans = {
            let state = self.state();
            self.check(&state)?;
            state.plans.store()
        };
        let id = members.iter().fold(mixed(mixed(self.shared.id, SUBSET), tag), |id, &number| mixed(id, number as u64));
        Ok(Self::new(self.shared.session.clone(), id, (ranks, number), self.limit(), plans))
    }

    /// The same group once more: its calls and those of this one do not wait for each other.
    ///
    /// # Errors
    /// As any call.
    pub fn duplicate(&self) -> CommResult<Self> {
        let (splits, plans) = {
            let mut state = self.state();
            self.check(&state)?;
            (state.next_split(), state.plans.store())
        };
        let id = mixed(mixed(self.shared.id, splits), DUPLICATE);
        let members = self.shared.members.clone();
        Ok(Self::new(self.shared.session.clone(), id, (members, self.rank()), self.limit(), plans))
    }
}

impl Communicator {
    /// What is left of this group after a failure: a new group of the ranks that make this call, in the same order. All that are
    /// left must make it, whichever error they got. They wait for each other a little longer than a call may go without
    /// progress; who is dead, or does not come, is left behind. This group and, if a rank is dead, all others that were made
    /// of the same connection make no calls any more.
    ///
    /// # Errors
    /// [`CommError::Argument`] if fewer than `least` ranks are left, or the others have given this rank up; [`CommError::Run`] if
    /// another rank fails meanwhile: the call can be repeated.
    pub fn rebuild(&self, least: usize) -> CommResult<Self> {
        self.abort();
        let Membership { session, id, members, .. } = &*self.shared;
        let limit = self.limit();
        let rebuilt = session.rebuild(*id, members, least, [limit.saturating_add(REBUILDING), limit]);
        let Rebuilt { session, members, generation } = rebuilt.map_err(|error| match error.kind() {
            RunErrorKind::Argument => CommError::Argument(error.to_string()),
            _ => error.into(),
        })?;
        let number = members.iter().position(|member| *member == session.rank()).unwrap_or_default();
        let plans = self.state().plans.store();
        Ok(Self::new(session, mixed(mixed(*id, generation), REBUILT), (members, number), limit, plans))
    }
}

/// Two numbers as one that no other two give, but with a chance of one in 2⁶⁴ (the finalizer of splitmix64).
pub(crate) fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x632B_E59B_D9B4_E019);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
