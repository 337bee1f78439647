//! Groups of calls: those that plans serve are kept until the outermost group ends.
//!
//! The principal type is [`KeptGroup`]. NCCL begins nothing of a group before its end, and neither do plans: first NCCL ends the group
//! with the calls that it serves, then the plans of one communicator after the other go into their streams. Inside of a group ranks may
//! call communicators in any order. If two ranks began with different ones, each would wait for the other; so communicators have an
//! order that all their ranks know.

use crate::background::{IN_PROGRESS, spawn};
use crate::counters::count_call;
use crate::members::{SeenMember, find};
use crate::plans::{AskedCall, CallForPlan, choose};
use crate::prepared::PlanRefusal;
use crate::settings::say;
use runtime::GpuError;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

thread_local! {
    /// How many groups this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static KEPT: RefCell<KeptGroup> = const { RefCell::new(KeptGroup { calls: Vec::new(), streams: Vec::new(), error: SUCCESS }) };
}

const SUCCESS: c_int = 0;
const CUDA_ERROR: c_int = 1;
/// What NCCL gives for a communicator that is none.
const INVALID_ARGUMENT: c_int = 4;

/// What a thread has asked for inside of its group.
#[derive(Default)]
pub(crate) struct KeptGroup {
    /// As they were called.
    calls: Vec<CallForPlan>,
    /// Communicators and the streams of their calls, those that NCCL serves too.
    streams: Vec<(usize, usize)>,
    /// The first error of a call that did not get to NCCL.
    error: c_int,
}

/// Whether this thread is inside of a group.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// A group has begun.
pub(crate) fn enter() {
    DEPTH.set(DEPTH.get() + 1);
}

/// A group ends: what was kept, if it is the outermost one.
pub(crate) fn leave() -> Option<KeptGroup> {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    (!is_inside()).then(|| KEPT.with_borrow_mut(std::mem::take))
}

/// What NCCL gives where it has not done what a communicator was asked for before, if this library is at work for it.
pub(crate) fn refused_as_busy(comm: *mut c_void) -> Option<c_int> {
    if crate::real::is_inside() || !find(comm).is_some_and(|seen| seen.background.is_busy()) {
        return None;
    }
    if is_inside() {
        KEPT.with_borrow_mut(|kept| kept.error = INVALID_ARGUMENT);
    }
    Some(INVALID_ARGUMENT)
}

/// Serves a call by a plan, now or at the end of the group. The result for the caller.
///
/// # Errors
/// Why NCCL has to serve it. All ranks come to the same.
pub(crate) fn run(call: &AskedCall) -> Result<c_int, PlanRefusal> {
    let chosen = choose(call)?;
    if !is_inside() {
        let _current = chosen.gpu.current();
        if chosen.is_blocking {
            return Ok(begin(&chosen));
        }
        let group = KeptGroup { calls: vec![chosen], ..KeptGroup::default() };
        return Ok(group.begin_later());
    }
    KEPT.with_borrow_mut(|kept| {
        kept.note(call.comm, call.stream);
        kept.calls.push(chosen);
    });
    Ok(SUCCESS)
}

/// Puts a call into its stream and counts it. The result for the caller.
fn begin(chosen: &CallForPlan) -> c_int {
    match chosen.start() {
        // Its communicator has ended inside of the group, and must not be asked for anything any more.
        Err(PlanRefusal::Unseen) => INVALID_ARGUMENT,
        served => {
            let code = served.as_ref().map_or(INVALID_ARGUMENT, |served| served.code);
            count_call(&chosen.call, None, &served);
            code
        }
    }
}

/// A message is sent or received in this stream. The result for the caller, if NCCL must not be called.
pub(crate) fn noted(comm: *mut c_void, stream: *mut c_void) -> Option<c_int> {
    if crate::real::is_inside() {
        return None;
    }
    let refused = refused_as_busy(comm);
    note_stream(comm, stream);
    refused
}

/// NCCL serves a call of a communicator in this stream.
pub(crate) fn note_stream(comm: *mut c_void, stream: *mut c_void) {
    if is_inside() && find(comm).is_some() {
        KEPT.with_borrow_mut(|kept| kept.note(comm, stream));
    }
}

