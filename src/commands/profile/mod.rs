//! `antiphon profile`: measures α and β of every pair of ranks, and what they share.

mod dump;
mod gpu;

pub(crate) use gpu::run_rank;

use crate::cli::{DeviceChoice, LoweringArgs, ProfileArgs, TransportChoice};
use crate::failure::{Failure, Outcome, io_failure};
use crate::heatmap::{HeatMap, svg, terminal};
use crate::interrupt;
use crate::launch::{Launch, Role};
use crate::occupancy::Occupancy;
use crate::screen::{Screen, bytes, time};
use crate::workbench::{Setup, Workbench};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant, SystemTime};
use topology::concurrent::Sharing;
use topology::profile::{HeldOut, ProfileOptions, check, profile};
use topology::{Exchange, Measured, Micros, Probe, ProbeError, Rank, Topology, quantity};

/// The seed of the held-out exchanges, which are therefore the same each time.
const SEED: u64 = 1;

/// How many ranks are profiled by default.
const RANKS: usize = 8;
/// The allowed numbers of ranks.
const LIMITS: RangeInclusive<usize> = 2..=256;
/// How long ranks may take to get ready, and how long they may be without progress.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The ranks that are measured.
pub(crate) struct Subject(Setup);

/// A measured machine with its held-out exchanges.
pub(crate) struct Profile {
    pub(crate) measured: Measured,
    /// Exchanges that were predicted, and then timed.
    pub(crate) held_out: Vec<HeldOut>,
}

/// Runs the command.
pub(crate) fn run(args: &ProfileArgs, screen: &Screen) -> Outcome {
    screen.may_write(args.output.iter().chain(&args.svg))?;
    if args.device == DeviceChoice::Gpu {
        return gpu::run(args, screen);
    }
    if args.nccl_dump.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("NCCL's dump is about GPUs: --nccl-dump is for --device gpu")));
    }
    Role::take(&args.launch)?.play(|launch| conduct(args, launch.unwrap_or(Launch::Local(RANKS)), screen))
}

/// Runs the command on the process that coordinates.
fn conduct(args: &ProfileArgs, launch: Launch, screen: &Screen) -> Outcome {
    interrupt::ends(screen);
    let ranks = launch.ranks();
    check_ranks(ranks)?;
    let emulate = args.emulate.clone().map(|spec| (spec, args.slowdown));
    let subject = Subject(Setup {
        launch,
        transport: args.transport,
        emulate,
        ready_timeout: args.launch.ready_limit(ranks),
        timeout: Some(TIMEOUT),
        lowering: LoweringArgs::default(),
    });
    let mut options = if args.quick { ProfileOptions::quick() } else { ProfileOptions::default() };
    options.limit = args.budget;
    let profile = measure(&subject, options, args.check as usize, screen)?;
    conclude(args, profile, &subject.about(), screen)
}

/// # Errors
/// Bad input if there are too few or too many.
fn check_ranks(ranks: usize) -> Outcome {
    let (least, most) = (LIMITS.start(), LIMITS.end());
    match LIMITS.contains(&ranks) {
        true => Ok(()),
        false => Err(Failure::bad_input(anyhow::anyhow!("{least} to {most} ranks can be profiled, not {ranks}"))),
    }
}

/// Writes what was measured, and tells about it.
fn conclude(args: &ProfileArgs, profile: Profile, about: &str, screen: &Screen) -> Outcome {
    let Profile { mut measured, held_out } = profile;
    let examined = examined(&held_out);
    measured.notes.extend(examined.clone());
    let yaml = measured.to_yaml(about);
    let map = HeatMap::new(&measured.topology);
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&map)).map_err(|error| io_failure(path, error))?;
    }
    if let Some(path) = &args.output {
        std::fs::write(path, &yaml).map_err(|error| io_failure(path, error))?;
    }
    let drawing = terminal(&map, screen.has_colours(), screen.width());
    match (screen.is_json(), &args.output) {
        (true, _) => screen.line(&topology::to_json(&measured.topology)),
        (false, None) => screen.line(yaml.trim_end()),
        (false, Some(_)) => screen.say(&format!("{drawing}\n")),
    }
    if args.output.is_none() {
        screen.note(&drawing);
    }
    let written = args.output.iter().chain(&args.svg).map(|path| path.display().to_string()).collect::<Vec<_>>();
    let arrow = if written.is_empty() { String::new() } else { format!(" → {}", written.join(", ")) };
    screen.note(&format!("{}{arrow}", summary(&measured)));
    examined.iter().for_each(|line| screen.note(line));
    held_out.iter().for_each(|answer| screen.detail(&asked(answer)));
    Ok(())
}

