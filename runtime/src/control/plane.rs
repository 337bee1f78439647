//! The coordinator's connections with the agents of other processes.
//!
//! The principal type is [`Plane`]. It has one thread for each agent, which handles urgent messages at once: it records
//! signs of life in the coordinator's segment and reads clocks. When all machines have arrived at a round, it releases
//! them, each with the start in its own clock. Other messages become events for the [`Job`](crate::Job).

use crate::clock::Moment;
use crate::control::clocks::RemoteClock;
use crate::control::frame::{Inbox, Outbox};
use crate::control::judge::{Heard, RankEvent};
use crate::control::messages::{FromAgent, ToAgent};
use crate::control::transcript;
use crate::error::{RunError, RunResult};
use crate::memory::segment::Segment;
use crate::numbers::Epoch;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How often agents are pinged.
pub(crate) const PULSE: Duration = Duration::from_millis(100);
/// How many times a clock is read before the first common start.
const READINGS: usize = 16;
/// How much time machines get to wake their ranks before a common start, in addition to the time of the message.
const WAKING_UP: Duration = Duration::from_micros(200);
/// A common start is never announced earlier than this before it happens.
const LONGEST_LEAD: Duration = Duration::from_millis(50);
/// The stack of a thread for one agent; there may be thousands of them.
const STACK: usize = 256 << 10;

/// One agent, as the coordinator knows it.
struct AgentRecord {
    post: Outbox,
    machine: usize,
    clock: Mutex<RemoteClock>,
    /// Whether the agent has answered the last ping. If not, no more pings are sent to it.
    answered: AtomicBool,
    /// How many messages it has sent.
    messages: AtomicU64,
}

/// The state of the current epoch.
struct Present {
    epoch: Epoch,
    segment: Option<Segment>,
    /// For each machine, the last round at which it arrived.
    arrived: Vec<u64>,
    released: u64,
    /// How many agents are connected.
    listening: usize,
    /// Ends the relay thread of an epoch that is over.
    over: Arc<AtomicBool>,
}

/// The control plane between processes.
pub(crate) struct Plane {
    agents: BTreeMap<Rank, AgentRecord>,
    /// The first rank of each machine; machine 0 is the coordinator's.
    leaders: Vec<Rank>,
    present: Mutex<Present>,
    /// Notified when a clock was read or an agent has left.
    read: Condvar,
    events: Sender<Heard>,
}

/// An agent that has joined.
pub(crate) struct Joined {
    pub(crate) rank: Rank,
    pub(crate) machine: usize,
    pub(crate) post: Outbox,
    pub(crate) inbox: Inbox<TcpStream>,
}

