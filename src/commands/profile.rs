//! `antiphon profile`: measures α and β of every pair of ranks, and what they share.

use crate::cli::{LoweringArgs, ProfileArgs, TransportChoice};
use crate::failure::{Failure, Outcome, io_failure};
use crate::launch::{Launch, Role};
use crate::screen::{Screen, time};
use crate::workbench::{Setup, Workbench};
use std::ops::RangeInclusive;
use std::time::Duration;
use topology::profile::{ProfileOptions, profile};
use topology::{Measured, quantity};

/// How many ranks are profiled where nobody says it.
const RANKS: usize = 8;
/// How many can be.
const LIMITS: RangeInclusive<usize> = 2..=256;

/// Runs the command.
pub(crate) fn run(args: &ProfileArgs, screen: &Screen) -> Outcome {
    let launch = match Role::take(&args.launch)? {
        Role::Agent => return Ok(()),
        Role::Coordinator(launch) => launch,
        Role::Open => Launch::Local(RANKS),
    };
    let ranks = launch.ranks();
    if !LIMITS.contains(&ranks) {
        let (least, most) = (LIMITS.start(), LIMITS.end());
        return Err(Failure::bad_input(anyhow::anyhow!("{least} to {most} ranks can be profiled, not {ranks}")));
    }
    let emulate = args.emulate.clone().map(|spec| (spec, args.slowdown));
    let options = ProfileOptions::for_ranks(ranks);
    let measured = measure(launch, args.launch.ready_timeout, emulate.clone(), &options, screen)?;
    let yaml = measured.to_yaml(&about(ranks as u32, emulate.as_ref()));
    if let Some(path) = &args.output {
        std::fs::write(path, &yaml).map_err(|error| io_failure(path, error))?;
        screen.note(&format!("{} → {}", summary(&measured), path.display()));
    }
    match (screen.is_json(), &args.output) {
        (true, _) => screen.line(&topology::to_json(&measured.topology)),
        (false, None) => screen.line(yaml.trim_end()),
        (false, Some(_)) => {}
    }
    Ok(())
}

/// Measures local processes, or the machine that they imitate.
pub(crate) fn measure(
    launch: Launch,
    ready_timeout: Duration,
    emulate: Option<(String, f64)>,
    options: &ProfileOptions,
    screen: &Screen,
) -> Outcome<Measured> {
    let timeout = Duration::from_secs(60);
    let setup = Setup {
        launch,
        transport: TransportChoice::Auto,
        emulate,
        ready_timeout,
        timeout,
        lowering: LoweringArgs::default(),
    };
    let mut bench = Workbench::open(&setup)?;
    let bar = screen.progress("profiling");
    let measured = profile(bench.probe()?, options, &mut |progress| {
        bar.message(format!("{} of {} rounds", progress.done, progress.total));
    });
    measured.map_err(Failure::no)
}

/// What the file says about how it was made.
pub(crate) fn about(ranks: u32, emulate: Option<&(String, f64)>) -> String {
    match emulate {
        None => format!("{ranks} local processes over shared memory, measured by `antiphon profile`"),
        Some((spec, slowdown)) => {
            format!(
                "{ranks} local processes that imitate {spec}, {slowdown} times slower, measured by `antiphon profile`"
            )
        }
    }
}

/// One line: ranges of α and bandwidth, and what is shared.
pub(crate) fn summary(measured: &Measured) -> String {
    let links = measured.topology.links();
    let range = |values: Vec<f64>| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        (low, high)
    };
    let alpha = range(links.iter().map(|link| link.alpha.0).collect());
    let beta = range(links.iter().map(|link| link.beta.0).collect());
    let bandwidth = |beta: f64| quantity::show_bandwidth(topology::MicrosPerByte(beta));
    let shared =
        measured.topology.resources().iter().map(|shared| format!("{} {}", shared.name, bandwidth(shared.beta.0)));
    let shared: Vec<_> = shared.collect();
    format!(
        "{} ranks, {} links: α {} to {}, {} to {}, shared: {}",
        measured.topology.rank_count(),
        links.len(),
        time(alpha.0),
        time(alpha.1),
        bandwidth(beta.1),
        bandwidth(beta.0),
        if shared.is_empty() { "nothing".to_owned() } else { shared.join(", ") },
    )
}
