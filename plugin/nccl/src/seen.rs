//! A communicator whose making this library has seen, whether it runs plans or not.
//!
//! The principal type is [`SeenCommunicator`].

use crate::background::{Background, REMOTE_ERROR, spawn};
use crate::domains::PlanDomains;
use crate::peers::PeerFunctions;
use crate::places::MemberPlaces;
use crate::prepared::PreparedPlans;
use crate::settings::say;
use runtime::{GpuDevice, NcclCommunicator, PeerFault};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const SUCCESS: c_int = 0;

/// A rank of a communicator that runs plans.
pub(crate) struct PlanMember {
    pub(crate) comm: NcclCommunicator,
    pub(crate) gpu: Arc<GpuDevice>,
    pub(crate) places: MemberPlaces,
    /// A number of the communicator, which all its ranks know, and by which they order communicators.
    pub(crate) number: u64,
    pub(crate) plans: PreparedPlans,
    /// Where ranks have mapped each other's memory.
    pub(crate) peers: Option<PeerFunctions>,
    /// The same for messages of plans, within machines.
    pub(crate) domains: Option<PlanDomains>,
}

impl PlanMember {
    /// What ends kernels that wait for other ranks.
    fn faults(&self) -> Vec<Arc<PeerFault>> {
        let of_peers = self.peers.as_ref().map(|peers| peers.staged.fault().clone());
        of_peers.into_iter().chain(self.domains.as_ref().map(|domains| domains.memory.fault().clone())).collect()
    }
}

/// A communicator that was seen being made.
pub(crate) struct SeenCommunicator {
    /// If it runs no plans, why.
    pub(crate) member: Mutex<Result<PlanMember, String>>,
    pub(crate) background: Arc<Background>,
    /// What ends kernels that wait for other ranks, once there are any.
    faults: OnceLock<Vec<Arc<PeerFault>>>,
    /// Whether its functions return only when their work is in the stream.
    pub(crate) is_blocking: bool,
    /// Its calls were given up while it lives on: NCCL answers from then on.
    is_retired: AtomicBool,
}

impl SeenCommunicator {
    pub(crate) fn new(member: Result<PlanMember, String>, is_blocking: bool) -> Self {
        let seen = Self {
            member: Mutex::new(Err(String::new())),
            background: Arc::default(),
            faults: OnceLock::new(),
            is_blocking,
            is_retired: AtomicBool::new(false),
        };
        seen.become_member(member);
        seen
    }

    /// Its ranks have compared their tables.
    pub(crate) fn become_member(&self, member: Result<PlanMember, String>) {
        member.iter().for_each(|member| drop(self.faults.set(member.faults())));
        *self.member.lock().unwrap_or_else(PoisonError::into_inner) = member;
    }

    /// It is about to be aborted, and so is whatever waits for other ranks. False: a thread may use it still, and so it cannot end.
    pub(crate) fn abort(&self) -> bool {
        for why in self.faults.get().into_iter().flatten().filter_map(|fault| fault.end().err()) {
            say(&format!("an abort: {why}"));
        }
        self.background.stop()
    }

    /// The same where it lives on, and NCCL says what becomes of it. Its memory stays until it is destroyed: graphs may use it.
    pub(crate) fn retire(&self) -> bool {
        self.is_retired.store(true, Ordering::SeqCst);
        let has_ended = self.abort();
        if has_ended {
            self.background.forget();
        }
        has_ended
    }

    /// Whether its calls were given up.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// NCCL has finalized it. What this library does for it waits for calls that are not done: in a thread, if its functions return
    /// at once. The result for the caller.
    pub(crate) fn finalized(&self, result: c_int) -> c_int {
        let finalized = Err("it was finalized".to_owned());
        let ended = std::mem::replace(&mut *self.member.lock().unwrap_or_else(PoisonError::into_inner), finalized);
        match ended {
            Ok(member) if !self.is_blocking && !member.faults().is_empty() => {
                spawn(vec![self.background.clone()], move || {
                    drop(member);
                    vec![SUCCESS]
                })
            }
            ended => {
                drop(ended);
                result
            }
        }
    }

    /// What `ncclCommGetAsyncError` gives as long as this library has something to say; otherwise NCCL says it.
    pub(crate) fn state(&self) -> Option<c_int> {
        let has_failed = self.faults.get().is_some_and(|faults| faults.iter().any(|fault| fault.has_failed()));
        self.background.state().or(has_failed.then_some(REMOTE_ERROR))
    }
}
