//! Which links might share something.
//!
//! The principal type is [`Suspicion`]: pairs to run at the same time, and the links that are concerned if it
//! turns out that they wait for each other. Tried are, broadest first: everything inside a machine (a memory
//! bus), everything that leaves or enters a machine (a NIC), everything that leaves or enters a rank (a port).
//! Links of clearly different speed are tried apart; together, the slow ones would hide what the fast ones do.

use crate::fit::LinkFit;
use crate::rounds::{Pair, Round};
use crate::{Rank, Topology};
use std::collections::BTreeMap;

/// Links that may share something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Suspicion {
    /// What the shared thing would be called.
    pub(crate) name: String,
    /// The pairs to run together, at least two.
    pub(crate) tested: Round,
    /// Every link that would use it, sorted.
    pub(crate) users: Vec<Pair>,
}

/// Links within this factor of each other are of one kind.
const KIND: f64 = 1.5;

/// Everything worth trying on ranks placed in machines as `places` says, given what each pair costs alone.
pub(crate) fn suspicions(places: &Topology, fits: &BTreeMap<Pair, LinkFit>) -> Vec<Suspicion> {
    let mut found = Vec::new();
    let mut suspect = |name: String, tested: Round, concerns: &dyn Fn(&Pair) -> bool| {
        split(&name, tested, concerns, fits, &mut found);
    };
    let home = |rank: Rank| places.machine_of(rank);
    for (machine, members) in places.machines().iter().enumerate() {
        // Everybody sends and receives once, so that ports are not mistaken for a bus.
        let next = members.iter().cycle().skip(1);
        let inside = |pair: &Pair| home(pair.from) == machine && home(pair.to) == machine;
        if members.len() > 2 {
            suspect(format!("machine{machine}.bus"), zip(members.iter(), next), &inside);
        }
        if members.len() > 1 {
            let others = others(places, machine);
            let leaves = |pair: &Pair| home(pair.from) == machine && home(pair.to) != machine;
            suspect(format!("machine{machine}.nic.tx"), zip(members.iter(), others.iter()), &leaves);
            let enters = |pair: &Pair| home(pair.from) != machine && home(pair.to) == machine;
            suspect(format!("machine{machine}.nic.rx"), zip(others.iter(), members.iter()), &enters);
        }
    }
    for rank in places.ranks() {
        let others = || places.ranks().filter(move |other| *other != rank);
        let sent = others().map(|to| Pair { from: rank, to }).collect();
        suspect(format!("rank{rank}.tx"), sent, &|pair| pair.from == rank);
        let received = others().map(|from| Pair { from, to: rank }).collect();
        suspect(format!("rank{rank}.rx"), received, &|pair| pair.to == rank);
    }
    found
}

fn zip<'r>(senders: impl Iterator<Item = &'r Rank>, receivers: impl Iterator<Item = &'r Rank>) -> Round {
    senders.zip(receivers).map(|(&from, &to)| Pair { from, to }).collect()
}

/// The ranks of all other machines, one of each machine in turn, so that no other machine's NIC is the bottleneck
/// where there are several.
fn others(places: &Topology, machine: usize) -> Vec<Rank> {
    let mut others: Vec<(usize, Rank)> = Vec::new();
    for (_, members) in places.machines().iter().enumerate().filter(|(other, _)| *other != machine) {
        others.extend(members.iter().copied().enumerate());
    }
    others.sort_by_key(|(position, _)| *position);
    others.into_iter().map(|(_, rank)| rank).collect()
}

/// One suspicion for each kind of link among `tested`.
fn split(
    name: &str,
    mut tested: Round,
    concerns: &dyn Fn(&Pair) -> bool,
    fits: &BTreeMap<Pair, LinkFit>,
    found: &mut Vec<Suspicion>,
) {
    let beta = |pair: &Pair| fits.get(pair).map_or(0.0, |fit| fit.beta.0);
    tested.sort_by(|left, right| beta(left).total_cmp(&beta(right)));
    for (kind, tested) in tested.chunk_by(|left, right| beta(right) <= KIND * beta(left)).enumerate() {
        let [fastest, .., slowest] = tested else { continue };
        let range = beta(fastest) / KIND..=beta(slowest) * KIND;
        found.push(Suspicion {
            name: if kind == 0 { name.to_owned() } else { format!("{name}.{kind}") },
            users: fits.keys().filter(|pair| concerns(pair) && range.contains(&beta(pair))).copied().collect(),
            tested: tested.to_vec(),
        });
    }
}
