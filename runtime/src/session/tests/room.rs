//! Ranks that wait while others need room, or what they have.

use super::*;

/// In an AllReduce around a ring, both ranks can send before they have received anything, whatever the order of their steps.
#[test]
fn a_rank_that_waits_sends_what_it_has() {
    for count in [10, 100_000] {
        for caller in [Rank(0), Rank(1)] {
            for sessions in [Session::local(2).unwrap(), apart(2)] {
                let [one, other] = &sessions[..] else { unreachable!("there are two") };
                let (caller, peer) = if caller == one.rank() { (one, other) } else { (other, one) };
                let prepared = caller.prepare(&sum(2), &all(2), count, DType::F32).unwrap();
                let vector = vec![1.0_f32; prepared.lengths()[1] / 4];
                let mut started = caller.start_owned(&prepared, CallPlace::collective(WORLD, 1), None, vector).unwrap();
                // The other rank does nothing.
                let end = Moment::now().after(LIMIT);
                while peer.engine().ports.next(caller.rank(), WORLD).unwrap().is_none() {
                    assert!(Moment::now() < end, "{} sends nothing of {count} elements", caller.rank());
                    assert!(!started.test(LIMIT), "nobody has answered");
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// Around a ring, each rank waits for the one before it, and the rest of a message to the next one waits for room in the socket. What
/// is sent only when a rank looks at that socket again would be late by half of the limit.
#[test]
fn a_rank_that_waits_sends_what_had_no_room() {
    let narrow = |stream: &TcpStream| rustix::net::sockopt::set_socket_send_buffer_size(stream, 1).unwrap();
    let sessions = apart_over(3, |_| None, narrow);
    let gather = schedules::ring_allgather(3, 1);
    let sequenced = SequencedProgram::new(checked(lowered(&gather, false))).unwrap();
    let begin = Moment::now();
    judge_calls(&sessions, &sequenced, &[40_000, 60_000], &[DType::U8]);
    assert!(Moment::now().since(begin) < LIMIT / 2, "somebody had to ask");
}

/// What fills a lane is put aside, though the rank waits for another one: its message may come behind one that finds no room.
#[test]
fn a_rank_that_waits_makes_room_in_full_lanes() {
    for sessions in [Session::local(3).unwrap(), apart(3)] {
        // Around the ring, rank 1 receives from rank 0.
        let [_, waiting, sender] = &sessions[..] else { unreachable!("there are three") };
        let payload = vec![7; sender.engine().ports.longest_short(Rank(1))];
        let head = MessageHead { bytes: payload.len() as u32, offer: None, communicator: 9, stamp: 0, tag: 0 };
        let prepared = waiting.prepare(&sum(3), &all(3), 10, DType::F32).unwrap();
        let vector = vec![1.0_f32; prepared.lengths()[1] / 4];
        let mut started = waiting.start_owned(&prepared, CallPlace::collective(WORLD, 1), None, vector).unwrap();
        let end = Moment::now().after(LIMIT);
        while waiting.engine().ports.aside_bytes() == 0 {
            // Until there is no room.
            while sender.engine().ports.send(Rank(1), head, &payload).unwrap() {}
            assert!(!started.test(LIMIT), "nobody has answered");
            assert!(Moment::now() < end, "nothing is put aside");
            std::thread::yield_now();
        }
    }
}
