mod calendar;
mod crossings;
mod spreading;

use crate::milp::orbits::Orbits;
use crate::milp::solver::{Controls, Ending, solve};
use crate::{Attempt, Context, Problem, StopReason, SynthError};
use calendar::Calendar;
use crossings::{Islands, Plan};
use schedule::{Message, Schedule, TransferKind, replay};
use spreading::Spreading;
use topology::Micros;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-routing";

pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let orbits = Orbits::new(problem);
    let env = |name: &str, default: u64| std::env::var(name).ok().map_or(default, |v| v.parse().unwrap());
    let mut best: Option<Schedule> = None;
    let Some(islands) = Islands::new(problem) else {
        return Ok(Attempt { name: NAME.to_owned(), schedule: None, stop: StopReason::Exhausted, note: None });
    };
    let units = units(&islands);
    eprintln!("units {units:?}");
    for plan in islands.plans() {
        eprintln!("plan {:?}", plan.iter().map(|c| (c.link.0, c.chunks.len())).collect::<Vec<_>>());
        for &early in &units {
            for &late in &units {
                let timed = islands.time(&plan, early);
                let earliest = islands.earliest_end(&timed, late);
                for extra in [0.0, 1.0, 2.0, 4.0] {
                    let end = earliest + late * extra;
                    let anchor = islands.first_fetching(&timed).unwrap_or(Micros::ZERO);
                    let Some(calendar) = Calendar::new(anchor, early, end, late, 512) else {
                        eprintln!("  calendar");
                        continue;
                    };
                    let Some(spreading) =
                        Spreading::new(&islands, &calendar, &timed, env("PAT", 12) as usize, orbits.as_ref(), 60000)
                    else {
                        eprintln!("  none {early} {late} {end}");
                        continue;
                    };
                    let started = std::time::Instant::now();
                    let deadline = crate::Deadline::after(
                        Some(std::time::Duration::from_secs(env("SEC", 10))),
                        Default::default(),
                    );
                    let controls = Controls {
                        iterations: env("ITER", 1_000_000_000),
                        nodes: u64::MAX,
                        relative_gap: 0.0,
                        cutoff: None,
                        seed: 0,
                        deadline: &deadline,
                    };
                    let outcome = solve(&spreading.model, &[], &controls, &mut |_| {})?;
                    eprint!(
                        "  {early} {late} {end} ({} periods): {} columns {} rows, {:.1}s, {} iter: ",
                        calendar.len(),
                        spreading.model.columns(),
                        spreading.model.rows(),
                        started.elapsed().as_secs_f64(),
                        outcome.iterations
                    );
                    let solution = match outcome.ending {
                        Ending::Optimal(solution) => solution,
                        Ending::Limit { incumbent: Some(solution), .. } => solution,
                        Ending::Limit { .. } => {
                            eprintln!("limit");
                            break;
                        }
                        other => {
                            eprintln!("{other:?}");
                            continue;
                        }
                    };
                    let schedule = assemble(problem, &calendar, &timed, &spreading.rides(&solution))?;
                    eprintln!("   replayed {}", schedule.makespan());
                    if best.as_ref().is_none_or(|best| schedule.makespan() < best.makespan()) {
                        best = Some(schedule);
                    }
                    break;
                }
            }
        }
        let _: &Plan = &plan;
    }
    let _ = context;
    Ok(Attempt { name: NAME.to_owned(), schedule: best, stop: StopReason::Exhausted, note: None })
}

/// Lengths of periods worth trying.
fn units(islands: &Islands<'_>) -> Vec<Micros> {
    let problem = islands.problem;
    let bytes = problem.demand.chunk_bytes();
    let mut lengths: Vec<Micros> = Vec::new();
    for id in problem.topology.link_ids().filter(|id| islands.fast[id.index()]) {
        let link = problem.topology.link(id);
        let single = link.transfer_time(bytes);
        lengths.push(single);
        if link.alpha.0 > 0.2 * single.0 {
            lengths.extend([2.0, 4.0, 8.0, 16.0].map(|count| link.transfer_time(bytes * count)));
        }
    }
    lengths.sort_by(Micros::total_cmp);
    lengths.dedup_by(|a, b| a.0 < b.0 * 1.02);
    lengths
}

fn assemble(
    problem: &Problem,
    calendar: &Calendar,
    timed: &[crossings::Timed],
    rides: &[spreading::Ride],
) -> Result<Schedule, SynthError> {
    let kind = TransferKind::Copy;
    let mut messages: Vec<(f64, Message)> = timed
        .iter()
        .map(|timed| {
            (
                timed.start.0,
                Message { chunks: timed.crossing.chunks.iter().copied().collect(), link: timed.crossing.link, kind },
            )
        })
        .collect();
    for together in rides.chunk_by(|a, b| (a.first, a.link) == (b.first, b.link)) {
        let chunks = together.iter().map(|ride| ride.chunk);
        let merge = problem.topology.link(together[0].link).alpha > Micros::ZERO;
        let start = calendar.between(together[0].first, together[0].first);
        let _ = start;
        let at = calendar.start(together[0].first).0;
        if merge {
            messages.push((at, Message { chunks: chunks.collect(), link: together[0].link, kind }));
        } else {
            messages
                .extend(chunks.map(|chunk| {
                    (at, Message { chunks: [chunk].into_iter().collect(), link: together[0].link, kind })
                }));
        }
    }
    messages.sort_by(|a, b| a.0.total_cmp(&b.0));
    let messages: Vec<Message> = messages.into_iter().map(|(_, message)| message).collect();
    let transfers = replay(&problem.demand, &problem.topology, &messages)
        .map_err(|error| SynthError::Order { strategy: NAME, error })?;
    Ok(Schedule::new(&problem.topology, problem.demand.clone(), transfers, NAME))
}
