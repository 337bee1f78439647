//! Exchanges between pairs of ranks as a program that can be timed.
//!
//! The principal type is [`Flows`]: a program with one threadblock for each end of an exchange, and slots of the
//! messages' lengths. So a probe moves its bytes exactly as collectives do, through the same rings and, on an emulated
//! machine, with the same clocks. An exchange ends when its receiver has the last byte.

use crate::clock::Moment;
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::concurrent::{Concurrent, Work};
use crate::execution::executor::Executor;
use crate::group::Group;
use crate::interpreter::buffers::Call;
use crate::numbers::CallNumber;
use program::{
    Buffer, Connection, ConnectionId, Instruction, PartShape, Program, RankProgram, Slice, Step, Tempo, Threadblock,
};
use schedule::{Collective, Demand, Request};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use topology::{LinkId, Micros, ProbeError, Rank, Topology};

/// The most bytes that one probe may move.
const MOST_BYTES: u64 = 1 << 34;
/// The most messages of one probe, over all repetitions.
const MOST_MESSAGES: u64 = 1 << 20;

/// Repetitions that are not reported. The first one touches pages, and opens the congestion windows of connections.
const WARMUPS: u64 = 1;

/// Exchanges to time, as they are sent to workers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) flows: Vec<ExchangeFlow>,
    /// The number of repetitions that are reported.
    pub(crate) repetitions: u32,
}

/// One exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExchangeFlow {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) bytes: u64,
    pub(crate) messages: u32,
}

/// Exchanges that take place at the same time.
pub(crate) struct Flows {
    flows: Vec<ExchangeFlow>,
    repetitions: u32,
    program: Program,
}

/// What one rank received in each repetition: the exchange, and the time from the common start to its last byte.
pub(crate) type Arrivals = Vec<Vec<(usize, Micros)>>;

impl Flows {
    /// Checks exchanges between `ranks` ranks and makes a program of them. On an emulated machine, each exchange uses
    /// the first link between its ranks.
    pub(crate) fn new(wanted: Wanted, ranks: usize, machine: Option<&Topology>) -> RunResult<Self> {
        let Wanted { flows, repetitions } = wanted;
        let refuse = |what| Err(RunError::Mismatch { what });
        let total = flows.iter().map(|flow| flow.bytes).fold(0, u64::saturating_add);
        let messages = flows.iter().map(|flow| u64::from(flow.messages)).sum::<u64>();
        let messages = messages.saturating_mul(u64::from(repetitions) + WARMUPS);
        if total > MOST_BYTES || messages > MOST_MESSAGES {
            return refuse(format!(
                "a probe has at most {MOST_MESSAGES} messages and {MOST_BYTES} bytes, not {messages} and {total}"
            ));
        }
        let nobody = RankProgram::default();
        let mut program = Program {
            demand: nothing(ranks)?,
            op: None,
            in_place: false,
            shape: PartShape::Equal { parts: 1 },
            uniform: false,
            connections: Vec::with_capacity(flows.len()),
            ranks: vec![nobody; ranks],
            tempo: Tempo::default(),
        };
        let mut transfers = 0;
        for (index, flow) in flows.iter().enumerate() {
            let ExchangeFlow { from, to, messages, .. } = *flow;
            if from == to || from.index() >= ranks || to.index() >= ranks {
                return refuse(format!("messages from rank {from} to rank {to} of {ranks} cannot be timed"));
            }
            let link = match machine {
                None => LinkId(0),
                Some(machine) => match machine.between(from, to).next() {
                    Some(link) => link,
                    None => return refuse(format!("the emulated machine has no link from rank {from} to rank {to}")),
                },
            };
            let (id, channel) = (ConnectionId(index as u32), index as u32);
            program.connections.push(Connection { from, to, channel, link });
            let first = transfers;
            transfers += messages;
            for (rank, is_sender) in [(from, true), (to, false)] {
                let own = &mut program.ranks[rank.index()];
                let slice = Slice { buffer: Buffer::Scratch, index: own.scratch_parts.len() as u32, count: 1 };
                // A probe's geometry has the length of every slot, so the part does not matter.
                own.scratch_parts.push(0);
                let instruction = match is_sender {
                    true => Instruction::Send { to: id, src: slice },
                    false => Instruction::Receive { from: id, dst: slice },
                };
                let step = |message| Step { transfer: Some(first + message), ..Step::new(instruction) };
                own.threadblocks.push(Threadblock { steps: (0..messages).map(step).collect() });
            }
        }
        Ok(Self { flows, repetitions, program })
    }

    /// The probe's program as one work among all ranks.
    pub(crate) fn concurrent(&self) -> RunResult<Concurrent<'_>> {
        let (program, group) = (&self.program, Group::all(self.program.ranks.len()));
        let work = Work { program, window: 0, digest: None, count: 0, dtype: DType::U8, group };
        Concurrent::new(vec![work], self.program.ranks.len())
    }

    /// The lengths of a rank's slots, in the order in which [`Self::new`] made them.
    pub(crate) fn slots(&self, rank: Rank) -> impl Iterator<Item = usize> {
        self.ends_of(rank).map(|(flow, _)| self.flows[flow].bytes as usize)
    }

    /// The threadblocks of a rank: the index of the exchange, and whether the rank receives.
    fn ends_of(&self, rank: Rank) -> impl Iterator<Item = (usize, bool)> {
        let ends = self.flows.iter().enumerate();
        ends.flat_map(|(index, flow)| [(flow.from, (index, false)), (flow.to, (index, true))])
            .filter(move |(end, _)| *end == rank)
            .map(|(_, end)| end)
    }

    /// One rank's part. `call` is the number of the first repetition's call, as for [`Executor::run`].
    pub(crate) fn run_rank(&self, executor: &mut Executor<'_>, call: CallNumber) -> RunResult<Arrivals> {
        let mut arrivals = Arrivals::new();
        for repetition in 0..WARMUPS + u64::from(self.repetitions) {
            let run = executor.run(vec![Call::OutOfPlace { input: &[], output: &mut [] }], call.plus(repetition))?;
            if repetition < WARMUPS {
                continue;
            }
            let threadblocks = run.local_ranks.into_iter().flat_map(|ran| ran.threadblocks);
            let ends = self.ends_of(executor.rank()).zip(threadblocks);
            let received = ends.filter(|((_, receives), _)| *receives);
            let timed = received.map(|((flow, _), end): (_, Moment)| (flow, end.micros_since(run.announced)));
            arrivals.push(timed.collect());
        }
        Ok(arrivals)
    }

    /// The times of all exchanges, by repetition and exchange.
    pub(crate) fn collect(&self, arrivals: Vec<Arrivals>) -> Result<Vec<Vec<Micros>>, ProbeError> {
        let mut times = vec![vec![None; self.flows.len()]; self.repetitions as usize];
        for rank in arrivals {
            for (times, timed) in times.iter_mut().zip(rank) {
                for (flow, time) in timed {
                    if let Some(place) = times.get_mut(flow) {
                        *place = Some(time);
                    }
                }
            }
        }
        let missing = || ProbeError("a rank did not report all of its exchanges".to_owned());
        let of_one = |times: Vec<Option<Micros>>| times.into_iter().map(|time| time.ok_or_else(missing)).collect();
        times.into_iter().map(of_one).collect()
    }
}

/// An empty demand, for a program that meets none.
fn nothing(ranks: usize) -> RunResult<Arc<Demand>> {
    let demand = Demand::from_chunks(Request::new(Collective::Custom, ranks, 0), Vec::new());
    demand.map(Arc::new).map_err(|error| RunError::Mismatch { what: error.to_string() })
}
