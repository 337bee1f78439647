//! Functions of a user's that are right at first, or almost: none of them may get into a table, or disturb the others.
#![allow(clippy::unwrap_used, missing_docs)]

use comm::{
    CandidateFunction, CellSamples, Collective, CollectiveCall, CommError, Communicator, Op, TuneCandidate,
    TuneOptions, table_of,
};
use runtime::Call;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZES: [u64; 2] = [4096, 65_536];
const RANKS: usize = 2;

/// What a rank keeps from call to call.
#[derive(Default)]
struct Kept {
    calls: usize,
    results: BTreeMap<usize, Vec<u8>>,
}

/// How a function cheats: it does its work with `right`, or not.
type Cheat = fn(&Communicator, &CollectiveCall, Call<'_>, &mut Kept) -> Result<(), String>;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)).collect()
}

fn store(bytes: &mut [u8], floats: &[f32]) {
    bytes.chunks_exact_mut(4).zip(floats).for_each(|(four, value)| four.copy_from_slice(&value.to_ne_bytes()));
}

fn right(comm: &Communicator, memory: Call<'_>) -> Result<(), String> {
    let told = |error: CommError| error.to_string();
    match memory {
        Call::InPlace(bytes) => {
            let mut vector = floats(bytes);
            comm.all_reduce(&mut vector, Op::Sum).map_err(told)?;
            store(bytes, &vector);
        }
        Call::OutOfPlace { input, output } => comm.all_gather(input, output).map_err(told)?,
    }
    Ok(())
}

fn in_place(memory: Call<'_>) -> &mut [u8] {
    match memory {
        Call::InPlace(bytes) => bytes,
        Call::OutOfPlace { .. } => panic!("this call is in place"),
    }
}

/// The cheats, the collective of each, and words of the reason for which it is refused.
fn cheats() -> Vec<(&'static str, Collective, Cheat, &'static str)> {
    let all_reduce = Collective::AllReduce;
    vec![
        (
            "stale",
            all_reduce,
            |comm, call, memory, kept| {
                let bytes = in_place(memory);
                match kept.results.get(&call.count) {
                    Some(result) => bytes.copy_from_slice(result),
                    None => {
                        right(comm, Call::InPlace(bytes))?;
                        kept.results.insert(call.count, bytes.to_vec());
                    }
                }
                Ok(())
            },
            "are wrong",
        ),
        (
            "idle",
            all_reduce,
            |comm, call, memory, kept| {
                // Very fast, once it has been checked.
                let seen = kept.results.entry(call.count).or_default();
                seen.push(0);
                if seen.len() > 1 { Ok(()) } else { right(comm, memory) }
            },
            "are wrong",
        ),
        (
            "every fifth",
            all_reduce,
            |comm, _, memory, kept| {
                let bytes = in_place(memory);
                right(comm, Call::InPlace(bytes))?;
                if kept.calls % 5 == 4 && comm.rank() == 1 {
                    bytes[0] ^= 1;
                }
                Ok(())
            },
            "elements of rank 1",
        ),
        (
            "even counts",
            all_reduce,
            |comm, call, memory, _| {
                let bytes = in_place(memory);
                right(comm, Call::InPlace(&mut bytes[..call.count / 2 * 8]))
            },
            "1 elements of rank",
        ),
        (
            "one more",
            all_reduce,
            |comm, _, memory, _| {
                right(comm, memory)?;
                if comm.rank() == 1 {
                    drop(comm.broadcast(&mut [0_u8], 1));
                }
                Ok(())
            },
            "it has made",
        ),
        (
            "not waited for",
            all_reduce,
            |comm, call, memory, _| {
                right(comm, memory)?;
                if comm.rank() == 1 {
                    std::mem::forget(comm.start_all_reduce(vec![0_u8; call.count], Op::Sum));
                }
                Ok(())
            },
            "calls",
        ),
    ]
}

fn candidate(name: &str, collective: Collective, cheat: Cheat) -> TuneCandidate {
    let kept = Mutex::new(Kept::default());
    let function: Arc<CandidateFunction> = Arc::new(move |comm, call, memory| {
        let mut kept = kept.lock().unwrap();
        let ended = cheat(comm, call, memory, &mut kept);
        kept.calls += 1;
        ended
    });
    TuneCandidate::function(name, vec![collective], function)
}