/// Starts the ranks, measures them, and predicts and times `questions` held-out exchanges.
pub(crate) fn measure(
    subject: &Subject,
    mut options: ProfileOptions,
    questions: usize,
    screen: &Screen,
) -> Outcome<Profile> {
    let mut bench = Workbench::open(&subject.0)?;
    let ranks = subject.0.launch.ranks();
    // An emulated machine is measured as if it ran at full speed.
    let (slowdown, sharing) = match &subject.0.emulate {
        Some((_, slowdown)) => (*slowdown, Sharing::InTurn),
        None => (1.0, Sharing::Fair),
    };
    options.machines = bench.machines();
    options.cores = options.machines.as_ref().and_then(|_| std::thread::available_parallelism().ok()).map(usize::from);
    options.sample_time = options.sample_time * (1.0 / slowdown);
    options.alpha_floor = options.alpha_floor * (1.0 / slowdown);
    // While the ranks wait for work: what is busy are other programs.
    let before = Occupancy::look();
    let mut probe = Slowed { probe: bench.probe()?, slowdown };
    let here = options.machines.as_ref().and_then(|machines| machines.first()).map_or(ranks, Vec::len);
    let Profile { mut measured, held_out } = profiled(&mut probe, &options, (sharing, questions), screen)?;
    let busiest = before.into_iter().chain(Occupancy::look()).reduce(Occupancy::most);
    if let Some(disturbed) = busiest.and_then(|busiest| busiest.disturbs(here)) {
        screen.note(&format!("warning: {disturbed}"));
        measured.notes.push(disturbed);
    }
    Ok(Profile { measured, held_out })
}

/// Measures with a probe, and predicts and times `questions` held-out exchanges.
fn profiled(
    probe: &mut dyn Probe,
    options: &ProfileOptions,
    (sharing, questions): (Sharing, usize),
    screen: &Screen,
) -> Outcome<Profile> {
    let until = options.limit.map(|limit| Instant::now() + limit);
    let bar = screen.progress("profiling");
    let measured = profile(probe, options, &mut |progress| {
        let topology::profile::ProfileProgress { stage, done, total, runs } = progress;
        bar.message(format!("{stage}: {done} of {total}, {runs} runs"));
    });
    let measured = measured.map_err(Failure::no)?;
    bar.message("predicting what was not measured");
    let held_out = check(probe, &measured.topology, options, sharing, questions, SEED, until).map_err(Failure::no)?;
    Ok(Profile { measured, held_out })
}

/// The probe of an emulated machine that is slowed down: measured times are divided by the slowdown.
struct Slowed<'p> {
    probe: &'p mut dyn Probe,
    slowdown: f64,
}

impl Probe for Slowed<'_> {
    fn rank_count(&self) -> usize {
        self.probe.rank_count()
    }

    fn connects(&self, from: Rank, to: Rank) -> bool {
        self.probe.connects(from, to)
    }

    fn ends_together(&self) -> bool {
        self.probe.ends_together()
    }

    fn run(&mut self, exchanges: &[Exchange], repetitions: u32) -> Result<Vec<Vec<Micros>>, ProbeError> {
        let mut times = self.probe.run(exchanges, repetitions)?;
        times.iter_mut().flatten().for_each(|time| *time = *time * (1.0 / self.slowdown));
        Ok(times)
    }
}

