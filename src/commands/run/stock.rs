//! The plan that runs if the user gives none: the best classic algorithm, or a plan that copies and adds less.

use super::{BOTH, Fixed, GroupPlans, Plans, RunnablePlan};
use crate::cli::{ChunkCount, RankList, RequestArgs, RunArgs};
use crate::content::Content;
use crate::failure::{Failure, Outcome};
use crate::known;
use crate::loading::MemoryMode;
use crate::lowered;
use crate::plan;
use crate::workbench::Workbench;
use program::{Layout, LowerOptions};
use runtime::Group;
use schedule::{Collective, VerifiedSchedule};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use synth::{SearchOptions, StrategyKind};
use topology::{Bytes, Micros, MicrosPerByte, Rank, Topology};

/// The plans of each group if the user gives none. All ranks together run a plan for machines with one interface each.
/// Smaller groups run a plan for equal ranks, by their size. On an emulated machine, whose links differ, each group has
/// its own plan.
pub(super) fn parts(
    args: &RunArgs,
    groups: &[Group],
    ranks: usize,
    size: Option<u64>,
    bench: &Workbench,
) -> Outcome<Vec<GroupPlans>> {
    let mut known: BTreeMap<usize, Rc<Plans>> = BTreeMap::new();
    let mut parts = Vec::with_capacity(groups.len());
    for group in groups {
        let members = args.members.as_ref().map_or(group.ranks(), |members| &members.0).to_vec();
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
                let topology = Arc::new(known::machines(&machines, asked.collective)?);
                let plans = Rc::new(installed(plans(asked, topology, size, false)?, args, bench)?);
                known.insert(group.ranks().len(), plans.clone());
                (group.clone(), plans)
            }
        };
        parts.push(GroupPlans { group, members, plans });
    }
    Ok(parts)
}

