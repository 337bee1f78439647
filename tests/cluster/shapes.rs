//! Shaped clusters have the rates, shared links, cuts and delays of their specification, and leave nothing behind.

use crate::binary::antiphon_in;
use crate::fabric::flow::{Window, connect, pushing, rates, round_trip, stalls};
use crate::fabric::{Cluster, Family, Host, Nic, Spec, Switch};
use crate::noise::{check, right_in_three};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const WINDOW: Window = Window { warm_up: Duration::from_millis(400), length: Duration::from_millis(1200) };
const WAY: (usize, Family) = (0, Family::V4);

/// Checks that simultaneous streams carry the payload of TCP at this many Mbit/s each.
fn assert_rates(cluster: &Cluster, flows: &[(usize, usize)], way: (usize, Family), mbits: u32) {
    right_in_three(|| {
        let measured = rates(cluster, flows, way, WINDOW);
        let expected = Spec::payload(mbits, way.1);
        let is_right = measured.iter().all(|rate| (rate / expected - 1.0).abs() <= 0.03);
        check(is_right, || format!("{flows:?} carry {measured:?} instead of {expected} bytes/s"))
    });
}

/// Checks that streams share this many Mbit/s. They share evenly only in the long run, but their sum is exact at any
/// time.
fn assert_shared(cluster: &Cluster, flows: &[(usize, usize)], mbits: u32) {
    right_in_three(|| {
        let measured = rates(cluster, flows, WAY, WINDOW);
        let (sum, expected) = (measured.iter().sum::<f64>(), Spec::payload(mbits, WAY.1));
        let is_fair = |rate: &f64| (0.3..1.7).contains(&(rate / expected * flows.len() as f64));
        let is_right = (sum / expected - 1.0).abs() <= 0.03 && measured.iter().all(is_fair);
        check(is_right, || format!("{flows:?} carry {measured:?} of {expected} bytes/s"))
    });
}

#[test]
fn links_carry_their_rate() {
    let Some(mut cluster) = Cluster::or_skip(&Spec::star(&[200, 200, 200, 50])) else { return };
    for family in [Family::V4, Family::V6] {
        assert_rates(&cluster, &[(0, 1), (1, 2), (2, 0)], (0, family), 200);
    }
    assert_rates(&cluster, &[(0, 3)], WAY, 50);
    assert_rates(&cluster, &[(3, 0)], WAY, 50);
    cluster.reshape(3, 0, 100);
    assert_rates(&cluster, &[(3, 0)], WAY, 100);
}

#[test]
fn streams_share_a_nic_in_both_directions() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[400, 400, 400])) else { return };
    assert_shared(&cluster, &[(0, 1), (0, 2)], 400);
    assert_shared(&cluster, &[(1, 0), (2, 0)], 400);
}

#[test]
fn racks_share_their_uplink() {
    let Some(cluster) = Cluster::or_skip(&Spec::racks(2, 2, 800, 400)) else { return };
    assert_shared(&cluster, &[(0, 2), (1, 3)], 400);
    assert_rates(&cluster, &[(0, 1)], WAY, 800);
}

#[test]
fn a_second_nic_is_another_way() {
    let nics = vec![Nic::new(100), Nic { switch: 1, ..Nic::new(200) }];
    let spec = Spec { hosts: vec![Host { nics }; 2], switches: vec![Switch::default(); 2], ..Spec::default() };
    let Some(cluster) = Cluster::or_skip(&spec) else { return };
    for (nic, rate) in [(0, 100), (1, 200)] {
        assert_rates(&cluster, &[(0, 1)], (nic, Family::V4), rate);
    }
}

#[test]
fn nothing_passes_a_cut_until_it_is_restored() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200, 200])) else { return };
    let [sender, mut receiver] = connect(&cluster, 0, 1, WAY);
    let thread = pushing(sender);
    let long = Duration::from_millis(300);
    assert!(!flows_stalled(&mut receiver, long), "stalled before the cut");
    cluster.cut(1, 0);
    assert!(stalls(&mut receiver, long), "still flowing after the cut");
    cluster.restore(1, 0);
    assert!(!flows_stalled(&mut receiver, Duration::from_secs(8)), "still cut");
    drop(receiver);
    thread.join().unwrap();
}

