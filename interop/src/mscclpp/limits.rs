//! The limits of the executor.
//!
//! The constants are those of `src/core/include/execution_common.hpp` of microsoft/mscclpp 0.9.0, with their names
//! there. Above them, the executor's arrays overflow or its kernel stops; the executor itself checks only the first.

use super::document::{ExecutionPlan, OpName, Operation};
use super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};

/// Operations of a threadblock, those inside pipelines included (`MAX_OPERATION`).
pub const MAX_OPERATIONS: usize = 64;
/// Channels of each type of a threadblock, and its remote buffers of each access (`MAX_CHANNEL`).
pub const MAX_CHANNELS: usize = 16;
/// Channels of an operation (`MAX_CHANNEL_PER_OPERATION`).
pub const MAX_CHANNELS_PER_OPERATION: usize = 8;
/// Sources, and destinations, of an operation: two local ones and one per channel.
pub(super) const MAX_OPERANDS: usize = 2 + MAX_CHANNELS_PER_OPERATION;
/// Barriers of a rank (`MAX_DEVICE_SYNCERS`).
pub const MAX_BARRIERS: u32 = 16;
/// Semaphores of an operation (`MAX_DEVICE_SEMAPHORES`); a rank may have any number.
pub const MAX_SEMAPHORES: usize = 16;
/// Threads of a threadblock (`__launch_bounds__`).
pub(super) const MAX_THREADS: u32 = 1024;
/// Bytes of the scratch buffer that plans share (`PREDFINED_SCRATCH_SIZE`, spelled so).
pub(super) const SHARED_SCRATCH: u64 = 1 << 26;
/// Threadblocks of a rank that certainly run at the same time: the kernel is not launched cooperatively, and an A100
/// has this many multiprocessors.
pub const RESIDENT_THREADBLOCKS: usize = 108;

/// Every limit that a plan exceeds.
pub(super) fn check(plan: &ExecutionPlan) -> Vec<PlanViolation> {
    let mut found = LimitViolations(Vec::new());
    let at = PlanLocation::Plan;
    found.above(
        at,
        "threads in a threadblock",
        plan.num_threads_per_block as usize,
        MAX_THREADS as usize,
        "__launch_bounds__",
    );
    for (rank, gpu) in (0..).zip(&plan.gpus) {
        for (number, threadblock) in (0..).zip(&gpu.threadblocks) {
            let at = PlanLocation::Threadblock(rank, number);
            let operations = threadblock.ops.iter().map(|op| 1 + op.ops.as_ref().map_or(0, Vec::len)).sum();
            found.above(at, "operations in a threadblock", operations, MAX_OPERATIONS, "MAX_OPERATION");
            for refs in &threadblock.channels {
                found.above(at, "channels in a threadblock", refs.channel_ids.len(), MAX_CHANNELS, "MAX_CHANNEL");
            }
            for refs in &threadblock.remote_buffer_refs {
                let count = refs.remote_buffer_ids.len();
                found.above(at, "remote buffers in a threadblock", count, MAX_CHANNELS, "MAX_CHANNEL");
            }
            for (op, operation) in (0..).zip(&threadblock.ops) {
                let at = OpAt { rank, threadblock: number, op, inner: None };
                found.operation(at, operation);
                for (inner, operation) in (0..).zip(operation.ops.iter().flatten()) {
                    found.operation(OpAt { inner: Some(inner), ..at }, operation);
                }
            }
        }
    }
    found.0
}

struct LimitViolations(Vec<PlanViolation>);

impl LimitViolations {
    fn above(&mut self, at: PlanLocation, what: &'static str, found: usize, limit: usize, name: &'static str) {
        if found > limit {
            let fault = PlanFault::Limit { what, found: found as u64, limit: limit as u64, name };
            self.0.push(PlanViolation { at, fault });
        }
    }

    fn operation(&mut self, at: OpAt, op: &Operation) {
        let at = PlanLocation::Op(at);
        let channels = op.channels().len();
        self.above(at, "channels in an operation", channels, MAX_CHANNELS_PER_OPERATION, "MAX_CHANNEL_PER_OPERATION");
        self.above(at, "sources in an operation", op.sources().len(), MAX_OPERANDS, "MAX_CHANNEL_PER_OPERATION");
        self.above(at, "destinations in an operation", op.targets().len(), MAX_OPERANDS, "MAX_CHANNEL_PER_OPERATION");
        let semaphores = op.semaphore_ids.as_ref().map_or(0, Vec::len);
        self.above(at, "semaphores in an operation", semaphores, MAX_SEMAPHORES, "MAX_DEVICE_SEMAPHORES");
        if let Some(barrier) = op.barrier_id.filter(|_| op.name == OpName::Barrier) {
            self.above(
                at,
                "barriers (ids count from 0)",
                barrier as usize + 1,
                MAX_BARRIERS as usize,
                "MAX_DEVICE_SYNCERS",
            );
        }
    }
}
