//! `trees`: spanning trees packed to the optimal throughput, then scheduled.
//!
//! The principal type is [`Trees`]. First, trees are packed such that no link or resource has more to do than the bound
//! requires ([`packing`]). Then the times of the messages are decided ([`play`]). This is best where the data takes far
//! longer than α, and machines are too irregular for a search that decides both at once.

mod both_ways;
pub(in crate::strategies) mod choice;
mod grow;
mod justify;
mod load;
mod machine;
mod merge;
mod messages;
mod packing;
mod play;

use crate::ordering::without_idle_copies;
use crate::problem::constraints::RuleKind;
use crate::problem::{Deadline, Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use crate::symmetry::Mirror;
use justify::{JustifyEffort, justified};
use machine::LoadedMachine;
use merge::merged;
use messages::TreeMessages;
use packing::{Packing, PackingStyle, TreeUnits, pack};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rayon::prelude::*;
use schedule::{Message, Schedule, Transfer, replay};
use topology::quantity::show_duration;
use topology::{Micros, counted};

/// The strategy `trees`.
#[derive(Clone, Copy, Debug)]
pub struct Trees;

const NAME: &str = StrategyKind::Trees.as_str();
/// The number of symmetry groups that are tried.
const GROUPS: usize = 2;
/// A group with more orbits of ranks than this saves too little for the schedules that it forbids.
const FEW: usize = 4;
/// Up to this number, messages are scheduled in some milliseconds.
const QUICK: usize = 1 << 13;
/// In a portfolio, a gap (relative) up to this is left to other strategies.
const WORTHWHILE: f64 = 0.01;
/// The most links visited in one round of packing, without images: some tenths of a second.
const MOST_LOOKS: usize = 60_000_000;
const MOST_MESSAGES: usize = 1 << 21;
/// The same in a portfolio, without images.
const MOST_AMONG_OTHERS: usize = 1 << 17;
/// The work of playing messages in one call, in links visited: about a second.
const WORK: u64 = 60_000_000;
/// Packing may take one part in this many of a limited time; the rest is for scheduling.
const PACKING_PART: u32 = 3;
/// A packing this close (relative) to the target is good enough: more trees per root cost more than they gain.
const CLOSE: f64 = 0.004;
/// The loads (relative to the target) up to which links are used freely, for shallow trees.
const STYLES: [f64; 3] = [1.1, 1.0, 0.85];

impl Strategy for Trees {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Trees
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_WAYS
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check(problem)?;
        let mirrors = mirrors(problem, context)?;
        let is_plain = mirrors.iter().all(|mirror| mirror.order() == 1);
        if !context.is_alone && is_plain && !problem.topology.resources().is_empty() {
            return Err(refused(
                "ports are shared and the ranks have no symmetry; other strategies order messages better here"
                    .to_owned(),
            ));
        }
        let ways: Vec<(usize, (&Mirror, f64))> =
            mirrors.iter().flat_map(|mirror| STYLES.map(|idle| (mirror, idle))).enumerate().collect();
        let attempts: Vec<Option<Attempt>> = ways
            .par_iter()
            .map(|&(number, (mirror, idle))| attempt(problem, context, mirror, idle, number as u64))
            .collect();
        let makespan = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
        let best = attempts.into_iter().flatten().min_by(|a, b| makespan(a).total_cmp(&makespan(b)));
        best.map(|best| vec![best]).ok_or_else(|| match context.deadline.has_passed() {
            true => SynthError::NothingYet,
            false => refused("no tree reaches everybody who wants a chunk".to_owned()),
        })
    }

    fn is_worthwhile(&self, problem: &Problem, context: &Context<'_>) -> Result<(), SynthError> {
        check(problem)?;
        worthwhile(problem, context)
    }

    fn promising_count(&self, problems: &[Problem], deadline: &Deadline) -> Option<usize> {
        both_ways::promising_count(problems, deadline)
    }

    fn propose_directly(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        both_ways::propose(problem, context)
    }
}