impl Subject {
    /// This many local processes, over shared memory.
    pub(crate) fn local(ranks: usize) -> Self {
        Self(Setup {
            launch: Launch::Local(ranks),
            transport: TransportChoice::Shm,
            emulate: None,
            ready_timeout: TIMEOUT,
            timeout: Some(TIMEOUT),
            lowering: LoweringArgs::default(),
        })
    }

    /// The first lines of the file: when and where it was made.
    pub(crate) fn about(&self) -> String {
        let ranks = self.0.launch.ranks();
        let place = match (&self.0.emulate, self.0.transport) {
            (Some((spec, slowdown)), _) => {
                format!(
                    "{ranks} local processes that emulate {spec}, {slowdown} times slower (times here are divided by that)"
                )
            }
            (None, TransportChoice::Tcp) => format!("{ranks} processes over TCP"),
            (None, _) => format!("{ranks} processes, over shared memory where they share a machine and TCP elsewhere"),
        };
        made_at(&place)
    }
}

/// Says when and where a profile was made.
fn made_at(place: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "an unknown host" } else { host.trim() };
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    format!("Measured by `antiphon profile` at {} on {host}: {place}.", utc(at))
}

/// Seconds since 1970 as date and time.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02} {:02}:{:02} UTC", month + 1, left + 1, rest / 3600, rest / 60 % 60)
}

/// How well held-out exchanges were predicted.
fn examined(held_out: &[HeldOut]) -> Option<String> {
    let (median, worst) = HeldOut::errors(held_out);
    let alone = held_out.iter().filter(|answer| answer.exchanges.len() == 1).count();
    let sizes = || held_out.iter().flat_map(|answer| &answer.exchanges).map(|exchange| exchange.bytes);
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    (!held_out.is_empty()).then(|| {
        format!(
            "Predicted and then timed: {alone} single messages and {} sets of messages at once, {} to {} each; errors: \
             median {:.1} %, worst {:.1} %.",
            held_out.len() - alone,
            bytes(least),
            bytes(most),
            100.0 * median,
            100.0 * worst
        )
    })
}

/// One held-out exchange, as a line.
fn asked(answer: &HeldOut) -> String {
    let flow = |exchange: &Exchange| format!("{}→{}", exchange.from, exchange.to);
    let flows: Vec<String> = answer.exchanges.iter().map(flow).collect();
    let size = answer.exchanges.first().map_or(0, |exchange| exchange.bytes);
    format!(
        "  {} of {}: predicted {}, timed {}",
        flows.join(" "),
        bytes(size),
        time(answer.predicted.0),
        time(answer.measured.0)
    )
}

/// One line: ranges of α and bandwidth, and the shared resources.
pub(crate) fn summary(measured: &Measured) -> String {
    const MOST: usize = 8;
    let links = measured.topology.links();
    let range = |values: Vec<f64>| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        (low, high)
    };
    let alpha = range(links.iter().map(|link| link.alpha.0).collect());
    let beta = range(links.iter().map(|link| link.beta.0).collect());
    let bandwidth = |beta: f64| quantity::show_bandwidth(topology::MicrosPerByte(beta));
    format!(
        "{} ranks on {}, {} links: α {} to {}, {} to {}, shared: {}",
        measured.topology.rank_count(),
        match measured.topology.machines().len() {
            1 => "one machine".to_owned(),
            machines => format!("{machines} machines"),
        },
        links.len(),
        time(alpha.0),
        time(alpha.1),
        bandwidth(beta.1),
        bandwidth(beta.0),
        shared(&measured.topology, MOST),
    )
}

fn shared(topology: &Topology, most: usize) -> String {
    let resources = topology.resources();
    let name = |shared: &topology::Resource| format!("{} {}", shared.name, quantity::show_bandwidth(shared.beta));
    let mut names: Vec<String> = resources.iter().take(most).map(name).collect();
    if resources.len() > most {
        names.push(format!("and {} more", resources.len() - most));
    }
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let known = [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_795_323_600, "2026-11-22 05:00 UTC"),
        ];
        for (seconds, text) in known {
            assert_eq!(utc(seconds), text);
        }
    }
}