/// Whether no byte arrives within `limit`.
fn flows_stalled(receiver: &mut std::net::TcpStream, limit: Duration) -> bool {
    receiver.set_read_timeout(Some(limit)).unwrap();
    std::io::Read::read(receiver, &mut [0; 1]).is_err()
}

#[test]
fn a_cable_adds_its_delay_and_keeps_the_rate() {
    let mut spec = Spec::star(&[200, 200, 200]);
    spec.hosts[0].nics[0].delay = Duration::from_millis(2);
    let Some(cluster) = Cluster::or_skip(&spec) else { return };
    right_in_three(|| {
        let (near, far) = (round_trip(&cluster, 1, 2, 101), round_trip(&cluster, 0, 1, 101));
        let added = far.saturating_sub(near);
        let expected = Duration::from_millis(4);
        let is_right = (expected.mul_f64(0.95)..=expected.mul_f64(1.25)).contains(&added);
        check(is_right, || format!("{added:?} added ({near:?}, {far:?})"))
    });
    assert_rates(&cluster, &[(0, 1)], WAY, 200);
}

#[test]
fn guests_live_in_their_host_and_end_with_the_cluster() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[100, 100])) else { return };
    let mut list = Command::new("ip");
    list.args(["-brief", "address"]);
    let told = cluster.spawn(1, list).wait(Duration::from_secs(10)).ok().stdout;
    assert!(told.contains("10.77.0.2/24") && !told.contains("10.77.0.1/24"), "{told}");
    // A process that leaves another one behind, outside its process group.
    let mut shell = Command::new("setsid");
    shell.args(["--wait", "sh", "-c", "tail -f /dev/null & echo started"]);
    let told = cluster.spawn(0, shell).wait(Duration::from_secs(10)).ok().stdout;
    assert_eq!(told, "started\n");
    let left = cluster.inhabitants(0);
    assert_eq!(left.len(), 1, "{left:?}");
    let namespace = cluster.namespace(0).to_owned();
    drop(cluster);
    assert!(!Path::new(&format!("/run/netns/{namespace}")).exists());
    // It was killed, even if no process has waited for it yet.
    let state = std::fs::read_to_string(format!("/proc/{}/stat", left[0])).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z ") || state.contains(") X "), "{state}");
}

#[test]
fn what_a_killed_process_leaves_the_next_one_removes() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[100])) else { return };
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    let stale = format!("antiphon-{}-0-h0", dead.id());
    let add = Command::new("ip").args(["netns", "add", &stale]).status().unwrap();
    assert!(add.success());
    crate::fabric::sweep();
    assert!(!Path::new(&format!("/run/netns/{stale}")).exists(), "{stale} is left");
    assert!(Path::new(&format!("/run/netns/{}", cluster.namespace(0))).exists(), "a living one was removed");
}

/// The topology for plans has the rates of the links: no broadcast is faster than the slowest link that all of its data
/// must use.
#[test]
fn a_cluster_is_described_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = Spec::racks(2, 2, 400, 100);
    for (rate, bottleneck) in [(400, 100), (40, 40)] {
        spec.hosts[3].nics[0].rate = rate;
        std::fs::write(folder.path().join("shaped.yaml"), spec.topology(1, Duration::ZERO)).unwrap();
        let line = "bound --topology ./shaped.yaml --collective broadcast --size 10MB --json";
        let bound = antiphon_in(folder.path(), line).ok().json()["lower_bound_us"].as_f64().unwrap();
        let ratio = bound / (10e6 / Spec::payload(bottleneck, Family::V4) * 1e6);
        assert!((ratio - 1.0).abs() < 1e-3, "{rate}: {ratio}");
    }
}
