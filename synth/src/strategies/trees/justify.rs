//! Justification: plays given trees backwards and forwards in turn, and keeps the best play.
//!
//! The principal function is [`justified`].

use super::machine::LoadedMachine;
use super::messages::{ChunkMessage, TreeMessages};
use super::play::{Direction, Horizon, PlayedTrees, TreePlayer, durations};
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::{beats, reaches};
use crate::problem::{Deadline, Problem};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::TransferKind;
use std::collections::BTreeMap;
use topology::Micros;

/// The most (rank, chunk) pairs for which detours are allowed; for more, chunks keep to their trees.
const MOST_PLACES: usize = 1 << 25;
/// Where the horizon of detours lies between the bound (0) and the best makespan so far (1).
const REACH: [f64; 4] = [0.5, 1.0, 0.25, 0.75];
/// After this many plays without a gain, the search continues from the best play.
const PATIENCE: u32 = 6;
/// After this many plays without a gain, the search ends.
const MOST_STALE: u32 = 36;

/// The effort of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct JustifyEffort {
    /// The most pairs of plays, one in each direction.
    pub(super) passes: u32,
    /// A makespan that is good enough, in µs.
    pub(super) bound: f64,
    /// Whether each message also stands for its images.
    pub(super) is_symmetric: bool,
}

/// TreeMessages in the order of their starts (µs), and the last arrival.
#[derive(Clone, Debug)]
pub(super) struct TimedMessages {
    pub(super) jobs: TreeMessages,
    pub(super) starts: Vec<f64>,
    pub(super) makespan: f64,
}

/// The fastest of several plays of `messages`; `None` if the time is up and a schedule exists already.
pub(super) fn justified(
    problem: &Problem,
    machine: &LoadedMachine,
    jobs: TreeMessages,
    effort: JustifyEffort,
    deadline: &Deadline,
    random: &mut Pcg64Mcg,
) -> Option<TimedMessages> {
    let may_detour = !effort.is_symmetric && may_detour(problem, &jobs);
    let horizon = |best: f64, reach: f64| may_detour.then_some(Horizon(effort.bound + (best - effort.bound) * reach));
    let times: Vec<f64> = durations(problem, &jobs, machine).collect();
    // The longest way to go comes first.
    let urgency = ranked(&tails(&jobs, &times).iter().map(|tail| -tail).collect::<Vec<_>>());
    let detours = horizon(effort.bound * 1.04, 1.0);
    let patient = deadline.patient();
    let first = if deadline.is_strict() { deadline } else { &patient };
    let played = TreePlayer::new(problem, &jobs, machine).play(&urgency, Direction::Forwards { detours }, first)?;
    let mut best = TimedMessages::new(problem, &jobs, played);
    let mut last = best.clone();
    let mut stale = 0;
    let mut since = 0;
    for pass in 0..effort.passes {
        since += 1;
        if since > MOST_STALE || reaches(Micros(best.makespan), Micros(effort.bound)) || deadline.has_passed() {
            break;
        }
        let times: Vec<f64> = durations(problem, &last.jobs, machine).collect();
        // Each direction plays in the order in which the other one ends.
        let ended = |starts: &[f64]| starts.iter().zip(&times).map(|(start, time)| -start - time).collect();
        let ends: Vec<f64> = ended(&last.starts);
        let player = TreePlayer::new(problem, &last.jobs, machine);
        let Some(backwards) = player.play(&ranked(&ends), Direction::Backwards, deadline) else { break };
        let mut latest: Vec<f64> = ended(&backwards.starts);
        if stale > 0 {
            let longest = times.iter().copied().fold(0.0, f64::max);
            let noise = longest * f64::from(stale) / 2.0;
            latest.iter_mut().for_each(|start| *start += noise * f64::from(random.next_u32() % 1024) / 1024.0);
        }
        let detours = horizon(best.makespan, REACH[pass as usize % REACH.len()]);
        let player = TreePlayer::new(problem, &last.jobs, machine);
        let forwards = Direction::Forwards { detours };
        let Some(played) = player.play(&ranked(&latest), forwards, deadline) else { break };
        last = TimedMessages::new(problem, &last.jobs, played);
        if beats(Micros(last.makespan), Micros(best.makespan)) {
            best = last.clone();
            stale = 0;
            since = 0;
        } else {
            stale += 1;
            if stale == PATIENCE {
                last = best.clone();
                stale = 1;
            }
        }
    }
    Some(best)
}

/// Whether chunks may take other links than planned: nothing is reduced, no sketch limits ways, and the tables are not
/// too large.
fn may_detour(problem: &Problem, jobs: &TreeMessages) -> bool {
    let places = problem.topology.rank_count() * problem.demand.chunks().len();
    places <= MOST_PLACES
        && !problem.constraints.exceeds(&RuleKind::OF_LINKS)
        && jobs.all.iter().all(|job| job.kind == TransferKind::Copy)
        && problem.demand.chunks().iter().all(|chunk| !chunk.combine)
}

impl TimedMessages {
    fn new(problem: &Problem, jobs: &TreeMessages, played: PlayedTrees) -> Self {
        let PlayedTrees { links, starts, makespan } = played;
        let mut order: Vec<u32> = (0..starts.len() as u32).collect();
        // Of equal starts, the first in the list comes first, so that no message comes before one that it waits for.
        order.sort_by(|&a, &b| starts[a as usize].total_cmp(&starts[b as usize]).then(a.cmp(&b)));
        if links.iter().zip(&jobs.all).all(|(&link, job)| link == job.link) {
            let all = order.iter().map(|&job| jobs.all[job as usize]).collect();
            let mut place = vec![0; starts.len()];
            order.iter().enumerate().for_each(|(new, &old)| place[old as usize] = new as u32);
            let waits: Vec<(u32, u32)> = jobs
                .followers
                .pairs()
                .map(|(earlier, later)| (place[earlier as usize], place[later as usize]))
                .collect();
            let starts = order.iter().map(|&job| starts[job as usize]).collect();
            return Self { jobs: TreeMessages::new(all, &waits), starts, makespan };
        }
        let mut arriving: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let (mut all, mut waits) = (Vec::with_capacity(order.len()), Vec::new());
        for (new, &old) in order.iter().enumerate() {
            let job = ChunkMessage { link: links[old as usize], ..jobs.all[old as usize] };
            let ends = problem.topology.link(job.link);
            if let Some(&before) = arriving.get(&(job.chunk.0, ends.from.0)) {
                waits.push((before, new as u32));
            }
            arriving.insert((job.chunk.0, ends.to.0), new as u32);
            all.push(job);
        }
        let starts = order.iter().map(|&job| starts[job as usize]).collect();
        Self { jobs: TreeMessages::new(all, &waits), starts, makespan }
    }
}

/// The time from the start of each message until everything that depends on it could have arrived.
fn tails(jobs: &TreeMessages, times: &[f64]) -> Vec<f64> {
    let mut tails = times.to_vec();
    for job in (0..jobs.all.len()).rev() {
        let behind = jobs.followers.of(job).iter().map(|&next| tails[next as usize]).fold(0.0, f64::max);
        tails[job] += behind;
    }
    tails
}

/// The position of each message in the ascending order of `values`.
fn ranked(values: &[f64]) -> Vec<u32> {
    crate::ordering::ranked(values.len(), |a, b| values[a].total_cmp(&values[b]))
}
