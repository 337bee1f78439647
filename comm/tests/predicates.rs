//! Functions that can do only some calls, in the tuner.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{
    CandidateFunction, CandidatePredicate, CandidateSamples, CellSamples, Collective, Communicator, Op, TrialPhase,
    TuneCandidate, TuneOptions,
};
use runtime::Call;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RANKS: usize = 3;

/// What rank 0 has measured of AllReduce of floats at these sizes in bytes, where each rank makes its candidates.
fn measured(sizes: &[u64], given: impl Sync + Fn(usize) -> Vec<TuneCandidate>) -> Vec<CellSamples> {
    let options = TuneOptions {
        collectives: vec![Collective::AllReduce],
        sizes: sizes.to_vec(),
        budget: Duration::from_secs(20),
        limit: Duration::from_secs(5),
        seed: 3,
        ..TuneOptions::default()
    };
    let communicators = Communicator::local(RANKS).unwrap();
    let work = |comm: &Communicator| {
        let candidates = comm.candidates(&options, given(comm.rank())).unwrap();
        comm.measure(&options.grid(RANKS), &candidates, &options, |_| {}).unwrap()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>().swap_remove(0)
    })
}

fn found<'a>(cell: &'a CellSamples, name: &str) -> Option<&'a CandidateSamples> {
    cell.candidates.iter().find(|of| of.name == name)
}

/// An AllReduce that writes down for how many elements it is called.
fn writing_down(counts: &Arc<Mutex<Vec<usize>>>) -> Arc<CandidateFunction> {
    let counts = counts.clone();
    Arc::new(move |comm, call, memory| {
        counts.lock().unwrap().push(call.count);
        let Call::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
        let mut vector: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
        comm.all_reduce(&mut vector, Op::Sum).map_err(|error| error.to_string())?;
        bytes.chunks_exact_mut(4).zip(vector).for_each(|(four, value)| four.copy_from_slice(&value.to_ne_bytes()));
        Ok(())
    })
}

#[test]
fn what_a_function_cannot_do_is_not_measured_and_not_refused() {
    let counts = Arc::new(Mutex::new(Vec::new()));
    let few: Arc<CandidatePredicate> = Arc::new(|call| call.count <= 1000 && call.count.is_multiple_of(4));
    let cells = measured(&[400, 12_000], |_| {
        let function = TuneCandidate::function("few", vec![Collective::AllReduce], writing_down(&counts));
        vec![function.when(few.clone())]
    });
    let small = found(&cells[0], "few").unwrap();
    assert!(small.refusal.is_none() && small.screening_us.is_some(), "{small:?}");
    assert!(found(&cells[1], "few").is_none(), "{:?}", cells[1]);
    assert!(found(&cells[1], "stock").unwrap().refusal.is_none());
    // Where the cell fits, its checks with fewer elements are only those that the function can do.
    let counts = counts.lock().unwrap();
    assert!(counts.contains(&100) && counts.iter().all(|count| *count <= 100 && count % 4 == 0), "{counts:?}");
}

#[test]
fn a_rank_that_answers_otherwise_than_rank_0_is_named_and_the_function_is_not_called() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let cells = measured(&[400, 12_000], |rank| {
        let unsure = TuneCandidate::function("unsure", vec![Collective::AllReduce], writing_down(&called));
        let right = Arc::new(Mutex::new(Vec::new()));
        vec![
            unsure.when(Arc::new(move |call| rank != 1 || call.count < 1000)),
            TuneCandidate::function("right", vec![Collective::AllReduce], writing_down(&right)),
        ]
    });
    assert!(found(&cells[0], "unsure").unwrap().refusal.is_none());
    let refusal = found(&cells[1], "unsure").unwrap().refusal.clone().unwrap();
    assert_eq!((refusal.rank, refusal.phase, refusal.is_wrong), (1, TrialPhase::Prepare, true));
    assert!(refusal.why.contains("says no on rank 1, and yes on rank 0, for "), "{}", refusal.why);
    assert!(called.lock().unwrap().iter().all(|count| *count <= 100));
    for cell in &cells {
        assert!(found(cell, "right").unwrap().refusal.is_none(), "the others are measured");
    }
}
