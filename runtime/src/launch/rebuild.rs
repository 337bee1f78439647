//! How the ranks that are left after a failure form a new session.
//!
//! The principal type is [`ProcessMeeting`]. Every process of a session keeps a listener for this. The lowest rank that is
//! left leads: it waits at its listener for the others, and tells all who has come. From there on they form a session as
//! processes do that have just found each other. Nobody waits for a rank that is known to be gone. A leader that does not
//! come is left behind too: its followers go to the next rank.
//!
//! If the network is cut in two, each part can form a session of its own, unless the caller demands more ranks than a part has.

use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::launch::connect::{hear, line, unexpected};
use crate::launch::identity::rank_of;
use crate::launch::membership::{MemberConnection, MemberPlace, ToMember};
use crate::launch::rendezvous::{Rendezvous, has_left};
use crate::launch::survivor_turns::{SurvivorTurn, SurvivorTurns, have_all_come};
use crate::session::Session;
use crate::session::status::SessionStatus;
use crate::session::survivors::{RebuildTerms, Rebuilt, SurvivorMeeting, given_up};
use crate::transport::tcp::{Gate, Proven};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How much longer than the leader's limit a follower waits for its word.
const MARGIN: Duration = Duration::from_secs(5);

/// How a process meets the others again.
pub(crate) struct ProcessMeeting {
    at: Rendezvous,
    /// Held by a leader, so that one communicator is rebuilt after the other.
    listeners: Mutex<Vec<TcpListener>>,
    /// Where each rank listens.
    addresses: Vec<Vec<SocketAddr>>,
}

impl ProcessMeeting {
    /// Others find this process at its `listeners`, and this process finds them at their `places`.
    pub(super) fn new(at: &Rendezvous, listeners: Vec<TcpListener>, places: &[MemberPlace]) -> Self {
        let addresses = places.iter().map(|place| place.addresses.survivors.addresses.clone()).collect();
        Self { at: at.clone(), listeners: Mutex::new(listeners), addresses }
    }
}

impl SurvivorMeeting for ProcessMeeting {
    fn meet(&self, session: &Session, terms: &RebuildTerms<'_>) -> RunResult<Rebuilt> {
        let (own, members) = (self.at.rank, terms.members);
        let secret = self.at.secret.derive(&[b"rebuild", &terms.communicator.to_le_bytes()]);
        let at = Rendezvous { secret, ..self.at.clone() };
        let meeting = CommunicatorMeeting { at, terms, status: session.status() };
        let mut turns = SurvivorTurns::new(own, members);
        let (group, lines) = loop {
            match turns.next(|rank| meeting.status.is_gone(rank)) {
                SurvivorTurn::Follow(leader) => {
                    if let Some(found) = meeting.follow(leader, &self.addresses[leader.index()])? {
                        break found;
                    }
                }
                SurvivorTurn::Lead => {
                    break meeting.lead(&self.listeners.lock().unwrap_or_else(PoisonError::into_inner))?;
                }
            }
        };
        let number = group.iter().position(|rank| *rank == own);
        let Some(rank) = number.map(Rank::from_index) else { return given_up(own) };
        let ranks = group.len();
        let made = match ranks {
            1 => Session::local(1)?.remove(0),
            _ => {
                let at = Rendezvous { rank, ranks, ..meeting.at.clone() };
                Session::form(&at, lines, Moment::now().after(terms.limit), terms.patience)?
            }
        };
        made.idle_as(session);
        // The session numbers its ranks as the old one did; a communicator may have another order.
        let place = |member: &Rank| group.iter().position(|rank| rank == member).map(Rank::from_index);
        let members = members.iter().filter_map(place).collect();
        Ok(Rebuilt { session: made, members, is_new_session: true, generation: 0 })
    }
}

/// Whether a connection has ended.
fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Who forms the new session: ranks of the old one, and connections with the ranks of the new one.
type GatheredGroup = (Vec<Rank>, Vec<MemberConnection>);

/// One communicator that is rebuilt.
struct CommunicatorMeeting<'a> {
    at: Rendezvous,
    terms: &'a RebuildTerms<'a>,
    status: &'a SessionStatus,
}

impl CommunicatorMeeting<'_> {
    /// Goes to a leader, and hears who has come; `None` if the leader is gone, or does not come.
    fn follow(&self, leader: Rank, addresses: &[SocketAddr]) -> RunResult<Option<GatheredGroup>> {
        let own = self.at.rank;
        if self.status.is_gone(own) {
            return given_up(own);
        }
        let deadline = Moment::now().after(self.terms.limit);
        let go_on = || !self.status.is_gone(leader);
        let Some(proven) = self.at.reach_listener(addresses, deadline, &go_on) else {
            return Ok(None);
        };
        let mut line = line(own, leader, proven)?;
        let deadline = Moment::now().after(self.terms.limit).after(MARGIN);
        match hear(&mut line.inbox, deadline) {
            Ok(ToMember::Group(group)) => Ok(Some((group, vec![MemberConnection { rank: Rank(0), ..line }]))),
            Ok(ToMember::Refused { reason }) => Err(RunError::Mismatch { what: reason }),
            Ok(_) => Err(RunError::lane(own, leader)(unexpected())),
            // The leader died meanwhile, or cannot be reached any more.
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(RunError::lane(own, leader)(error)),
        }
    }

    /// Waits for all that are left, and tells them who has come.
    fn lead(&self, listeners: &[TcpListener]) -> RunResult<GatheredGroup> {
        let own = self.at.rank;
        let mut here = self.receive(listeners)?;
        let mut group: Vec<Rank> = here.keys().copied().chain([own]).collect();
        group.sort_unstable();
        let verdict = self.terms.check(group.len());
        let word = match &verdict {
            Ok(()) => ToMember::Group(group.clone()),
            Err(error) => ToMember::Refused { reason: error.to_string() },
        };
        let mut lines = Vec::with_capacity(here.len());
        for (number, rank) in group.iter().enumerate() {
            let Some(proven) = here.remove(rank) else { continue };
            let line = line(own, *rank, proven)?;
            line.post.send(&word).map_err(RunError::lane(own, *rank))?;
            lines.push(MemberConnection { rank: Rank::from_index(number), ..line });
        }
        verdict.map(|()| (group, lines))
    }

    /// Those who come.
    fn receive(&self, listeners: &[TcpListener]) -> RunResult<BTreeMap<Rank, Proven>> {
        let own = self.at.rank;
        let failed = || RunError::system("waiting for the ranks that are left");
        let listeners = listeners.iter().map(TcpListener::try_clone).collect::<std::io::Result<Vec<_>>>();
        let mut gate = Gate::new(listeners.map_err(failed())?, &self.at.secret);
        let deadline = Moment::now().after(self.terms.limit);
        let mut here: BTreeMap<Rank, Proven> = BTreeMap::new();
        loop {
            if self.status.is_gone(own) {
                return given_up(own);
            }
            here.retain(|_, proven| !has_left(&proven.stream));
            let is_here = |rank| here.contains_key(&rank);
            let all_are_here = have_all_come(own, self.terms.members, is_here, |rank| self.status.is_gone(rank));
            if all_are_here || Moment::now() >= deadline {
                return Ok(here);
            }
            let known = gate.admit(|claim, _| rank_of(claim)).map_err(failed())?;
            here.extend(known.into_iter().filter(|(rank, _)| self.terms.members.contains(rank)));
        }
    }
}
