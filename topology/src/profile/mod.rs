//! Measures a machine: decides which exchanges to time, and derives links and resources from the times.
//!
//! The principal function is [`profile`]; its result is a [`Measured`] topology. The stages:
//!
//! 1. [`scout`]: a first look at every pair in about 2 N rounds, which finds message sizes that suit each pair.
//! 2. [`machines`]: which ranks share a machine, if the caller does not know.
//! 3. [`disturbance`]: some pairs are timed again alone, to see whether pairs of a round slow each other down.
//! 4. [`contention`] and [`structure`]: sets of pairs that might share a resource run together; a resource is kept if
//!    nothing else explains the times.
//! 5. [`cores`]: where ranks outnumber cores, all messages inside the machine share these, in place of any port.
//! 6. [`sweep`]: every pair is measured until it is known well enough, in rounds whose pairs do not slow each other down.
//! 7. [`check`] (optional): predicts exchanges that were not used, and times them.

mod bench;
mod check;
mod contention;
mod cores;
mod disturbance;
mod machines;
mod scout;
mod structure;
mod suspects;
mod sweep;
#[cfg(test)]
mod tests;

pub use check::{HeldOut, check};

use crate::fit::{FitError, LinkFit, ResourceFit};
use crate::measured::{Measured, SharedFit};
use crate::rounds::{Pair, ResourceShare, Round, apart};
use crate::{MAX_LISTED_LINKS, Micros, MicrosPerByte, Probe, ProbeError, Rank, Topology, TopologyError, TopologyParts};
use bench::{Bench, Slope};
use contention::{Alone, Case, DetectedResource, EXPLAINED};
use disturbance::Disturbance;
use scout::View;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use suspects::Scene;

/// How to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfileOptions {
    /// About how long the longest message of a pair should take; sizes follow from it.
    pub sample_time: Micros,
    /// No message is longer, however fast the link, in bytes.
    pub longest: u64,
    /// The longest message of a pair is not shorter than this, in bytes, unless it takes [`PATIENCE`] times as long as
    /// a sample should: shaped links let the first bytes and the last segment pass at once.
    pub least: u64,
    /// Relative margin of a first look.
    pub glance: f64,
    /// Relative margin of β at which a link or a resource is known well enough.
    pub precision: f64,
    /// Relative margin of α at which a link is known well enough. A margin of [`Self::alpha_floor`] is enough, too.
    pub alpha_precision: f64,
    /// A margin of α below which more precision is of no use.
    pub alpha_floor: Micros,
    /// The number of passes over all settings before the result is examined.
    pub least_turns: u32,
    /// The number of passes after which the result is final, however wide its margins.
    pub most_turns: u32,
    /// How long the passes may take together; the pass in progress is finished.
    pub budget: Duration,
    /// How long all of it may take, about; messages become shorter and margins wider for it. `None` for as long as it takes.
    pub limit: Option<Duration>,
    /// Whether to look for shared resources. If not, each pair is timed alone.
    pub contention: bool,
    /// Which ranks share a machine, if that is known; if absent, it is measured.
    pub machines: Option<Vec<Vec<Rank>>>,
    /// How many cores each machine has, if that is known: where ranks outnumber them, messages share them.
    pub cores: Option<usize>,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            sample_time: Micros(100_000.0),
            longest: 4 << 20,
            least: 1 << 20,
            glance: 0.08,
            precision: 0.03,
            alpha_precision: 0.05,
            alpha_floor: Micros(3.0),
            least_turns: 2,
            most_turns: 6,
            budget: Duration::from_secs(240),
            limit: None,
            contention: true,
            machines: None,
            cores: None,
        }
    }
}

impl ProfileOptions {
    /// Few repetitions, wide margins: a second or two where the full measurement takes ten.
    pub fn quick() -> Self {
        let sample_time = Micros(30_000.0);
        let (least_turns, most_turns) = (2, 2);
        let (longest, least) = (2 << 20, 512 << 10);
        Self { sample_time, longest, least, glance: 0.15, precision: 0.1, least_turns, most_turns, ..Self::default() }
    }

