//! The preferences of a sketch among schedules of equal length: few or many connections, and where the load should be.
//!
//! The principal functions are [`preference_grade`], which grades a schedule, and [`prefer`], which improves the grade without
//! more time. TACCL puts the same wishes into its objective, as T ± 0.01·U (`uc-min`, `uc-max`) or with the load of the
//! busiest or idlest link (`minmax`, `maxmin`). Here they never make a schedule longer.

use crate::ordering::replayed;
use crate::problem::tolerance::{EQUAL, reaches};
use crate::problem::{ConnectionPolicy, Objective};
use crate::problem::{Constraints, Problem};
use schedule::{ChunkId, ChunkList, Demand, Message, Schedule, Transfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::{LinkId, Micros, Rank, Topology};

/// The most changes to a schedule that are tried.
const MOST_TRIALS: u32 = 1_000;
/// The most work of all trials together, in transfers that are timed again: about a second.
const WORK: usize = 1_000_000;

/// How badly a schedule meets the preferences of a sketch; less is better. The fields are compared in order.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub(crate) struct PreferenceGrade {
    /// Unwanted connections in use, minus wanted connections in use.
    connections: i64,
    /// The grade by the objective; 0 without one.
    objective: f64,
    transfers: usize,
}

/// How badly `schedule` meets the preferences of `constraints`.
pub(crate) fn preference_grade(schedule: &Schedule, topology: &Topology, constraints: &Constraints) -> PreferenceGrade {
    grade(&schedule.transfers, &schedule.demand, topology, constraints)
}

fn grade(transfers: &[Transfer], demand: &Demand, topology: &Topology, constraints: &Constraints) -> PreferenceGrade {
    let used: BTreeSet<LinkId> = transfers.iter().map(|transfer| transfer.link).collect();
    let connections = constraints.connections.iter().map(|wish| {
        let open = wish.links.iter().filter(|link| used.contains(link)).count() as i64;
        if wish.wish == ConnectionPolicy::Few { open } else { -open }
    });
    let objective = match constraints.objective {
        None => 0.0,
        Some(Objective::Latency) => f64::from(steps(transfers, demand)),
        Some(Objective::Bandwidth) => loads(transfers, demand, topology).into_iter().fold(0.0, f64::max),
        Some(Objective::Balance) => {
            let loads = loads(transfers, demand, topology);
            let allowed = topology.link_ids().filter(|&link| constraints.allows_link(link));
            -allowed.map(|link| loads[link.index()]).fold(f64::INFINITY, f64::min)
        }
    };
    PreferenceGrade { connections: connections.sum(), objective, transfers: transfers.len() }
}

/// The most messages that any byte goes through.
fn steps(transfers: &[Transfer], demand: &Demand) -> u32 {
    let mut arrived: BTreeMap<(ChunkId, Rank), Vec<(Micros, u32)>> = BTreeMap::new();
    let mut most = 0;
    for transfer in transfers {
        for &chunk in &transfer.chunks {
            let is_source = !demand.chunk(chunk).combine && demand.chunk(chunk).holders.has(transfer.from);
            let known = arrived.get(&(chunk, transfer.from)).filter(|_| !is_source);
            let in_time = known.into_iter().flatten().filter(|(end, _)| reaches(*end, transfer.start));
            let steps = in_time.map(|&(_, steps)| steps).max().unwrap_or(0) + 1;
            most = most.max(steps);
            arrived.entry((chunk, transfer.to)).or_default().push((transfer.end, steps));
        }
    }
    most
}

/// How long the bytes of a schedule keep each link busy, in µs.
fn loads(transfers: &[Transfer], demand: &Demand, topology: &Topology) -> Vec<f64> {
    let mut loads = vec![0.0; topology.links().len()];
    for transfer in transfers {
        let bytes = demand.message_bytes(&transfer.chunks);
        loads[transfer.link.index()] += topology.link(transfer.link).byte_time(bytes).0;
    }
    loads
}

