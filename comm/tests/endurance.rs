//! Many calls, many communicators, many ranks: right to the end, and nothing is left behind.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{Communicator, Op};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How much work a test does.
fn effort(short: usize, long: usize) -> usize {
    if std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long") { long } else { short }
}

/// Runs `work` on every rank, each in its thread. One test at a time: they look at the memory of the process.
fn on_all(ranks: usize, work: impl Fn(&Communicator) + Sync) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let communicators = Communicator::local(ranks).unwrap();
    std::thread::scope(|scope| {
        for comm in &communicators {
            let work = &work;
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, move || work(comm)).unwrap();
        }
    });
}

/// The same numbers on all ranks (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Memory of this process in bytes, and its open files.
fn footprint() -> (usize, usize) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    (pages * 4096, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// The footprint, which rank 0 looks at while the others wait.
fn seen_by_one(comm: &Communicator) -> Option<(usize, usize)> {
    comm.barrier().unwrap();
    let seen = (comm.rank() == 0).then(footprint);
    comm.barrier().unwrap();
    seen
}

fn nothing_is_left(before: Option<(usize, usize)>, after: Option<(usize, usize)>) {
    let (Some((before, files)), Some((after, open))) = (before, after) else { return };
    assert!(after < before + before / 10 + (4 << 20), "{before} bytes grew to {after}");
    assert_eq!(files, open, "open files");
}

/// One call of a random kind and size, whose result is checked.
fn random_call(comm: &Communicator, numbers: &mut Numbers) {
    let (kind, size) = (numbers.below(7), comm.size());
    let count = [0, 1, 3, 100, 5000][numbers.below(5)];
    let root = numbers.below(size);
    let own = comm.rank() as i64;
    let sum = (0..size as i64).sum::<i64>();
    match kind {
        0 => {
            let mut vector = vec![own; count];
            comm.all_reduce(&mut vector, Op::Sum).unwrap();
            assert!(vector.iter().all(|&element| element == sum));
        }
        1 => {
            let mut all = vec![-1; count * size];
            comm.all_gather(&vec![own; count], &mut all).unwrap();
            assert!(all.iter().enumerate().all(|(index, &element)| element == (index / count) as i64));
        }
        2 => {
            let mut block = vec![0; count];
            comm.reduce_scatter(&vec![own; count * size], &mut block, Op::Max).unwrap();
            assert!(block.iter().all(|&element| element == size as i64 - 1));
        }
        3 => {
            let mut received = vec![-1; count * size];
            comm.all_to_all(&vec![own; count * size], &mut received).unwrap();
            assert!(received.iter().enumerate().all(|(index, &element)| element == (index / count) as i64));
        }
        4 => {
            let mut vector = vec![own; count];
            comm.broadcast(&mut vector, root).unwrap();
            assert!(vector.iter().all(|&element| element == root as i64));
        }
        5 => {
            let begun = comm.start_all_reduce(vec![own; count], Op::Sum).unwrap();
            let gathered = comm.start_all_gather(vec![own]).unwrap();
            assert_eq!(gathered.wait().unwrap(), (0..size as i64).collect::<Vec<_>>());
            assert!(begun.wait().unwrap().iter().all(|&element| element == sum));
        }
        _ => comm.barrier().unwrap(),
    }
}

#[test]
fn long_a_million_mixed_calls_leave_nothing_behind() {
    let calls = effort(10_000, 1_000_000);
    on_all(4, |world| {
        // Eight communicators that overlap: all pairs of ranks, all ranks, and all ranks once more.
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        let pair = |(a, b): (usize, usize)| world.split([a, b].contains(&world.rank()).then_some(0), 0).unwrap();
        let mut communicators: Vec<Option<Communicator>> = pairs.into_iter().map(pair).collect();
        communicators.extend([Some(world.clone()), Some(world.duplicate().unwrap())]);
        let mut numbers = Numbers(7);
        let mut first = None;
        for call in 0..calls {
            let seed = numbers.below(usize::MAX) as u64;
            let chosen = numbers.below(communicators.len());
            if let Some(comm) = &communicators[chosen] {
                random_call(comm, &mut Numbers(seed));
            }
            if call == calls / 5 {
                first = seen_by_one(world);
            }
        }
        nothing_is_left(first, seen_by_one(world));
    });
}

#[test]
fn a_thousand_communicators_come_and_go() {
    on_all(3, |world| {
        let mut first = None;
        for round in 0..1000u32 {
            let part = world.split(Some(round % 2), 0).unwrap().unwrap();
            let copy = part.duplicate().unwrap();
            let mut vector = [1i64; 10];
            copy.all_reduce(&mut vector, Op::Sum).unwrap();
            assert_eq!(vector, [3; 10]);
            if round == 100 {
                first = seen_by_one(world);
            }
        }
        nothing_is_left(first, seen_by_one(world));
    });
}

#[test]
fn a_thousand_ranks_add_together() {
    on_all(effort(200, 1000), |comm| {
        comm.set_time_limit(Duration::from_secs(60));
        for call in 0..2 {
            let mut vector = [comm.rank() as i64 + call; 100];
            comm.all_reduce(&mut vector, Op::Sum).unwrap();
            let ranks = comm.size() as i64;
            assert_eq!(vector, [ranks * (ranks - 1) / 2 + ranks * call; 100]);
        }
    });
}

#[test]
fn what_was_aborted_is_rebuilt() {
    on_all(3, |comm| {
        if comm.rank() == 1 {
            comm.abort();
        }
        // All get the error, however far they are.
        while comm.barrier().is_ok() {}
        assert!(comm.rebuild(4).err().unwrap().to_string().contains("3 of 3 ranks are left"));
        let mut rest = comm.rebuild(3).unwrap();
        for _ in 0..5 {
            let mut all = [9; 3];
            rest.all_gather(&[rest.rank() as i32], &mut all).unwrap();
            assert_eq!(all, [0, 1, 2]);
            rest = rest.rebuild(3).unwrap();
        }
        assert!(comm.barrier().is_err());
    });
}