/// The largest groups of symmetries under which no image waits for another. The case without symmetries is added if
/// there are no such groups, or if it is cheap and may be better. Cases with too much to decide are left out.
fn mirrors(problem: &Problem, context: &Context<'_>) -> Result<Vec<Mirror>, SynthError> {
    let mut mirrors = Mirror::all(problem, context.symmetries, context.deadline);
    let ranks = problem.topology.rank_count();
    let messages = messages(problem);
    mirrors.retain(|mirror| mirror.order() * FEW >= ranks && LoadedMachine::is_free_of_turns(problem, mirror));
    mirrors.truncate(GROUPS);
    // Where links share no resources, they are kept busy without symmetries as well.
    if mirrors.is_empty() || problem.topology.resources().is_empty() && messages <= QUICK {
        mirrors.push(Mirror::plain(&problem.topology));
    }
    mirrors.retain(|mirror| is_affordable(problem, mirror, context));
    match mirrors.is_empty() {
        true => Err(refused(format!("{messages} messages or routes are too many"))),
        false => Ok(mirrors),
    }
}

/// The number of messages with one chunk each.
fn messages(problem: &Problem) -> usize {
    problem.demand.chunks().iter().map(|chunk| chunk.lacking().count()).sum()
}

/// Whether the number of decisions is affordable; images need no decisions.
fn is_affordable(problem: &Problem, mirror: &Mirror, context: &Context<'_>) -> bool {
    let looks = problem.demand.chunks().chunk_by(|a, b| a == b).count() * problem.topology.links().len();
    let most = context.most(MOST_MESSAGES, MOST_AMONG_OTHERS);
    let messages = messages(problem);
    messages <= MOST_MESSAGES && messages / mirror.order() <= most && looks / mirror.order() <= MOST_LOOKS
}

/// Whether trees can gain anything: α does not dominate, and there is a gap left.
fn worthwhile(problem: &Problem, context: &Context<'_>) -> Result<(), SynthError> {
    let bytes = problem.demand.chunk_bytes();
    if problem.topology.links().iter().all(|link| link.byte_time(bytes).0 < 2.0 * link.alpha.0) {
        return Err(refused("latency dominates".to_owned()));
    }
    let close = |incumbent: &Schedule| incumbent.makespan() <= context.bound * (1.0 + WORTHWHILE);
    match context.incumbent.is_some_and(close) {
        true => Err(refused("the best so far is close to the bound".to_owned())),
        false => Ok(()),
    }
}

fn refused(why: String) -> SynthError {
    SynthError::NotApplicable { strategy: NAME, why }
}

/// Checks that the problem is of a kind that this strategy plans.
fn check(problem: &Problem) -> Result<(), SynthError> {
    let demand = &problem.demand;
    check_copies(problem, NAME)?;
    if demand.is_unicast() {
        return Err(refused("every chunk has one destination".to_owned()));
    }
    Ok(())
}

/// Packs and schedules in one style.
fn attempt(problem: &Problem, context: &Context<'_>, mirror: &Mirror, idle: f64, number: u64) -> Option<Attempt> {
    let seed = context.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
    if context.deadline.has_passed_for_all() {
        return None;
    }
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let style = PackingStyle { idle, target: context.bound.0, both_ways: false };
    let (units, packing) = few_trees(problem, &context.deadline.part(PACKING_PART), mirror, style, &mut random)?;
    let machine =
        LoadedMachine::new(problem, mirror, problem.demand.chunk_ids().map(|id| problem.demand.bytes_of(id)).collect());
    let jobs = TreeMessages::spreading(problem, &units, &packing);
    let passes = (WORK / STYLES.len() as u64 / looks(problem, &machine, &jobs).max(1)).clamp(1, 400) as u32;
    let height = jobs.height();
    let effort = JustifyEffort { passes, bound: context.goal().0, is_symmetric: mirror.order() > 1 };
    let timed = justified(problem, &machine, jobs, effort, context.deadline, &mut random)?;
    if context.deadline.has_passed_for_all() {
        return None;
    }
    let transfers = transfers(problem, &reflected(mirror, timed.jobs.messages()))?;
    let name = match mirror.order() {
        1 => format!("{NAME}/{idle}"),
        order => format!("{NAME}/{order}/{idle}"),
    };
    let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, &name);
    let note = format!(
        "{} of height {height}, scheduled with height {} in {}; busiest link or port {:.4} of the bound",
        counted(units.all.len(), "tree"),
        timed.jobs.height(),
        show_duration(Micros(timed.makespan)),
        packing.peak / context.bound.0
    );
    let stop = if context.deadline.has_passed() { StopReason::TimeLimit } else { StopReason::Done };
    Some(Attempt { name, schedule: Some(schedule), stop, note: Some(note) })
}

