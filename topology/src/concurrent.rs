//! The cost of exchanges that run at the same time, by the model of the machine.
//!
//! The principal function is [`together`]. Messages share a resource in one of two ways: a network cuts them into
//! packets and gives each message its part ([`Sharing::Fair`]); schedules and emulated machines serve one message after
//! the other ([`Sharing::InTurn`]). For messages of equal length, both ways give almost the same last arrival.

use crate::{Bytes, Exchange, FreeTimes, Latency, LinkId, Micros, Topology};

/// How messages share a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// All move at once. Each is as fast as possible without slowing down a message that is not faster (max-min
    /// fairness).
    Fair,
    /// One message at a time, in the order given.
    InTurn,
}

/// When each of the exchanges has arrived, if all start at once; each takes the first link between its ranks.
/// `None` if a pair has no link.
pub fn together(topology: &Topology, exchanges: &[Exchange], sharing: Sharing) -> Option<Vec<Micros>> {
    let link = |exchange: &Exchange| topology.between(exchange.from, exchange.to).next();
    let links: Vec<LinkId> = exchanges.iter().map(link).collect::<Option<_>>()?;
    Some(match sharing {
        Sharing::Fair => fair(topology, exchanges, &links),
        Sharing::InTurn => in_turn(topology, exchanges, &links),
    })
}

fn in_turn(topology: &Topology, exchanges: &[Exchange], links: &[LinkId]) -> Vec<Micros> {
    let mut free = FreeTimes::new(topology);
    let mut arrive = |exchange: &Exchange, id: LinkId| {
        let bytes = Bytes(exchange.bytes as f64);
        (0..exchange.messages).fold(Micros::ZERO, |last, _| {
            let start = free.earliest(topology, id);
            free.occupy(topology, id, start, bytes);
            last.max(start + topology.link(id).transfer_time(bytes))
        })
    };
    exchanges.iter().zip(links).map(|(exchange, id)| arrive(exchange, *id)).collect()
}

/// Moves all exchanges at their fair rates until the next one is finished, and repeats this.
fn fair(topology: &Topology, exchanges: &[Exchange], links: &[LinkId]) -> Vec<Micros> {
    let mut left: Vec<f64> =
        exchanges.iter().map(|exchange| exchange.bytes as f64 * f64::from(exchange.messages)).collect();
    let mut ends = vec![Micros::ZERO; exchanges.len()];
    let mut moving: Vec<usize> = (0..exchanges.len()).filter(|&index| left[index] > 0.0).collect();
    let mut now = 0.0;
    while !moving.is_empty() {
        let rates = fair_rates(topology, &moving.iter().map(|&index| links[index]).collect::<Vec<_>>());
        let finish = |(position, &index): (usize, &usize)| left[index] / rates[position];
        let step = moving.iter().enumerate().map(finish).fold(f64::INFINITY, f64::min);
        now += step;
        for (&index, rate) in moving.iter().zip(&rates) {
            let after = left[index] - rate * step;
            // A rest below one byte is rounding.
            left[index] = if after < 1e-3 || rate.is_infinite() { 0.0 } else { after };
            ends[index] = Micros(now);
        }
        moving.retain(|&index| left[index] > 0.0);
    }
    // Each message of all flows over a resource takes a turn of its own there; the last one to arrive has waited for all others.
    let mut messages = vec![0.0; topology.resources().len()];
    for (exchange, id) in exchanges.iter().zip(links) {
        let count = f64::from(exchange.messages);
        topology.link(*id).resources.iter().for_each(|shared| messages[shared.index()] += count);
    }
    let turns = |id: LinkId| {
        let shared = topology.link(id).resources.iter();
        let wait = shared.map(|id| topology.resource(*id).alpha * (messages[id.index()] - 1.0));
        wait.fold(Micros::ZERO, Micros::max)
    };
    let delay = |(exchange, id): (&Exchange, &LinkId)| {
        let link = topology.link(*id);
        let paid = if link.latency == Latency::Occupies { f64::from(exchange.messages) } else { 1.0 };
        link.alpha * paid + turns(*id)
    };
    ends.iter().zip(exchanges.iter().zip(links)).map(|(end, flow)| *end + delay(flow)).collect()
}

