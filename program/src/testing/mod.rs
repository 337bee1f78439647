//! Helpers for tests of this crate and of `interop`: schedules to lower, an executor of every interleaving, and
//! mutants.

mod definition;
pub mod executor;
pub mod mutants;
pub mod orbits;
pub mod schedules;

use crate::{LowerOptions, Program, VerifiedProgram, check, lower};
use schedule::{Collective, VerifiedSchedule};

pub const STANDARD: [Collective; 9] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

pub fn lowered(schedule: &VerifiedSchedule, in_place: bool) -> Program {
    lower(schedule, &LowerOptions { in_place, ..LowerOptions::default() }).unwrap()
}

pub fn checked(program: Program) -> VerifiedProgram {
    check(program).unwrap_or_else(|violations| {
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        panic!("{}", list.join("\n"))
    })
}