fn installed(plans: Vec<(Fixed, &'static [MemoryMode])>, args: &RunArgs, bench: &Workbench) -> Outcome<Plans> {
    let install = |(plan, calls): (Fixed, _)| {
        let (installed, name) = plan.install(args.op, bench)?;
        // Links between ranks that were not profiled have no rates, so times cannot be predicted.
        let model = args.emulate.is_some().then(|| Rc::new(plan));
        Ok((RunnablePlan { installed, name, model }, calls))
    };
    plans.into_iter().map(install).collect()
}

/// The flags as a request. The root is a number in the group; if the group is a part of a machine, it is an index into
/// `members`.
fn asked(args: &RunArgs, topology: String, members: Option<&[Rank]>) -> RequestArgs {
    let of_group = members.filter(|_| args.split.is_some());
    RequestArgs {
        topology,
        collective: args.collective.unwrap_or(Collective::AllReduce),
        chunks: ChunkCount::Auto,
        members: of_group.map(|members| RankList(members.to_vec())).or_else(|| args.members.clone()),
        root: match (args.root, of_group) {
            (Some(root), Some(members)) => Some(members.get(root as usize).map_or(root, |rank| rank.0)),
            (root, _) => root,
        },
        op: args.op,
        matrix: args.matrix.clone(),
        demand: args.demand.clone(),
        groups: None,
        sketch: None,
    }
}

/// For more ranks, searching for a plan with less work takes too long.
const FEW: usize = 16;

/// The time in which a rank copies or adds one byte: 20 GB/s.
const WORK: MicrosPerByte = MicrosPerByte(5e-5);

/// The best classic algorithm for a size, on the emulated machine or among equal ranks, unless another plan needs less
/// work. If chunks are listed one by one, or not all ranks take part, the best plan of any kind. Calls in place may get
/// another plan.
fn plans(
    asked: RequestArgs,
    topology: Arc<Topology>,
    size: Option<u64>,
    emulated: bool,
) -> Outcome<Vec<(Fixed, &'static [MemoryMode])>> {
    let content = Content::read(asked.matrix.as_deref(), asked.demand.as_deref())?;
    let request = plan::request(&asked, &topology, content.size(size)?)?;
    let is_classic = asked.members.is_none() && asked.matrix.is_none() && asked.demand.is_none();
    let problems = plan::problems(&topology, &request, &content, None, None)?;
    let strategy = if is_classic { StrategyKind::Classic } else { StrategyKind::Matching };
    let options = SearchOptions { strategy: Some(strategy), ..SearchOptions::default() };
    let best = synth::synthesize(&problems, &options, &|_| {}).map_err(Failure::no)?.schedule;
    // On an emulated machine only the links take time.
    let is_fixed = !is_classic || emulated || topology.rank_count() > FEW;
    if is_fixed || !asked.collective.combines() && work(&best, true)? == Micros::ZERO {
        return Ok(vec![(Fixed::Schedule(best), &BOTH)]);
    }
    let options = SearchOptions { strategy: Some(StrategyKind::Matching), ..SearchOptions::default() };
    let problems = plan::problems(&topology, &request, &content, None, Some(1))?;
    let Ok(synth::Synthesis { schedule: other, .. }) = synth::synthesize(&problems, &options, &|_| {}) else {
        return Ok(vec![(Fixed::Schedule(best), &BOTH)]);
    };
    let makespan = |plan: &VerifiedSchedule| plan.schedule().makespan();
    let is_less = |in_place| {
        let [saved, longer] = [work(&best, in_place)? - work(&other, in_place)?, makespan(&other) - makespan(&best)];
        Outcome::Ok(saved > Micros::ZERO && saved > longer)
    };
    Ok(match [is_less(false)?, is_less(true)?] {
        [false, false] => vec![(Fixed::Schedule(best), &BOTH)],
        [true, true] => vec![(Fixed::Schedule(other), &BOTH)],
        [other_first, _] => {
            let (out_of_place, in_place) = if other_first { (other, best) } else { (best, other) };
            vec![(Fixed::Schedule(out_of_place), &BOTH[..1]), (Fixed::Schedule(in_place), &BOTH[1..])]
        }
    })
}

/// The time in which the busiest rank of a plan copies and adds, which the cost model does not contain. If ranks
/// exchange whole vectors, each rank adds all of them. In place it also copies them, because it must keep the data that
/// it still sends while the sum replaces it. If halves are reduced and gathered, each rank adds only its own half.
fn work(schedule: &VerifiedSchedule, in_place: bool) -> Outcome<Micros> {
    let demand = &schedule.schedule().demand;
    let in_place = in_place && Layout::new(demand.clone(), true).is_ok();
    let program = lowered::lowered(schedule, &LowerOptions { in_place, ..LowerOptions::default() })?;
    Ok(WORK * Bytes(program.program().most_worked_bytes() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two ranks, whole vectors take one message and halves take two; adding decides where it takes longer than
    /// a message.
    #[test]
    fn small_vectors_are_exchanged_and_large_ones_halved() {
        let strategy = |size: u64, machines: &[Vec<Rank>]| -> Vec<String> {
            let asked = RequestArgs {
                topology: "clique:2".to_owned(),
                collective: Collective::AllReduce,
                chunks: ChunkCount::Auto,
                members: None,
                root: None,
                op: None,
                matrix: None,
                demand: None,
                groups: None,
                sketch: None,
            };
            let topology = Arc::new(known::machines(machines, asked.collective).unwrap());
            let found = plans(asked, topology, Some(size), false).unwrap();
            let name = |(plan, _): &(Fixed, _)| match plan {
                Fixed::Schedule(schedule) => schedule.schedule().produced_by.strategy.clone(),
                _ => unreachable!("it was made here"),
            };
            found.iter().map(name).collect()
        };
        let (one, two) = (vec![vec![Rank(0), Rank(1)]], vec![vec![Rank(0)], vec![Rank(1)]]);
        for (size, machines, expected) in [
            (1 << 10, &one, &["classic/doubling"][..]),
            (1 << 20, &one, &["matching"]),
            (64 << 10, &two, &["classic/doubling"]),
            // Data must be copied only in place.
            (1 << 20, &two, &["classic/doubling", "matching"]),
            (16 << 20, &two, &["matching"]),
        ] {
            assert_eq!(strategy(size, machines), expected, "{size} B on {} machines", machines.len());
        }
    }
}
