//! Schedules that must be accepted.

use crate::plans::{COLLECTIVES, Dice, any_plan, link, machine, plan, ring, switch};
use schedule::{Collective, Demand, Request, verify};
use std::time::Instant;
use topology::Latency;

#[test]
fn every_collective_on_every_small_machine() {
    for latency in [Latency::Occupies, Latency::Pipelines] {
        for topology in [ring(2, latency), ring(5, latency), switch(4, latency)] {
            for collective in COLLECTIVES {
                for chunks in [1, 3] {
                    let request = Request::new(collective, topology.rank_count(), 1000).with_chunks(chunks);
                    let schedule = plan(Demand::new(request).unwrap(), &topology, &mut Dice(7));
                    verify(schedule, &topology).unwrap_or_else(|refused| panic!("{collective} {chunks}: {refused}"));
                }
            }
        }
    }
}

#[test]
fn random_plans_on_odd_machines() {
    for seed in 0..400 {
        let (schedule, topology) = any_plan(seed);
        verify(schedule, &topology).unwrap_or_else(|refused| panic!("seed {seed}: {refused}"));
    }
}

/// Time to verify stays near linear in what is carried: 64 times the transfers take far less than 64² times as long.
#[test]
fn a_large_ring() {
    let time = |ranks: usize, repetitions: u32| {
        let topology = ring(ranks, Latency::Occupies);
        let demand = Demand::new(Request::new(Collective::AllGather, ranks, 1 << 20)).unwrap();
        let schedule = plan(demand, &topology, &mut Dice(1));
        let once = || {
            let schedule = schedule.clone();
            let started = Instant::now();
            verify(schedule, &topology).unwrap();
            started.elapsed()
        };
        (schedule.transfers.len(), (0..repetitions).map(|_| once()).min().unwrap())
    };
    let ((few, short), (many, long)) = (time(64, 9), time(512, 2));
    assert!(many > few * 50, "{few} and {many} transfers");
    assert!(long < short * 640, "{many} transfers take {long:?}, {few} take {short:?}");
}

/// With α = 0 and no bytes everything happens at time 0, in the order listed. (Not for allreduce: its copies would land
/// at the same time as reduces, which is a violation.)
#[test]
fn instantaneous_transfers() {
    let links = (0..4).map(|i| link((i + 1) % 4, i, 0.0, 0.01, Latency::Occupies)).collect();
    let topology = machine(4, links, Vec::new());
    for collective in COLLECTIVES.into_iter().filter(|&collective| collective != Collective::AllReduce) {
        let demand = Demand::new(Request::new(collective, 4, 0)).unwrap();
        let schedule = plan(demand, &topology, &mut Dice(3));
        verify(schedule, &topology).unwrap_or_else(|refused| panic!("{collective}: {refused}"));
    }
}
