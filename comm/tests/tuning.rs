//! The tuner, with candidates of a user's own: right, wrong, failing, panicking and slow ones.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{
    CandidateFunction, CandidateSamples, CellSamples, Collective, Communicator, DType, LaunchEnd, MeasuredTable,
    NextWork, Op, TuneCandidate, TuneJob, TuneOptions, edges_of, next_work, table_of,
};
use runtime::Call;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn options(sizes: &[u64]) -> TuneOptions {
    TuneOptions {
        collectives: vec![Collective::AllReduce, Collective::AllGather],
        sizes: sizes.to_vec(),
        dtype: DType::F32,
        op: Op::Sum,
        budget: Duration::from_secs(60),
        limit: Duration::from_secs(2),
        seed: 5,
        least_samples: 0,
        ..TuneOptions::default()
    }
}

/// What rank 0 has measured, with these functions among the candidates, and the table.
fn tuned(
    ranks: usize,
    sizes: &[u64],
    functions: &[(&str, Arc<CandidateFunction>)],
) -> (Vec<CellSamples>, MeasuredTable) {
    let communicators = Communicator::local(ranks).unwrap();
    let work = |comm: &Communicator| {
        let options = options(sizes);
        let given = functions
            .iter()
            .map(|(name, function)| TuneCandidate::function(*name, vec![Collective::AllReduce], function.clone()));
        let candidates = comm.candidates(&options, given.collect()).unwrap();
        let samples = comm.measure(&options.grid(comm.size()), &candidates, &options, |_| {}).unwrap();
        // The communicator works as before, whatever candidates did.
        let mut vector = [1.0f32; 100];
        comm.all_reduce(&mut vector, Op::Sum).unwrap();
        assert_eq!(vector, [ranks as f32; 100]);
        let texts = Communicator::plan_texts(&candidates).unwrap();
        (samples, texts, comm.table_key().unwrap())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        let mut all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (samples, texts, key) = all.swap_remove(0);
        let table = table_of(std::slice::from_ref(&samples), &texts, key, "f32", |_| 4).unwrap();
        (samples, table)
    })
}

fn candidate<'a>(cell: &'a CellSamples, name: &str) -> &'a comm::CandidateSamples {
    cell.candidates.iter().find(|candidate| candidate.name == name).unwrap()
}

/// An AllReduce by the library, and what else a test does.
fn all_reduce(comm: &Communicator, memory: Call<'_>) -> Result<(), String> {
    let Call::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
    let mut vector: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    comm.all_reduce(&mut vector, Op::Sum).map_err(|error| error.to_string())?;
    bytes.chunks_exact_mut(4).zip(vector).for_each(|(four, value)| four.copy_from_slice(&value.to_le_bytes()));
    Ok(())
}

#[test]
fn candidates_that_are_wrong_or_fail_are_refused_and_the_others_are_measured() {
    let right: Arc<CandidateFunction> = Arc::new(|comm, _, memory| all_reduce(comm, memory));
    let wrong: Arc<CandidateFunction> = Arc::new(|comm, _, mut memory| {
        let last = comm.rank() + 1 == comm.size();
        if let Call::InPlace(bytes) = &mut memory {
            all_reduce(comm, Call::InPlace(bytes))?;
            if last {
                bytes[0] ^= 1;
            }
        }
        Ok(())
    });
    let failing: Arc<CandidateFunction> = Arc::new(|comm, _, memory| match comm.rank() {
        1 => Err("no".to_owned()),
        _ => all_reduce(comm, memory),
    });
    let panicking: Arc<CandidateFunction> = Arc::new(|comm, _, memory| match comm.rank() {
        0 => panic!("as a test"),
        _ => all_reduce(comm, memory),
    });
    let functions = [("right", right), ("wrong", wrong), ("failing", failing), ("panicking", panicking)];
    let (samples, made) = tuned(3, &[400, 12_000], &functions);
    assert_eq!(samples.len(), 4);
    for cell in samples.iter().filter(|cell| cell.collective == Collective::AllReduce) {
        assert!(candidate(cell, "stock").refusal.is_none() && candidate(cell, "right").refusal.is_none());
        let why = |name: &str| candidate(cell, name).refusal.clone().unwrap().why;
        assert!(why("wrong").contains("of rank 2 are wrong"), "{}", why("wrong"));
        assert!(!why("failing").is_empty() && !why("panicking").is_empty());
        let rank = |name: &str| candidate(cell, name).refusal.clone().unwrap().rank;
        assert_eq!(["wrong", "failing", "panicking"].map(rank), [2, 1, 0], "the one that failed, not one that noticed");
        assert!(candidate(cell, "wrong").spans_us.is_empty());
    }
    assert_eq!(made.refused.len(), 6);
    // A function is no plan, so a file cannot hold it.
    let chosen: Vec<_> =
        made.table.cells.iter().flat_map(|cell| &cell.ranges).filter_map(|it| it.plan.as_ref()).collect();
    assert!(chosen.iter().all(|plan| !functions.iter().any(|(name, _)| plan == name)), "{chosen:?}");
}

