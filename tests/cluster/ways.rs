//! Hosts with several NICs: by default data is striped over all NICs that lead to the others, and no NIC makes it
//! slower.

use crate::fabric::{Cluster, Host, Nic, Place, Spec, Switch};
use crate::noise::{check, right_in_three};
use crate::ours::{rows, time};
use std::process::Command;
use std::time::Duration;

/// This many hosts with a NIC of each of these rates, each NIC in its own network.
fn rails(hosts: usize, rates: &[u32]) -> Spec {
    let nic = |(switch, &rate): (usize, &u32)| Nic { switch, ..Nic::new(rate) };
    let nics: Vec<Nic> = rates.iter().enumerate().map(nic).collect();
    Spec { hosts: vec![Host { nics }; hosts], switches: vec![Switch::default(); rates.len()], ..Spec::default() }
}

/// The time of a message between two hosts, in µs.
fn message(cluster: &Cluster, options: &str) -> f64 {
    let line = format!("run --collective sendrecv --size 8MB --iterations 3 --warmups 1 {options}");
    time(&rows(Place::Hosts(cluster, 1), &line)[0])
}

#[test]
fn two_nics_are_twice_as_fast_as_one_that_is_named() {
    let Some(cluster) = Cluster::or_skip(&rails(2, &[200, 200])) else { return };
    right_in_three(|| {
        let (one, both) = (message(&cluster, "--interface eth0"), message(&cluster, ""));
        check((0.4..0.7).contains(&(both / one)), || format!("{one} µs one way, {both} µs both"))
    });
}

#[test]
fn a_slow_second_nic_delays_nothing() {
    for rates in [[200, 50], [50, 200]] {
        let Some(cluster) = Cluster::or_skip(&rails(2, &rates)) else { return };
        let fast = if rates[0] > rates[1] { "--interface eth0" } else { "--interface eth1" };
        right_in_three(|| {
            let (one, both) = (message(&cluster, fast), message(&cluster, ""));
            // With equal shares it would be twice as slow as over the fast NIC alone.
            check(both / one < 1.4, || format!("{rates:?}: {one} µs over the fast one, {both} µs over both"))
        });
    }
}

/// Addresses that lead nowhere: a second address of the same NIC, and a network in which the hosts do not reach each
/// other.
#[test]
fn addresses_that_are_no_way_are_done_without() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200, 200])) else { return };
    // Cables from a host to itself: the first pair has the same address everywhere, like bridges for containers.
    for (host, cable, address) in [(0, 8, "172.30.0.1/16"), (1, 8, "172.30.0.1/16"), (1, 9, "10.201.0.1/24")] {
        let lines = [
            format!("link add v{cable} type veth peer name w{cable}"),
            format!("address add {address} dev v{cable}"),
            format!("link set v{cable} up"),
            format!("link set w{cable} up"),
            format!("address add 10.200.{cable}.{}/24 dev eth0", host + 1),
        ];
        for line in lines {
            let mut ip = Command::new("ip");
            ip.args(line.split(' '));
            cluster.spawn(host, ip).wait(Duration::from_secs(10)).ok();
        }
    }
    right_in_three(|| {
        let (one, all) = (message(&cluster, "--interface 10.77.0.0/24"), message(&cluster, ""));
        check(all / one < 1.15, || format!("{one} µs over one address, {all} µs over what is there"))
    });
}
