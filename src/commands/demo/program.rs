//! A small program that uses the library: what a user would write.
//!
//! The principal function is [`run`]. The same program runs with textbook algorithms or with the plans of a table, as the
//! variable `ANTIPHON_TABLE` says; nothing in it changes.

use crate::failure::{Failure, Outcome};
use comm::{Communicator, Op};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Untimed calls.
const WARMUPS: usize = 3;
/// Timed blocks of calls of each kind.
const BLOCKS: usize = 15;
/// About how long a block takes, in microseconds.
const BLOCK_US: f64 = 20_000.0;
/// The most calls of a block.
const MOST_CALLS: f64 = 32.0;

/// What the program has measured of one kind of call at one size.
#[derive(Serialize, Deserialize)]
pub(super) struct ProgramTimes {
    pub(super) collective: Collective,
    pub(super) bytes: u64,
    /// The time of one call on the slowest rank, in microseconds, for each block of calls.
    pub(super) times_us: Vec<f64>,
    /// What has served the calls.
    pub(super) plan: String,
    /// Elements that were wrong, on all ranks.
    pub(super) wrong: u64,
}

/// The vectors of one kind of call.
struct Vectors {
    collective: Collective,
    send: Vec<f32>,
    receive: Vec<f32>,
}

impl Vectors {
    fn new(comm: &Communicator, collective: Collective, bytes: u64) -> Self {
        let elements = (bytes / 4) as usize;
        let [input, output] = collective.buffer_blocks(comm.size() as u64).map(|blocks| blocks as usize);
        let sent = if input < output { elements / output } else { elements };
        Self { collective, send: vec![1.0 + comm.rank() as f32; sent], receive: vec![0.0; elements] }
    }

    fn call(&mut self, comm: &Communicator) -> Outcome {
        let Self { collective, send, receive } = self;
        let ended = match collective {
            Collective::AllGather => comm.all_gather(send, receive),
            Collective::AllToAll => comm.all_to_all(send, receive),
            Collective::AllReduce => comm.all_reduce_into(send, receive, Op::Sum),
            Collective::ReduceScatter | Collective::AllToAllV | Collective::Broadcast | Collective::Reduce => {
                return Err(uncalled(*collective));
            }
            Collective::Gather | Collective::Scatter | Collective::SendRecv | Collective::Custom => {
                return Err(uncalled(*collective));
            }
        };
        ended.map_err(Failure::no)
    }

    /// How many elements are not what they must be: rank r sends r + 1 everywhere.
    fn wrong(&self, comm: &Communicator) -> u64 {
        let ranks = comm.size();
        let length = self.receive.len();
        let expected = |at: usize| match self.collective.combines() {
            true => (ranks * (ranks + 1) / 2) as f32,
            false => (at * ranks / length.max(1) + 1) as f32,
        };
        self.receive.iter().enumerate().filter(|(at, value)| **value != expected(*at)).count() as u64
    }
}

fn uncalled(collective: Collective) -> Failure {
    Failure::no(anyhow::anyhow!("the program of the demo does not call {collective}"))
}

/// Runs one rank; rank 0 prints what it has measured.
pub(crate) fn run() -> Outcome {
    let comm = Communicator::from_env().map_err(Failure::no)?;
    for collective in super::COLLECTIVES {
        for bytes in super::SIZES {
            let times = measure(&comm, collective, bytes / 4 / comm.size() as u64 * 4 * comm.size() as u64)?;
            if comm.rank() == 0 {
                use std::io::Write;
                let line = serde_json::to_string(&times).map_err(Failure::no)?;
                writeln!(std::io::stdout().lock(), "{line}").map_err(Failure::no)?;
            }
        }
    }
    Ok(())
}

fn measure(comm: &Communicator, collective: Collective, bytes: u64) -> Outcome<ProgramTimes> {
    let mut vectors = Vectors::new(comm, collective, bytes);
    // All ranks make as many calls, because all know the slowest one's time.
    let block = |vectors: &mut Vectors, calls: usize| -> Outcome<f64> {
        comm.barrier().map_err(Failure::no)?;
        let begin = Instant::now();
        for _ in 0..calls {
            vectors.call(comm)?;
        }
        let mut slowest = [begin.elapsed().as_secs_f64() * 1e6 / calls as f64];
        comm.all_reduce(&mut slowest, Op::Max).map_err(Failure::no)?;
        Ok(slowest[0])
    };
    let expected = block(&mut vectors, WARMUPS)?;
    let calls = (BLOCK_US / expected.max(1e-3)).clamp(1.0, MOST_CALLS) as usize;
    let times_us = (0..BLOCKS).map(|_| block(&mut vectors, calls)).collect::<Outcome<Vec<f64>>>()?;
    vectors.receive.fill(0.0);
    vectors.call(comm)?;
    let plan = comm.last_plan();
    let mut wrong = [vectors.wrong(comm) as i64];
    comm.all_reduce(&mut wrong, Op::Sum).map_err(Failure::no)?;
    Ok(ProgramTimes { collective, bytes, times_us, plan, wrong: wrong[0] as u64 })
}