/// Bytes per microsecond of each flow: all rates grow together until a link or a resource is full.
fn fair_rates(topology: &Topology, links: &[LinkId]) -> Vec<f64> {
    let mut rates = vec![f64::INFINITY; links.len()];
    let mut open: Vec<usize> = (0..links.len()).collect();
    let mut spare: Vec<f64> = topology.resources().iter().map(|resource| 1.0 / resource.beta.0).collect();
    let mut users = vec![0usize; spare.len()];
    let uses = |flow: usize| topology.link(links[flow]).resources.iter().map(|id| id.index());
    open.iter().for_each(|&flow| uses(flow).for_each(|id| users[id] += 1));
    while !open.is_empty() {
        let own = |flow: usize| 1.0 / topology.link(links[flow]).beta.0;
        let share = |id: usize| spare[id] / users[id] as f64;
        let limit = |flow: usize| uses(flow).map(share).fold(own(flow), f64::min);
        let limits: Vec<f64> = open.iter().map(|&flow| limit(flow)).collect();
        let least = limits.iter().copied().fold(f64::INFINITY, f64::min);
        let (full, rest): (Vec<_>, Vec<_>) =
            open.iter().copied().zip(limits).partition(|(_, limit)| *limit <= least * (1.0 + 1e-9));
        for (flow, _) in full {
            rates[flow] = least;
            uses(flow).for_each(|id| {
                spare[id] = (spare[id] - least).max(0.0);
                users[id] -= 1;
            });
        }
        open = rest.into_iter().map(|(flow, _)| flow).collect();
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rank, resolve};

    fn exchange(from: u32, to: u32, bytes: u64) -> Exchange {
        Exchange { from: Rank(from), to: Rank(to), bytes, messages: 1 }
    }

    fn times(spec: &str, exchanges: &[Exchange], sharing: Sharing) -> Vec<f64> {
        let topology = resolve(spec).unwrap();
        together(&topology, exchanges, sharing).unwrap().into_iter().map(|time| (time.0 * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn a_port_is_shared_and_separate_ports_are_not() {
        // 1 byte per nanosecond, so 1000 bytes take a microsecond; α is 1 µs.
        let spec = "switch:4,alpha=1us,bandwidth=1GBps,latency=pipelines";
        let out = [exchange(0, 1, 1000), exchange(0, 2, 3000)];
        // Fair: both at half the rate until 1000 bytes each are through, then the second alone.
        assert_eq!(times(spec, &out, Sharing::Fair), [3.0, 5.0]);
        assert_eq!(times(spec, &out, Sharing::InTurn), [2.0, 5.0]);
        let apart = [exchange(0, 1, 1000), exchange(2, 3, 3000), exchange(1, 0, 0)];
        for sharing in [Sharing::Fair, Sharing::InTurn] {
            assert_eq!(times(spec, &apart, sharing), [2.0, 4.0, 1.0]);
        }
        // A flow may use what another one cannot: 0→1 gets a third of rank 1's port, so 0→2 gets two thirds of rank
        // 0's.
        let crossed = [exchange(0, 1, 1000), exchange(0, 2, 2000), exchange(2, 1, 1000), exchange(3, 1, 1000)];
        assert_eq!(times(spec, &crossed, Sharing::Fair), [4.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn messages_back_to_back_pay_what_occupies_each_time() {
        let four = [Exchange { messages: 4, ..exchange(0, 1, 500) }];
        for sharing in [Sharing::Fair, Sharing::InTurn] {
            assert_eq!(times("clique:2,alpha=1us,bandwidth=1GBps", &four, sharing), [6.0]);
            assert_eq!(times("switch:2,alpha=1us,bandwidth=1GBps,latency=pipelines", &four, sharing), [3.0]);
        }
        let line = resolve("line:3").unwrap();
        assert_eq!(together(&line, &[exchange(0, 2, 1)], Sharing::Fair), None);
    }
}
