//! Workers on many hosts: under `mpirun` process 0 leads the sweep, and every other process has one worker.
//!
//! The principal type is [`World`]. Messages are those of [`super::crew`], as JSON. Plans go through the folder of the
//! sweep, which all hosts must see. The processes of MPI start other processes for the planning, so that a crash costs
//! only one cell, which is planned again, as on one computer. MPI does not survive the death of one of its own
//! processes or of a host: `mpirun` then ends all of them, and the same command continues the sweep from the folder.

use super::crew::{Crew, CrewEvent, Hiring, Local, News, PlanningOrder};
use crate::failure::{Failure, Outcome};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};
use std::time::{Duration, Instant};

/// The process that leads.
const LEADER: i32 = 0;
/// How often messages are checked: a blocking MPI call would use all of a core.
const GLANCE: Duration = Duration::from_millis(2);

/// The processes that `mpirun` started.
pub(super) struct World {
    world: SimpleCommunicator,
    /// Leaves MPI when it is dropped.
    _universe: Universe,
}

impl World {
    /// Joins the others; `None` if there are none.
    ///
    /// # Errors
    /// If MPI was initialized before, which does not happen.
    pub(super) fn join() -> Outcome<Option<Self>> {
        if !super::launched_by_mpi() {
            return Ok(None);
        }
        let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Funneled) else {
            return Err(Failure::no(anyhow::anyhow!("MPI is in use already")));
        };
        Ok(Some(Self { world: universe.world(), _universe: universe }))
    }

    /// Leads the sweep, or serves the process that leads.
    pub(super) fn run(self, hiring: Hiring, lead: impl FnOnce(&mut dyn Crew) -> Outcome) -> Outcome {
        if self.world.rank() != LEADER {
            return self.serve(hiring);
        }
        let outcome = lead(&mut Remote { world: &self.world });
        for other in 1..self.world.size() {
            // An empty order means the end.
            self.world.process_at_rank(other).send(&[0u8; 0][..]);
        }
        outcome
    }

    /// Has every order carried out by a worker of this computer.
    fn serve(&self, hiring: Hiring) -> Outcome {
        let mut crew = Local::new(hiring, 1);
        let leader = self.world.process_at_rank(LEADER);
        loop {
            if leader.immediate_probe().is_some() {
                let (message, _) = leader.receive_vec::<u8>();
                if message.is_empty() {
                    return Ok(());
                }
                let order: PlanningOrder = serde_json::from_slice(&message).map_err(Failure::no)?;
                crew.give(0, &order)?;
            }
            if let Some(CrewEvent { news, .. }) = crew.next(GLANCE)? {
                leader.send(&serde_json::to_vec(&news).map_err(Failure::no)?[..]);
            }
        }
    }
}

/// The workers of all other processes; worker w belongs to process w + 1.
struct Remote<'a> {
    world: &'a SimpleCommunicator,
}

impl Crew for Remote<'_> {
    fn size(&self) -> usize {
        self.world.size() as usize - 1
    }

    fn give(&mut self, worker: usize, order: &PlanningOrder) -> Outcome<String> {
        let process = worker as i32 + 1;
        self.world.process_at_rank(process).send(&serde_json::to_vec(order).map_err(Failure::no)?[..]);
        Ok(format!("process {process}"))
    }

    fn next(&mut self, patience: Duration) -> Outcome<Option<CrewEvent>> {
        let until = Instant::now() + patience;
        while self.world.any_process().immediate_probe().is_none() {
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(GLANCE);
        }
        let (message, status) = self.world.any_process().receive_vec::<u8>();
        let news: News = serde_json::from_slice(&message).map_err(Failure::no)?;
        Ok(Some(CrewEvent { worker: status.source_rank() as usize - 1, news }))
    }
}