    /// The same for many ranks: rounds and suspects grow with them, so messages become shorter.
    fn among(&self, ranks: usize) -> Self {
        let share = (MANY / ranks.max(1) as f64).min(1.0);
        let least = (self.least as f64 * share) as u64;
        let sample_time = self.sample_time * share;
        let wanted = self.limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64() * 1e6 / samples_among(ranks));
        let short = (wanted / sample_time.0).min(1.0);
        let least = (least as f64 * short).max(self.least as f64 * SHORTENED).min(least as f64) as u64;
        // A time that somebody gives may be used.
        let most_turns = self.most_turns * if self.limit.is_some() { PERSISTENT } else { 1 };
        Self { sample_time: sample_time * short, least, most_turns, ..self.clone() }
    }

    /// The right length of the longest message if a byte costs `beta`, in bytes.
    fn long(&self, beta: f64) -> u64 {
        let room = self.sample_time.0 / beta.max(f64::MIN_POSITIVE);
        let least = (self.least as f64).min(PATIENCE * room).max(SHORTEST);
        room.clamp(least, least.max(self.longest as f64)) as u64
    }

    fn knows_alpha(&self, fit: &LinkFit) -> bool {
        fit.alpha_noise <= self.alpha_floor.max(fit.alpha * self.alpha_precision)
    }

    fn knows_beta(&self, fit: &LinkFit) -> bool {
        fit.beta_noise <= fit.beta * self.precision
    }
}

/// How many samples a profile takes, about, if each is as long as it should be: every pair in 2 N rounds, and trials of what the
/// ranks share.
fn samples_among(ranks: usize) -> f64 {
    SAMPLES_PER_RANK * ranks as f64
}

/// Seen on simulated hosts, of which each has a few suspects.
const SAMPLES_PER_RANK: f64 = 300.0;
/// For a time limit, the least length of a message becomes shorter by this factor at most: shaped links would not show their rate.
const SHORTENED: f64 = 0.25;
/// With a time limit, so many times as many passes are made before the time is over, until all is known well enough.
const PERSISTENT: u32 = 10;
/// The shares of the time limit after which each part no longer seeks precision: the first look, what pairs share, the links. The
/// rest is for the [`check`].
const SHARES: [f64; 3] = [0.2, 0.6, 0.85];
/// From this many ranks on, messages become shorter as the number of ranks grows.
const MANY: f64 = 16.0;
/// A message may take this many times as long as it should, so that it is long enough to show the rate.
const PATIENCE: f64 = 4.0;
/// A shorter message (bytes) does not show the rate of a shaped link.
const SHORTEST: f64 = 131_072.0;

/// How far a profile has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileProgress {
    /// What is being done.
    pub stage: &'static str,
    /// How many of its parts are done.
    pub done: usize,
    /// How many there are at most.
    pub total: usize,
    /// Runs of the probe so far.
    pub runs: usize,
}

/// Why a machine could not be measured.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The probe gave up.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The probe returned another number of times than it was asked for.
    #[error("the probe was asked for {asked} times and returned {returned}")]
    WrongCount {
        /// Exchanges in the run.
        asked: usize,
        /// Times that came back.
        returned: usize,
    },
    /// The times of a pair make no sense.
    #[error("rank {from} to rank {to}: {cause}")]
    Fit {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// What is wrong with its times.
        cause: FitError,
    },
    /// The result is not a valid topology, or it is too large.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Measures every pair of ranks, and what they share.
