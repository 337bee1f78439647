//! Which textbook algorithm a plan is: what it says, and what its messages do.
//!
//! The principal function is [`algorithm`]. Another library gets to know an algorithm only by its name, so a plan that has the
//! name and does something else must not be named. Ranks are those of the textbook: blocks in the order of ranks, root 0.

use crate::key::TableKey;
use schedule::{Collective, Demand, TransferKind, file};
use serde_json::Value;
use std::collections::BTreeSet;

/// A textbook algorithm, as far as other libraries have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Textbook {
    /// Every block once around, from neighbour to neighbour.
    Ring,
    /// Bruck's AllGather.
    Bruck,
    /// Partners at doubling distances exchange all blocks that they have; sums go the other way around (recursive halving).
    Doubling,
    /// Partners at doubling distances exchange whole sums.
    Exchange,
    /// Every block directly from its source to its destination.
    Linear,
    /// A binomial tree.
    Binomial,
    /// From rank to rank.
    Chain,
}

/// A message of a chunk: whether it is added, the chunk, from where, to where.
type ChunkHop = (bool, usize, usize, usize);
/// A way of one chunk: from where to where.
type RankPair = (usize, usize);

/// The algorithm of a plan that is right for this collective among the ranks of a key; `None` if it is another one, or if another
/// version has made it.
pub(crate) fn algorithm(plan: &Value, key: &TableKey, collective: Collective) -> Option<Textbook> {
    let file = file::read(&plan.to_string(), "plan").ok().filter(|file| file.mismatches.is_empty())?;
    let (demand, made) = (&file.schedule.demand, &file.schedule.produced_by);
    let request = demand.request();
    let is_for_all = request.members.len() == request.ranks && request.root.is_none_or(|root| root.index() == 0);
    let is_such = request.collective == collective && request.ranks == key.ranks && request.chunks_per_rank == 1;
    if !is_for_all || !is_such || made.version != env!("CARGO_PKG_VERSION") {
        return None;
    }
    let (named, is_rooted) = match made.strategy.strip_prefix("classic/")? {
        "ring" => (Textbook::Ring, false),
        "bruck" => (Textbook::Bruck, false),
        "recursive-doubling" => (Textbook::Doubling, false),
        "doubling" => (Textbook::Exchange, false),
        "all-pairs" | "tree" => (Textbook::Linear, false),
        "tree/rooted" => (Textbook::Linear, true),
        "binomial" => (Textbook::Binomial, false),
        "chain" => (Textbook::Chain, false),
        _ => return None,
    };
    let mut done: BTreeSet<ChunkHop> = BTreeSet::new();
    for transfer in &file.schedule.transfers {
        for chunk in transfer.chunks.iter() {
            let adds = transfer.kind == TransferKind::Reduce;
            if !done.insert((adds, chunk.index(), transfer.from.index(), transfer.to.index())) {
                return None;
            }
        }
    }
    let expected = hops(demand, (named, is_rooted))?;
    // A ring has two directions, and sums may go the other way around than what is copied.
    let directions = if named == Textbook::Ring {
        &[[false, false], [false, true], [true, false], [true, true]][..]
    } else {
        &[[false; 2]]
    };
    let is_it = directions.iter().any(|turned| {
        let turn = |hop: &ChunkHop| if turned[usize::from(hop.0)] { mirrored(*hop, request.ranks) } else { *hop };
        done == expected.iter().map(turn).collect()
    });
    is_it.then_some(named)
}

/// The same hop the other way around the ring, for the chunk of the same rank.
fn mirrored((adds, chunk, from, to): ChunkHop, ranks: usize) -> ChunkHop {
    let across = |rank: usize| (2 * chunk + ranks - rank) % ranks;
    (adds, chunk, across(from), across(to))
}

