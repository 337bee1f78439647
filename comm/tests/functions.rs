//! Functions of a program that serve calls, because a table names them.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{CandidateFunction, Collective, CommError, Communicator, Op, TuneCandidate};
use runtime::Call;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tune::{ChoiceRange, Composition, FunctionRange, TableCell, TableKey, TuningTable};

/// A table that names a function for AllReduce of 400 to 800 bytes (exclusive) on three ranks of a machine.
fn table(function: &str) -> TuningTable {
    let range = ChoiceRange { from_bytes: 0, to_bytes: None, plan: None, evidence: Vec::new() };
    let function = FunctionRange {
        from_bytes: 400,
        to_bytes: 800,
        function: function.to_owned(),
        dtype: "f32".to_owned(),
        op: Some(Op::Sum),
        evidence: Vec::new(),
    };
    TuningTable::new(
        TableKey::of(vec![0; 3], env!("CARGO_PKG_VERSION")),
        vec![TableCell { functions: vec![function], ..TableCell::of_any(Collective::AllReduce, vec![range]) }],
        [].into(),
    )
}

/// An AllReduce that counts how often it is called, and fails at a call of one rank.
fn counting(calls: &Arc<AtomicUsize>, fails_at: Option<(usize, usize)>) -> TuneCandidate {
    let calls = calls.clone();
    let function: Arc<CandidateFunction> = Arc::new(move |comm, call, memory| {
        let Call::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
        let number = calls.fetch_add(1, Ordering::Relaxed);
        if fails_at == Some((comm.rank(), number)) {
            return Err("as a test".to_owned());
        }
        assert_eq!((call.collective, bytes.len()), (Collective::AllReduce, 4 * call.count));
        let mut vector: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
        comm.all_reduce(&mut vector, Op::Sum).map_err(|error| error.to_string())?;
        bytes.chunks_exact_mut(4).zip(vector).for_each(|(four, value)| four.copy_from_slice(&value.to_ne_bytes()));
        Ok(())
    });
    TuneCandidate::function("mine", vec![Collective::AllReduce], function)
}