/// What follows a launch in which a plan was the fastest.
fn after(best: &str, collective: Collective, bytes: u64, end: &LaunchEnd) -> NextWork {
    let times = vec![1.0; 20];
    let plan = CandidateSamples {
        name: best.to_owned(),
        spans_us: times.clone(),
        loops_us: times,
        ..CandidateSamples::default()
    };
    let cell = CellSamples { collective, bytes, op: None, stock_plan: None, candidates: vec![plan] };
    next_work(&[vec![cell]], end, "f32", |_| 4).unwrap()
}

#[test]
fn plans_in_pieces_that_are_asked_for_are_right_and_measured() {
    const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::Broadcast, Collective::Reduce];
    let options = TuneOptions { collectives: COLLECTIVES.to_vec(), least_samples: 1, ..options(&[1 << 20]) };
    let communicators = Communicator::local(3).unwrap();
    let work = |comm: &Communicator| {
        let textbook = comm.candidates(&options, Vec::new()).unwrap();
        let end = comm.launch_end(&textbook, comm.table_key().unwrap()).unwrap();
        let mut work = options.grid(comm.size());
        let mut job = TuneJob::new(options.clone());
        for cell in &mut work {
            let of = format!("{} classic/", cell.collective);
            let mut names = Vec::new();
            for plan in textbook.iter().map(|of| of.name()).filter(|name| name.starts_with(&of)) {
                let next = comm.shared_value(|| Ok(after(plan, cell.collective, cell.bytes, &end))).unwrap();
                names.extend(next.variants.keys().cloned());
                job.variants.extend(next.variants);
            }
            cell.candidates = Some(names);
        }
        job.work = Some(work.clone());
        let candidates = job.candidates(comm, Vec::new()).unwrap();
        comm.measure(&work, &candidates, &options, |_| {}).unwrap()
    };
    let samples = std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>().swap_remove(0)
    });
    assert_eq!(samples.len(), COLLECTIVES.len());
    for cell in &samples {
        let pieces: Vec<_> = cell.candidates.iter().filter(|of| of.name.ends_with("pieces")).collect();
        assert!(!pieces.is_empty(), "{}: {:?}", cell.collective, cell.candidates);
        // Some plans are the same in pieces.
        let is_measured = |of: &CandidateSamples| of.screening_us.is_some() || of.same_as.is_some();
        assert!(pieces.iter().all(|of| of.refusal.is_none() && is_measured(of)), "{pieces:?}");
    }
}

#[test]
fn a_candidate_that_leaves_a_rank_waiting_is_refused_within_its_limit() {
    let absent: Arc<CandidateFunction> = Arc::new(|comm, _, memory| match comm.rank() {
        // It says that it is done, and was not there.
        1 => Ok(()),
        _ => all_reduce(comm, memory),
    });
    let begin = Instant::now();
    let (samples, _) = tuned(2, &[400], &[("absent", absent)]);
    assert!(begin.elapsed() < Duration::from_secs(30));
    let cell = &samples[0];
    assert!(candidate(cell, "stock").refusal.is_none());
    let refusal = candidate(cell, "absent").refusal.as_ref().unwrap();
    assert_eq!(
        (refusal.rank, refusal.is_wrong),
        (1, true),
        "the one that was not there, not one that waited: {refusal:?}"
    );
}

