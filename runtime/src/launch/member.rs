//! One rank's process, from the coordinator's side.
//!
//! The principal type is [`Member`]: a child of the coordinator, or a worker that an agent in another process looks
//! after. The events of both arrive as [`Heard`] in one channel.

use crate::control::frame::{send, send_descriptor};
use crate::control::judge::{Heard, RankEvent};
use crate::control::messages::{ToAgent, Welcome, WorkerCommand};
use crate::control::plane::Plane;
use crate::control::transcript;
use crate::launch::spawner::{Spawned, Spawner, end};
use crate::memory::segment::Segment;
use crate::numbers::Epoch;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use topology::Rank;

/// The channel to a worker.
enum WorkerChannel {
    Child { child: Child, stream: UnixStream },
    Agent(Arc<Plane>),
}

/// One worker, as the coordinator holds it.
pub(crate) struct Member {
    rank: Rank,
    epoch: Epoch,
    line: WorkerChannel,
}

impl Member {
    /// Starts a worker, and a thread that reads its answers. A message that it does not take for `limit` is an error.
    pub(crate) fn start(
        rank: Rank,
        epoch: Epoch,
        spawner: &Spawner,
        command: Command,
        limit: Duration,
        events: &Sender<Heard>,
    ) -> io::Result<Self> {
        let Spawned { child, stream, mut inbox } = spawner.start(command, limit)?;
        let events = events.clone();
        let read = move || {
            loop {
                let (event, last) = match inbox.receive() {
                    Ok(Some(answer)) => (RankEvent::Answer(answer), false),
                    Ok(None) => continue,
                    Err(error) => (RankEvent::Gone(error.to_string()), true),
                };
                if events.send(Heard { epoch, rank, event }).is_err() || last {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(format!("rank {rank}")).spawn(read)?;
        let line = WorkerChannel::Child { child, stream };
        Ok(Self { rank, epoch, line })
    }

    /// The worker of an agent.
    pub(crate) fn of_agent(rank: Rank, epoch: Epoch, plane: Arc<Plane>) -> Self {
        Self { rank, epoch, line: WorkerChannel::Agent(plane) }
    }

    /// Lets the worker join. An agent computes the secret by itself.
    pub(crate) fn welcome(&self, segment: &Segment, welcome: Welcome) -> io::Result<()> {
        match &self.line {
            WorkerChannel::Child { stream, .. } => {
                send_descriptor(stream, segment.descriptor())?;
                send(stream, &WorkerCommand::Welcome(welcome))
            }
            WorkerChannel::Agent(plane) => {
                plane.tell(self.rank, &ToAgent::Enlist { epoch: self.epoch, terms: welcome.terms })
            }
        }
    }

    /// Sends an order to the worker.
    pub(crate) fn order(&self, order: &WorkerCommand) -> io::Result<()> {
        match &self.line {
            WorkerChannel::Child { stream, .. } => {
                transcript::ordered(self.rank, self.epoch, order);
                send(stream, order)
            }
            WorkerChannel::Agent(plane) => {
                plane.tell(self.rank, &ToAgent::Order { epoch: self.epoch, command: order.clone() })
            }
        }
    }

    /// The machine of the rank's agent, if it has one.
    pub(crate) fn machine(&self) -> Option<usize> {
        match &self.line {
            WorkerChannel::Child { .. } => None,
            WorkerChannel::Agent(plane) => Some(plane.machine(self.rank)),
        }
    }

    /// The process id, if the process is a child.
    pub(crate) fn process(&self) -> Option<u32> {
        match &self.line {
            WorkerChannel::Child { child, .. } => Some(child.id()),
            WorkerChannel::Agent(_) => None,
        }
    }

    /// Tells a child that no order will follow, which ends its wait for one. An agent is told with a message.
    pub(crate) fn hang_up(&self) {
        if let WorkerChannel::Child { stream, .. } = &self.line {
            // It fails only if the process is gone.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// How the process ended, if it is a child and has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        match &mut self.line {
            WorkerChannel::Child { child, .. } => child.try_wait().ok().flatten(),
            WorkerChannel::Agent(_) => None,
        }
    }

    /// Kills the process, if it is a child. An agent ends its own worker.
    pub(crate) fn kill(&mut self) {
        if let WorkerChannel::Child { child, .. } = &mut self.line {
            // It fails only if the process has already ended.
            let _ = child.kill();
        }
    }

    /// Ends the process and collects it, if it is a child. The error says that it does not end.
    pub(crate) fn reap(&mut self) -> Result<(), String> {
        let WorkerChannel::Child { child, .. } = &mut self.line else { return Ok(()) };
        let process = child.id();
        if end(child, Duration::ZERO) { Ok(()) } else { Err(format!("its process {process} was killed but stays")) }
    }
}
