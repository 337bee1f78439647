//! How the workers of an epoch join: first every machine gets its shared memory, then every worker its terms.

use crate::clock::Moment;
use crate::control::judge::LEAST_SILENCE;
use crate::control::messages::{Answer, EpochSetup, PROTOCOL, ToAgent, Welcome, WorkerTerms};
use crate::control::plane::Plane;
use crate::control::question::Question;
use crate::error::{RunError, RunResult};
use crate::launch::launcher::Job;
use crate::launch::member::Member;
use crate::numbers::Epoch;
use crate::transport::tcp::Secret;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;
use topology::Rank;

impl Job {
    /// Starts the workers of an epoch and waits until all have joined. Machines come first: their memory must exist.
    pub(crate) fn set_up_epoch(&mut self, mut command: impl FnMut(Rank) -> Command) -> RunResult<()> {
        let ranks = self.segment.rank_count();
        let limit = self.options.ready_limit;
        let plane = self.plane.clone();
        // A stopped worker reads nothing. A send that fills its channel waits twice: after the part that still fits,
        // and for the rest. So the limit is halved. Zero would mean no limit.
        let patience = (limit / 2).max(Duration::from_millis(1));
        for rank in (0..ranks).map(Rank::from_index) {
            let member = match &plane {
                Some(plane) if rank != Rank(0) => Member::of_agent(rank, self.epoch, plane.clone()),
                _ => Member::start(rank, self.epoch, &self.spawner, command(rank), patience, &self.sender)
                    .map_err(RunError::system("starting a worker"))?,
            };
            self.members.push(member);
        }
        self.judge = self.judge.next(self.epoch, Moment::now(), self.members.iter().map(Member::machine));
        if let Some(plane) = plane {
            plane.begin(self.epoch, &self.segment).map_err(RunError::system("starting the relay"))?;
            self.set_up_machines(&plane)?;
            plane.read_clocks(limit)?;
        }
        for rank in (0..ranks).map(Rank::from_index) {
            let welcome = Welcome { terms: self.terms(rank), secret: self.data_secret() };
            // A worker that is already gone gives a `Gone` event, which says how it ended.
            let _ = self.members[rank.index()].welcome(&self.segment, welcome);
        }
        self.gather(Question::Hello, limit, |_| true, None).map(drop)
    }

    /// Makes a segment on every other machine, and tells the agents of each machine where it is.
    fn set_up_machines(&mut self, plane: &Plane) -> RunResult<()> {
        let (limit, ranks) = (self.options.ready_limit, self.segment.rank_count());
        let all = || (0..ranks).map(Rank::from_index);
        let agents: Vec<Rank> = all().skip(1).collect();
        let mut places = BTreeMap::from([(0, self.segment.place()?)]);
        self.segment.barrier.excuse(all().filter(|&rank| plane.machine(rank) != 0));
        for leading in [true, false] {
            let of_turn = |rank: Rank| agents.contains(&rank) && leading == plane.leaders().contains(&rank);
            for &rank in agents.iter().filter(|&&rank| of_turn(rank)) {
                let machine = plane.machine(rank);
                let setup = EpochSetup {
                    job: self.id,
                    segment: self.segment.shape(),
                    place: places.get(&machine).copied(),
                    absent: all().filter(|&other| plane.machine(other) != machine).collect(),
                    silence_ms: self.options.work_limit.max(LEAST_SILENCE).as_millis() as u64,
                };
                // A broken connection gives a `Left` event.
                let _ = plane.tell(rank, &ToAgent::SetUp { epoch: self.epoch, setup });
            }
            for (rank, answer) in self.gather(Question::SetUp, limit, of_turn, None)? {
                let Answer::IsSetUp { machine, segment } = answer else { continue };
                self.machines[rank.index()] = machine;
                places.extend(segment.map(|place| (plane.machine(rank), place)));
            }
        }
        Ok(())
    }

    fn terms(&self, rank: Rank) -> WorkerTerms {
        let emulation = self.options.emulation.as_ref();
        WorkerTerms {
            protocol: PROTOCOL,
            rank,
            segment: self.segment.shape(),
            first_here: self.plane.as_ref().map_or(rank == Rank(0), |plane| plane.leaders().contains(&rank)),
            options: self.options.clone(),
            emulation: emulation.map(|emulation| (self.emulated_source.clone(), emulation.slowdown())),
        }
    }

    fn data_secret(&self) -> Secret {
        data_secret(&self.secret, &self.id, self.epoch)
    }
}

/// The key with which the ranks of one epoch prove to each other that they belong to it.
pub(crate) fn data_secret(secret: &Secret, job: &[u8; 32], epoch: Epoch) -> Secret {
    secret.derive(&[b"data", job, &epoch.0.to_le_bytes()])
}