/// Runs three ranks as threads.
fn ranks<T: Send>(work: impl Sync + Fn(&Communicator) -> T) -> Vec<T> {
    let communicators = Communicator::local(3).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sum(comm: &Communicator, count: usize) {
    let mut vector = vec![1.0_f32 + comm.rank() as f32; count];
    comm.all_reduce(&mut vector, Op::Sum).unwrap();
    assert!(vector.iter().all(|value| *value == 6.0), "{vector:?}");
}

#[test]
fn a_function_serves_the_calls_for_which_the_table_names_it() {
    ranks(|comm| {
        let calls = Arc::new(AtomicUsize::new(0));
        comm.use_table(&table("mine")).unwrap();
        sum(comm, 100);
        assert_eq!(calls.load(Ordering::Relaxed), 0, "nobody has given it yet");
        assert_eq!(comm.use_candidates(&[counting(&calls, None)]).unwrap(), ["mine"]);
        let called = |expected: usize, call: &dyn Fn()| {
            let before = calls.load(Ordering::Relaxed);
            call();
            assert_eq!(calls.load(Ordering::Relaxed) - before, expected);
        };
        for (count, expected) in [(99, 0), (100, 1), (199, 1), (200, 0), (0, 0)] {
            called(expected, &|| sum(comm, count));
        }
        called(1, &|| sum(comm, 100));
        assert_eq!(comm.last_plan(), "allreduce of 100 f32: function mine, because the table names it");
        // What was not measured: another type, another reduction, out of place; and a call that is only begun.
        called(0, &|| comm.all_reduce(&mut [1.0_f64; 50], Op::Sum).unwrap());
        called(0, &|| comm.all_reduce(&mut [1.0_f32; 100], Op::Max).unwrap());
        called(0, &|| comm.all_reduce_into(&[1.0_f32; 100], &mut [0.0; 100], Op::Sum).unwrap());
        called(0, &|| drop(comm.start_all_reduce(vec![1.0_f32; 100], Op::Sum).unwrap().wait().unwrap()));
        // Groups that are made of this one have plans only.
        called(0, &|| sum(&comm.duplicate().unwrap(), 100));
        assert_eq!(comm.statistics().plans["allreduce function mine"].calls, 3);
        comm.use_table(&table("other")).unwrap();
        called(0, &|| sum(comm, 100));
    });
}

#[test]
fn where_a_rank_has_not_got_it_the_rest_serves_on_all_of_them() {
    ranks(|comm| {
        let calls = Arc::new(AtomicUsize::new(0));
        comm.use_table(&table("mine")).unwrap();
        let given = if comm.rank() == 1 { Vec::new() } else { vec![counting(&calls, None)] };
        assert!(comm.use_candidates(&given).unwrap().is_empty());
        sum(comm, 100);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn the_librarys_own_function_needs_no_giving() {
    ranks(|comm| {
        let composed = "stock reducescatter + allgather";
        comm.use_table(&table(composed)).unwrap();
        sum(comm, 102);
        assert!(comm.last_plan().contains(composed), "{}", comm.last_plan());
        // No equal blocks.
        sum(comm, 100);
        assert!(!comm.last_plan().contains(composed), "{}", comm.last_plan());
        comm.use_candidates(&[]).unwrap();
        sum(comm, 102);
        assert!(comm.last_plan().contains(composed), "{}", comm.last_plan());
    });
}

/// Whatever is composed of two others does what it is for, on vectors that no two ranks have in common.
#[test]
fn every_composed_collective_gives_the_right_result() {
    ranks(|comm| {
        let (own, block) = (comm.rank(), 100);
        let vector =
            |rank: usize, length: usize| -> Vec<f32> { (0..length).map(|at| (7 * at + rank) as f32).collect() };
        let sums: Vec<f32> = (0..3 * block).map(|at| (21 * at + 3) as f32).collect();
        let all: Vec<f32> = (0..3).flat_map(|rank| vector(rank, block)).collect();
        for of in Composition::all() {
            let mut tuned = table(&of.name());
            let cell = &mut tuned.cells[0];
            cell.collective = of.whole;
            cell.functions[0].to_bytes = 8000;
            cell.functions[0].op = of.whole.combines().then_some(Op::Sum);
            comm.use_table(&tuned).unwrap();
            let (found, expected) = match of.whole {
                Collective::AllReduce => {
                    let mut found = vector(own, 3 * block);
                    comm.all_reduce(&mut found, Op::Sum).unwrap();
                    (found, sums.clone())
                }
                Collective::Broadcast => {
                    let mut found = vector(own, 3 * block);
                    comm.broadcast(&mut found, 0).unwrap();
                    (found, vector(0, 3 * block))
                }
                Collective::Reduce => {
                    let mut found = vec![0.0; if own == 0 { 3 * block } else { 0 }];
                    comm.reduce(&vector(own, 3 * block), &mut found, Op::Sum, 0).unwrap();
                    let length = found.len();
                    (found, sums[..length].to_vec())
                }
                Collective::AllGather => {
                    let mut found = vec![0.0; 3 * block];
                    comm.all_gather(&vector(own, block), &mut found).unwrap();
                    (found, all.clone())
                }
                other => {
                    assert_eq!(other, Collective::ReduceScatter);
                    let mut found = vec![0.0; block];
                    comm.reduce_scatter(&vector(own, 3 * block), &mut found, Op::Sum).unwrap();
                    (found, sums[own * block..(own + 1) * block].to_vec())
                }
            };
            assert_eq!(found, expected, "{}", of.name());
            assert!(comm.last_plan().contains(&of.name()), "{}", comm.last_plan());
        }
    });
}

#[test]
fn a_function_that_fails_ends_the_communicator_on_all_ranks() {
    let said = ranks(|comm| {
        comm.set_time_limit(std::time::Duration::from_secs(20));
        comm.use_table(&table("mine")).unwrap();
        comm.use_candidates(&[counting(&Arc::default(), Some((1, 2)))]).unwrap();
        let mut made = (0..4).map(|_| comm.all_reduce(&mut [1.0_f32; 100], Op::Sum));
        let error = made.find_map(Result::err).unwrap();
        assert!(matches!(error, CommError::Run(_)), "{error}");
        error.to_string()
    });
    assert!(said[1].contains("`mine` has failed: as a test"), "{said:?}");
    assert!(said.iter().all(|said| said.contains("rank 1")), "{said:?}");
}

/// The same function, which can only do even numbers of elements; it counts how often that is asked on this rank.
fn even(calls: &Arc<AtomicUsize>, asked: &Arc<AtomicUsize>) -> TuneCandidate {
    let asked = asked.clone();
    counting(calls, None).when(Arc::new(move |call| {
        asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!((call.collective, call.op, call.root), (Collective::AllReduce, Some(Op::Sum), None));
        assert!(call.in_place);
        call.count.is_multiple_of(2)
    }))
}

#[test]
fn a_predicate_is_asked_again_for_each_call_that_the_table_leaves_to_its_function() {
    ranks(|comm| {
        let [calls, asked] = [0, 0].map(|zero| Arc::new(AtomicUsize::new(zero)));
        comm.use_table(&table("mine")).unwrap();
        assert_eq!(comm.use_candidates(&[even(&calls, &asked)]).unwrap(), ["mine"]);
        // Elements; calls of the predicate; calls of the function.
        for (count, asks, expected) in [(100, 1, 1), (101, 1, 0), (100, 1, 1), (98, 0, 0), (200, 0, 0)] {
            let before = [&calls, &asked].map(|of| of.load(Ordering::Relaxed));
            sum(comm, count);
            let after = [&calls, &asked].map(|of| of.load(Ordering::Relaxed));
            assert_eq!([after[0] - before[0], after[1] - before[1]], [expected, asks], "{count} elements");
        }
        sum(comm, 101);
        assert!(comm.last_plan().contains("stock"), "{}", comm.last_plan());
    });
}

#[test]
fn a_predicate_that_panics_says_no() {
    ranks(|comm| {
        let calls = Arc::new(AtomicUsize::new(0));
        comm.use_table(&table("mine")).unwrap();
        let panicking = counting(&calls, None).when(Arc::new(|call| panic!("{} elements, as a test", call.count)));
        assert_eq!(comm.use_candidates(&[panicking]).unwrap(), ["mine"]);
        sum(comm, 100);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_function_with_a_predicate_on_some_ranks_only_serves_nowhere() {
    ranks(|comm| {
        let [calls, asked] = [0, 0].map(|zero| Arc::new(AtomicUsize::new(zero)));
        comm.use_table(&table("mine")).unwrap();
        let given = if comm.rank() == 1 { counting(&calls, None) } else { even(&calls, &asked) };
        assert!(comm.use_candidates(&[given]).unwrap().is_empty());
        sum(comm, 100);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}