impl Plane {
    /// Receives the messages of `joined` from now on.
    pub(crate) fn new(joined: Vec<Joined>, leaders: Vec<Rank>, events: Sender<Heard>) -> io::Result<Arc<Self>> {
        let (mut agents, mut inboxes) = (BTreeMap::new(), Vec::with_capacity(joined.len()));
        for Joined { rank, machine, post, inbox } in joined {
            let (clock, answered) = (Mutex::default(), AtomicBool::new(true));
            agents.insert(rank, AgentRecord { post, machine, clock, answered, messages: AtomicU64::new(0) });
            inboxes.push((rank, inbox));
        }
        let arrived = vec![0; leaders.len()];
        let over = Arc::new(AtomicBool::new(true));
        let present = Mutex::new(Present {
            epoch: Epoch::default(),
            segment: None,
            arrived,
            released: 0,
            listening: agents.len(),
            over,
        });
        let plane = Arc::new(Self { agents, leaders, present, read: Condvar::new(), events });
        for (rank, mut inbox) in inboxes {
            let plane = plane.clone();
            let hear = move || {
                loop {
                    match inbox.receive() {
                        Ok(Some(message)) => plane.heard(rank, message),
                        Ok(None) => {}
                        Err(error) => return plane.lost(rank, &error),
                    }
                }
            };
            std::thread::Builder::new().name(format!("agent {rank}")).stack_size(STACK).spawn(hear)?;
        }
        let weak = Arc::downgrade(&plane);
        let pulse = move || {
            while let Some(plane) = weak.upgrade() {
                plane.ping_all();
                drop(plane);
                std::thread::sleep(PULSE);
            }
        };
        std::thread::Builder::new().name("pulse".to_owned()).stack_size(STACK).spawn(pulse)?;
        Ok(plane)
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first rank of each machine.
    pub(crate) fn leaders(&self) -> &[Rank] {
        &self.leaders
    }

    /// The machine of a rank.
    pub(crate) fn machine(&self, rank: Rank) -> usize {
        self.agents.get(&rank).map_or(0, |agent| agent.machine)
    }

    /// How many messages of an agent have arrived.
    pub(crate) fn messages(&self, rank: Rank) -> u64 {
        self.agents.get(&rank).map_or(0, |agent| agent.messages.load(Ordering::Relaxed))
    }

    /// Sends a message to an agent.
    pub(crate) fn tell(&self, rank: Rank, message: &ToAgent) -> io::Result<()> {
        transcript::told(rank, message);
        match self.agents.get(&rank) {
            Some(agent) => agent.post.send(message),
            None => Err(io::Error::other("it has no agent")),
        }
    }

    /// Sends a message to all agents. An agent that is gone is noticed by its thread.
    pub(crate) fn tell_all(&self, message: &ToAgent) {
        for (rank, agent) in &self.agents {
            transcript::told(*rank, message);
            let _ = agent.post.send(message);
        }
    }

    /// Sends a message to the leader of every machine except this one.
    pub(crate) fn tell_leaders(&self, message: &ToAgent) {
        for agent in self.leaders.iter().filter_map(|leader| self.agents.get(leader)) {
            let _ = agent.post.send(message);
        }
    }

    /// Waits at most `limit` until all agents have left, and cuts the connections of the rest.
    pub(crate) fn close(&self, limit: Duration) {
        let deadline = Moment::now().after(limit);
        let mut present = self.present();
        while present.listening > 0 && Moment::now() < deadline {
            let left = deadline.since(Moment::now());
            present = self.read.wait_timeout(present, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(present);
        self.agents.values().for_each(|agent| agent.post.cut());
    }

    /// The coordinator's address for other machines: the address through which another machine has reached it, if
    /// possible not a loopback address.
    pub(crate) fn own_address(&self) -> Option<std::net::IpAddr> {
        let reached = self.agents.values().filter_map(|agent| Some((agent.post.address().ok()?, agent.machine)));
        reached.max_by_key(|(address, machine)| (!address.is_loopback(), *machine)).map(|(address, _)| address)
    }

    /// Begins an epoch. From now on, barriers and signs of life of other epochs are ignored.
    pub(crate) fn begin(self: &Arc<Self>, epoch: Epoch, segment: &Segment) -> io::Result<()> {
        let over = Arc::new(AtomicBool::new(false));
        let mut present = self.present();
        present.over.store(true, Ordering::Relaxed);
        let arrived = vec![0; self.leaders.len()];
        let listening = present.listening;
        *present =
            Present { epoch, segment: Some(segment.clone()), arrived, released: 0, listening, over: over.clone() };
        drop(present);
        if self.leaders.len() > 1 {
            let (plane, segment) = (Arc::downgrade(self), segment.clone());
            let carry = move || {
                segment.barrier.relay(&over, |round, lead| {
                    if let Some(plane) = plane.upgrade() {
                        plane.arrived(0, epoch, round, lead);
                    }
                });
            };
            std::thread::Builder::new().name("relay".to_owned()).stack_size(STACK).spawn(carry)?;
        }
        Ok(())
    }

    /// Ends the barriers of this epoch.
    pub(crate) fn finish(&self) {
        self.present().over.store(true, Ordering::Relaxed);
    }

    /// Reads the clock of every machine several times.
    ///
    /// # Errors
    /// [`RunError::Absent`] if a machine does not answer within `limit`.
    pub(crate) fn read_clocks(&self, limit: Duration) -> RunResult<()> {
        let deadline = Moment::now().after(limit);
        for &leader in self.leaders.iter().skip(1) {
            let Some(agent) = self.agents.get(&leader) else { continue };
            for _ in 0..READINGS {
                agent.answered.store(false, Ordering::Relaxed);
                let ping = ToAgent::Ping { at: Moment::now(), activity: 0 };
                // A broken connection is also an event, which the coordinator handles.
                if agent.post.send(&ping).is_err() {
                    break;
                }
                let mut present = self.present();
                // The answer is recorded under this lock, so it cannot be missed.
                while !agent.answered.load(Ordering::Relaxed) {
                    let left = deadline.since(Moment::now());
                    if left.is_zero() {
                        let refused = 0;
                        let at = "the reading of clocks".to_owned();
                        return Err(RunError::Absent { missing: vec![leader], at, limit, refused });
                    }
                    let step = left.min(PULSE);
                    present = self.read.wait_timeout(present, step).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        Ok(())
    }

    /// A moment of a machine's clock, in the coordinator's clock.
    pub(crate) fn here(&self, machine: usize, there: Moment) -> Moment {
        if machine == 0 {
            return there;
        }
        self.clock(machine).here(there)
    }

    /// The clock of a machine is the clock of its leader.
    fn clock(&self, machine: usize) -> RemoteClock {
        let leader = self.leaders.get(machine).and_then(|leader| self.agents.get(leader));
        leader.map(|agent| *agent.clock.lock().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    fn ping_all(&self) {
        let activity = self.present().segment.as_ref().map_or(0, |segment| segment.activity.sum());
        for agent in self.agents.values() {
            if agent.answered.swap(false, Ordering::Relaxed) {
                // If the ping was not sent, another message to the agent is under way and serves as a sign of life.
                // Then the next ping need not wait for an answer.
                let sent = agent.post.offer(&ToAgent::Ping { at: Moment::now(), activity });
                agent.answered.fetch_or(matches!(sent, Ok(false)), Ordering::Relaxed);
            }
        }
    }

    fn heard(&self, rank: Rank, message: FromAgent) {
        if let Some(agent) = self.agents.get(&rank) {
            agent.messages.fetch_add(1, Ordering::Relaxed);
        }
        let event = match message {
            FromAgent::Pong { at, here } => return self.pong(rank, at, here),
            FromAgent::Beat { epoch, beats, moves, progress, phase } => {
                let present = self.present();
                if let Some(segment) =
                    present.segment.as_ref().filter(|_| present.epoch == epoch && self.machine(rank) > 0)
                {
                    segment.activity.mirror(rank, beats, (moves, progress), phase);
                }
                return;
            }
            FromAgent::Arrived { epoch, round, lead_ns } => {
                return self.arrived(self.machine(rank), epoch, round, Duration::from_nanos(lead_ns));
            }
            FromAgent::Answer { epoch, answer } => Heard { epoch, rank, event: RankEvent::Answer(answer) },
            FromAgent::Ended { epoch, how, said } => {
                if let Some(answer) = said {
                    let _ = self.events.send(Heard { epoch, rank, event: RankEvent::Answer(answer) });
                }
                Heard { epoch, rank, event: RankEvent::Gone(how) }
            }
        };
        // After the end of a job, no receiver is left.
        let _ = self.events.send(event);
    }

    fn pong(&self, rank: Rank, at: Moment, there: Moment) {
        let now = Moment::now();
        let Some(agent) = self.agents.get(&rank) else { return };
        if at <= now {
            agent.clock.lock().unwrap_or_else(PoisonError::into_inner).read(at, there, now);
        }
        let present = self.present();
        agent.answered.store(true, Ordering::Relaxed);
        drop(present);
        self.read.notify_all();
    }

    fn lost(&self, rank: Rank, error: &io::Error) {
        let mut present = self.present();
        present.listening -= 1;
        let epoch = present.epoch;
        drop(present);
        // Ends the wait for this agent's clock.
        self.agents.get(&rank).inspect(|agent| agent.answered.store(true, Ordering::Relaxed));
        self.read.notify_all();
        let _ = self.events.send(Heard { epoch, rank, event: RankEvent::Left(error.to_string()) });
    }

    /// Records that a machine has arrived at a round. If it is the last one, all machines are released.
    fn arrived(&self, machine: usize, epoch: Epoch, round: u64, lead: Duration) {
        let mut present = self.present();
        if present.epoch != epoch || present.over.load(Ordering::Relaxed) {
            return;
        }
        present.arrived[machine] = round;
        let all = present.arrived.iter().copied().min().unwrap_or_default();
        if all <= present.released {
            return;
        }
        present.released = all;
        // Releases the lock first: a slow connection must not delay the threads of other agents.
        let segment = present.segment.clone();
        drop(present);
        let clocks: Vec<RemoteClock> = (0..self.leaders.len()).map(|machine| self.clock(machine)).collect();
        let farthest = clocks.iter().map(RemoteClock::round_trip).max().unwrap_or_default();
        let way = (2 * farthest + WAKING_UP).min(LONGEST_LEAD);
        let start = Moment::now().after(lead.max(way));
        for (leader, clock) in self.leaders.iter().zip(&clocks).skip(1) {
            // A broken connection is an event of its own.
            let _ = self.tell(*leader, &ToAgent::Release { epoch, round: all, start: clock.there(start) });
        }
        if let Some(segment) = &segment {
            segment.barrier.release(all, start);
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::sealed;
    use super::*;
    use crate::memory::segment::SegmentShape;
    use crate::transport::tcp::{Proven, Secret};
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    /// An agent does not read, and so many bytes are on their way to it that the next message must wait.
    #[test]
    fn nobody_waits_for_an_agent_that_does_not_hear() {
        const LONG: Duration = Duration::from_secs(20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let full = near.try_clone().unwrap();
        let (post, inbox) = sealed(Proven { stream: near, session: Secret::from_text(b"") }, true, LONG).unwrap();
        full.set_nonblocking(true).unwrap();
        while (&full).write(&[0; 1 << 16]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let (events, _heard) = channel();
        let joined = Joined { rank: Rank(1), machine: 1, post, inbox };
        let plane = Plane::new(vec![joined], vec![Rank(0), Rank(1)], events).unwrap();
        let segment = Segment::create(SegmentShape { ranks: 2, clocks: 0, room: 64, spread: true }).unwrap();
        plane.begin(Epoch(1), &segment).unwrap();
        std::thread::scope(|scope| {
            let released =
                scope.spawn(|| (0..2).for_each(|machine| plane.arrived(machine, Epoch(1), 1, Duration::ZERO)));
            let deadline = Moment::now().after(LONG / 2);
            // A message that fits keeps the connection busy for a moment only.
            let mut looks = 0;
            while looks < 1000 {
                assert!(Moment::now() < deadline && !released.is_finished(), "the message was sent");
                looks = if plane.agents[&Rank(1)].post.is_busy() { looks + 1 } else { 0 };
                std::thread::yield_now();
            }
            // Meanwhile signs of life arrive, and pings are offered.
            let beat = FromAgent::Beat {
                epoch: Epoch(1),
                beats: 7,
                moves: 1,
                progress: 1,
                phase: crate::verdict::Phase::Work,
            };
            plane.heard(Rank(1), beat);
            plane.ping_all();
            assert_eq!(segment.activity.beats(Rank(1)).load(Ordering::Relaxed), 7);
            assert!(plane.agents[&Rank(1)].post.is_busy() && Moment::now() < deadline);
            drop(far);
            released.join().unwrap();
        });
        plane.finish();
    }
}