/// The transfers of messages in the order of their starts; neighbours are merged where that is faster.
fn transfers(problem: &Problem, messages: &[Message]) -> Option<Vec<Transfer>> {
    // After detours, a relay may have chunks that no rank needs from it any more.
    let messages = without_idle_copies(messages, &problem.topology, &problem.demand);
    let mut transfers = replay(&problem.demand, &problem.topology, &messages).ok()?;
    transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
    Some(merged(problem, transfers))
}

/// Every message followed by its images.
fn reflected(mirror: &Mirror, messages: Vec<Message>) -> Vec<Message> {
    if mirror.order() == 1 {
        return messages;
    }
    let mut all = Vec::with_capacity(messages.len() * mirror.order());
    for message in messages {
        let images = mirror.images(message.link, &message.chunks);
        for (element, &link) in images.links.iter().enumerate() {
            let chunks = images.chunks.iter().map(|images| images[element]).collect();
            all.push(Message { chunks, link, kind: message.kind });
        }
    }
    all
}

/// The cost of one play of `messages`, in links visited.
fn looks(problem: &Problem, machine: &LoadedMachine, jobs: &TreeMessages) -> u64 {
    let of = |job: &messages::ChunkMessage| {
        let slots = &machine.slots()[machine.range(job.link)];
        let users = slots.iter().map(|&slot| machine.users(slot as usize).len());
        let onwards = problem.topology.outgoing(problem.topology.link(job.link).to).len();
        16 + users.sum::<usize>() + onwards
    };
    jobs.all.iter().map(of).sum::<usize>() as u64
}

