//! `antiphon profile`: measures α and β of every pair of local ranks, and what they share.

use crate::cli::{LoweringArgs, ProfileArgs, TransportChoice};
use crate::failure::{Failure, Outcome, io_failure};
use crate::screen::{Screen, time};
use crate::workbench::{Setup, Workbench};
use std::time::Duration;
use topology::profile::{ProfileOptions, profile};
use topology::{Measured, quantity};

/// Runs the command.
pub(crate) fn run(args: &ProfileArgs, screen: &Screen) -> Outcome {
    let emulate = args.emulate.clone().map(|spec| (spec, args.slowdown));
    let options = ProfileOptions::for_ranks(args.ranks as usize);
    let measured = measure(args.ranks, emulate.clone(), &options, screen)?;
    let yaml = measured.to_yaml(&about(args.ranks, emulate.as_ref()));
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
    ranks: u32,
    emulate: Option<(String, f64)>,
    options: &ProfileOptions,
    screen: &Screen,
) -> Outcome<Measured> {
    let timeout = Duration::from_secs(60);
    let setup = Setup {
        ranks: ranks as usize,
        transport: TransportChoice::Shm,
        emulate,
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
