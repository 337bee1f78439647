//! What must be accepted.

use crate::plans::{COLLECTIVES, Dice, any_plan, plan, ring, switch};
use schedule::{Demand, Request, verify};
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