///
/// # Errors
/// [`ProfileError`] if the probe fails, or if its times cannot be explained by α and β.
pub fn profile(
    probe: &mut dyn Probe,
    options: &ProfileOptions,
    heard: &mut dyn FnMut(ProfileProgress),
) -> Result<Measured, ProfileError> {
    let ranks = probe.rank_count();
    let links = ranks as u128 * (ranks as u128).saturating_sub(1);
    if links > MAX_LISTED_LINKS as u128 {
        let count = u64::try_from(links).unwrap_or(u64::MAX);
        return Err(TopologyError::TooMany { what: "links", count, limit: MAX_LISTED_LINKS as u64 }.into());
    }
    let options = &options.among(ranks);
    // The machines without links, to check that they partition the ranks before anything is timed.
    let known = options.machines.clone().unwrap_or_default();
    let mut places = placed(ranks, known)?;
    let all = (0..ranks).flat_map(|from| (0..ranks).filter(move |to| *to != from).map(move |to| Pair::new(from, to)));
    let connected: BTreeSet<Pair> = all.filter(|pair| probe.connects(pair.from, pair.to)).collect();
    let mut bench = Bench::new(probe, heard);
    let [look, share, whole] = SHARES;
    bench.allow(options.limit, look);
    let view = scout::scout(&mut bench, ranks, &|pair| connected.contains(pair), options)?;
    if options.machines.is_none() {
        places = placed(ranks, machines::boundaries(ranks, &view.pairs))?;
    }
    let scene = Scene { places: &places, view: &view, cores: options.cores };
    bench.allow(options.limit, share);
    let found = if options.contention { Some(investigate(&mut bench, scene, options)?) } else { None };
    bench.stage = "links";
    bench.allow(options.limit, whole);
    let rounds = match &found {
        Some(found) if !found.lone => separate(&view, found, ranks),
        _ => view.rounds.iter().flatten().map(|pair| vec![*pair]).collect(),
    };
    let (findings, mut notes) = found.map_or_else(Default::default, |found| (found.findings, found.notes));
    let fits = sweep::sweep(&mut bench, &rounds, &view, options)?;
    notes.push(method(options, &rounds, &view, bench.runs));
    if let Some(limit) = options.limit {
        notes.push(within(limit, &bench, &fits));
    }
    Ok(Measured::new(&places, fits, findings.into_iter().map(shared).collect(), notes)?)
}

fn placed(ranks: usize, machines: Vec<Vec<Rank>>) -> Result<Topology, TopologyError> {
    Topology::new(TopologyParts { ranks, machines, ..TopologyParts::default() })
}

fn shared(finding: DetectedResource) -> SharedFit {
    let DetectedResource { suspect, slope: Slope { beta, margin }, message, factor } = finding;
    let flows = suspect.flows.len();
    let slower = factor.map(|factor| format!(" were {factor:.1} times slower than all else explains"));
    let evidence = format!("{}: {flows} flows together{}", suspect.about, slower.unwrap_or_default());
    SharedFit {
        name: suspect.name,
        fit: ResourceFit {
            beta: MicrosPerByte(beta),
            beta_margin: MicrosPerByte(margin),
            alpha: Micros(message.beta),
            alpha_margin: Micros(message.margin),
            evidence,
        },
        users: suspect.users.into_iter().collect(),
    }
}

/// The result of the search for shared resources.
struct Investigation {
    findings: Vec<DetectedResource>,
    alone: Alone,
    /// Pairs disturb each other for a reason that was not found, so each is timed alone.
    lone: bool,
    notes: Vec<String>,
}

/// Finds out what pairs share.
fn investigate(
    bench: &mut Bench<'_>,
    scene: Scene<'_>,
    options: &ProfileOptions,
) -> Result<Investigation, ProfileError> {
    bench.stage = "disturbance";
    let disturbance = disturbance::disturbance(bench, &scene)?;
    let alone: Alone = disturbance.alone(&scene);
    let suspects = scene.usual();
    let mut case = Case { scene, alone, suspects: Vec::new(), trials: Vec::new() };
    bench.stage = "contention";
    let total = suspects.len();
    for (done, suspect) in suspects.into_iter().enumerate() {
        case.measure_suspect(suspect, bench)?;
        bench.report(done + 1, total);
    }
    bench.stage = "structure";
    case.ask_for_nics(bench)?;
    case.ask_for_switches(bench)?;
    case.look_closer(bench)?;
    bench.stage = "shared";
    let kept = case.confirm(options, bench)?;
    let mut findings = case.findings(&kept);
    bench.stage = "cores";
    findings.extend(cores::cores(bench, &case.scene)?);
    let (lone, notes) = unexplained(&case, &kept, &disturbance);
    Ok(Investigation { findings, alone: case.alone, lone, notes })
}

