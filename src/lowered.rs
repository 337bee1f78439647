//! Schedules as verified programs, in the form that the command line asks for.

use crate::failure::{Failure, Outcome};
use program::{LowerOptions, Program, VerifiedProgram, check, lower, replicate};
use schedule::VerifiedSchedule;

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

/// The program with every fused step as two.
pub(crate) fn unfused(program: &VerifiedProgram) -> Outcome<VerifiedProgram> {
    checked(program.program().clone().unfused())
}

/// The program, if it is right.
pub(crate) fn checked(program: Program) -> Outcome<VerifiedProgram> {
    check(program).map_err(|violations| Failure::no(anyhow::anyhow!("the program is wrong:\n{violations}")))
}
