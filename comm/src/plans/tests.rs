//! What is prepared, kept, compared and counted.

use super::*;
use crate::links::LinkCosts;
use crate::log::Says;
use crate::stock::CallKind;
use crate::table::PlanTable;
use runtime::DType;
use schedule::{Collective, ReduceOp};

const KIND: CallKind = CallKind { op: Some(ReduceOp::Sum), in_place: true, ..CallKind::plain(Collective::AllReduce) };
const MEMBERS: [Rank; 2] = [Rank(0), Rank(1)];

fn key(count: usize) -> CallKey {
    CallKey { kind: KIND, count, dtype: DType::I64 }
}

/// The plans of a rank, all of a table; the other rank is not needed to prepare them.
struct RankPlans {
    session: Session,
    cache: PlanCache,
}

impl RankPlans {
    fn new(every: u32) -> Self {
        let session = Session::local(2).unwrap().remove(0);
        let stock = PlanStore::new(PlanTable::default(), Says::default(), LinkCosts::assumed(&session));
        let table = stock.textbook(&MEMBERS, &[KIND]).unwrap();
        Self { session, cache: PlanCache::new(Arc::new(stock.with_table(table).confirming(every))) }
    }

    /// A call for which this rank waits, and which takes so long, in nanoseconds, with the plan or with stock. Whether stock served.
    fn call(&mut self, count: usize, [plan, stock]: [i64; 2]) -> bool {
        let timed = loop {
            match self.cache.ready(&self.session, &MEMBERS, key(count), true).unwrap() {
                ReadyTurn::Call(timed) => break timed,
                ReadyTurn::Tell(number) => self.tell(number),
            }
        };
        let is_stock = self.cache.last.ready.why_stock.is_some();
        if let Some(timed) = timed
            && self.cache.confirmed().took(timed, if is_stock { stock } else { plan })
        {
            self.tell(timed.confirmation);
        }
        is_stock
    }

    fn tell(&mut self, number: usize) {
        let (_, times) = self.cache.confirmed().told(number);
        self.cache.confirmed().learn(number, &times);
    }
}

/// Every call has another size than the one before, and each size comes rarely.
#[test]
fn sizes_that_differ_little_are_confirmed_together() {
    let mut rank = RankPlans::new(2);
    let mut stock = [0; 2];
    for call in 0..40_000 {
        // Of two classes, 512 to 1023 and 1024 to 2047 bytes. Stock is slower for the shorter ones.
        let count = 64 + call * 7 % 192;
        let is_long = usize::from(count >= 128);
        stock[is_long] += usize::from(rank.call(count, [[1000, 2000], [2000, 1000]][is_long]));
    }
    assert_eq!(rank.cache.confirmed().streams().len(), 2);
    let [short, long] = stock;
    // One call in two is timed, and of those one in two with the other side.
    assert!((3000..3500).contains(&short) && (19_000..20_300).contains(&long), "{stock:?}");
    let counted = rank.cache.statistics();
    assert_eq!(counted.stock.values().sum::<u64>(), (short + long) as u64);
    assert_eq!(counted.plans.values().map(|plan| plan.calls).sum::<u64>(), 40_000);
    assert_eq!((counted.confirmation.switched, counted.stock.len()), (1, 2), "{:?}", counted.stock);
    assert!(counted.stock[FASTER] > counted.stock[IN_TURN]);
    assert!(rank.cache.last_plan().contains("because"), "{}", rank.cache.last_plan());
}

/// What it says of a call is what has served it, also where the call before was timed.
#[test]
fn what_is_said_of_a_call_is_what_served_it() {
    let mut rank = RankPlans::new(2);
    for call in 0..2000 {
        let is_stock = rank.call(100, [2000, 1000]);
        let said = rank.cache.last_plan();
        assert_eq!(said.contains("stock, because "), is_stock, "call {call}: {said}");
        assert_eq!(said.contains("because the table has it"), !is_stock, "call {call}: {said}");
    }
    assert!(rank.cache.last_plan().ends_with(&shown_digest(rank.cache.last.ready.digest)));
    assert!(rank.cache.last_plan().contains(FASTER), "{}", rank.cache.last_plan());
}

/// A few more sizes in turn than there is room for: most calls find what was prepared.
#[test]
fn a_few_sizes_too_many_do_not_make_all_prepared_anew() {
    let mut rank = RankPlans::new(0);
    rank.call(1, [0; 2]);
    let each = size_of::<(CallKey, ReadyPlan)>() + rank.cache.last.ready.prepared.bytes();
    assert!((500..5000).contains(&each), "about as much as its acts and lists: {each}");
    rank.cache.ready = BoundedMap::new(300 * each);
    for call in 0..301 * 20 {
        rank.call(1 + call % 301, [0; 2]);
    }
    let prepared = rank.cache.statistics().prepared;
    assert!(prepared < 301 * 2, "{prepared} of {}", 301 * 20);
    assert!(rank.cache.ready.len() >= 299);
    assert!(MOST_BYTES / each > 3000, "there is room for {}", MOST_BYTES / each);
}

/// What ranks tell each other of a table that is gone is not taken for news of the next one.
#[test]
fn another_table_is_confirmed_anew() {
    let mut rank = RankPlans::new(2);
    while !rank.call(100, [2000, 1000]) || !rank.cache.last_plan().contains(FASTER) {}
    let mut late = None;
    while late.is_none() {
        let ReadyTurn::Call(timed) = rank.cache.ready(&rank.session, &MEMBERS, key(100), true).unwrap() else {
            panic!()
        };
        late = timed;
    }
    let store = rank.cache.store();
    rank.cache.replace(store);
    assert!(!rank.call(100, [0; 2]) && rank.cache.confirmed().streams().len() == 2);
    assert!(!rank.cache.confirmed().took(late.unwrap(), 1));
}
