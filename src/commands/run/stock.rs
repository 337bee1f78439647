//! Which plan runs where none is given: the best classic algorithm.

use super::{BOTH, Fixed, Part, Plans, Ready};
use crate::cli::{Chunks, RequestArgs, RunArgs};
use crate::failure::{Failure, Outcome};
use crate::known;
use crate::loading::Memory;
use crate::plan;
use crate::program;
use crate::workbench::Workbench;
use runtime::Group;
use schedule::program::{Instruction, Layout, LowerOptions};
use schedule::{Collective, VerifiedSchedule};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use synth::{Options, StrategyKind};
use topology::{Rank, Topology};

/// What runs in each group where no plan is given. All ranks together run one for machines with an interface each; parts
/// of them, by their size, one for equal ranks; on an
/// emulated machine, whose links are where they are, each has its own.
pub(super) fn parts(
    args: &RunArgs,
    groups: &[Group],
    ranks: usize,
    size: u64,
    bench: &Workbench,
) -> Outcome<Vec<Part>> {
    let mut known: BTreeMap<usize, Rc<Plans>> = BTreeMap::new();
    let mut parts = Vec::with_capacity(groups.len());
    for group in groups {
        let members =
            args.members.clone().map_or(group.ranks().to_vec(), |members| members.into_iter().map(Rank).collect());
        let (group, plans) = match (&args.emulate, known.get(&group.ranks().len())) {
            (Some(machine), _) => {
                let (asked, topology) = (asked(args, machine.clone(), Some(&members)), plan::topology(machine)?);
                (Group::all(ranks), Rc::new(installed(plans(asked, topology, size, true)?, args, bench)?))
            }
            (None, Some(plans)) => (group.clone(), plans.clone()),
            (None, None) => {
                let equal = format!("clique:{}", group.ranks().len());
                let machines = match bench.machines() {
                    Some(machines) if *group == Group::all(ranks) => machines,
                    _ => vec![(0..group.ranks().len()).map(Rank::from_index).collect()],
                };
                let asked = asked(args, equal, None);
                let topology = known::machines(&machines, asked.collective)?;
                let plans = Rc::new(installed(plans(asked, topology, size, false)?, args, bench)?);
                known.insert(group.ranks().len(), plans.clone());
                (group.clone(), plans)
            }
        };
        parts.push(Part { group, members, plans });
    }
    Ok(parts)
}

fn installed(plans: Vec<(Fixed, &'static [Memory])>, args: &RunArgs, bench: &Workbench) -> Outcome<Plans> {
    let install = |(plan, calls): (Fixed, _)| {
        let (installed, name) = plan.install(args.op, bench)?;
        Ok((Ready { installed, name }, calls))
    };
    plans.into_iter().map(install).collect()
}

/// The flags as a request. The root is counted in the group; where that is a part of a machine, it is one of `members`.
fn asked(args: &RunArgs, topology: String, members: Option<&[Rank]>) -> RequestArgs {
    let of_group = members.filter(|_| args.split.is_some());
    RequestArgs {
        topology,
        collective: args.collective.unwrap_or(Collective::AllReduce),
        chunks: Chunks::Auto,
        members: of_group.map(|members| members.iter().map(|rank| rank.0).collect()).or_else(|| args.members.clone()),
        root: match (args.root, of_group) {
            (Some(root), Some(members)) => Some(members.get(root as usize).map_or(root, |rank| rank.0)),
            (root, _) => root,
        },
        op: args.op,
        matrix: args.matrix.clone(),
        demand: args.demand.clone(),
        sketch: None,
    }
}

/// For more ranks it is not worth the time to look for another plan for calls in place.
const FEW: usize = 16;

/// The best classic algorithm for a size: on the emulated machine, or among equal ranks. Where chunks are listed one
/// by one, or not all ranks take part, whatever is best. For calls in place it may be another one.
fn plans(
    asked: RequestArgs,
    topology: Topology,
    size: u64,
    emulated: bool,
) -> Outcome<Vec<(Fixed, &'static [Memory])>> {
    let request = plan::request(&asked, &topology, size)?;
    let is_classic = asked.members.is_none() && asked.matrix.is_none() && asked.demand.is_none();
    let (shared, content) = (Arc::new(topology.clone()), plan::content(&asked)?);
    let problems = plan::problems(&shared, &request, &content, None, None)?;
    let strategy = if is_classic { StrategyKind::Classic } else { StrategyKind::Matching };
    let options = Options { strategy: Some(strategy), ..Options::default() };
    let best = synth::synthesize(&problems, &options, &|_| {}).map_err(Failure::no)?.schedule;
    // An emulated machine has nothing but its links.
    let other = match is_classic && !emulated && topology.rank_count() <= FEW {
        true => in_place(&best, &plan::problems(&shared, &request, &content, None, Some(1))?)?,
        false => None,
    };
    Ok(match other {
        Some(other) => {
            vec![(Fixed::Schedule(best, topology.clone()), &BOTH[..1]), (Fixed::Schedule(other, topology), &BOTH[1..])]
        }
        None => vec![(Fixed::Schedule(best, topology), &BOTH)],
    })
}

/// A plan for calls in place that is as good as `best` for all that the model knows, and copies less. What a rank still
/// sends while the sum that replaces it comes in has to be kept: so whole vectors that are exchanged are copied, and
/// halves that are reduced and gathered are not.
fn in_place(best: &VerifiedSchedule, problems: &[synth::Problem]) -> Outcome<Option<VerifiedSchedule>> {
    /// As good: the model's own error is larger.
    const EQUAL: f64 = 0.01;
    let copies = copied(best)?;
    if copies == 0 {
        return Ok(None);
    }
    let options = Options { strategy: Some(StrategyKind::Matching), ..Options::default() };
    let other = synth::synthesize(problems, &options, &|_| {}).map_err(Failure::no)?.schedule;
    let as_good = other.schedule().makespan().0 <= best.schedule().makespan().0 * (1.0 + EQUAL);
    Ok((as_good && copied(&other)? < copies).then_some(other))
}

/// How many bytes the ranks copy locally in calls in place; none where there are no such calls.
fn copied(schedule: &VerifiedSchedule) -> Outcome<u64> {
    let demand = &schedule.schedule().demand;
    if Layout::new(demand.clone(), true).is_err() {
        return Ok(0);
    }
    let program = program::lowered(schedule, &LowerOptions { in_place: true, ..LowerOptions::default() })?;
    let program = program.program();
    let copies = program.ranks.iter().flat_map(|rank| {
        let steps = rank.threadblocks.iter().flat_map(|block| &block.steps);
        let copies = steps.filter(|step| matches!(step.instruction, Instruction::Copy { .. }));
        copies.flat_map(|step| {
            let slice = step.instruction.shape();
            &rank.parts(slice.buffer)[slice.index as usize..(slice.index + slice.count) as usize]
        })
    });
    Ok(copies.map(|&part| program.shape.length(demand.request().size_bytes, part)).sum())
}
