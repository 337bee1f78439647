//! Every collective of a communicator, next to a few lines that say what it means.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{CommError, Communicator, Op};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Does `work` on all ranks at the same time; what each says, by rank.
fn on_all<T: Send>(ranks: usize, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let communicators = Communicator::local(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The vector of a rank: no two elements of any two ranks are equal, and sums are exact.
fn vector(rank: usize, length: usize) -> Vec<i64> {
    (0..length).map(|index| (rank * 1_000_003 + index * 17) as i64).collect()
}

const LENGTHS: [usize; 7] = [0, 1, 3, 64, 1000, 5000, 70_000];
const RANKS: [usize; 4] = [1, 2, 3, 5];

/// The sum of all ranks' vectors.
fn sum(ranks: usize, length: usize) -> Vec<i64> {
    let mut sum = vec![0; length];
    for rank in 0..ranks {
        sum.iter_mut().zip(vector(rank, length)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

#[test]
fn collectives_without_a_root_mean_what_they_say() {
    for ranks in RANKS {
        on_all(ranks, |comm| {
            for length in LENGTHS {
                let own = vector(comm.rank(), length);
                let mut both = own.clone();
                comm.all_reduce(&mut both, Op::Sum).unwrap();
                assert_eq!(both, sum(ranks, length));
                let mut received = vec![0; length];
                comm.all_reduce_into(&own, &mut received, Op::Max).unwrap();
                assert_eq!(received, vector(ranks - 1, length));

                let mut all = vec![0; length * ranks];
                comm.all_gather(&own, &mut all).unwrap();
                let expected: Vec<i64> = (0..ranks).flat_map(|rank| vector(rank, length)).collect();
                assert_eq!(all, expected);

                let blocks = vector(comm.rank(), length * ranks);
                comm.reduce_scatter(&blocks, &mut received, Op::Sum).unwrap();
                assert_eq!(received, sum(ranks, length * ranks)[comm.rank() * length..][..length]);

                comm.all_to_all(&blocks, &mut all).unwrap();
                let from = |rank| vector(rank, length * ranks)[comm.rank() * length..][..length].to_vec();
                assert_eq!(all, (0..ranks).flat_map(from).collect::<Vec<_>>());
                comm.barrier().unwrap();
            }
        });
    }
}

#[test]
fn collectives_with_a_root_mean_what_they_say() {
    for ranks in RANKS {
        on_all(ranks, |comm| {
            for (length, root) in LENGTHS.into_iter().flat_map(|length| (0..ranks).map(move |root| (length, root))) {
                let (own, is_root) = (vector(comm.rank(), length), comm.rank() == root);
                let mut both = own.clone();
                comm.broadcast(&mut both, root).unwrap();
                assert_eq!(both, vector(root, length));

                let mut received = vec![0; if is_root { length } else { 0 }];
                comm.reduce(&own, &mut received, Op::Sum, root).unwrap();
                assert_eq!(received, if is_root { sum(ranks, length) } else { vec![] });

                let mut all = vec![0; if is_root { length * ranks } else { 0 }];
                comm.gather(&own, &mut all, root).unwrap();
                let expected: Vec<i64> = (0..ranks).flat_map(|rank| vector(rank, length)).collect();
                assert_eq!(all, if is_root { expected } else { vec![] });

                let blocks = if is_root { vector(root, length * ranks) } else { vec![] };
                let mut received = vec![0; length];
                comm.scatter(&blocks, &mut received, root).unwrap();
                assert_eq!(received, vector(root, length * ranks)[comm.rank() * length..][..length]);
            }
        });
    }
}

/// Rank i sends (i + 2 j) mod 7 times 100 elements to rank j.
#[test]
fn blocks_may_have_any_lengths() {
    let length = |from: usize, to: usize| (from + 2 * to) % 7 * 100;
    for ranks in RANKS {
        on_all(ranks, |comm| {
            let own = comm.rank();
            let ends = |lengths: Vec<usize>| {
                let mut end = 0;
                let block = |length| {
                    end += length;
                    end - length..end
                };
                lengths.into_iter().map(block).collect::<Vec<_>>()
            };
            let sends = ends((0..ranks).map(|to| length(own, to)).collect());
            let receives = ends((0..ranks).map(|from| length(from, own)).collect());
            let send = vector(own, sends.last().unwrap().end);
            let mut receive = vec![0; receives.last().unwrap().end];
            for _ in 0..50 {
                comm.all_to_all_v(&send, &sends, &mut receive, &receives).unwrap();
            }
            for (from, block) in receives.iter().enumerate() {
                let before: usize = (0..own).map(|to| length(from, to)).sum();
                assert_eq!(receive[block.clone()], vector(from, before + block.len())[before..]);
            }
        });
    }
}

#[test]
fn groups_are_split_and_overlap() {
    on_all(6, |comm| {
        let rank = comm.rank();
        let row = comm.split(Some((rank / 3) as u32), -(rank as i64)).unwrap().unwrap();
        assert_eq!((row.size(), row.rank()), (3, 2 - rank % 3));
        let column = comm.split((rank != 5).then_some((rank % 3) as u32), 0).unwrap();
        assert_eq!(column.is_none(), rank == 5);
        let twin = comm.duplicate().unwrap();
        for repetition in 0..50 {
            let mut of_row = [rank as i64];
            row.all_reduce(&mut of_row, Op::Sum).unwrap();
            assert_eq!(of_row, [if rank < 3 { 3 } else { 12 }]);
            if let Some(column) = &column {
                let mut all = vec![0; column.size()];
                column.all_gather(&[rank as i64 * 10 + repetition], &mut all).unwrap();
                let expected: Vec<i64> =
                    (0..5).filter(|of| of % 3 == rank as i64 % 3).map(|of| of * 10 + repetition).collect();
                assert_eq!(all, expected);
            }
            let mut of_all = [1.0f32];
            twin.all_reduce(&mut of_all, Op::Sum).unwrap();
            assert_eq!(of_all, [6.0]);
        }
    });
}

/// Nobody leaves a barrier before the last rank has come.
#[test]
fn a_barrier_waits_for_all() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for ranks in [2, 3, 5, 8] {
        let come = AtomicUsize::new(0);
        on_all(ranks, |comm| {
            for round in 1..=100 {
                come.fetch_add(1, Ordering::SeqCst);
                match round % 2 {
                    0 => comm.barrier().unwrap(),
                    _ => drop(comm.start_barrier().unwrap().wait().unwrap()),
                }
                assert!(come.load(Ordering::SeqCst) >= round * ranks, "rank {} of {ranks}, {round}", comm.rank());
            }
        });
    }
}

#[test]
fn wrong_arguments_are_refused_and_harm_nothing() {
    on_all(2, |comm| {
        let refused = comm.all_gather(&[1.0f32; 3], &mut [0.0; 5]);
        assert!(matches!(&refused, Err(CommError::Argument(what)) if what.contains("5 elements")), "{refused:?}");
        assert!(matches!(comm.broadcast(&mut [0u8], 2), Err(CommError::Argument(_))));
        let mut both = [1.0f32];
        comm.all_reduce(&mut both, Op::Sum).unwrap();
        assert_eq!(both, [2.0]);
    });
}

#[test]
fn a_rank_that_does_not_call_is_named_and_the_communicator_stays_broken() {
    on_all(2, |comm| {
        comm.set_time_limit(Duration::from_millis(100));
        if comm.rank() == 0 {
            let first = comm.all_reduce(&mut [1.0f32], Op::Sum).unwrap_err().to_string();
            assert!(first.contains("rank 1"), "{first}");
            assert_eq!(comm.barrier().unwrap_err().to_string(), first);
        }
    });
}

/// A rank that waits does something else meanwhile, which lets the others come to the call.
#[test]
fn a_rank_that_waits_does_its_idle_work() {
    const LOOKS: usize = 1000;
    let done = Arc::new(AtomicUsize::new(0));
    on_all(2, |comm| {
        if comm.rank() == 0 {
            let done = done.clone();
            let work = move || {
                done.fetch_add(1, Ordering::Relaxed);
            };
            assert!(comm.set_idle_work(Arc::new(work)));
            assert!(!comm.duplicate().unwrap().set_idle_work(Arc::new(|| ())), "it is there already");
        } else {
            comm.duplicate().unwrap();
        }
        for round in 1..=3 {
            while comm.rank() == 1 && done.load(Ordering::Relaxed) < round * LOOKS {
                std::thread::yield_now();
            }
            match round {
                1 => comm.barrier().unwrap(),
                2 => comm.all_reduce(&mut [1.0f32; 100_000], Op::Sum).unwrap(),
                _ => drop(comm.start_all_reduce(vec![1u8], Op::Sum).unwrap().wait().unwrap()),
            }
        }
    });
}

#[test]
fn what_ran_is_counted() {
    on_all(2, |comm| {
        for _ in 0..10 {
            comm.all_reduce(&mut [1u8; 100], Op::Sum).unwrap();
        }
        let statistics = comm.statistics();
        assert_eq!(statistics.prepared, 1);
        let (name, counted) = statistics.plans.first_key_value().unwrap();
        assert!(name.starts_with("allreduce classic/"), "{name}");
        assert_eq!((counted.calls, counted.bytes), (10, 1000));
        assert_eq!(counted.digests.len(), 1);
        let digest = counted.digests.keys().next().unwrap();
        assert_eq!(statistics.stock["there is no table"], 10);
        let said = format!("allreduce of 100 u8, in place: {name}, stock, because there is no table; digest {digest}");
        assert_eq!(comm.last_plan(), said);
    });
}

/// A loop whose lengths grow comes back to each of them.
#[test]
fn many_sizes_in_turn_are_prepared_once_each() {
    on_all(2, |comm| {
        for call in 0..3000 {
            let mut vector = vec![1i32; 1 + call % 1000];
            comm.all_reduce(&mut vector, Op::Sum).unwrap();
            assert!(vector.iter().all(|sum| *sum == 2), "call {call}");
        }
        assert_eq!(comm.statistics().prepared, 1000);
    });
}

#[test]
fn what_ran_is_written_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statistics.json");
    let config = comm::Config { statistics: Some(path.clone()), ..comm::Config::new(0, 1, "") };
    let comm = Communicator::connect(&config).unwrap();
    let part = comm.split(Some(0), 0).unwrap().unwrap();
    for group in [&comm, &part] {
        group.all_reduce(&mut [1.0f64; 8], Op::Sum).unwrap();
    }
    drop(comm);
    assert!(!path.exists());
    drop(part);
    let told: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let plans = told["plans"].as_object().unwrap();
    let calls = |of: &str| -> u64 {
        plans.iter().filter(|(name, _)| name.starts_with(of)).map(|(_, it)| it["calls"].as_u64().unwrap()).sum()
    };
    assert_eq!(calls("allreduce"), 2, "{told}");
}
