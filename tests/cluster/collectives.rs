//! Collectives between hosts: correct results, in about the predicted time.

use crate::fabric::{Cluster, Family, Place, Spec};
use crate::noise::{check, right_in_three};
use crate::ours::{Plan, right, rows, start_at, start_where};
use std::process::Command;
use std::time::Duration;

/// The α of a message over TCP between two hosts.
const ALPHA: Duration = Duration::from_micros(100);

/// Runs a plan for the cluster's own topology, and compares its time with the lower bound.
fn near_the_bound(spec: &Spec, ranks: usize, cell: (&str, u64), share: f64) {
    let Some(cluster) = Cluster::or_skip(spec) else { return };
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::make(&spec.topology(ranks, ALPHA), cell, folder.path());
    right_in_three(|| {
        let time = plan.run(Place::Hosts(&cluster, ranks), cell.1, 3);
        let told = || format!("{cell:?}: {time} µs, planned {}, bound {}", plan.makespan, plan.bound);
        check(plan.bound / time >= share, told)
    });
}

#[test]
fn every_collective_between_four_equal_hosts_is_right() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200; 4])) else { return };
    let place = Place::Hosts(&cluster, 1);
    for collective in
        ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter"]
    {
        // No bytes, less than a chunk, an odd size, and more than one tile: out of place and in place.
        let line = format!("run --collective {collective} --size 0,4,100012,1000000 --iterations 1 --warmups 0");
        let rows = rows(place, &line);
        assert!(rows.len() >= 4, "{collective}: {rows:?}");
    }
}

#[test]
fn equal_hosts_are_near_the_bound() {
    near_the_bound(&Spec::star(&[200; 4]), 1, ("allreduce", 8 << 20), 0.8);
}

#[test]
fn a_host_at_a_quarter_of_the_rate() {
    near_the_bound(&Spec::star(&[200, 200, 200, 50]), 1, ("allgather", 4 << 20), 0.85);
}

#[test]
fn racks_behind_a_slow_uplink() {
    near_the_bound(&Spec::racks(2, 2, 400, 50), 1, ("allreduce", 2 << 20), 0.7);
}

#[test]
fn two_ranks_share_each_nic() {
    near_the_bound(&Spec::star(&[200; 3]), 2, ("allreduce", 4 << 20), 0.5);
}

#[test]
fn eight_hosts() {
    near_the_bound(&Spec::star(&[200; 8]), 1, ("allgather", 8 << 20), 0.85);
}

/// Buckets of 64 KB let the first bytes of a message pass at once and delay the last ones. Out of order, it takes 1.5
/// times as long.
#[test]
fn eight_hosts_as_systems_come() {
    near_the_bound(&Spec::star(&[200; 8]).coarse(), 1, ("allgather", 8 << 20), 0.8);
}

#[test]
fn odd_numbers_of_hosts_are_right() {
    for hosts in [3, 5] {
        let Some(cluster) = Cluster::or_skip(&Spec::star(&vec![200; hosts])) else { return };
        for collective in ["allreduce", "alltoall"] {
            let line = format!("run --collective {collective} --size 100012,1000000 --iterations 1");
            assert_eq!(rows(Place::Hosts(&cluster, 1), &line).len(), 4, "{collective}");
        }
    }
}

#[test]
fn hosts_without_ipv4_meet_over_ipv6() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200; 3])) else { return };
    for host in 0..3 {
        let mut flush = Command::new("ip");
        flush.args(["-4", "address", "flush", "dev", "eth0"]);
        cluster.spawn(host, flush).wait(Duration::from_secs(10)).ok();
    }
    let line = "run --collective allreduce --size 4,1000000 --iterations 2 --json";
    let address = Spec::address(0, 0, Family::V6).to_string();
    assert_eq!(right(start_at(Place::Hosts(&cluster, 1), &address, line)).len(), 4);
}

/// Rank 0's machine has a name that resolves to the loopback, as many machines do, and listening at a name uses only
/// IPv6 by default.
#[test]
fn ranks_that_know_rank_0_by_different_addresses() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200; 3])) else { return };
    cluster.configure(0, "ipv6/bindv6only", "1");
    let [v4, v6] = [Family::V4, Family::V6].map(|family| Spec::address(0, 0, family).to_string());
    let known = ["localhost", &v4, &v6];
    let line = "run --collective alltoall --size 4,1000000 --iterations 2 --json";
    assert_eq!(right(start_where(Place::Hosts(&cluster, 2), |rank| known[rank / 2], line)).len(), 4);
}
