//! Sessions of threads: every collective at many sizes, and what happens when a rank does not do its part.

use super::*;
use crate::clock::Moment;
use crate::dtype::DType;
use crate::interpreter::buffers::Call;
use crate::measure::reference::Reference;
use crate::transport::port::{MessageHead, MessagePort};
use crate::transport::tcp::port::SocketPort;
use engine::Driver;
use program::VerifiedProgram;
use program::testing::schedules::{self, Random};
use program::testing::{STANDARD, checked, lowered};
use schedule::{Collective, ReduceOp, VerifiedSchedule};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod room;
mod under_way;

const LIMIT: Duration = Duration::from_secs(20);
const WORLD: u64 = 1;

fn all(ranks: usize) -> Vec<Rank> {
    (0..ranks).map(Rank::from_index).collect()
}

/// Sessions of threads that reach each other through sockets, as if each had a machine of its own.
fn apart(ranks: usize) -> Vec<Session> {
    apart_with(ranks, |_| None)
}

/// The same, with what each rank drops when it leaves.
fn apart_with(ranks: usize, watch: impl Fn(usize) -> Option<Box<dyn Any + Send + Sync>>) -> Vec<Session> {
    apart_over(ranks, watch, |_| {})
}

/// The same over sockets that are set up in some way.
fn apart_over(
    ranks: usize,
    watch: impl Fn(usize) -> Option<Box<dyn Any + Send + Sync>>,
    set_up: impl Fn(&TcpStream),
) -> Vec<Session> {
    let pollers: Vec<Poller> = (0..ranks).map(|_| Poller::new().unwrap()).collect();
    let mut ports: Vec<Vec<(Rank, Box<dyn MessagePort>)>> = (0..ranks).map(|_| Vec::new()).collect();
    for (from, to) in (0..ranks).flat_map(|from| (0..from).map(move |to| (from, to))) {
        let (near, far) = crate::transport::tcp::lane::tests::pair();
        for (own, peer, stream) in [(from, to, near), (to, from, far)] {
            set_up(&stream);
            let port = SocketPort::new(pollers[own].watch(stream).unwrap());
            ports[own].push((Rank::from_index(peer), Box::new(port)));
        }
    }
    let parts = pollers.into_iter().zip(ports).enumerate().map(|(own, (poller, ports))| {
        let memory = RankMemory::new(ranks).unwrap();
        let seen = |rank| if rank == own { RankLocation::Thread(memory.clone()) } else { RankLocation::Elsewhere };
        Session::assemble(SessionSetup {
            rank: Rank::from_index(own),
            directory: Arc::new(Directory::of_one_machine((0..ranks).map(seen).collect())),
            patience: Patience::of(ranks, 2),
            status: Arc::new(SessionStatus::new(vec![memory.clone()])),
            remote: Some(RemotePorts { poller, ports }),
            watch: watch(own),
            survivors: Arc::new(ThreadMeeting::default()),
            memory,
        })
        .unwrap()
    });
    parts.collect()
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
    let make = |buffers| session.call(prepared, CallPlace::collective(WORLD, call), buffers, LIMIT).unwrap();
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
    let ranks = sequenced.program().program().ranks.len();
    for sessions in [Session::local(ranks).unwrap(), apart(ranks)] {
        judge_on(&sessions, &sequenced);
    }
}

fn judge_on(sessions: &[Session], sequenced: &SequencedProgram) {
    judge_calls(sessions, sequenced, &[0, 1, 2, 7, 100, 1000, 4000, 50_000], &[DType::F32, DType::U8, DType::F64]);
}

fn judge_calls(sessions: &[Session], sequenced: &SequencedProgram, counts: &[u64], dtypes: &[DType]) {
    let (program, ranks) = (sequenced.program(), sessions.len());
    let wrongs = on_all(sessions, |session| {
        let mut call = 0;
        let mut total = 0;
        for &dtype in dtypes {
            for &count in counts {
                let prepared = session.prepare(sequenced, &all(ranks), count, dtype).unwrap();
                for _ in 0..3 {
                    call += 1;
                    total += wrong(session, program, &prepared, count, dtype, call);
                }
            }
        }
        total
    });
    let (collective, in_place) = (program.program().demand.request().collective, program.program().in_place);
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
            session.call(&prepared, CallPlace::collective(count, 1), Call::InPlace(&mut both), limit).unwrap_err()
        });
        // Rank 0 waits for rank 2, its neighbour in the ring, and rank 1 for rank 0.
        let RunError::Deadline { peer: Some(Rank(2)), .. } = told[0] else { panic!("{}", told[0]) };
        assert!(told[1].named().contains(&Rank(2)), "{}", told[1]);
    }
}

#[test]
fn another_call_is_an_error_and_no_wait() {
    let (sessions, program) = (Session::local(2).unwrap(), sum(2));
    let told = on_all(&sessions, |session| {
        let count = 10 + u64::from(session.rank().0);
        let prepared = session.prepare(&program, &all(2), count, DType::F32).unwrap();
        let mut both = vec![0; prepared.lengths()[1]];
        let told = session.call(&prepared, CallPlace::collective(WORLD, 1), Call::InPlace(&mut both), LIMIT);
        told.inspect_err(|error| session.break_off(WORLD, error))
    });
    // The other one has found that too, or was told.
    let is_told = |told: &RunResult<()>| matches!(told, Err(RunError::OtherCall { .. } | RunError::Broken(_)));
    assert!(told.iter().all(is_told), "{told:?}");
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
        session.call(&prepared, CallPlace::collective(WORLD, 1), Call::InPlace(&mut both), LIMIT).err()
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
                            session.call(prepared, CallPlace::collective(communicator, call), buffers, LIMIT).unwrap();
                        }
                    });
                }
            }
        });
    }
}

