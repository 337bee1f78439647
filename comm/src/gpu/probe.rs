//! Timing of messages between pairs of GPUs, for the profiler: rank 0 asks, all ranks send.
//!
//! The principal type is [`GpuProbe`]. An order is a broadcast, and the times come back by a maximum: where a rank does not receive, it
//! gives less than nothing.

use super::{GpuRank, RankFault};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult, explained};
use schedule::ReduceOp;
use topology::{Exchange, Micros, Probe, ProbeError, Rank};

/// The most exchanges of one order.
const MOST_EXCHANGES: i64 = 1 << 20;
/// What a rank gives for an exchange that it does not receive.
const NOT_RECEIVED: f64 = -1.0;
/// How many numbers an exchange is in an order.
const WORDS: usize = 4;

/// All ranks as a probe, on rank 0. The others [serve](GpuRank::serve_probe) until it is dropped.
pub struct GpuProbe<'a> {
    comm: &'a Communicator,
    gpu: &'a mut GpuRank,
    /// After an error nobody listens.
    is_broken: bool,
}

impl GpuRank {
    /// This rank as the one that asks. It has to be rank 0.
    pub fn probe<'a>(&'a mut self, comm: &'a Communicator) -> GpuProbe<'a> {
        GpuProbe { comm, gpu: self, is_broken: false }
    }

    /// Does what rank 0 asks for, until it has no more questions.
    ///
    /// # Errors
    /// [`CommError::Gpu`] if messages fail, on all ranks; as any call.
    pub fn serve_probe(&mut self, comm: &Communicator) -> CommResult<()> {
        loop {
            let mut head = [0_i64; 2];
            comm.broadcast(&mut head, 0)?;
            let [count, repetitions] = head;
            if count == 0 {
                return Ok(());
            }
            let count = usize::try_from(count.clamp(0, MOST_EXCHANGES)).unwrap_or_default();
            let mut words = vec![0; WORDS * count];
            comm.broadcast(&mut words, 0)?;
            let exchange = |words: &[i64]| Exchange {
                from: Rank(words[0] as u32),
                to: Rank(words[1] as u32),
                bytes: words[2] as u64,
                messages: words[3] as u32,
            };
            let exchanges: Vec<Exchange> = words.chunks_exact(WORDS).map(exchange).collect();
            self.exchange(comm, &exchanges, repetitions as u32)?;
        }
    }

    /// This rank's part of an order; the times of all exchanges, by repetition.
    fn exchange(
        &mut self,
        comm: &Communicator,
        exchanges: &[Exchange],
        repetitions: u32,
    ) -> CommResult<Vec<Vec<Micros>>> {
        let limit = self.limit;
        let timed = self.trials().exchange(exchanges, repetitions, limit);
        super::said(comm, timed.as_ref().map(|_| String::new()).map_err(RankFault::of))?;
        let mut times = vec![NOT_RECEIVED; exchanges.len() * repetitions as usize];
        let rows = times.chunks_exact_mut(exchanges.len().max(1)).zip(timed.into_iter().flatten());
        for (row, received) in rows {
            received.into_iter().for_each(|(index, time)| row[index] = time.0);
        }
        comm.all_reduce(&mut times, ReduceOp::Max)?;
        Ok(times.chunks_exact(exchanges.len().max(1)).map(|row| row.iter().copied().map(Micros).collect()).collect())
    }
}

impl GpuProbe<'_> {
    /// The ranks of each machine.
    pub fn machines(&self) -> Vec<Vec<Rank>> {
        let mut machines: Vec<Vec<Rank>> = Vec::new();
        for rank in 0..self.comm.size() {
            let machine = self.comm.machine(rank) as usize;
            machines.resize(machines.len().max(machine + 1), Vec::new());
            machines[machine].push(Rank::from_index(rank));
        }
        machines.retain(|machine| !machine.is_empty());
        machines
    }

    fn ask(&mut self, exchanges: &[Exchange], repetitions: u32) -> CommResult<Vec<Vec<Micros>>> {
        if exchanges.len() as i64 > MOST_EXCHANGES {
            return Err(CommError::Argument(format!("{} exchanges are more than {MOST_EXCHANGES}", exchanges.len())));
        }
        self.comm.broadcast(&mut [exchanges.len() as i64, i64::from(repetitions)], 0)?;
        let words = |of: &Exchange| [i64::from(of.from.0), i64::from(of.to.0), of.bytes as i64, i64::from(of.messages)];
        let mut words: Vec<i64> = exchanges.iter().flat_map(words).collect();
        self.comm.broadcast(&mut words, 0)?;
        self.gpu.exchange(self.comm, exchanges, repetitions)
    }
}

impl Probe for GpuProbe<'_> {
    fn rank_count(&self) -> usize {
        self.comm.size()
    }

    fn ends_together(&self) -> bool {
        // NCCL does them in one kernel.
        true
    }

    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
        if exchanges.is_empty() {
            return Ok(vec![Vec::new(); repetitions as usize]);
        }
        self.ask(exchanges, repetitions).map_err(|error| {
            self.is_broken = true;
            ProbeError(explained(&error))
        })
    }
}

impl Drop for GpuProbe<'_> {
    fn drop(&mut self) {
        if !self.is_broken {
            // Who is gone needs no farewell.
            let _ = self.comm.broadcast(&mut [0_i64; 2], 0);
        }
    }
}
