//! `orbits`: the orbit walk as a strategy of its own.
//!
//! The principal type is [`OrbitWalk`]. It takes milliseconds where it applies, and is often optimal there. Therefore
//! the planner runs it first; `symmetric` tries to improve on its result.

use super::Orbits;
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::reaches;
use crate::problem::{Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::bundles::of_bearable_size;
use crate::strategies::{Attempt, Context, Strategy};
use schedule::Schedule;

/// The strategy `orbits`.
#[derive(Clone, Copy, Debug)]
pub struct OrbitWalk;

pub(super) const NAME: &str = StrategyKind::Orbits.as_str();

impl Strategy for OrbitWalk {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Orbits
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_LINKS
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        // These checks come first, because finding symmetries may take longer than the walk.
        let why = if problem.demand.request().root.is_some() {
            "the root is unlike all other ranks"
        } else {
            let attempts = of_bearable_size(NAME, problem, |problem| Ok(walk(problem, context).into_iter().collect()))?;
            if !attempts.is_empty() {
                return Ok(attempts);
            }
            "no translations of the machine, the demand and the sketch leave nothing in place and keep ports apart"
        };
        Err(SynthError::NotApplicable { strategy: NAME, why: why.to_owned() })
    }
}

fn walk(problem: &Problem, context: &Context<'_>) -> Option<Attempt> {
    let orbits = Orbits::new(problem, &context.symmetries.shared(problem, context.deadline))?;
    let base = orbits.spread(problem, context, orbits.order())?;
    let transfers = orbits.unfolded(&problem.topology, &base.transfers);
    let name = format!("{NAME}/{}", orbits.order());
    let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, &name);
    let stop = match schedule.makespan() {
        makespan if reaches(makespan, context.bound) => StopReason::Optimal,
        makespan if context.is_enough(makespan) => StopReason::GapLimit,
        _ => StopReason::Done,
    };
    Some(Attempt { name, schedule: Some(schedule), stop, note: None })
}
