//! What competes for a call.
//!
//! The principal type is [`TuneCandidate`].

use super::pieces;
use crate::functions::{CandidateFunction, CandidatePredicate, UserFunction};
use crate::numbers::mixed;
use crate::stock::CallKind;
use crate::table::{PlanTable, TableFault};
use runtime::{MOST_STAGED_BYTES, PeerAlgorithm, SequencedProgram};
use schedule::{Collective, ReduceOp, VerifiedSchedule};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tune::{Composition, TuningTable};

/// The most bytes of a name.
pub(super) const LONGEST_NAME: usize = 200;

/// One way to serve calls.
#[derive(Clone)]
pub struct TuneCandidate {
    pub(super) name: String,
    pub(super) work: CandidateWork,
    /// Whether it competes only where it is named.
    is_on_request: bool,
}

/// How a candidate does its work.
#[derive(Clone)]
pub(super) enum CandidateWork {
    /// As the communicator does without a table.
    Stock,
    /// An entry of a table of plans.
    Plan(Arc<PlanTable>, usize),
    /// Two collectives, one after the other; this table serves them, or stock.
    Composed(Composition, Option<Arc<PlanTable>>),
    /// A user's function.
    Function(UserFunction),
    /// An AllReduce by a kernel over memory that all ranks have mapped, on GPUs.
    Kernel(PeerAlgorithm),
}

