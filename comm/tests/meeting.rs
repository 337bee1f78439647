//! Ranks that find each other as processes do: how they exchange data, and what the library says if that cannot be.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{Communicator, Config, LongMessages, Op, RankTransport};
use std::net::TcpListener;
use std::time::Duration;

/// Enough for a long message.
const LENGTH: usize = 100_000;

/// What each rank, a thread of this process, has received after some calls with long messages, or why it could not
/// join.
fn met(ranks: usize, configure: impl Fn(usize, &mut Config) + Sync) -> Vec<Result<LongMessages, String>> {
    let master = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let work = |rank: usize| {
        let secret = Some("a secret of this test".to_owned());
        let mut config =
            Config { secret, joining: Duration::from_secs(20), ..Config::new(rank, ranks, master.clone()) };
        configure(rank, &mut config);
        let comm = Communicator::connect(&config).map_err(|error| comm::explained(&error))?;
        for round in 0..3 {
            let mut vector: Vec<i64> = (0..LENGTH).map(|index| (index + round + rank) as i64).collect();
            comm.all_reduce(&mut vector, Op::Sum).unwrap();
            let sum = |index: usize| (ranks * (index + round) + ranks * (ranks - 1) / 2) as i64;
            assert!(vector.iter().enumerate().all(|(index, value)| *value == sum(index)), "round {round}");
        }
        comm.barrier().unwrap();
        Ok(comm.statistics().long_messages)
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn threads_of_one_process_read_each_other_where_the_data_lies() {
    for seen in met(3, |_, _| {}) {
        let LongMessages { in_place, by_kernel, in_fragments, by_socket } = seen.unwrap();
        assert!(in_place > 0);
        assert_eq!([by_kernel, in_fragments, by_socket], [0; 3]);
    }
}

#[test]
fn ranks_that_are_to_use_tcp_do() {
    let seen = met(3, |_, config| {
        config.transport = RankTransport::Tcp;
        config.interfaces = vec!["127.0.0.0/8".to_owned()];
    });
    for seen in seen {
        let LongMessages { in_place, by_kernel, in_fragments, by_socket } = seen.unwrap();
        assert!(by_socket > 0);
        assert_eq!([in_place, by_kernel, in_fragments], [0; 3]);
    }
}

#[test]
fn ranks_of_two_machines_cannot_use_shared_memory_only() {
    let seen = met(2, |rank, config| {
        config.transport = RankTransport::Shm;
        config.machine = Some(format!("machine {rank}"));
    });
    for seen in seen {
        let why = seen.unwrap_err();
        assert!(why.contains("on 2 machines, which share no memory; hint: "), "{why}");
    }
}