/// All hops of an algorithm for a demand; `None` if it does not apply.
fn hops(demand: &Demand, (named, is_rooted): (Textbook, bool)) -> Option<BTreeSet<ChunkHop>> {
    let (collective, ranks) = (demand.request().collective, demand.request().ranks);
    let mut hops = BTreeSet::new();
    for (chunk, what) in demand.chunks().iter().enumerate() {
        let (source, wanted) = (what.holders.first()?.index(), what.wanted_by.first()?.index());
        let (added, copied): (Vec<RankPair>, Vec<RankPair>) = match collective {
            Collective::AllGather => (Vec::new(), spread(named, ranks, source)?),
            Collective::ReduceScatter => (reversed(spread(named, ranks, wanted)?), Vec::new()),
            Collective::AllReduce => match named {
                Textbook::Exchange => (partners(ranks)?, Vec::new()),
                Textbook::Ring | Textbook::Doubling => {
                    (reversed(spread(named, ranks, chunk)?), spread(named, ranks, chunk)?)
                }
                Textbook::Linear if is_rooted => (reversed(spread(named, ranks, 0)?), spread(named, ranks, 0)?),
                _ => return None,
            },
            Collective::Broadcast => (Vec::new(), tree(named, ranks)?),
            Collective::Reduce => (reversed(tree(named, ranks)?), Vec::new()),
            Collective::Scatter => (Vec::new(), path(named, wanted)?),
            Collective::Gather => (Vec::new(), reversed(path(named, source)?)),
            Collective::AllToAll if named == Textbook::Linear => (Vec::new(), vec![(source, wanted)]),
            Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv | Collective::Custom => return None,
        };
        let of = |adds, ways: Vec<RankPair>| ways.into_iter().map(move |(from, to)| (adds, chunk, from, to));
        hops.extend(of(true, added).chain(of(false, copied)).filter(|(_, _, from, to)| from != to));
    }
    Some(hops)
}

fn reversed(ways: Vec<RankPair>) -> Vec<RankPair> {
    ways.into_iter().map(|(from, to)| (to, from)).collect()
}

/// The distances of partners. Libraries differ in what they do with ranks beyond a power of two.
fn distances(ranks: usize) -> Option<impl Iterator<Item = usize>> {
    ranks.is_power_of_two().then(|| (0..ranks.ilog2()).map(|bit| 1 << bit))
}

/// Everybody adds what their partners have.
fn partners(ranks: usize) -> Option<Vec<RankPair>> {
    Some(distances(ranks)?.flat_map(|distance| (0..ranks).map(move |rank| (rank, rank ^ distance))).collect())
}

/// How a block gets from its owner to all others.
fn spread(named: Textbook, ranks: usize, owner: usize) -> Option<Vec<RankPair>> {
    Some(match named {
        Textbook::Ring => (owner..owner + ranks - 1).map(|at| (at % ranks, (at + 1) % ranks)).collect(),
        Textbook::Linear => (0..ranks).map(|to| (owner, to)).collect(),
        Textbook::Doubling => {
            let have = |distance: usize| (0..ranks).filter(move |rank| rank / distance == owner / distance);
            distances(ranks)?.flat_map(|distance| have(distance).map(move |rank| (rank, rank ^ distance))).collect()
        }
        Textbook::Bruck => {
            let distances = (0..usize::BITS).map(|bit| 1_usize << bit).take_while(|distance| *distance < ranks);
            let senders = |distance: usize| {
                let back = move |by: usize| (owner + 2 * ranks - by) % ranks;
                (0..distance.min(ranks - distance)).map(move |place| (back(place), back(place + distance)))
            };
            distances.flat_map(senders).collect()
        }
        Textbook::Exchange | Textbook::Binomial | Textbook::Chain => return None,
    })
}

/// How what rank 0 has gets to all others.
fn tree(named: Textbook, ranks: usize) -> Option<Vec<RankPair>> {
    let parent: fn(usize) -> usize = match named {
        Textbook::Linear => |_| 0,
        Textbook::Chain => |child| child - 1,
        Textbook::Binomial => |child| child - (1 << child.ilog2()),
        Textbook::Ring | Textbook::Bruck | Textbook::Doubling | Textbook::Exchange => return None,
    };
    Some((1..ranks).map(|child| (parent(child), child)).collect())
}

/// How a block gets from rank 0 to its owner: directly, or down the tree in which a rank's subtree follows it.
fn path(named: Textbook, owner: usize) -> Option<Vec<RankPair>> {
    let parent = |child: usize| child & (child - 1);
    match named {
        Textbook::Linear => Some(vec![(0, owner)]),
        Textbook::Binomial => {
            let up = std::iter::successors(Some(owner), |at| (*at > 0).then(|| parent(*at)));
            Some(up.take_while(|at| *at > 0).map(|at| (parent(at), at)).collect())
        }
        Textbook::Ring | Textbook::Bruck | Textbook::Doubling | Textbook::Exchange | Textbook::Chain => None,
    }
}
