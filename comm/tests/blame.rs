//! Who is named when a rank does not come: that one, by all others, however they wait for each other.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{CommResult, Communicator, Op};
use std::time::Duration;

const RANKS: usize = 5;
const LIMIT: Duration = Duration::from_secs(2);

type Work = fn(&Communicator) -> CommResult<()>;

/// Calls that end on no rank while one is missing, and some in which only a part of the ranks waits.
const CALLS: [(&str, Work); 5] = [
    ("barrier", |comm| comm.barrier()),
    ("short sum", |comm| comm.all_reduce(&mut [1.0_f32], Op::Sum)),
    ("long sum", |comm| comm.all_reduce(&mut vec![1.0_f32; 1 << 18], Op::Sum)),
    ("gather of all", |comm| comm.all_gather(&[1_u8; 100], &mut [0; 100 * RANKS])),
    ("reduction", |comm| {
        let mut result = vec![0.0; if comm.rank() == 0 { 100 } else { 0 }];
        comm.reduce(&[1.0_f32; 100], &mut result, Op::Sum, 0)
    }),
];

#[test]
fn all_name_the_rank_that_does_not_come() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").as_deref() == Ok("long");
    for missing in if is_long { 0..RANKS } else { 1..2 } {
        for (name, call) in CALLS {
            let communicators = Communicator::local(RANKS).unwrap();
            let errors: Vec<(usize, String)> = std::thread::scope(|scope| {
                let work = |comm: &Communicator| {
                    comm.set_time_limit(LIMIT);
                    comm.barrier().unwrap();
                    if comm.rank() == missing {
                        return None;
                    }
                    // They come one after the other.
                    std::thread::sleep(Duration::from_millis(40) * comm.rank() as u32);
                    call(comm).err().map(|error| error.to_string())
                };
                let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(move || work(comm))).collect();
                let ended = threads.into_iter().map(|thread| thread.join().unwrap()).enumerate();
                ended.filter_map(|(rank, error)| Some((rank, error?))).collect()
            });
            // The root of a reduction gives nothing to others.
            let needs_nobody = (name, missing) == ("reduction", 0);
            assert_eq!(errors.is_empty(), needs_nobody, "{name}, {missing} missing: {errors:?}");
            for (rank, error) in &errors {
                let is_named =
                    error.contains(&format!("rank {missing} did")) || error.contains(&format!("for rank {missing} "));
                assert!(is_named, "{name}: rank {missing} was missing, and rank {rank} says: {error}");
            }
        }
    }
}
