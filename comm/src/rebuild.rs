//! What is left of a group after a failure.

use crate::communicator::{Communicator, Membership};
use crate::error::{CommError, CommResult};
use crate::numbers::mixed;
use crate::probe::link_costs;
use runtime::{RebuildTerms, Rebuilt, RunErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// What tells the identifier of a group that was rebuilt from others.
const REBUILT: u64 = u64::MAX - 1;
/// How much later than others a rank may come, besides the time limit of the call that failed.
const REBUILDING: Duration = Duration::from_secs(5);

impl Communicator {
    /// What is left of this group after a failure: a new group of the ranks that make this call, in the same order. All that are
    /// left must make it, whichever error they got. They wait for each other a little longer than a call may go without
    /// progress; who is dead, or does not come, is left behind. A rank that has got no error yet can [abort](Self::abort) the old
    /// group before, so that the others get one.
    ///
    /// # Errors
    /// [`CommError::Argument`] if fewer than `least` ranks are left, or the others have given this rank up; [`CommError::Run`] if
    /// another rank fails meanwhile: the call can be repeated.
    pub fn rebuild(&self, least: usize) -> CommResult<Self> {
        let Membership { session, id, members, .. } = &*self.shared;
        let limit = self.limit();
        let waiting = limit.saturating_add(REBUILDING);
        let terms = RebuildTerms { communicator: *id, members, least, limit: waiting, patience: limit };
        let Rebuilt { session, members, generation, is_new_session } =
            session.rebuild(&terms).map_err(|error| match error.kind() {
                RunErrorKind::Argument => CommError::Argument(error.to_string()),
                _ => error.into(),
            })?;
        let number = members.iter().position(|member| *member == session.rank()).unwrap_or_default();
        let mut plans = self.state().plans.store();
        if is_new_session {
            // What the machines are was known by the numbers of the old session: a table that compares it serves no more.
            let hardware = plans.table().compares_hardware().then(|| [].into());
            plans = Arc::new(plans.of_session(link_costs(&session, limit)?).on_hardware(hardware));
        }
        Ok(Self::new(session, mixed(mixed(*id, generation), REBUILT), (members, number), limit, plans))
    }
}