/// A schedule as short as `schedule` that the sketch prefers, if a simple change leads to one.
///
/// A change lets a chunk come to a rank over another link of the same switch, from another rank that has the chunk.
/// Unwanted connections lose their chunks to others; wanted ones gain some.
pub(crate) fn prefer(problem: &Problem, schedule: &Schedule) -> Option<Schedule> {
    let copies = !problem.demand.chunks().iter().any(|chunk| chunk.combine);
    if problem.constraints.connections.is_empty() || !copies {
        return None;
    }
    let limit = schedule.makespan().0 * (1.0 + EQUAL);
    let mut trials = MOST_TRIALS.min((WORK / schedule.transfers.len().max(1)) as u32);
    let mut best = schedule.transfers.clone();
    let graded = |transfers: &[Transfer]| grade(transfers, &problem.demand, &problem.topology, &problem.constraints);
    let mut changed = false;
    'again: loop {
        for change in changes(problem, &best) {
            if trials == 0 {
                break 'again;
            }
            trials -= 1;
            let Some(transfers) = apply(problem, &best, &change, limit) else { continue };
            if graded(&transfers).connections < graded(&best).connections {
                (best, changed) = (transfers, true);
                continue 'again;
            }
        }
        break;
    }
    changed.then(|| Schedule { transfers: best, ..schedule.clone() })
}

/// A change: chunks of one link are brought over others instead.
struct Change {
    moves: Vec<Move>,
}

/// A chunk that is brought to its receiver over another link.
#[derive(Clone, Copy, Debug)]
struct Move {
    chunk: ChunkId,
    /// The index of the transfer that brings it now.
    by: usize,
    /// The link that brings it instead, and the time from which that link's sender has the chunk.
    link: LinkId,
    since: Micros,
}

/// The changes that may make the connections in use fewer or more.
fn changes(problem: &Problem, transfers: &[Transfer]) -> Vec<Change> {
    let mut by_link: BTreeMap<LinkId, Vec<usize>> = BTreeMap::new();
    for (index, transfer) in transfers.iter().enumerate() {
        by_link.entry(transfer.link).or_default().push(index);
    }
    let mut changes = Vec::new();
    for wish in &problem.constraints.connections {
        let mut used: Vec<LinkId> = wish.links.iter().copied().filter(|link| by_link.contains_key(link)).collect();
        used.sort_by_key(|link| by_link[link].len());
        match wish.wish {
            ConnectionPolicy::Few => changes.extend(used.iter().map(|&link| {
                let others: Vec<LinkId> = used.iter().copied().filter(|&other| other != link).collect();
                Change { moves: moved(problem, transfers, &by_link[&link], &others) }
            })),
            ConnectionPolicy::Many => {
                let unused = wish.links.iter().copied().filter(|link| !by_link.contains_key(link));
                for link in unused {
                    let shared = used.iter().filter(|link| by_link[link].len() > 1).flat_map(|link| &by_link[link]);
                    let one = shared.copied().map(|index| moved(problem, transfers, &[index], &[link]));
                    changes.extend(one.filter(|moves| !moves.is_empty()).map(|moves| Change { moves }));
                }
            }
        }
    }
    changes.retain(|change| !change.moves.is_empty());
    changes
}

/// Moves each chunk of the transfers `of` to the link of `links` whose sender has had the chunk longest. The result is
/// empty if any chunk cannot be moved.
fn moved(problem: &Problem, transfers: &[Transfer], of: &[usize], links: &[LinkId]) -> Vec<Move> {
    let held_since = |chunk: ChunkId, rank: Rank| {
        if problem.demand.chunk(chunk).holders.has(rank) {
            return Some(Micros::ZERO);
        }
        let brings = |transfer: &&Transfer| transfer.to == rank && transfer.chunks.contains(&chunk);
        transfers.iter().find(brings).map(|transfer| transfer.end)
    };
    let mut moves = Vec::new();
    for &by in of {
        for &chunk in &transfers[by].chunks {
            let able = |id: &LinkId| problem.topology.link(*id).to == transfers[by].to && problem.allows(chunk, *id);
            let able = links.iter().copied().filter(able);
            let since = able.filter_map(|id| Some((held_since(chunk, problem.topology.link(id).from)?, id)));
            match since.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))) {
                Some((since, link)) => moves.push(Move { chunk, by, link, since }),
                None => return Vec::new(),
            }
        }
    }
    moves
}

