//! What a user gives to compete: plans under names of their own, and plans that are made for a topology.
//!
//! The principal functions are [`named`] and [`planned`].

use crate::cli::TuneMeasureArgs;
use crate::content::Content;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan;
use crate::screen::{Screen, bytes};
use comm::TuneCandidate;
use schedule::Request;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use synth::{Cancel, SearchOptions};

/// Plans are made for sizes that differ at least by this factor: the tuner finds out where each is the best.
const PLANNED_FACTOR: u64 = 16;
/// How long planning of one cell may take.
const PLANNING: Duration = Duration::from_secs(2);

/// The files of `--candidate`, by name.
pub(super) fn named(args: &TuneMeasureArgs) -> Outcome<BTreeMap<String, PathBuf>> {
    let mut named = BTreeMap::new();
    for (name, path) in &args.candidate {
        if let Some(why) = TuneCandidate::fault_of_name(name) {
            let name = topology::shorten(name);
            return Err(Failure::bad_input(anyhow::anyhow!("--candidate {name}=…: this name {why}")));
        }
        if named.insert(name.clone(), path.clone()).is_some() {
            return Err(Failure::bad_input(anyhow::anyhow!("two candidates have the name `{name}`")));
        }
    }
    Ok(named)
}

/// Plans for a topology, as files.
pub(super) fn planned(
    args: &TuneMeasureArgs,
    spec: &str,
    (folder, cancel): (&Path, Cancel),
    screen: &Screen,
) -> Outcome<Vec<PathBuf>> {
    let topology = plan::topology(spec)?;
    let bar = screen.progress("plan");
    let mut files = Vec::new();
    let mut last = 0;
    let sizes = args.sizes.0.iter().copied().filter(|&size| {
        let is_far = last == 0 || size >= last * PLANNED_FACTOR;
        last = if is_far { size } else { last };
        is_far
    });
    for (index, size) in sizes.enumerate() {
        for collective in args.collectives() {
            bar.message(format!("{collective} {}", bytes(size)));
            let mut request = Request::new(collective, topology.rank_count(), size);
            request.op = collective.combines().then_some(args.op);
            request.root = collective.is_rooted().then_some(topology::Rank(0));
            let problems = plan::problems(&topology, &request, &Content::Standard, None, None)?;
            let (time_limit, cancel) = (Some(PLANNING), cancel.clone());
            let options = SearchOptions { time_limit, cancel, seed: args.seed, ..SearchOptions::default() };
            let found = synth::synthesize(&problems, &options, &|_| {});
            if interrupt::was_raised() {
                return Err(Failure::interrupted());
            }
            let found = found.map_err(Failure::no)?;
            let file = folder.join(format!("{collective}-{index}-{size}.json"));
            plan::save(&found.schedule, &file)?;
            files.push(file);
        }
    }
    Ok(files)
}
