//! Sessions of threads: every collective at many sizes, and what happens when a rank does not do its part.

use super::*;
use crate::measure::reference::Reference;
use program::VerifiedProgram;
use program::testing::schedules::{self, Random};
use program::testing::{STANDARD, checked, lowered};
use schedule::{Collective, ReduceOp, VerifiedSchedule};

const LIMIT: Duration = Duration::from_secs(20);
const WORLD: u64 = 1;

fn all(ranks: usize) -> Vec<Rank> {
    (0..ranks).map(Rank::from_index).collect()
}

/// Does `work` on all ranks at the same time; what each says, by rank.
fn on_all<T: Send>(sessions: &[Session], work: impl Fn(&Session) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions.iter().map(|session| scope.spawn(|| work(session))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// One call of one rank with the reference's input; how many elements were wrong.
fn wrong(
    session: &Session,
    program: &VerifiedProgram,
    prepared: &Prepared,
    count: u64,
    dtype: DType,
    call: u32,
) -> u64 {
    let (rank, program) = (session.rank(), program.program());
    let reference = Reference::new(&program.demand, program.op, count as usize, dtype, u64::from(call));
    let places = reference.places(rank);
    let [input, output] = prepared.lengths();
    let make = |buffers| session.call(prepared, (WORLD, call), buffers, LIMIT).unwrap();
    if program.in_place {
        let mut both = vec![0xcc; input.max(output)];
        reference.fill(rank, &mut both, places.input_at);
        make(Call::InPlace(&mut both));
        return reference.wrong(rank, &both, places.output_at);
    }
    let (mut send, mut receive) = (vec![0; input], vec![0xcc; output]);
    reference.fill(rank, &mut send, 0);
    make(Call::OutOfPlace { input: &send, output: &mut receive });
    reference.wrong(rank, &receive, 0) + reference.changed(rank, &send)
}

/// Many calls of one schedule at several sizes, on the same session.
fn judge(schedule: &VerifiedSchedule, in_place: bool) {
    let sequenced = SequencedProgram::new(checked(lowered(schedule, in_place))).unwrap();
    let program = sequenced.program();
    let ranks = program.program().ranks.len();
    let sessions = Session::local(ranks).unwrap();
    let counts = [0, 1, 2, 7, 100, 1000, 4000, 50_000];
    let wrongs = on_all(&sessions, |session| {
        let mut call = 0;
        let mut total = 0;
        for dtype in [DType::F32, DType::U8, DType::F64] {
            for count in counts {
                let prepared = session.prepare(&sequenced, &all(ranks), count, dtype).unwrap();
                for _ in 0..3 {
                    call += 1;
                    total += wrong(session, program, &prepared, count, dtype, call);
                }
            }
        }
        total
    });
    let collective = program.program().demand.request().collective;
    assert!(wrongs.iter().all(|&wrong| wrong == 0), "{collective}, {ranks} ranks, in place {in_place}: {wrongs:?}");
}

#[test]
fn every_collective_is_right_at_every_size() {
    for ranks in [1, 2, 3, 5] {
        for collective in STANDARD {
            let schedule = schedules::direct(&schedules::demand(collective, ranks, 2));
            judge(&schedule, false);
            judge(&schedule, true);
        }
    }
}

#[test]
fn relays_and_partial_sums_are_right_too() {
    let random = &mut Random(3);
    for collective in [Collective::AllGather, Collective::Broadcast, Collective::AllToAll] {
        let topology = schedules::random_topology(4, random);
        judge(&schedules::random_trees(&topology, &schedules::demand(collective, 4, 3), random), false);
    }
    judge(&schedules::ring_allreduce(4, 2), true);
    judge(&schedules::ring_reducescatter(4, 1), true);
}

fn sum(ranks: usize) -> SequencedProgram {
    let program = checked(lowered(&schedules::ring_allreduce(ranks, 1), true));
    assert_eq!(program.program().op, Some(ReduceOp::Sum));
    SequencedProgram::new(program).unwrap()
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let (sessions, program) = (Session::local(3).unwrap(), sum(3));
    for count in [10, 100_000] {
        let told = on_all(&sessions[..2], |session| {
            let prepared = session.prepare(&program, &all(3), count, DType::F32).unwrap();
            let mut both = vec![0; prepared.lengths()[1]];
            let limit = Duration::from_millis(200);
            session.call(&prepared, (count, 1), Call::InPlace(&mut both), limit).unwrap_err()
        });
        // Rank 0 waits for rank 2, its neighbour in the ring, and rank 1 for the neighbours of both.
        let RunError::Deadline { peer: Some(Rank(2)), .. } = told[0] else { panic!("{}", told[0]) };
        assert!(matches!(told[1], RunError::Deadline { .. } | RunError::Lane { .. }), "{}", told[1]);
    }
}

#[test]
fn another_call_is_an_error_and_no_wait() {
    let (sessions, program) = (Session::local(2).unwrap(), sum(2));
    let told = on_all(&sessions, |session| {
        let count = 10 + u64::from(session.rank().0);
        let prepared = session.prepare(&program, &all(2), count, DType::F32).unwrap();
        let mut both = vec![0; prepared.lengths()[1]];
        session.call(&prepared, (WORLD, 1), Call::InPlace(&mut both), LIMIT)
    });
    assert!(told.iter().any(|told| matches!(told, Err(RunError::Stamp { .. }))), "{told:?}");
}

#[test]
fn an_abort_ends_every_wait() {
    let (sessions, program) = (Session::local(3).unwrap(), sum(3));
    let told = on_all(&sessions, |session| {
        if session.rank() == Rank(1) {
            session.abort();
            return None;
        }
        let prepared = session.prepare(&program, &all(3), 10, DType::F32).unwrap();
        let mut both = vec![0; 40];
        session.call(&prepared, (WORLD, 1), Call::InPlace(&mut both), LIMIT).err()
    });
    for told in [&told[0], &told[2]] {
        let Some(RunError::Verdict(verdict)) = told else { panic!("{told:?}") };
        assert_eq!(verdict.rank, Rank(1));
    }
}

/// Rank 0 calls the one communicator first, rank 1 the other, each in a thread of its own.
#[test]
fn communicators_do_not_wait_for_each_other() {
    let (sessions, program) = (Session::local(2).unwrap(), sum(2));
    for count in [10, 100_000] {
        let prepared: Vec<Prepared> =
            sessions.iter().map(|session| session.prepare(&program, &all(2), count, DType::F32).unwrap()).collect();
        std::thread::scope(|scope| {
            for (session, prepared) in sessions.iter().zip(&prepared) {
                for communicator in [2, 3] {
                    scope.spawn(move || {
                        let mut both = vec![0; prepared.lengths()[1]];
                        for call in 1..200 {
                            let buffers = Call::InPlace(&mut both);
                            session.call(prepared, (communicator, call), buffers, LIMIT).unwrap();
                        }
                    });
                }
            }
        });
    }
}