/// The order in which calls begin: by the number of their communicator, and those of each communicator as they were called.
fn in_order<T>(mut calls: Vec<T>, number: impl Fn(&T) -> u64) -> Vec<T> {
    calls.sort_by_key(number);
    calls
}

impl KeptGroup {
    fn note(&mut self, comm: *mut c_void, stream: *mut c_void) {
        let noted = (comm as usize, stream as usize);
        if !self.streams.contains(&noted) {
            self.streams.push(noted);
        }
    }

    /// A group is one operation in all streams of a communicator: they wait for each other before it and after it.
    fn meet(&self) -> Result<(), GpuError> {
        for (at, CallForPlan { call, gpu, seen, .. }) in self.calls.iter().enumerate() {
            let is_known = self.calls[..at].iter().any(|before| before.call.comm == call.comm);
            if is_known || seen.background.is_stopped() {
                continue;
            }
            let streams = self.streams.iter().filter(|(comm, _)| *comm == call.comm as usize);
            let streams: Vec<_> = streams.map(|(_, stream)| *stream as *mut c_void).collect();
            let [first, others @ ..] = streams.as_slice() else { continue };
            // SAFETY: these are streams of calls of this communicator, and so of its GPU.
            others.iter().try_for_each(|other| unsafe { gpu.follow(*first, *other) })?;
            // SAFETY: as above.
            others.iter().try_for_each(|other| unsafe { gpu.follow(*other, *first) })?;
        }
        Ok(())
    }

    /// NCCL ends the group by `end`, and then the plans begin. The result for the caller.
    pub(crate) fn end(self, end: impl FnOnce() -> c_int) -> c_int {
        let Some(first) = self.calls.first() else {
            let result = end();
            return if result == SUCCESS { self.error } else { result };
        };
        let _current = first.gpu.current();
        let (met, is_blocking) = (self.meet(), first.is_blocking);
        let is_mixed = self.calls.iter().any(|chosen| chosen.is_blocking != is_blocking);
        let result = end();
        if result != SUCCESS && result != IN_PROGRESS {
            // NCCL has begun nothing, or not all.
            return result;
        }
        if is_mixed || is_blocking && result == IN_PROGRESS {
            say("a group: some of its communicators block, and some do not; its plans do not run");
            return INVALID_ARGUMENT;
        }
        match (met, self.error) {
            (Ok(()), SUCCESS) if is_blocking => {
                self.begin_all().into_iter().map(|(_, code)| code).find(|code| *code != SUCCESS).unwrap_or(SUCCESS)
            }
            (Ok(()), SUCCESS) => self.begin_later(),
            (Ok(()), error) => error,
            (Err(why), _) => {
                say(&format!("a group: {why}"));
                CUDA_ERROR
            }
        }
    }

    /// Begins the plans in the background, when NCCL has done its part for all communicators of the group. None of them blocks.
    fn begin_later(mut self) -> c_int {
        let mut seen: Vec<(usize, SeenMember)> = Vec::new();
        let kept = self.calls.iter().map(|chosen| (chosen.call.comm as usize, chosen.seen.clone()));
        let noted = self.streams.iter().filter_map(|&(comm, _)| Some((comm, find(comm as *mut c_void)?)));
        for (comm, member) in kept.chain(noted) {
            if !seen.iter().any(|(_, other)| Arc::ptr_eq(other, &member)) {
                seen.push((comm, member));
            }
        }
        let of = seen.iter().map(|(_, seen)| seen.background.clone()).collect();
        spawn(of, move || {
            // Where NCCL has failed, it tells what is wrong. The ranks of the others wait for their plans.
            let failed = |(comm, seen): &&(usize, SeenMember)| !seen.background.wait_for_nccl(*comm as *mut c_void);
            let failed: Vec<&SeenMember> = seen.iter().filter(failed).map(|(_, seen)| seen).collect();
            self.calls.retain(|chosen| !failed.iter().any(|seen| Arc::ptr_eq(seen, &chosen.seen)));
            let codes = self.begin_all();
            let code =
                |seen: &SeenMember| codes.iter().find(|(of, _)| Arc::ptr_eq(of, seen)).map_or(SUCCESS, |of| of.1);
            seen.iter().map(|(_, seen)| code(seen)).collect()
        })
    }

