//! Models of what threads do in shared memory, tried by loom in all orders (up to some preemptions) and with all values that C11
//! atomics allow: `make models`. The tests are in `runtime/tests/models.rs`.
//!
//! What runs is the code of lanes and bells itself. A lane has four lines and one offer here, so that it is soon full, and a
//! sleep has no time limit, so that a ring that is lost is a deadlock.

use crate::clock::Moment;
use crate::memory::doorbell::{BELL_BYTES, Doorbell, Patience, Waiter};
use crate::memory::region::Region;
use crate::transport::port::{MessageHead, OfferState};
use crate::transport::shared::port::lane::{LaneReceiver, LaneSender};
use crate::transport::shared::port::lane_place::{LanePlace, lane_bytes, lines_between};
use loom::thread;
use std::sync::Arc;

/// Tries all orders with so many preemptions.
fn all_orders(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// The two ends of a lane, and the bell of each.
struct Lane {
    sender: LaneSender,
    receiver: LaneReceiver,
    bells: [Doorbell; 2],
}

fn lane(by_pointer: bool) -> Lane {
    let lines = lines_between(2);
    let region = Arc::new(Region::create(2 * BELL_BYTES + lane_bytes(lines)).expect("there is memory"));
    let place = || LanePlace::new(region.clone(), 2 * BELL_BYTES, lines);
    let bells = [0, 1].map(|end| Doorbell::new(region.clone(), end * BELL_BYTES));
    Lane {
        sender: LaneSender::new(place(), bells[1].clone(), by_pointer),
        receiver: LaneReceiver::new(place(), bells[0].clone()),
        bells,
    }
}

fn head(number: u64, bytes: u32) -> MessageHead {
    MessageHead { bytes, offer: None, communicator: number, stamp: !number, tag: 7 }
}

/// Does something until it succeeds, and sleeps in between.
fn until<T>(bell: &Doorbell, mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut waiter = Waiter::new(bell.clone(), Patience::NONE);
    loop {
        if let Some(done) = attempt() {
            waiter.progressed();
            return done;
        }
        let now = Moment::now();
        waiter.idle(now, now);
    }
}

/// Twice what a lane holds goes through it.
pub fn short_messages_arrive_whole_and_no_ring_is_lost() {
    const MESSAGES: u64 = 6;
    all_orders(2, || {
        let Lane { mut sender, mut receiver, bells: [sends, receives] } = lane(true);
        let sending = thread::spawn(move || {
            for number in 0..MESSAGES {
                until(&sends, || sender.send(head(number, 8), &number.to_le_bytes()).then_some(()));
            }
        });
        for number in 0..MESSAGES {
            until(&receives, || {
                let found = receiver.head()?;
                assert_eq!(found, head(number, 8));
                let mut payload = [0; 8];
                receiver.copy(&mut payload);
                assert_eq!(u64::from_le_bytes(payload), number);
                receiver.release(8);
                Some(())
            });
        }
        sending.join().expect("it does not panic");
    });
}

/// Who gives up first wins, and the offer can be used again.
pub fn an_offer_is_read_or_revoked_but_not_both() {
    for by_pointer in [true, false] {
        all_orders(3, move || {
            let Lane { mut sender, mut receiver, bells: [_, receives] } = lane(by_pointer);
            let sending = thread::spawn(move || {
                let data = [1; 100];
                let mut offer = sender.offer(head(1, 0), &data, 0).expect("it is the first");
                let taken = sender.advance(&mut offer, head(1, 0), &data) == OfferState::Taken;
                if !taken {
                    sender.revoke(&offer);
                }
                taken
            });
            let read = until(&receives, || {
                let offer = receiver.head()?.offer?;
                let begun = receiver.begin(offer);
                let read = begun.is_ok_and(|message| message.bytes == 100 && receiver.end(offer).is_ok());
                receiver.release(0);
                Some(read)
            });
            let taken = sending.join().expect("it does not panic");
            assert!(read || !taken, "what was taken was read");
        });
    }
}

/// A receiver that cannot read the sender's memory gets all fragments, through a lane of four lines.
pub fn fragments_arrive_in_order() {
    all_orders(1, || {
        let Lane { mut sender, mut receiver, bells: [sends, receives] } = lane(false);
        let sending = thread::spawn(move || {
            let data: Vec<u8> = (0..100).collect();
            let mut offer = sender.offer(head(1, 0), &data, 0).expect("it is the first");
            until(&sends, || (sender.advance(&mut offer, head(1, 0), &data) == OfferState::Taken).then_some(()));
        });
        let offer = until(&receives, || receiver.head()?.offer);
        receiver.release(0);
        receiver.begin(offer).expect("it is open");
        receiver.ask(offer).expect("it is open");
        let mut received = Vec::new();
        while received.len() < 100 {
            until(&receives, || {
                let found = receiver.head()?;
                let mut piece = vec![0; found.bytes as usize];
                receiver.copy(&mut piece);
                received.extend(piece);
                receiver.release(found.bytes);
                Some(())
            });
        }
        assert_eq!(received, (0..100).collect::<Vec<u8>>());
        sending.join().expect("it does not panic");
    });
}
