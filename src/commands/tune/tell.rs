//! What `antiphon tune` says at the end.
//!
//! The principal function is [`Tuning::tell`].

use super::functions::{self, FunctionPlace};
use super::launch::LostRank;
use super::load::{self, LoadedCell};
use super::notes::{self, ShortBudget};
use super::{Tuning, show};
use crate::cli::DeviceChoice;
use crate::failure::Outcome;
use crate::screen::bytes;
use comm::{DroppedLaunch, MeasuredTable, RefusedCandidate, SameCandidate};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

impl Tuning<'_> {
    /// Says what the table has, what was refused and why, and what does not obey a guideline.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn tell(
        &self,
        measured: MeasuredTable,
        (loaded, functions, undecided): (Option<Vec<LoadedCell>>, Vec<FunctionPlace>, Option<ShortBudget>),
        (lost, ended_early): (Vec<LostRank>, Option<String>),
        output: &Path,
    ) -> Outcome {
        let MeasuredTable { table, refused, dropped, same, without_kernels } = measured;
        let mut seen = BTreeSet::new();
        for RefusedCandidate { collective, bytes: size, name, refusal, .. } in &refused {
            if seen.insert((collective, name)) {
                let (size, why) = (bytes(*size), &refusal.why);
                self.screen.note(&format!("note: {name} does not compete at {collective} {size}: {why}"));
            }
        }
        let noted = notes::of_mapping(without_kernels.as_deref()).into_iter();
        let noted = noted.chain(undecided.iter().map(ShortBudget::text)).chain(notes::of_plans(&dropped, &same));
        noted.for_each(|note| self.screen.note(&note));
        for LostRank { rank, launch, why, .. } in &lost {
            self.screen
                .note(&format!("note: rank {rank} was lost in launch {launch}: {why}; the ranks were started again"));
        }
        let early = |why| format!("note: the table has what was measured until the launches were given up: {why}");
        ended_early.iter().for_each(|why| self.screen.note(&early(why)));
        let named: BTreeSet<&str> = functions.iter().map(|of| of.name.as_str()).collect();
        if table.functions().any(|(_, range)| named.contains(range.function.as_str())) {
            self.screen.note("note: the table names functions; programs that have them call use_candidates");
        }
        let summary = TuneSummary {
            format: "antiphon-tune/1",
            table: output.to_owned(),
            ranks: table.key.ranks,
            seconds: self.terms.begin.elapsed().as_secs_f64(),
            refused,
            dropped,
            same,
            without_kernels,
            undecided,
            lost,
            ended_early,
            functions,
            rows: show::rows(&table),
            violations: tune::violations(&table),
            loaded,
        };
        self.screen.result(&summary, || {
            let loaded = summary.loaded.as_ref().map_or_else(String::new, |cells| format!("\n\n{}", load::text(cells)));
            let places = match summary.functions.is_empty() {
                true => String::new(),
                false => format!("\n\n{}", functions::text(&summary.functions)),
            };
            format!("{}\n\n{}{places}{loaded}", show::text(&table), show::guidelines(&summary.violations))
        })?;
        let preloaded = match self.args.device {
            DeviceChoice::Host => "",
            DeviceChoice::Gpu => " and LD_PRELOAD=/path/to/libantiphon_nccl.so",
        };
        self.screen.note(&format!("use it with ANTIPHON_TABLE={}{preloaded}", output.display()));
        Ok(())
    }
}

/// The answer of `--json`.
#[derive(Serialize)]
struct TuneSummary {
    format: &'static str,
    table: PathBuf,
    ranks: usize,
    seconds: f64,
    refused: Vec<RefusedCandidate>,
    /// What was measured beside another stock plan, and does not count.
    dropped: Vec<DroppedLaunch>,
    /// Candidates that are the same plan as another one.
    same: Vec<SameCandidate>,
    /// On GPUs whose ranks do not map memory of each other: why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_kernels: Option<String>,
    /// Where the budget was too short to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    undecided: Option<ShortBudget>,
    /// Ranks that were lost while no function of the user's was under way. They were started again.
    lost: Vec<LostRank>,
    /// Why not everything was measured, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    /// The places of the user's functions.
    functions: Vec<FunctionPlace>,
    rows: Vec<show::ShownRange>,
    /// Times that are longer than those of calls that do the same.
    violations: Vec<tune::GuidelineViolation>,
    /// With `--load-aware`: who wins while the ranks compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded: Option<Vec<LoadedCell>>,
}
