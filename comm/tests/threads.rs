//! What the library leaves in a program. Alone in its process, because it asks for the pool of threads of the whole process.

use comm::{Communicator, Op};

/// Up to 16 ranks of one machine plan and check every collective without other threads. If one of them had used the pool of threads
/// of the process, that would be there now.
#[test]
fn calls_of_few_ranks_start_no_pool_of_threads() {
    for ranks in [2, 5, 16] {
        std::thread::scope(|scope| {
            for comm in Communicator::local(ranks).unwrap() {
                scope.spawn(move || {
                    for count in [1, 1000, 1 << 20] {
                        let (one, mut all) = (vec![1_i32; count], vec![0_i32; count * ranks]);
                        let mut own = one.clone();
                        comm.all_reduce(&mut own, Op::Sum).unwrap();
                        assert!(own.iter().all(|sum| *sum == ranks as i32));
                        comm.all_reduce_into(&one, &mut own, Op::Sum).unwrap();
                        comm.all_gather(&one, &mut all).unwrap();
                        assert!(all.iter().all(|value| *value == 1));
                        comm.reduce_scatter(&all, &mut own, Op::Sum).unwrap();
                        comm.all_to_all(&all.clone(), &mut all).unwrap();
                        comm.broadcast(&mut own, 0).unwrap();
                        // Only the root has the other side.
                        let (root, none) = (comm.rank() == 0, &mut Vec::new());
                        comm.reduce(&one, if root { &mut own } else { none }, Op::Sum, 0).unwrap();
                        comm.gather(&one, if root { &mut all } else { none }, 0).unwrap();
                        comm.scatter(if root { &all } else { none }, &mut own, 0).unwrap();
                    }
                    comm.barrier().unwrap();
                });
            }
        });
    }
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("no pool yet");
}