/// Each pair is timed alone only if there are at most this many.
const MOST_ALONE: usize = 512;

/// Whether the resources that were found explain the disturbed pairs; if not, what to do about it.
fn unexplained(case: &Case<'_>, kept: &[(usize, f64)], disturbance: &Disturbance) -> (bool, Vec<String>) {
    let home = |pair: &Pair| case.scene.places.machine_of(pair.from);
    let by_cores = |pair: &Pair| !case.scene.is_far(pair) && case.scene.shares_cores(home(pair));
    let open = disturbance
        .seen
        .iter()
        .filter(|(pair, ..)| !by_cores(pair))
        .filter(|(pair, round, together)| *together > EXPLAINED * EXPLAINED * case.explained(kept, round, pair));
    let open: Vec<String> = open.map(|(pair, ..)| format!("{}→{}", pair.from, pair.to)).collect();
    if open.is_empty() {
        return (false, Vec::new());
    }
    let lone = case.scene.view.pairs.len() <= MOST_ALONE;
    let remedy = if lone { "each pair was timed alone" } else { "the β of such pairs is an upper limit" };
    let note =
        format!("Pairs disturb each other for a reason that was not found (seen at {}): {remedy}.", open.join(", "));
    (lone, vec![note])
}

/// Rounds whose pairs do not wait for each other.
fn separate(view: &View, found: &Investigation, ranks: usize) -> Vec<Round> {
    let parts = |pair: &Pair| -> Vec<ResourceShare> {
        let shared = found.findings.iter().enumerate().filter(|(_, finding)| finding.suspect.users.contains(pair));
        shared.map(|(id, finding)| (id, finding.slope.beta / found.alone.of(pair).max(finding.slope.beta))).collect()
    };
    apart(ranks, found.findings.len(), view.rounds.iter().flatten().copied(), &parts)
}

/// What a time limit has come to.
fn within(limit: Duration, bench: &Bench<'_>, fits: &BTreeMap<Pair, LinkFit>) -> String {
    let margin = |fit: &LinkFit| fit.beta_noise.0 / fit.beta.0.max(f64::MIN_POSITIVE);
    let worst = fits.values().map(margin).fold(0.0, f64::max);
    let precision =
        if bench.was_late { "; it was used up before all was known as well as it would be without" } else { "" };
    format!(
        "It had {:.0} s and took {:.0} s{precision}. β of the least known link is known to ±{:.1} %.",
        limit.as_secs_f64(),
        bench.spent().as_secs_f64(),
        100.0 * worst
    )
}

/// How it was measured, in words.
fn method(options: &ProfileOptions, rounds: &[Round], view: &View, runs: usize) -> String {
    let long = || view.pairs.values().map(|glimpse| glimpse.long);
    let (least, most) = (long().min().unwrap_or(0), long().max().unwrap_or(0));
    let show = |bytes: u64| crate::quantity::show_bytes(crate::Bytes(bytes as f64));
    format!(
        "{} pairs in {} rounds, {runs} runs of {} repetitions: messages of {} B and up to {} to {}, single and in bursts, \
         medians without outliers; repeated until β was known to ±{:.1} %.",
        view.pairs.len(),
        rounds.len(),
        bench::REPETITIONS,
        scout::TINY,
        show(least),
        show(most),
        100.0 * options.precision,
    )
}
