//! Schedules as verified programs, in the form that the command line selects, and what is said of them.

use crate::failure::{Failure, Outcome};
use program::{
    LowerOptions, Program, ProgramViolation, RankProgram, VerifiedProgram, check, check_orbits, lower, lower_orbits,
    replicate,
};
use schedule::{Findings, VerifiedCompressed, VerifiedSchedule};
use serde::Serialize;
use std::fmt;
use topology::counted;

/// The program of a schedule.
pub(crate) fn lowered(schedule: &VerifiedSchedule, options: &LowerOptions) -> Outcome<VerifiedProgram> {
    checked(lower(schedule, options).map_err(Failure::no)?)
}

/// The program of a schedule, with the rates of its topology's links.
pub(crate) fn timed(schedule: &VerifiedSchedule, options: &LowerOptions) -> Outcome<VerifiedProgram> {
    checked(lower(schedule, options).map_err(Failure::no)?.with_rates(schedule.topology()))
}

/// The program in instances.
pub(crate) fn replicated(program: &VerifiedProgram, instances: u32) -> Outcome<VerifiedProgram> {
    checked(replicate(program.program().clone(), instances).map_err(Failure::no)?)
}

/// The program with every fused step as two steps.
pub(crate) fn unfused(program: &VerifiedProgram) -> Outcome<VerifiedProgram> {
    checked(program.program().clone().unfused())
}

/// The program, after checking it.
pub(crate) fn checked(program: Program) -> Outcome<VerifiedProgram> {
    check(program).map_err(|violations| Failure::no(anyhow::anyhow!("the program is wrong:\n{violations}")))
}

/// What `verify --program` says of a program that was checked.
#[derive(Serialize)]
pub(crate) struct ProgramSummary {
    ranks: usize,
    /// The ranks whose steps were checked; the others repeat them.
    written_ranks: usize,
    steps: usize,
    /// Of the rank with most.
    threadblocks: usize,
    window: u32,
}

/// The outcome of a check: the summary, or what is wrong.
pub(crate) type CheckedLowering = Result<ProgramSummary, Findings<ProgramViolation>>;

/// Lowers a schedule with the defaults of `run`, and checks the program.
pub(crate) fn summary(schedule: &VerifiedSchedule) -> Outcome<CheckedLowering> {
    let program = lower(schedule, &LowerOptions::default()).map_err(Failure::no)?;
    let ranks = program.ranks.len();
    Ok(check(program).map(|checked| ProgramSummary::of(checked.program(), ranks, checked.window())))
}

/// The same for a compressed schedule, on the first rank of each orbit.
pub(crate) fn orbit_summary(schedule: &VerifiedCompressed) -> Outcome<CheckedLowering> {
    let program = lower_orbits(schedule).map_err(Failure::no)?;
    let written = program.unfolding.first_ranks().count();
    Ok(check_orbits(program).map(|checked| ProgramSummary::of(&checked.program().program, written, checked.window())))
}

impl ProgramSummary {
    fn of(program: &Program, written_ranks: usize, window: u32) -> Self {
        let threadblocks = program.ranks.iter().map(|rank| rank.threadblocks.len()).max().unwrap_or_default();
        let steps = program.ranks.iter().flat_map(RankProgram::steps).count();
        Self { ranks: program.ranks.len(), written_ranks, steps, threadblocks, window }
    }
}

impl fmt::Display for ProgramSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, written_ranks, steps, threadblocks, window } = self;
        write!(f, "program: right in every order of events; {}", counted(*steps, "step"))?;
        if written_ranks < ranks {
            write!(f, " on {written_ranks} of {ranks} ranks, which the others repeat")?;
        }
        write!(f, ", at most {} a rank, ", counted(*threadblocks, "threadblock"))?;
        match window {
            0 => f.write_str("needs no room for messages"),
            room => write!(f, "needs room for {} on each connection", counted(*room as usize, "message")),
        }
    }
}