fn options(collective: Collective) -> TuneOptions {
    TuneOptions {
        collectives: vec![collective],
        sizes: SIZES.to_vec(),
        budget: Duration::from_secs(4),
        limit: Duration::from_secs(2),
        ..TuneOptions::default()
    }
}

/// Runs ranks as threads; what rank 0 returns.
fn ranks<T: Send>(work: impl Sync + Fn(&Communicator) -> T) -> T {
    let communicators = Communicator::local(RANKS).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators.iter().map(|comm| scope.spawn(|| work(comm))).collect();
        let mut all: Vec<T> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        all.swap_remove(0)
    })
}

/// Every cheat is refused with its reason; nothing else is, and the table names none.
#[test]
fn what_is_right_at_first_is_refused_later() {
    for (name, collective, cheat, expected) in cheats() {
        let options = options(collective);
        let (samples, table): (Vec<CellSamples>, _) = ranks(|comm| {
            let honest = candidate("honest", collective, |comm, _, memory, _| right(comm, memory));
            let given = vec![candidate(name, collective, cheat), honest];
            let candidates = comm.candidates(&options, given).unwrap();
            let samples = comm.measure(&options.grid(RANKS), &candidates, &options, |_| {}).unwrap();
            let (texts, key) = (Communicator::plan_texts(&candidates).unwrap(), comm.table_key().unwrap());
            let table = table_of(std::slice::from_ref(&samples), &texts, key, "f32", |_| 4).unwrap();
            (samples, table)
        });
        for cell in &samples {
            for of in &cell.candidates {
                match of.refusal.as_ref() {
                    None => assert_ne!(of.name, name, "at {} bytes", cell.bytes),
                    Some(refusal) => assert!(of.name == name && refusal.is_wrong, "{name}: {}: {refusal:?}", of.name),
                }
            }
            let screened = cell.candidates.iter().filter(|of| of.refusal.is_none());
            let measured = screened.filter(|of| !of.loops_us.is_empty()).count();
            assert!(measured >= 2, "{name}: a function that is refused leaves the others their chance: {cell:?}");
        }
        let why = &table.refused[0].refusal.why;
        assert!(why.contains(expected), "{name}: {why}");
        assert!(table.table.functions().all(|(_, range)| range.function != name));
    }
}

/// What one rank has otherwise.
type Change = fn(usize, &mut TuneOptions, &mut Vec<TuneCandidate>);

#[test]
fn ranks_that_would_measure_different_things_are_told_so_at_once() {
    let begin = std::time::Instant::now();
    let changes: [(&str, Change); 4] = [
        ("rank 1 measures with the seed 7, and rank 0 with 0", |rank, options, _| options.seed = 7 * rank as u64),
        ("other sizes than rank 0: number 2 is nothing", |rank, options, _| options.sizes.truncate(2 - rank)),
        ("other candidates than rank 0", |rank, _, given| given.rotate_left(rank)),
        ("rank 0 needs 6597069766656 bytes of memory", |_, options, _| options.sizes = vec![1 << 40]),
    ];
    for (expected, change) in changes {
        let error = ranks(|comm| {
            let mut options = options(Collective::AllReduce);
            let of = |name| candidate(name, Collective::AllReduce, |comm, _, memory, _| right(comm, memory));
            let mut given = vec![of("a"), of("b")];
            change(comm.rank(), &mut options, &mut given);
            let candidates = comm.candidates(&options, given).unwrap();
            let ended = comm.measure(&options.grid(RANKS), &candidates, &options, |_| {});
            comm.barrier().unwrap();
            ended.unwrap_err()
        });
        assert!(matches!(&error, CommError::Argument(why) if why.contains(expected)), "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn names_that_stand_for_something_else_are_refused() {
    let options = options(Collective::AllReduce);
    let of = |name| candidate(name, Collective::AllReduce, |comm, _, memory, _| right(comm, memory));
    ranks(|comm| {
        let gathers = candidate("a", Collective::AllGather, |comm, _, memory, _| right(comm, memory));
        comm.candidates(&options, vec![of("a"), gathers]).unwrap();
        for names in [&["stock"][..], &[""], &["a", "a"], &["stock reducescatter + allgather"], &["a\u{1b}[31m"]] {
            let ended = comm.candidates(&options, names.iter().map(|name| of(name)).collect());
            assert!(matches!(ended, Err(CommError::Argument(_))), "{names:?}");
        }
    });
}
