//! What was called, and what served it: counted, said, and written at the end of the process.
//!
//! The principal type is [`Counters`].

use crate::choices::{Choices, NcclReason};
use crate::members::asked;
use crate::names::NcclName;
use crate::plans::{AskedCall, PlannedCall};
use crate::prepared::PlanRefusal;
use crate::real::real;
use crate::settings::{Settings, say};
use schedule::Collective;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A call of NCCL, as far as choices depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenCall {
    pub(crate) collective: Collective,
    /// In bytes, as the collective counts them.
    pub(crate) bytes: u64,
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
}

/// What has served a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServedBy {
    /// NCCL, and why.
    Nccl(NcclReason),
    /// A plan of this name.
    Plan(Arc<str>),
    /// A function of the table, which this library has.
    Function(Arc<str>),
}

/// The calls of a collective that one plan has served, or NCCL for one reason.
#[derive(Clone, Copy, Default)]
struct Served {
    calls: u64,
    bytes: u64,
}

/// The calls of this process.
pub(crate) struct Counters {
    choices: Choices,
    served: Mutex<BTreeMap<(Collective, usize, ServedBy), Served>>,
    /// The process that counts. A child that it forks has a copy, and must not report it.
    process: u32,
}

impl Counters {
    /// The counters of this process; `None` if nobody asks for them and there is nothing to choose, so that calls pass silently.
    pub(crate) fn of_process() -> Option<&'static Self> {
        static COUNTERS: OnceLock<Option<Counters>> = OnceLock::new();
        let counters = COUNTERS.get_or_init(|| {
            let settings = Settings::of_process();
            if settings.is_disabled {
                return None;
            }
            let choices = Choices::read(settings);
            let is_wanted = settings.says_decisions || settings.statistics.is_some();
            if !is_wanted {
                return (!choices.is_empty()).then(|| Self::new(choices));
            }
            // SAFETY: the function takes no arguments, does not unwind, and lives as long as the library.
            unsafe { libc::atexit(report_at_exit) };
            Some(Self::new(choices))
        });
        counters.as_ref()
    }

    fn new(choices: Choices) -> Self {
        Self { choices, served: Mutex::default(), process: std::process::id() }
    }

    /// Counts a call that NCCL serves. `fixed` is why it does whatever the tables choose, else `why` is why no plan does.
    pub(crate) fn count(&self, call: SeenCall, fixed: Option<NcclReason>, why: PlanRefusal) {
        let reason = fixed.unwrap_or_else(|| self.choices.reason(call.collective, call.bytes, call.ranks, why));
        self.count_served(call, ServedBy::Nccl(reason));
    }

    /// Counts a call, and says so if it is the first of its kind.
    pub(crate) fn count_served(&self, call: SeenCall, by: ServedBy) {
        let SeenCall { collective, bytes, ranks, rank } = call;
        let key = (collective, ranks, by);
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !served.contains_key(&key);
        let counted = served.entry(key.clone()).or_default();
        counted.calls += 1;
        counted.bytes = counted.bytes.saturating_add(bytes);
        drop(served);
        // One rank speaks for all, because all decide alike.
        if is_new && rank == 0 && Settings::of_process().says_decisions {
            let which = format!("{collective} of {ranks} ranks, {bytes} bytes");
            say(&match key.2 {
                ServedBy::Nccl(NcclReason::Unknown) => format!("{collective}: NCCL, because {}", NcclReason::Unknown),
                ServedBy::Nccl(why) => format!("{which}: NCCL, because {why}"),
                ServedBy::Plan(plan) => format!("{which}: the plan {plan}"),
                ServedBy::Function(name) => format!("{which}: the {name}"),
            });
        }
    }

    fn to_json(&self) -> Value {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = served.iter().map(|((collective, ranks, by), counted)| {
            let Served { calls, bytes } = counted;
            let (by, why, plan) = match by {
                ServedBy::Nccl(why) => ("NCCL", why.to_string(), None),
                ServedBy::Plan(plan) => ("plan", "the table chooses it".to_owned(), Some(plan.as_ref())),
                ServedBy::Function(name) => ("function", "the table chooses it".to_owned(), Some(name.as_ref())),
            };
            json!({
                "collective": collective, "ranks": ranks, "served_by": by, "plan": plan, "why": why, "calls": calls,
                "bytes": bytes
            })
        });
        let calls: Vec<_> = calls.collect();
        let nccl = real().ok().map(|nccl| json!({"version": nccl.version().to_string(), "path": nccl.path()}));
        json!({"nccl": nccl, "process": self.process, "calls": calls})
    }

    fn report(&self) {
        let Some(path) = &Settings::of_process().statistics else { return };
        let name = path.to_string_lossy().replace("%p", &self.process.to_string());
        let text = format!("{:#}\n", self.to_json());
        if let Err(error) = std::fs::write(PathBuf::from(&name), text) {
            say(&format!("no statistics: {name}: {error}"));
        }
    }
}

/// The bytes of an element, by NCCL's number of its type (`ncclDataType_t`).
const SIZES: [u64; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

/// Counts a call, if anybody wants to know. `fixed` is why NCCL serves it in any case.
pub(crate) fn count_call(
    &AskedCall { collective, count, dtype, comm, .. }: &AskedCall,
    fixed: Option<NcclReason>,
    served: &Result<PlannedCall, PlanRefusal>,
) {
    let Some(counters) = Counters::of_process() else { return };
    let facts = (asked(NcclName::ncclCommCount, comm), asked(NcclName::ncclCommUserRank, comm));
    let size = usize::try_from(dtype).ok().and_then(|dtype| SIZES.get(dtype));
    let ((Some(ranks), Some(rank)), Some(size)) = (facts, size) else {
        let call = SeenCall { collective, bytes: 0, ranks: 0, rank: 0 };
        return counters.count(call, Some(NcclReason::Unknown), PlanRefusal::NotChosen);
    };
    let bytes = (count as u64).saturating_mul(*size).saturating_mul(collective.blocks(ranks));
    let call = SeenCall { collective, bytes, ranks, rank };
    match served {
        Ok(PlannedCall { plan, is_function, .. }) => {
            let by = if *is_function { ServedBy::Function } else { ServedBy::Plan };
            counters.count_served(call, by(plan.clone()));
        }
        Err(why) => counters.count(call, fixed, why.clone()),
    }
}

extern "C" fn report_at_exit() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(counters) = Counters::of_process()
            && counters.process == std::process::id()
        {
            counters.report();
        }
    });
}