#[test]
fn every_choice_was_measured_and_is_at_least_as_fast_as_stock() {
    let (samples, made) = tuned(2, &[64, 4096, 100_000], &[]);
    assert!(edges_of(std::slice::from_ref(&samples), |_| 4).iter().all(|work| work.candidates.is_some()));
    for range in made.table.cells.iter().flat_map(|cell| &cell.ranges) {
        for evidence in &range.evidence {
            assert!(evidence.choice.samples > 0 && evidence.launches == 1);
            assert!(evidence.choice.median_us <= evidence.stock.median_us, "{evidence:?}");
        }
    }
    made.table.check().unwrap();
    for of in samples.iter().flat_map(|cell| &cell.candidates) {
        assert_eq!([of.after_last_begin_us.len(), of.skews_us.len()], [of.spans_us.len(); 2], "{}", of.name);
        for ((span, after), skew) in of.spans_us.iter().zip(&of.after_last_begin_us).zip(&of.skews_us) {
            assert!((span - after - skew).abs() < 1e-6 && *skew >= 0.0 && *after > 0.0, "{span} {after} {skew}");
        }
    }
    // Stock is one of the textbook algorithms, which is not measured a second time.
    for cell in &samples {
        let stock = &cell.stock_plan.as_ref().unwrap().name;
        let same = candidate(cell, stock);
        assert_eq!(same.same_as.as_deref(), Some("stock"), "{cell:?}");
        assert!(same.spans_us.is_empty() && same.screening_us.is_none());
        assert!(made.same.iter().any(|of| of.name == *stock && of.bytes == cell.bytes));
    }
}

/// Sizes of less than an element of each rank, or of a part of one, are the next size that there is; each once.
#[test]
fn a_grid_has_every_size_that_there_is_once() {
    let options = TuneOptions { collectives: vec![Collective::AllGather], ..options(&[1, 8, 12, 13, 100]) };
    let sizes = |ranks| options.grid(ranks).iter().map(|work| work.bytes).collect::<Vec<_>>();
    assert_eq!(sizes(2), [8, 96]);
    assert_eq!(sizes(3), [12, 96]);
    assert_eq!(sizes(30), [120]);
}

/// Stock, under another name: it must not win against itself.
#[test]
fn long_the_same_way_twice_is_a_tie() {
    let again: Arc<CandidateFunction> = Arc::new(|comm, _, memory| {
        let Call::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
        comm.all_reduce(bytes, Op::Sum).map_err(|error| error.to_string())
    });
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").as_deref() == Ok("long");
    let repeats = if is_long { 50 } else { 3 };
    let options = TuneOptions {
        collectives: vec![Collective::AllReduce],
        sizes: vec![64, 1000, 16_000, 250_000],
        dtype: DType::U8,
        budget: Duration::from_millis(150 * 4 * repeats as u64),
        limit: Duration::from_secs(20),
        ..TuneOptions::default()
    };
    let communicators = Communicator::local(2).unwrap();
    let work = |comm: &Communicator| {
        let given = TuneCandidate::function("again", vec![Collective::AllReduce], again.clone());
        let candidates = comm.candidates(&options, vec![given]).unwrap();
        let only = |work: comm::CellWork| comm::CellWork { candidates: Some(vec!["again".to_owned()]), ..work };
        let grid = || options.grid(comm.size()).into_iter().map(only);
        let cells: Vec<comm::CellWork> = (0..repeats).flat_map(|_| grid()).collect();
        comm.measure(&cells, &candidates, &options, |_| {}).unwrap()
    };
    let samples = std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>().swap_remove(0)
    });
    // A cell for which there was no time has nobody in it.
    let samples: Vec<_> = samples.into_iter().filter(|cell| !cell.ranking().is_empty()).collect();
    assert!(!samples.is_empty());
    let wins = samples.iter().filter(|cell| cell.ranking()[0].0 == "again" && cell.replaces_stock("again")).count();
    println!("{wins} of {} times the same way won against itself", samples.len());
    // One in twenty is what the intervals promise; a few more may happen in a short test.
    assert!(wins <= samples.len() / 20 + if is_long { 0 } else { 2 }, "{wins} of {}", samples.len());
}