/// Calls that were begun go on while others are waited for, in another order.
#[test]
fn calls_that_were_begun_end_in_any_order_of_waiting() {
    for sessions in [Session::local(2).unwrap(), apart(2)] {
        let program = sum(2);
        for count in [10, 100_000] {
            on_all(&sessions, |session| {
                let prepared = session.prepare(&program, &all(2), count, DType::F32).unwrap();
                let bytes = prepared.lengths()[1] / 4;
                let begin = |communicator: u64, call: u32| {
                    let vector = vec![call as f32; bytes];
                    session.start_owned(&prepared, CallPlace::collective(communicator, call), None, vector).unwrap()
                };
                let mut started: Vec<_> = (1..9).flat_map(|call| [begin(5, call), begin(6, call)]).collect();
                // One rank waits for the first first, the other for the last.
                if session.rank() == Rank(0) {
                    started.reverse();
                }
                for (index, call) in started.into_iter().enumerate() {
                    let place = if session.rank() == Rank(0) { 15 - index } else { index };
                    let sum = call.wait(LIMIT).unwrap();
                    assert!(sum.iter().all(|value| *value == 2.0 * (place / 2 + 1) as f32));
                }
            });
        }
    }
}

/// A call that is dropped is over for this rank, and the other rank's call fails.
#[test]
fn a_call_that_is_given_up_is_refused() {
    for sessions in [Session::local(2).unwrap(), apart(2)] {
        let program = sum(2);
        // Were both to start at once, the one that drops its call might have done its part before.
        let dropped = std::sync::Barrier::new(2);
        let told = on_all(&sessions, |session| {
            let prepared = session.prepare(&program, &all(2), 1_000_000, DType::F32).unwrap();
            let elements = prepared.lengths()[1] / 4;
            if session.rank() == Rank(1) {
                dropped.wait();
            }
            let started =
                session.start_owned(&prepared, CallPlace::collective(7, 1), None, vec![1.0_f32; elements]).unwrap();
            if session.rank() == Rank(0) {
                drop(started);
                // What was taken back is told while something is waited for.
                session.forget([7]);
                dropped.wait();
                return None;
            }
            Some(started.wait(Duration::from_secs(2)).unwrap_err())
        });
        let error = told[1].as_ref().unwrap();
        assert!(matches!(error, RunError::Lane { .. } | RunError::Deadline { .. }), "{error}");
    }
}

/// What a call has expected from another computer comes unasked, also when the call has been given up meanwhile.
#[test]
fn what_a_call_that_was_given_up_has_expected_is_in_nobodys_way() {
    let sessions = apart(2);
    let (program, given_up) = (sum(2), std::sync::Barrier::new(2));
    on_all(&sessions, |session| {
        let prepared = session.prepare(&program, &all(2), 1_000_000, DType::F32).unwrap();
        let start = |communicator| {
            let vector = vec![1.0_f32; prepared.lengths()[1] / 4];
            session.start_owned(&prepared, CallPlace::collective(communicator, 1), None, vector).unwrap()
        };
        let failing = match session.rank() == Rank(1) {
            true => {
                let mut dropped = start(7);
                assert!(!dropped.test(LIMIT), "nobody has answered");
                drop(dropped);
                given_up.wait();
                None
            }
            false => {
                given_up.wait();
                Some(start(7))
            }
        };
        let sum = start(8).wait(LIMIT).unwrap();
        assert!(sum.iter().all(|element| *element == 2.0));
        let error = failing.map(|failing| failing.wait(Duration::from_secs(2)).unwrap_err());
        assert!(matches!(error, None | Some(RunError::Lane { .. } | RunError::Deadline { .. })), "{error:?}");
    });
}

/// Sets a flag when it is dropped.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The thread that carries calls on must not be the last one that holds the session: the process may end before it.
#[test]
fn who_uses_a_session_last_has_left_when_it_is_dropped() {
    let program = sum(2);
    for _ in 0..20 {
        let left = Arc::new(AtomicBool::new(false));
        let watch = |rank| (rank == 0).then(|| Box::new(Leaving(left.clone())) as Box<dyn Any + Send + Sync>);
        let mut sessions = apart_with(2, watch);
        let session = sessions.swap_remove(0);
        let prepared = session.prepare(&program, &all(2), 1000, DType::F32).unwrap();
        let input = vec![1.0_f32; prepared.lengths()[1] / 4];
        let started = session.start_owned(&prepared, CallPlace::collective(WORLD, 1), None, input).unwrap();
        let begun = Moment::now();
        while session.engine().driver != Driver::ProgressThread {
            assert!(Moment::now().since(begun) < LIMIT, "no thread carries the call on");
            std::thread::yield_now();
        }
        drop((started, prepared, session));
        assert!(left.load(Ordering::SeqCst));
    }
}
