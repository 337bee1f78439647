//! Calls that are under way beside others, and threads that carry them on.

use super::*;

/// What waits for room at a socket to one rank is no concern of a call with another rank.
#[test]
fn a_call_waits_for_its_own_receivers_only() {
    let sessions = apart(3);
    let [sender, receiver, _] = &sessions[..] else { unreachable!("there are three") };
    let payload = vec![7; sender.engine().ports.longest_short(Rank(2))];
    let head = MessageHead { bytes: payload.len() as u32, offer: None, communicator: 9, stamp: 0, tag: 0 };
    while sender.engine().ports.send(Rank(2), head, &payload).unwrap() {}
    assert_eq!(sender.engine().ports.flush(&[Rank(2)]).unwrap(), Some(Rank(2)));
    let at = CallPlace::collective(WORLD, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let call = Call::OutOfPlace { input: &[5; 100], output: &mut [] };
            sender.call(&sender.prepare_send(Rank(1), 100), at, call, LIMIT).unwrap();
        });
        let mut heard = [0; 100];
        let call = Call::OutOfPlace { input: &[], output: &mut heard };
        receiver.call(&receiver.prepare_receive(Rank(0), 100), at, call, LIMIT).unwrap();
        assert_eq!(heard, [5; 100]);
    });
}

/// More long messages are under way than a lane has room for offers, and the last one is received first.
#[test]
fn any_number_of_long_messages_may_be_under_way() {
    const MESSAGES: u64 = 200;
    for sessions in [Session::local(2).unwrap(), apart(2)] {
        on_all(&sessions, |session| {
            let bytes = 2 * crate::transport::SHORT_AT_MOST;
            let at = |stream| CallPlace { communicator: WORLD, stream: 100 + stream, number: 1 };
            if session.rank() == Rank(0) {
                let prepared = session.prepare_send(Rank(1), bytes);
                let begin =
                    |stream| session.start_owned(&prepared, at(stream), Some(vec![stream as u8; bytes]), vec![]);
                let started: Vec<_> = (0..MESSAGES).map(|stream| begin(stream).unwrap()).collect();
                started.into_iter().for_each(|call| drop(call.wait(LIMIT).unwrap()));
                return;
            }
            let prepared = session.prepare_receive(Rank(0), bytes);
            for stream in (0..MESSAGES).rev() {
                let mut heard = vec![0; bytes];
                let call = Call::OutOfPlace { input: &[], output: &mut heard };
                session.call(&prepared, at(stream), call, LIMIT).unwrap();
                assert!(heard.iter().all(|byte| *byte == stream as u8), "message {stream}");
            }
        });
    }
}

/// Who carries on all calls of a rank may panic. The others take over, and its own call is over.
#[test]
fn a_thread_that_panics_gives_its_turn_back() {
    let (sessions, program) = (Session::local(2).unwrap(), sum(2));
    let session = &sessions[0];
    let prepared = session.prepare(&program, &all(2), 10, DType::F32).unwrap();
    let vector = vec![1.0_f32; prepared.lengths()[1] / 4];
    // Nobody answers.
    let mut started = session.start_owned(&prepared, CallPlace::collective(WORLD, 1), None, vector).unwrap();
    // Only while this thread has the turn nobody holds the lock.
    let goes_on = || match session.shared.engine.try_lock() {
        Ok(_) => panic!("for a test"),
        Err(_) => true,
    };
    let wait = std::panic::AssertUnwindSafe(|| started.wait_while(LIMIT, goes_on));
    assert!(std::panic::catch_unwind(wait).is_err());
    assert_ne!(session.engine().driver, Driver::Caller, "nobody would carry calls on");
    on_all(&sessions, |session| {
        let prepared = session.prepare(&program, &all(2), 10, DType::F32).unwrap();
        let mut both = vec![0; prepared.lengths()[1]];
        session.call(&prepared, CallPlace::collective(5, 1), Call::InPlace(&mut both), LIMIT).unwrap();
    });
    assert!(started.test(LIMIT));
    let error = started.wait(LIMIT).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

/// Ranks rebuild a communicator in one thread each. A second one of a rank does not take the place of another rank.
#[test]
fn only_one_thread_of_a_rank_rebuilds_a_communicator() {
    let (sessions, members) = (Session::local(2).unwrap(), all(2));
    let terms = RebuildTerms { communicator: WORLD, members: &members, least: 2, limit: LIMIT, patience: LIMIT };
    std::thread::scope(|scope| {
        let (say, heard) = std::sync::mpsc::channel();
        for say in [say.clone(), say] {
            let session = &sessions[0];
            scope.spawn(move || say.send(session.rebuild(&terms).map(|rebuilt| rebuilt.members)).unwrap());
        }
        // The other one waits for rank 1.
        let refused = heard.recv_timeout(LIMIT / 2).unwrap().unwrap_err();
        assert!(refused.to_string().contains("another thread of rank 0"), "{refused}");
        sessions[1].rebuild(&terms).unwrap();
        assert_eq!(heard.recv_timeout(LIMIT).unwrap().unwrap(), members);
    });
    let generations = on_all(&sessions, |session| session.rebuild(&terms).unwrap().generation);
    assert_eq!(generations, [1, 1]);
}

/// The messages of a failed call are under way still, and a later call of its stream would take them for its own.
#[test]
fn after_a_failed_call_its_stream_is_over_and_no_other() {
    for sessions in [Session::local(2).unwrap(), apart(2)] {
        let program = sum(2);
        let has_found_out = on_all(&sessions, |session| {
            let prepared = |count| session.prepare(&program, &all(2), count, DType::F32).unwrap();
            let call = |communicator, number, prepared: &Prepared| {
                let mut both = vec![0; prepared.lengths()[1]];
                session.call(prepared, CallPlace::collective(communicator, number), Call::InPlace(&mut both), LIMIT)
            };
            let failed = call(5, 1, &prepared(10 + 10 * u64::from(session.rank().0))).unwrap_err();
            let same = prepared(10);
            // Who finds out first tells the other one, which may wait for a message that does not come.
            if matches!(failed, RunError::OtherCall { .. }) {
                for number in 2..5 {
                    let later = call(5, number, &same).unwrap_err();
                    assert!(matches!(&later, RunError::Broken(breach) if breach.by == session.rank()), "{later}");
                }
                session.break_off(5, &failed);
            }
            (1..5).for_each(|number| call(6, number, &same).unwrap());
            matches!(failed, RunError::OtherCall { .. })
        });
        assert!(has_found_out.contains(&true));
    }
}
