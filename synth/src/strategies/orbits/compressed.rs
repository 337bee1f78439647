//! Compressed plans: one base transfer per orbit, for plans that are too large to store transfer by transfer.
//!
//! The principal function is [`synthesize_compressed`]. An AllGather is a walk on orbits, and so is an AllToAll. A
//! ReduceScatter is a walk on the reversed topology in reversed order, with new times. An AllReduce is both, one after
//! the other. Nothing in memory is larger than a few numbers per link or chunk.

use super::strategy::NAME;
use super::{Base, Orbits};
use crate::bounds::{Bounds, bounds};
use crate::problem::passages::{deliveries, passages, verification_time};
use crate::problem::reversed::halves;
use crate::problem::tolerance::{EQUAL, bound_below, reaches};
use crate::problem::{
    Candidate, Constraints, Deadline, Milestone, Problem, Progress, Report, SearchOptions, StopReason, StrategyKind,
    SynthError,
};
use crate::strategies::Context;
use crate::symmetry::{SharedSymmetry, Symmetries};
use schedule::{
    Collective, CompressedSchedule, Generator, LowerBound, MOST_PLAIN_TRANSFERS, Provenance, Schedule, TopologyRef,
    Transfer, TransferKind, VerifiedCompressed, verify_compressed,
};
use std::time::{Duration, Instant};

/// The bounds may take one part in this many of the time left.
const BOUND_PART: u32 = 5;

/// Where compression has to save time: a base transfer takes longer to plan than a plain one.
const LEAST_IMAGES: usize = 4;

/// Other strategies write down plans of so many deliveries, for each half of a sum.
const MOST_ELSEWHERE: u64 = 1 << 22;
/// A walk that takes so many times as long as there is time is not begun, if there are other ways.
const FAR_TOO_LONG: u32 = 2;
/// One that takes less is always begun.
const NEVER_TOO_LONG: Duration = Duration::from_secs(2);

/// A compressed plan, its report and its bounds.
#[derive(Clone, Debug)]
pub struct CompressedSynthesis {
    /// The best verified schedule, with its bound filled in.
    pub schedule: VerifiedCompressed,
    /// Every candidate, and why its search ended.
    pub report: Report,
    /// All bounds for the winner's chunk count.
    pub bounds: Bounds,
}

/// Whether a plain schedule for `problem` with one chunk per transfer would have more than `limit` transfers, and the
/// collective is one that symmetries can repeat.
pub fn wants_compression(problem: &Problem, limit: usize) -> bool {
    is_repeated(problem) && deliveries(problem) > limit as u64
}

fn is_repeated(problem: &Problem) -> bool {
    match problem.demand.request().collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => true,
        Collective::AllToAllV | Collective::Broadcast | Collective::Reduce | Collective::Gather => false,
        Collective::Scatter | Collective::SendRecv | Collective::Custom => false,
    }
}

/// Whether the schedule is compressed where symmetries allow it: because a plain one would have more transfers than are
/// written plain, or because a plain one could not be verified within the time limit.
pub fn is_too_large_for_plain(problem: &Problem, time_limit: Option<Duration>) -> bool {
    wants_compression(problem, MOST_PLAIN_TRANSFERS)
        || is_repeated(problem) && time_limit.is_some_and(|limit| verification_time(passages(problem)) > limit)
}