/// The transfers with a change, timed again; `None` if they then take longer than `limit`, or cannot be sent.
fn apply(problem: &Problem, transfers: &[Transfer], change: &Change, limit: f64) -> Option<Vec<Transfer>> {
    let mut messages: Vec<(Micros, Message)> = Vec::with_capacity(transfers.len() + change.moves.len());
    for (index, transfer) in transfers.iter().enumerate() {
        let stays = |chunk: &ChunkId| !change.moves.iter().any(|it| it.by == index && it.chunk == *chunk);
        let kept: ChunkList = transfer.chunks.iter().copied().filter(stays).collect();
        if !kept.is_empty() {
            messages.push((transfer.start, Message { chunks: kept, link: transfer.link, kind: transfer.kind }));
        }
    }
    for &Move { chunk, by, link, since } in &change.moves {
        let message = Message { chunks: ChunkList::from_slice(&[chunk]), link, kind: TransferKind::Copy };
        messages.push((since.max(transfers[by].start), message));
    }
    messages.sort_by(|a, b| a.0.total_cmp(&b.0));
    let messages: Vec<Message> = messages.into_iter().map(|(_, message)| message).collect();
    let mut timed = replayed(problem, &messages).ok()?;
    timed.sort_by(|a, b| a.start.total_cmp(&b.start));
    timed.iter().all(|transfer| transfer.end.0 <= limit).then_some(timed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::copies;
    use crate::sketch::SketchFile;
    use schedule::{Collective, Request, replay, verify};
    use std::sync::Arc;

    /// An AllGather on three fully linked ranks under `sketch`; the messages are `(chunk, from, to)`, in order.
    fn play(sketch: &str, sent: &[(u32, u32, u32)]) -> (Problem, Schedule) {
        let topology = Arc::new(topology::resolve("clique:3,alpha=1us").unwrap());
        let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 3, 3_000)).unwrap());
        let constraints = SketchFile::parse(sketch, "s.yaml").unwrap().resolve(&topology).unwrap().constraints;
        let transfers = replay(&demand, &topology, &copies(&topology, sent)).unwrap();
        let schedule = Schedule::new(&topology, demand.clone(), transfers, "by hand");
        let problem = Problem { topology, demand, constraints: Arc::new(constraints) };
        (problem, schedule)
    }

    fn links(schedule: &Schedule) -> usize {
        schedule.transfers.iter().map(|transfer| transfer.link).collect::<BTreeSet<_>>().len()
    }

    /// All chunks go through rank 1, which is in the middle.
    const STAR: [(u32, u32, u32); 6] = [(0, 0, 1), (1, 1, 0), (1, 1, 2), (2, 2, 1), (0, 1, 2), (2, 1, 0)];
    /// The same, but rank 0 sends its chunk directly to rank 2.
    const SHORTCUT: [(u32, u32, u32); 6] = [(0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 1, 2), (2, 2, 1), (2, 1, 0)];

    #[test]
    fn connections_are_opened_and_closed_at_no_cost_in_time() {
        // With the link 0 → 2 in use, a one-way ring is possible.
        for (wish, sent, before, after) in
            [("few", &SHORTCUT, 5, 3), ("many", &STAR, 4, 6), ("few", &STAR, 4, 4), ("many", &SHORTCUT, 5, 6)]
        {
            let (problem, schedule) = play(&format!("connections: {wish}"), sent);
            assert_eq!(links(&schedule), before, "{wish}");
            let suited = prefer(&problem, &schedule).unwrap_or_else(|| schedule.clone());
            assert_eq!(links(&suited), after, "{wish}");
            assert!(suited.makespan() <= schedule.makespan(), "{wish}");
            verify(suited, &problem.topology).unwrap();
        }
        let (problem, schedule) = play("name: free", &SHORTCUT);
        assert_eq!(prefer(&problem, &schedule), None);
    }

    #[test]
    fn objectives_grade_schedules() {
        let better = |objective: &str, one: &[(u32, u32, u32)], other: &[(u32, u32, u32)]| {
            let graded = |sent| {
                let (problem, schedule) = play(&format!("objective: {objective}"), sent);
                preference_grade(&schedule, &problem.topology, &problem.constraints)
            };
            graded(one) < graded(other)
        };
        let direct = [(0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 1, 2), (2, 2, 0), (2, 2, 1)];
        // The direct schedule has fewer steps, less load on the busiest link, and some on the idlest. A single shortcut
        // improves none of these.
        for objective in ["latency", "bandwidth", "balance"] {
            assert!(better(objective, &direct, &STAR), "{objective}");
            assert!(!better(objective, &SHORTCUT, &STAR) && !better(objective, &STAR, &SHORTCUT), "{objective}");
        }
    }
}
