//! Certificates of bounds by crossings.

use super::*;

/// Chunks on their way into a set of ranks, for a search that tries all orders of messages.
struct Entering<'a> {
    machine: &'a Machine,
    inside: &'a BTreeSet<usize>,
    /// For each rank of the set, the time that a chunk takes from it to the target.
    tail: Vec<f64>,
    bytes: f64,
    chunks: usize,
}

impl Entering<'_> {
    /// The earliest end, where chunk c has come to rank r at `came[r][c]`, links are free at `free`, no message leaves before `now`, and
    /// the chunks of `entered` are at the target by `end`. Nothing later than `best` is of interest.
    fn best(&self, came: &[Vec<f64>], free: &[f64], now: f64, (entered, end): (usize, f64), best: f64) -> f64 {
        if end >= best {
            return best;
        }
        if entered == self.chunks {
            return end;
        }
        let mut best = best;
        for (id, link) in self.machine.links.iter().enumerate() {
            let enters = self.inside.contains(&link.to);
            if self.inside.contains(&link.from) {
                continue;
            }
            let is_new = |chunk: usize| match enters {
                true => entered >> chunk & 1 == 0,
                false => came[link.to][chunk].is_infinite(),
            };
            let useful = |&chunk: &usize| came[link.from][chunk].is_finite() && is_new(chunk);
            let useful: Vec<usize> =
                (0..self.machine.ranks).filter(|&it| self.chunks >> it & 1 == 1).filter(useful).collect();
            for some in 1..1usize << useful.len() {
                let carried = || (0..useful.len()).filter(|at| some >> at & 1 == 1).map(|at| useful[at]);
                let start = carried().map(|it| came[link.from][it]).fold(free[id].max(now), f64::max);
                let size = self.bytes * carried().count() as f64;
                let arrival = start + link.alpha + link.beta * size;
                let (mut came, mut free) = (came.to_vec(), free.to_vec());
                free[id] = if link.occupies { arrival } else { start + link.beta * size };
                carried().for_each(|it| came[link.to][it] = arrival);
                let there = match enters {
                    true => {
                        (entered | carried().map(|it| 1 << it).sum::<usize>(), end.max(arrival + self.tail[link.to]))
                    }
                    false => (entered, end),
                };
                best = self.best(&came, &free, start, there, best);
            }
        }
        best
    }
}

/// The earliest time at which all chunks of a certificate can be at its target, by trying all orders of messages.
fn earliest(machine: &Machine, share: f64, certificate: &Value) -> f64 {
    let numbers = |list: &Value| -> Vec<usize> {
        list.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as usize).collect()
    };
    let inside: BTreeSet<usize> = numbers(&certificate["ranks"]).into_iter().collect();
    let target = certificate["target"].as_u64().map_or_else(|| *inside.first().unwrap(), |it| it as usize);
    let chunks: Vec<usize> = certificate["classes"].as_array().unwrap().iter().flat_map(numbers).collect();
    assert!(chunks.iter().all(|chunk| !inside.contains(chunk)), "{certificate}");
    let cost = |_: usize, link: &Link| link.alpha + link.beta * share;
    let tail = (0..machine.ranks).map(|rank| machine.distances(rank, cost)[target]).collect();
    let came = |rank| (0..machine.ranks).map(|chunk| if chunk == rank { 0.0 } else { f64::INFINITY }).collect();
    let came: Vec<Vec<f64>> = (0..machine.ranks).map(came).collect();
    let chunks = chunks.into_iter().map(|chunk| 1 << chunk).sum();
    let entering = Entering { machine, inside: &inside, tail, bytes: share, chunks };
    entering.best(&came, &vec![0.0; machine.links.len()], 0.0, (0, 0.0), f64::INFINITY)
}

#[test]
fn bounds_by_crossings_follow_from_their_certificates() {
    let mut tight = 0;
    for spec in [
        "line:4,alpha=1us,bandwidth=1GBps",
        "ring:3,alpha=2us,bandwidth=1GBps",
        "clique:3,alpha=1us",
        "line:3",
        "ring:4",
    ] {
        let machine = Machine::of(spec);
        for share in [10, 1_000, 100_000] {
            let size = machine.ranks as u64 * share;
            let command = format!("bound --topology {spec} --collective allgather --size {size} --chunks 1 --json");
            let told = antiphon(&command).ok().json();
            let bounds = told["bounds"].as_array().unwrap();
            for bound in bounds.iter().filter(|bound| bound["name"] == "crossing") {
                let (value, best) =
                    (bound["value_us"].as_f64().unwrap(), earliest(&machine, share as f64, &bound["certificate"]));
                assert!(
                    value <= best * (1.0 + CLOSE),
                    "{spec}, {share} bytes: {value} µs, possible in {best}: {bound}"
                );
                tight += usize::from(value >= best * (1.0 - CLOSE));
            }
        }
    }
    assert!(tight >= 8, "{tight}");
}