/// Plans `problems` (the same request, one problem per chunk count worth trying) as a base and generators.
///
/// # Errors
/// [`SynthError::NotApplicable`] if no commuting symmetries move every rank, link and chunk and let no two links of an
/// orbit share a port, or if there is a sketch; [`SynthError::NothingYet`] if the time was up;
/// [`SynthError::NoProblem`] if `problems` is empty.
pub fn synthesize_compressed(
    problems: &[Problem],
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<CompressedSynthesis, SynthError> {
    let started = Instant::now();
    let deadline = Deadline::after(options.time_limit, options.cancel.clone());
    let is_only_way = problems.first().is_some_and(|problem| wants_compression(problem, MOST_PLAIN_TRANSFERS));
    let deadline = if is_only_way { deadline.open_ended() } else { deadline };
    let symmetries = Symmetries::default();
    let mut best: Option<(VerifiedCompressed, Bounds)> = None;
    let mut candidates = Vec::new();
    let mut refusal = SynthError::NoProblem;
    // This check comes before the bounds, which take long on machines of this size.
    if problems.iter().any(|problem| !Orbits::can_spread(problem)) {
        return Err(refused("the sketch limits ways"));
    }
    for problem in problems {
        if best.is_some() && deadline.has_passed() {
            break;
        }
        let begun = Instant::now();
        // The bounds of such machines take long, too.
        let early = Context::alone(options, &deadline, &symmetries, progress);
        if deadline.is_limited() && is_hopeless(problem, &early) {
            refusal = refused("symmetries that repeat so little leave more to search than the time limit allows");
            break;
        }
        let bounds = bounds(problem, &deadline.part(BOUND_PART));
        let claim = if problems.len() > 1 { bounds.best_at_any_chunking() } else { bounds.best() };
        let context =
            Context { bound: bounds.best().value, ..Context::alone(options, &deadline, &symmetries, progress) };
        let attempt = attempt(problem, &context, claim);
        let chunks_per_rank = problem.demand.request().chunks_per_rank;
        candidates.push(candidate(&attempt, chunks_per_rank, &context, begun.elapsed()));
        match attempt {
            Ok(found) => {
                let is_enough = context.is_enough(found.makespan());
                if best.as_ref().is_none_or(|(best, _)| found.makespan() < best.makespan()) {
                    best = Some((found, bounds));
                } else if is_enough {
                    break;
                }
            }
            Err(error) => refusal = error,
        }
    }
    let (schedule, bounds) = best.ok_or(refusal)?;
    let report = report(&schedule, options, candidates, started.elapsed().as_secs_f64());
    Ok(CompressedSynthesis { schedule, report, bounds })
}

fn candidate(
    attempt: &Result<VerifiedCompressed, SynthError>,
    chunks_per_rank: u32,
    context: &Context,
    took: Duration,
) -> Candidate {
    let found = attempt.as_ref().ok();
    Candidate {
        strategy: found.map_or_else(|| NAME.to_owned(), |found| found.base().produced_by.strategy.clone()),
        chunks_per_rank,
        makespan_us: found.map(|found| found.makespan().0),
        transfers: found.map_or(0, |found| found.transfers() as usize),
        stop_reason: match attempt {
            Ok(found) if reaches(found.makespan(), context.goal()) => StopReason::GapLimit,
            Ok(_) => StopReason::Done,
            Err(SynthError::NothingYet) => StopReason::out_of_time(&context.options.cancel),
            Err(SynthError::NotApplicable { .. }) => StopReason::NotApplicable,
            Err(SynthError::Infeasible { .. }) => StopReason::Infeasible,
            Err(_) => StopReason::Failed,
        },
        seconds: took.as_secs_f64(),
        note: match attempt {
            Ok(found) => Some(format!("{} base transfers", found.base().transfers.len())),
            Err(error) => Some(error.to_string()),
        },
    }
}

fn report(schedule: &VerifiedCompressed, options: &SearchOptions, candidates: Vec<Candidate>, seconds: f64) -> Report {
    let base = schedule.base();
    let gap = base.gap();
    let stop_reason = match gap {
        Some(gap) if gap <= EQUAL => StopReason::Optimal,
        Some(gap) if gap <= options.gap * (1.0 + EQUAL) + EQUAL => StopReason::GapLimit,
        _ if options.cancel.is_cancelled() => StopReason::Interrupted,
        _ if options.time_limit.is_some_and(|limit| seconds >= limit.as_secs_f64()) => StopReason::TimeLimit,
        _ => StopReason::Done,
    };
    Report {
        makespan_us: base.makespan().0,
        lower_bound_us: base.bound.as_ref().map_or(0.0, |bound| bound.value.0),
        bound: base.bound.as_ref().map_or_else(String::new, |bound| bound.name.clone()),
        gap,
        strategy: base.produced_by.strategy.clone(),
        warm_start: None,
        stop_reason,
        seconds,
        candidates,
        milestones: vec![Milestone {
            seconds,
            makespan_us: base.makespan().0,
            strategy: base.produced_by.strategy.clone(),
        }],
    }
}

fn refused(why: impl Into<String>) -> SynthError {
    SynthError::NotApplicable { strategy: NAME, why: why.into() }
}

/// One compressed plan, verified.
fn attempt(problem: &Problem, context: &Context<'_>, claim: LowerBound) -> Result<VerifiedCompressed, SynthError> {
    if *problem.constraints != Constraints::none() {
        return Err(refused("a plan of so many transfers obeys no sketch yet"));
    }
    let saves_time = context.deadline.is_limited() && !wants_compression(problem, MOST_PLAIN_TRANSFERS);
    let least = if saves_time { LEAST_IMAGES } else { 1 };
    let (orbits, base) = planned(problem, context, least)?;
    let makespan = base.makespan;
    let asked = context.options.strategy.map_or("auto", StrategyKind::as_str);
    let produced_by = Provenance {
        strategy: format!("{NAME}/{}", orbits.order()),
        seed: context.options.seed,
        options: [("strategy".to_owned(), asked.to_owned())].into_iter().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Provenance::default()
    };
    let base = Schedule {
        topology: TopologyRef::to(&problem.topology),
        demand: problem.demand.clone(),
        transfers: base.transfers,
        bound: Some(bound_below(&claim, makespan)),
        produced_by,
    };
    let compressed = CompressedSchedule { base, generators: orbits.into_generators() };
    verify_compressed(compressed, &problem.topology).map_err(|rejection| refused(format!("refused: {rejection}")))
}

/// The base of a plan for `problem`, and the group that repeats it, which has at least so many elements.
fn planned(problem: &Problem, context: &Context<'_>, least: usize) -> Result<(Orbits, Base), SynthError> {
    if !problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        return spread(problem, &context.symmetries.shared(problem, context.deadline), (context, least));
    }
    let (collect, then) = halves(problem)?;
    // Turning all links around changes no symmetry of the machine, so it is searched only once.
    let symmetries = context.symmetries.of_demand(problem, &collect.demand, context.deadline);
    // The bound of each half is not worth computing; only the whole is compared with its bound.
    let share = if then.is_some() { 0.5 } else { 1.0 };
    let context = Context { bound: context.bound * share, ..*context };
    let (orbits, collected) = spread(&collect, &symmetries, (&context, least))?;
    let mut transfers: Vec<Transfer> = collected.transfers.into_iter().rev().map(summing).collect();
    transfers.sort_by(|a, b| b.end.total_cmp(&a.end));
    if let Some(then) = then {
        transfers.extend(spread(&then, &symmetries, (&context, least))?.1.transfers);
    }
    let base = orbits.retimed(problem, transfers);
    Ok((orbits, base))
}