    /// Begins the plans. The errors; after one, its communicator begins nothing more.
    fn begin_all(mut self) -> Vec<(SeenMember, c_int)> {
        let mut failed: Vec<(SeenMember, c_int)> = Vec::new();
        let before = self.meet();
        self.calls = in_order(self.calls, |kept| kept.number);
        for chosen in &self.calls {
            if before.is_err() || failed.iter().any(|(of, _)| Arc::ptr_eq(of, &chosen.seen)) {
                continue;
            }
            let code = begin(chosen);
            if code != SUCCESS {
                failed.push((chosen.seen.clone(), code));
            }
        }
        if let Err(why) = before.and_then(|()| self.meet()) {
            say(&format!("a group: {why}"));
            failed.extend(self.calls.iter().map(|chosen| (chosen.seen.clone(), CUDA_ERROR)));
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::testing::schedules::Random;
    use std::collections::{BTreeMap, BTreeSet};

    /// A call: the number of its communicator, and which of its calls it is.
    type TestCall = (u64, usize);

    /// What each rank calls in its group: each communicator as often as all its ranks do, and in any order between communicators.
    fn random_calls(random: &mut Random) -> Vec<Vec<TestCall>> {
        let ranks = 2 + random.below(4);
        let mut calls = vec![Vec::new(); ranks];
        for number in 0..1 + random.below(4) as u64 {
            let count = 1 + random.below(2);
            for own in &mut calls {
                if random.below(3) == 0 {
                    continue;
                }
                let mut at = 0;
                for call in 0..count {
                    at += random.below(own.len() + 1 - at);
                    own.insert(at, (number, call));
                    at += 1;
                }
            }
        }
        calls
    }

    /// Ranks do one call after the other, and each call waits for all ranks that have it. Whether all come to their end.
    fn all_end(calls: &[Vec<TestCall>]) -> bool {
        let mut waits: BTreeMap<TestCall, BTreeSet<usize>> = BTreeMap::new();
        for (rank, own) in calls.iter().enumerate() {
            own.iter().for_each(|call| waits.entry(*call).or_default().extend([rank]));
        }
        let mut done = vec![0; calls.len()];
        loop {
            let is_met = |(call, ranks): &(&TestCall, &BTreeSet<usize>)| {
                ranks.iter().all(|rank| calls[*rank].get(done[*rank]) == Some(*call))
            };
            let Some((_, ranks)) = waits.iter().find(is_met) else { break };
            ranks.iter().for_each(|rank| done[*rank] += 1);
        }
        done.iter().zip(calls).all(|(done, own)| *done == own.len())
    }

    #[test]
    fn no_rank_waits_for_ever_in_the_order_of_groups() {
        let mut random = Random(7);
        // As they were called; each communicator at once, beginning with the first call; backwards on one rank.
        let mut caught = [false; 3];
        for _ in 0..2000 {
            let called = random_calls(&mut random);
            let ordered: Vec<_> = called.iter().map(|own| in_order(own.clone(), |call| call.0)).collect();
            assert!(all_end(&ordered), "{called:?}");
            for (own, before) in ordered.iter().zip(&called) {
                for (number, _) in own {
                    let of = |calls: &[TestCall]| -> Vec<_> {
                        calls.iter().filter(|call| call.0 == *number).copied().collect()
                    };
                    assert_eq!(of(own), of(before), "a communicator keeps its order");
                }
            }
            let first =
                |own: &Vec<TestCall>, number: u64| own.iter().position(|call| call.0 == number).unwrap_or(0) as u64;
            let by_first = called.iter().map(|own| in_order(own.clone(), |call| first(own, call.0)));
            let mut backwards = ordered.clone();
            backwards[0] = in_order(called[0].clone(), |call| u64::MAX - call.0);
            for (found, wrong) in caught.iter_mut().zip([called.clone(), by_first.collect(), backwards]) {
                *found |= !all_end(&wrong);
            }
        }
        assert_eq!(caught, [true; 3], "each of these orders would make ranks wait for ever");
    }
}