/// The fewest trees per root that are good enough; their number divides the number of chunks.
fn few_trees(
    problem: &Problem,
    deadline: &Deadline,
    mirror: &Mirror,
    style: PackingStyle,
    random: &mut Pcg64Mcg,
) -> Option<(TreeUnits, Packing)> {
    let chunks = problem.demand.chunks().chunk_by(|a, b| a == b).map(<[_]>::len).max()?;
    let mut best: Option<(TreeUnits, Packing)> = None;
    for trees in (1..=chunks).filter(|&trees| chunks.is_multiple_of(trees)) {
        // On a large machine, the preparation may take longer than the time left.
        if deadline.has_passed_for_all() {
            break;
        }
        let units = TreeUnits::new(problem, mirror, trees, style.both_ways);
        let looks = units.all.len() * problem.topology.links().len();
        if best.is_some() && (deadline.has_passed() || looks > MOST_LOOKS) {
            break;
        }
        let Some(packing) = pack(problem, &units, style, deadline, random) else { break };
        let is_close = packing.peak <= style.target * (1.0 + CLOSE);
        if best.as_ref().is_none_or(|(_, best)| packing.peak < best.peak) {
            best = Some((units, packing));
        }
        if is_close {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, SearchOptions};
    use crate::sketch::{SketchFile, obey};
    use crate::strategies::reversal;
    use schedule::{Collective, Demand, RankSet, Request, verify};
    use std::sync::Arc;
    use topology::Rank;

    fn problem(spec: &str, request: impl Fn(usize) -> Request) -> Problem {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let demand = Demand::new(request(topology.rank_count())).expect("a valid request");
        Problem::new(topology, Arc::new(demand))
    }

    /// The verified makespan divided by the bound.
    fn ratio(problem: &Problem) -> Result<f64, SynthError> {
        let options = SearchOptions::default();
        let (deadline, bound) = (Deadline::default(), bounds(problem, &Deadline::default()).best().value);
        let context = Context::of_test(&options, &deadline, bound);
        let mut best = f64::INFINITY;
        for attempt in reversal::propose(problem, &context, &Trees)? {
            let schedule = attempt.schedule.expect("a proposal");
            assert!(obey(&schedule, &problem.topology, &problem.constraints).is_empty());
            let verified = verify(schedule, &problem.topology).expect("a right schedule");
            best = best.min(verified.schedule().makespan().0 / bound.0);
        }
        assert!(best >= 1.0 - 1e-9, "{best}");
        Ok(best)
    }

    #[test]
    fn machines_of_equal_ranks_are_planned_near_the_bound() {
        for (spec, chunks, most) in [
            ("dgx-a100x2", 4, 1.03),
            ("dgx-a100x4", 8, 1.05),
            ("mi250x2", 8, 1.06),
            ("dgx-h100x4", 4, 1.06),
            ("torus2d:4x4", 1, 1.001),
        ] {
            let problem =
                problem(spec, |ranks| Request::new(Collective::AllGather, ranks, 1_000_000_000).with_chunks(chunks));
            let ratio = ratio(&problem).expect("it applies");
            assert!(ratio <= most, "{spec}: {ratio}");
        }
    }

    #[test]
    fn images_do_not_count_as_messages_to_put_in_order() {
        let problem = problem("h800x48", |ranks| Request::new(Collective::AllGather, ranks, 384 << 20));
        assert!(messages(&problem) > MOST_AMONG_OTHERS);
        let (options, deadline, bound) =
            (SearchOptions::default(), Deadline::default(), bounds(&problem, &Deadline::default()).best().value);
        let context = Context::among_others(&options, &deadline, bound);
        let attempts = Trees.propose(&problem, &context).expect("it applies to 384 ranks that are alike");
        let schedule = attempts.into_iter().next().and_then(|it| it.schedule).expect("a proposal");
        let verified = verify(schedule, &problem.topology).expect("a right schedule");
        let ratio = verified.schedule().makespan().0 / bound.0;
        assert!(ratio <= 1.01, "{ratio}");
    }

    #[test]
    fn all_that_spreads_or_reduces_is_planned() {
        for spec in ["dgx1", "ndv2x2", "mesh2d:3x3", "fat-tree:2x2x2", "line:4", "switch:5,latency=pipelines"] {
            for collective in [
                Collective::AllGather,
                Collective::Broadcast,
                Collective::ReduceScatter,
                Collective::Reduce,
                Collective::AllReduce,
            ] {
                for members in [None, Some([0, 1, 3])] {
                    let problem = problem(spec, |ranks| {
                        let request = Request::new(collective, ranks, 64_000_000).with_chunks(3);
                        let members = members.map(|all| all.into_iter().map(Rank).collect::<RankSet>());
                        let members = members.unwrap_or(RankSet::all(ranks));
                        let root = collective.is_rooted().then_some(Rank(1));
                        Request { members, root, ..request }
                    });
                    let ratio = ratio(&problem).expect("it applies");
                    assert!(ratio <= 3.0, "{spec} {collective}: {ratio}");
                }
            }
        }
    }

    #[test]
    fn sketches_are_obeyed() {
        let sketch = include_str!("../../../../sketches/sk1-ndv2-n2.yaml");
        let mut problem =
            problem("ndv2x2,costs=taccl-1mb", |ranks| Request::new(Collective::AllGather, ranks, 16_000_000));
        let sketch =
            SketchFile::parse(sketch, "s.yaml").expect("a sketch").resolve(&problem.topology).expect("it fits");
        problem.constraints = Arc::new(sketch.constraints.clone());
        assert!(ratio(&problem).expect("it applies") < 1.5);
    }

    #[test]
    fn what_has_one_destination_is_left_to_others() {
        for collective in [Collective::AllToAll, Collective::Scatter, Collective::SendRecv] {
            let problem = problem("ring:4", |ranks| {
                let root = collective.is_rooted().then_some(Rank(0));
                Request { root, ..Request::new(collective, ranks, 1000) }
            });
            assert!(matches!(ratio(&problem), Err(SynthError::NotApplicable { .. })), "{collective}");
        }
    }
}