fn spread(
    problem: &Problem,
    symmetries: &[SharedSymmetry],
    (context, least): (&Context<'_>, usize),
) -> Result<(Orbits, Base), SynthError> {
    let orbits = Orbits::new(problem, symmetries).ok_or_else(|| {
        refused("no symmetries that commute, move every rank, link and chunk, and keep apart what shares a port")
    })?;
    if orbits.order() < least {
        return Err(refused(format!("{} images of each transfer save no time", orbits.order())));
    }
    match orbits.spread(problem, context, 1) {
        Some(base) => Ok((orbits, base)),
        // Where the search goes on as long as it takes, only Ctrl-C ends it.
        None if context.options.cancel.is_cancelled() => Err(SynthError::NothingYet),
        None if context.deadline.has_passed() && !context.deadline.is_open_ended() => Err(SynthError::NothingYet),
        None => Err(refused("some rank is reached through relays only")),
    }
}

/// Whether a walk would take longer than there is time. Where the search goes on as long as it takes, whether it would take very much
/// longer, and other strategies could write down their plans.
fn is_hopeless(problem: &Problem, context: &Context<'_>) -> bool {
    let Some(left) = context.deadline.remaining().filter(|_| !context.options.cancel.is_cancelled()) else {
        return false;
    };
    let walks = if problem.demand.request().collective == Collective::AllReduce { 2 } else { 1 };
    let is_elsewhere = deliveries(problem) / u64::from(walks) <= MOST_ELSEWHERE;
    let most = match context.deadline.is_open_ended() {
        false => left,
        true if is_elsewhere => left * FAR_TOO_LONG,
        true => return false,
    };
    let copies = match problem.demand.has_sums() {
        true => halves(problem).map(|(collect, _)| collect),
        false => Ok(problem.clone()),
    };
    let Ok(copies) = copies else { return false };
    let symmetries = context.symmetries.of_demand(problem, &copies.demand, context.deadline);
    let is_long = |orbits: Orbits| orbits.walking_time(&copies) * walks > most.max(NEVER_TOO_LONG);
    Orbits::new(&copies, &symmetries).is_some_and(is_long)
}

/// A message on the reversed topology as a message on the topology itself: spreading becomes summing. Its times are
/// those of the reversed plan.
fn summing(transfer: Transfer) -> Transfer {
    Transfer { from: transfer.to, to: transfer.from, kind: TransferKind::Reduce, ..transfer }
}

impl Orbits {
    /// The generators in the form that schedules carry.
    fn into_generators(self) -> Vec<Generator> {
        let rank = |images: Vec<u32>| images.into_iter().map(topology::Rank).collect();
        let link = |images: Vec<u32>| images.into_iter().map(topology::LinkId).collect();
        let chunk = |images: Vec<u32>| images.into_iter().map(schedule::ChunkId).collect();
        let generator = |it: super::OrbitGenerator| Generator {
            ranks: rank(it.ranks),
            links: link(it.links),
            chunks: chunk(it.chunks),
        };
        self.generators.into_iter().map(generator).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Demand, Request, verify};
    use std::sync::Arc;
    use topology::Micros;

    fn problem(spec: &str, collective: Collective, chunks: u32) -> Problem {
        let topology = Arc::new(topology::load(spec).expect("a known topology"));
        let ranks = topology.rank_count();
        let request = Request::new(collective, ranks, (ranks as u64) << 20).with_chunks(chunks);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn the_plain_verifier_accepts_what_compressed_plans_expand_to() {
        for (spec, steps) in [
            ("torus2d:4x4", 4.0),
            ("torus2d:5x7", 9.0),
            ("torus2d:16x16", 64.0),
            ("torus3d:3x4x5", 10.0),
            ("ring:7,direction=both", 3.0),
            ("hypercube:4", 4.0),
            ("clique:9", 1.0),
            ("mesh2d:4x4", 8.0),
        ] {
            for (collective, rounds) in
                [(Collective::AllGather, 1.0), (Collective::ReduceScatter, 1.0), (Collective::AllReduce, 2.0)]
            {
                let spec = format!("{spec},alpha=0.5us,bandwidth=50GiBps");
                let problem = problem(&spec, collective, 1);
                assert!(wants_compression(&problem, 10) && !is_too_large_for_plain(&problem, None));
                let found = synthesize_compressed(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {});
                let found = found.unwrap_or_else(|error| panic!("{spec} {collective}: {error}"));
                let makespan = found.schedule.makespan().0;
                assert!(makespan <= rounds * steps * 20.03125 * (1.0 + 1e-9), "{spec} {collective}: {makespan} µs");
                assert!(makespan >= found.bounds.best().value.0 * (1.0 - 1e-9));
                let plain = found.schedule.expand(1 << 20).expect("few transfers");
                verify(plain, &problem.topology).unwrap_or_else(|error| panic!("{spec} {collective}: {error}"));
            }
        }
    }

    /// A plain plan of 17 million deliveries cannot be verified in a second; one of 15 thousand can.
    #[test]
    fn what_cannot_be_verified_in_time_is_compressed() {
        let second = Some(Duration::from_secs(1));
        for (spec, is_late) in [("torus2d:32x32", true), ("torus2d:8x8", false)] {
            let problem = problem(spec, Collective::AllToAll, 1);
            assert!(!is_too_large_for_plain(&problem, None));
            assert!(!is_too_large_for_plain(&problem, Some(Duration::from_secs(600))));
            assert_eq!(is_too_large_for_plain(&problem, second), is_late, "{spec}");
        }
    }

    /// Ranks of a leaf share its port, so only leaves are images of each other: 32 base chunks have 1023 links to choose from each time.
    #[test]
    fn a_search_that_cannot_end_in_time_is_not_begun() {
        for (spec, is_long) in [("fat-tree:32x32", true), ("torus2d:32x32", false), ("h800x32", false)] {
            let (options, symmetries) = (SearchOptions::default(), Symmetries::default());
            let problem = problem(spec, Collective::AllReduce, 1);
            // However long it takes to find the symmetries.
            symmetries.shared(&problem, &Deadline::default());
            let deadline = Deadline::after(Some(Duration::from_secs(3)), options.cancel.clone());
            let context = Context::alone(&options, &deadline, &symmetries, &|_| {});
            assert_eq!(is_hopeless(&problem, &context), is_long, "{spec}");
        }
    }

    /// Chunks that travel together make fewer messages, which take less time to plan and to verify.
    #[test]
    fn without_time_chunks_travel_together() {
        let problem = problem("torus2d:8x8", Collective::AllToAll, 1);
        let options = SearchOptions { time_limit: Some(Duration::ZERO), ..SearchOptions::default() };
        let found = synthesize_compressed(std::slice::from_ref(&problem), &options, &|_| {}).expect("a plan");
        assert!(2 * found.schedule.transfers() < passages(&problem) as u64, "{} transfers", found.schedule.transfers());
        let bound = bounds(&problem, &Deadline::default()).best().value;
        assert!(found.schedule.makespan() < bound * 1.5, "{}, bound {bound}", found.schedule.makespan());
    }

    /// Nobody would write such a plan plain, so the search for the first one goes on however short the limit is.
    #[test]
    fn a_short_limit_leaves_an_answer_where_compression_is_the_only_way() {
        let limited = |limit| SearchOptions { time_limit: Some(limit), ..SearchOptions::default() };
        for (spec, collective) in [("switch:2900", Collective::AllGather), ("switch:1700", Collective::AllReduce)] {
            let problem = problem(spec, collective, 1);
            assert!(wants_compression(&problem, MOST_PLAIN_TRANSFERS));
            let options = limited(Duration::from_millis(100));
            let found = synthesize_compressed(std::slice::from_ref(&problem), &options, &|_| {}).expect(spec);
            assert!(found.schedule.makespan() > Micros::ZERO);
            options.cancel.cancel();
            let cancelled = synthesize_compressed(std::slice::from_ref(&problem), &options, &|_| {});
            assert!(cancelled.is_err(), "Ctrl-C ends it without an answer");
        }
    }

    /// On machines whose links share ports, and for pairs of ranks: the plain verifier judges, and the bounds say how
    /// good it is. The gaps are what the search reaches, rounded up.
    #[test]
    fn switched_machines_are_planned_on_orbits() {
        for (spec, gathering, exchanging) in [
            ("switch:8", 0.02, 0.02),
            ("h800x2", 0.18, 0.01),
            ("h800x16", 0.02, 0.01),
            ("dgx-h100x4", 0.4, 0.12),
            ("dgx2x1", 0.01, 0.01),
            ("fat-tree:4x4", 0.1, 0.4),
        ] {
            for (collective, most) in [
                (Collective::AllGather, gathering),
                (Collective::ReduceScatter, gathering),
                (Collective::AllReduce, f64::INFINITY),
                (Collective::AllToAll, exchanging),
            ] {
                let problem = problem(spec, collective, 1);
                assert!(wants_compression(&problem, 10));
                let found = synthesize_compressed(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {});
                let found = found.unwrap_or_else(|error| panic!("{spec} {collective}: {error}"));
                let gap = found.report.gap.expect("there is a bound");
                assert!((0.0..=most).contains(&gap), "{spec} {collective}: {gap}");
                let plain = found.schedule.expand(1 << 20).expect("few transfers");
                verify(plain, &problem.topology).unwrap_or_else(|error| panic!("{spec} {collective}: {error}"));
            }
        }
    }

    #[test]
    fn exchanges_on_direct_machines_are_balanced() {
        for (spec, most) in
            [("torus2d:5x5", 0.03), ("torus2d:4x6", 0.02), ("ring:6,direction=both", 0.36), ("clique:7", 0.01)]
        {
            let problem = problem(spec, Collective::AllToAll, 1);
            let found = synthesize_compressed(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {});
            let found = found.unwrap_or_else(|error| panic!("{spec}: {error}"));
            let gap = found.report.gap.expect("there is a bound");
            assert!((0.0..=most).contains(&gap), "{spec}: {gap}");
            let plain = found.schedule.expand(1 << 20).expect("few transfers");
            verify(plain, &problem.topology).unwrap_or_else(|error| panic!("{spec}: {error}"));
        }
    }

    #[test]
    fn what_cannot_be_compressed_is_refused_with_a_reason() {
        for (spec, collective) in [("line:5", Collective::AllGather), ("ring:4", Collective::Broadcast)] {
            let refused = synthesize_compressed(&[problem(spec, collective, 1)], &SearchOptions::default(), &|_| {});
            assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{spec}: {refused:?}");
        }
        let nothing = synthesize_compressed(&[], &SearchOptions::default(), &|_| {});
        assert!(matches!(nothing, Err(SynthError::NoProblem)));
    }
}
