//! Hosts that die or are cut off in the middle of a job: every other host names the host at fault, and no process is
//! left.

use crate::fabric::{Cluster, Place, Spec};
use crate::ours::start;
use std::time::{Duration, Instant};

/// How long a job may be without progress.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long the processes of a job may take to end after that, on a busy computer.
const GRACE: Duration = Duration::from_secs(4);

const HOSTS: usize = 4;

/// Breaks a host of a cluster while it works, and checks how all others end.
fn broken(victim: usize, break_it: impl FnOnce(&Cluster)) {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200; HOSTS])) else { return };
    let limit = TIMEOUT.as_secs();
    let sizes = "--size 1KB,4MiB --iterations 300 --warmups 0";
    let line = format!("run --collective allreduce {sizes} --timeout {limit}s --json");
    let guests = start(Place::Hosts(&cluster, 1), &line);
    // The second size takes more than a minute.
    guests[0].says("size_bytes", Duration::from_secs(60));
    let begin = Instant::now();
    break_it(&cluster);
    for (rank, guest) in guests.into_iter().enumerate() {
        let ended = guest.wait(2 * TIMEOUT + GRACE);
        let Some(code) = ended.status.code() else {
            assert_eq!(rank, victim, "rank {rank}: {ended:?}");
            continue;
        };
        let names = [format!("\"text\":\"rank {victim} "), format!("lost the coordinator, rank {victim},")];
        let is_named = names.iter().any(|name| ended.stderr.contains(name));
        assert!(code == 1 && is_named, "rank {rank}: {ended:?}");
    }
    assert!(begin.elapsed() < TIMEOUT + GRACE, "took {:?}", begin.elapsed());
    for host in 0..HOSTS {
        assert!(cluster.inhabitants(host).is_empty(), "host {host} has orphans");
    }
}

#[test]
fn a_host_that_dies_is_named_by_all_others() {
    broken(2, |cluster| cluster.kill(2));
}

#[test]
fn a_host_that_is_cut_off_is_named_by_all_others() {
    broken(2, |cluster| cluster.cut(2, 0));
}

#[test]
fn a_coordinator_whose_host_is_cut_off_is_named_by_all_and_by_itself() {
    broken(0, |cluster| cluster.cut(0, 0));
}

/// Its control connection works. Its data connections to all but the coordinator do not, but they are not refused
/// either.
#[test]
fn a_host_whose_data_is_swallowed_is_named_with_the_reason() {
    let Some(cluster) = Cluster::or_skip(&Spec::star(&[200; HOSTS])) else { return };
    for (from, to) in [(3, 1), (3, 2), (1, 3), (2, 3)] {
        cluster.swallow(from, to);
    }
    let limit = TIMEOUT.as_secs();
    let line = format!("run --collective alltoall --size 1MB --ready-timeout {limit}s --json");
    for (rank, guest) in start(Place::Hosts(&cluster, 1), &line).into_iter().enumerate() {
        let ended = guest.wait(2 * TIMEOUT + GRACE);
        let told = &ended.stderr;
        assert_eq!(ended.status.code(), Some(1), "rank {rank}: {ended:?}");
        assert!(told.contains("\"text\":\"rank 3 was cut off") && told.contains("connect"), "rank {rank}: {told}");
    }
}