impl fmt::Debug for TuneCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TuneCandidate").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TuneCandidate {
    /// One that competes wherever it can.
    fn new(name: impl Into<String>, work: CandidateWork) -> Self {
        Self { name: name.into(), work, is_on_request: false }
    }

    /// What the communicator does without a table. It always competes, and comes first.
    pub(super) fn stock() -> Self {
        Self::new(tune::STOCK, CandidateWork::Stock)
    }

    /// Collectives that two others do, as stock does them.
    pub(super) fn composed() -> impl Iterator<Item = Self> {
        let stock = Composition::all().filter(|of| !of.is_chosen);
        let composed = |of: Composition| Self::new(of.name(), CandidateWork::Composed(of, None));
        stock.map(move |of| Self { is_on_request: of.is_on_request(), ..composed(of) })
    }

    /// Kernels over memory that all ranks have mapped.
    pub(super) fn kernels() -> impl Iterator<Item = Self> {
        PeerAlgorithm::ALL.iter().map(|algorithm| Self::new(algorithm.name(), CandidateWork::Kernel(*algorithm)))
    }

    /// Collectives that two others do, as a table serves them. They compete where a [`CellWork`](super::CellWork) names them.
    ///
    /// # Errors
    /// If the table is not valid.
    pub fn chosen(table: &TuningTable) -> Result<Vec<Self>, TableFault> {
        let mut plans = PlanTable::default();
        plans.add_tuned(table, "measured so far")?;
        let plans = Arc::new(plans);
        let composed = |of: Composition| CandidateWork::Composed(of, Some(plans.clone()));
        let chosen = Composition::all().filter(|of| of.is_chosen);
        Ok(chosen.map(|of| Self { is_on_request: of.is_on_request(), ..Self::new(of.name(), composed(of)) }).collect())
    }

    /// The plans of a table, each for the sizes that it says.
    pub fn of_table(table: &Arc<PlanTable>) -> Vec<Self> {
        let plan = |entry| Self::new(table.name(entry), CandidateWork::Plan(table.clone(), entry));
        (0..table.len()).map(plan).collect()
    }

    /// The first plan of a table, which competes only where it is named.
    pub(super) fn on_request(name: &str, table: Arc<PlanTable>) -> Self {
        Self { is_on_request: true, ..Self::new(name, CandidateWork::Plan(table, 0)) }
    }

    /// A function of the user's, under a name that no other candidate of these collectives has.
    pub fn function(name: impl Into<String>, collectives: Vec<Collective>, function: Arc<CandidateFunction>) -> Self {
        let function = UserFunction { collectives, run: function, when: None };
        Self::new(name, CandidateWork::Function(function))
    }

    /// The same function, but only for calls of which the predicate says that it can do them: others are not measured, and a call is
    /// not served by it, whatever the table says. It is asked on every rank, once or more for every call that the table would leave to
    /// the function, and knows nothing but the call, so that all ranks get the same answer. One that panics says no. What is no
    /// function stays as it is.
    pub fn when(mut self, predicate: Arc<CandidatePredicate>) -> Self {
        if let CandidateWork::Function(function) = &mut self.work {
            function.when = Some(predicate);
        }
        self
    }

    /// The same under another name.
    pub(super) fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Whether no file can hold it, so that only a program can do it.
    pub(super) fn is_no_plan(&self) -> bool {
        matches!(self.work, CandidateWork::Function(..) | CandidateWork::Composed(..) | CandidateWork::Kernel(_))
    }

    /// Whether it competes only where it is named.
    pub(super) fn is_on_request(&self) -> bool {
        self.is_on_request
    }

    /// Whether it is a user's function.
    pub(super) fn is_function(&self) -> bool {
        matches!(self.work, CandidateWork::Function(..))
    }

    /// Whether it is a kernel over mapped memory.
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self.work, CandidateWork::Kernel(_))
    }

    /// A user's function.
    pub(super) fn as_function(&self) -> Option<&UserFunction> {
        let CandidateWork::Function(function) = &self.work else { return None };
        Some(function)
    }

    /// A number that candidates have in common only if they do the same in the same way, as far as a rank can know.
    pub(super) fn digest(&self) -> u64 {
        match &self.work {
            CandidateWork::Stock => 1,
            CandidateWork::Plan(table, entry) => mixed(table.digest(), *entry as u64),
            CandidateWork::Composed(_, table) => table.as_ref().map_or(2, |table| table.digest()),
            // Their names say which they are.
            CandidateWork::Kernel(_) => 5,
            CandidateWork::Function(UserFunction { collectives, when, .. }) => {
                collectives.iter().fold(3 + u64::from(when.is_some()), |so_far, of| mixed(so_far, *of as u64))
            }
        }
    }

    /// Why no candidate of a user's may have this name; `None` if one may.
    pub fn fault_of_name(name: &str) -> Option<&'static str> {
        match name {
            "" => Some("is empty"),
            tune::STOCK => Some("stands for what serves calls without a table"),
            _ if name.len() > LONGEST_NAME => Some("is longer than 200 bytes"),
            _ if !name.chars().all(topology::is_printable) => Some("has characters that cannot be shown"),
            _ if Composition::of_name(name).is_some() || pieces::of_name(name).is_some() => {
                Some("is that of a candidate of the library")
            }
            _ if PeerAlgorithm::ALL.iter().any(|of| of.name() == name) => Some("is that of a candidate of the library"),
            _ => None,
        }
    }

    /// Checks the names of a user's functions, and makes those of plans, which say how these were made, different from all
    /// others. `known` are the other candidates.
    ///
    /// # Errors
    /// Which name no function may have, or two of the same collective have.
    pub(super) fn distinct(given: Vec<Self>, known: &[&Self]) -> Result<Vec<Self>, String> {
        let most = given.len() + known.len();
        let mut all: Vec<Self> = Vec::with_capacity(given.len());
        for candidate in given {
            let shown = topology::shorten_to(&candidate.name, LONGEST_NAME);
            // A function in C is for one collective, so several may have one name.
            let differs = |other: &Self| match (other.as_function(), candidate.as_function()) {
                (Some(others), Some(own)) => own.collectives.iter().all(|of| !others.collectives.contains(of)),
                _ => false,
            };
            let is_free = |name: &String| {
                let mut others = known.iter().copied().chain(&all);
                others.all(|other| other.name != *name || differs(other))
            };
            let name = match candidate.is_function() {
                true => {
                    let taken = (!is_free(&candidate.name)).then_some("is given twice");
                    if let Some(why) = Self::fault_of_name(&candidate.name).or(taken) {
                        return Err(format!("the name `{shown}` of a candidate {why}"));
                    }
                    candidate.name.clone()
                }
                false => {
                    let numbered = (2..=most + 2).map(|number| format!("{shown} #{number}"));
                    std::iter::once(shown.clone()).chain(numbered).find(is_free).unwrap_or(shown)
                }
            };
            all.push(candidate.named(name));
        }
        Ok(all)
    }

    /// The name in tables and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can serve calls of so many bytes, as the collective counts them.
    pub(super) fn serves(&self, ranks: usize, kind: CallKind, count: usize, bytes: u64) -> bool {
        match &self.work {
            CandidateWork::Stock => true,
            CandidateWork::Plan(table, entry) => table.serves(*entry, ranks, kind, bytes),
            CandidateWork::Composed(of, _) => of.serves(ranks, kind.collective, count),
            CandidateWork::Function(function) => function.collectives.contains(&kind.collective),
            CandidateWork::Kernel(_) => kind.collective == Collective::AllReduce && bytes <= MOST_STAGED_BYTES as u64,
        }
    }

    /// The program of a plan; `None` for other candidates.
    ///
    /// # Errors
    /// Why the plan cannot serve such calls.
    fn program(&self, kind: CallKind) -> Option<MadeProgram> {
        let CandidateWork::Plan(table, entry) = &self.work else { return None };
        let program = table.program(*entry, kind);
        let sequenced = |program| SequencedProgram::new(program).map(Arc::new).map_err(|error| error.to_string());
        Some(program.and_then(|(program, _)| sequenced(program)))
    }

    /// The schedule of a plan of at most so many messages; `None` also if it is not valid.
    pub(super) fn schedule(&self, op: Option<ReduceOp>, most: usize) -> Option<VerifiedSchedule> {
        let CandidateWork::Plan(table, entry) = &self.work else { return None };
        (table.messages(*entry) <= most).then(|| table.schedule(*entry, op).ok()).flatten()
    }

    /// Whether it is a textbook algorithm, which the library adds to what is given.
    pub(super) fn is_textbook(&self) -> bool {
        matches!(&self.work, CandidateWork::Plan(table, _) if table.is_textbook())
    }

    /// The plan as a file of format `antiphon-schedule/1`; `None` if it is no plan.
    ///
    /// # Errors
    /// If the plan is not valid.
    pub(super) fn plan_text(&self) -> Option<Result<String, String>> {
        let CandidateWork::Plan(table, entry) = &self.work else { return None };
        Some(table.text(*entry))
    }
}

/// A program, or why a plan cannot serve calls.
pub(super) type MadeProgram = Result<Arc<SequencedProgram>, String>;

/// The programs of candidates, which serve all sizes.
#[derive(Default)]
pub(super) struct CandidatePrograms(BTreeMap<(usize, Collective), Option<MadeProgram>>);

impl CandidatePrograms {
    /// The program of the `index`-th candidate for calls of a kind; `None` if it is no plan.
    pub(super) fn of(&mut self, index: usize, candidate: &TuneCandidate, kind: CallKind) -> Option<MadeProgram> {
        self.0.entry((index, kind.collective)).or_insert_with(|| candidate.program(kind)).clone()
    }
}
