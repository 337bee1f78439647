//! `antiphon bound`: every lower bound with its certificate.

use crate::cli::{BoundArgs, Chunks};
use crate::failure::{Failure, Outcome};
use crate::plan;
use crate::screen::{Screen, table, time};

/// Runs the command. With `--chunks auto` the bounds are for one chunk per rank.
pub fn run(args: &BoundArgs, screen: &Screen) -> Outcome {
    let mut request = args.request.clone();
    if request.chunks == Chunks::Auto {
        request.chunks = Chunks::Pinned(1);
    }
    let problems = plan::problems(&request)?;
    let problem = problems.first().ok_or_else(|| Failure::no(anyhow::anyhow!("nothing to bound")))?;
    let bounds = synth::bounds::bounds(problem);
    let best = bounds.best();
    let value = serde_json::json!({
        "lower_bound_us": best.value, "binding": best.name, "bounds": bounds.list,
    });
    screen.result(&value, || {
        let rows = bounds.list.iter().map(|bound| {
            vec![bound.name.to_string(), time(bound.value.0), bound.scope.to_string(), bound.certificate.to_string()]
        });
        let rows: Vec<_> = rows.collect();
        let request = problem.demand.request();
        format!(
            "{} {} over {} ranks on {}\nlower bound  {} ({})\n\n{}",
            request.collective,
            crate::screen::bytes(request.size_bytes),
            request.members.len(),
            problem.topology.name(),
            time(best.value.0),
            best.name,
            table(&["bound", "value", "scope", "certificate"], &rows),
        )
    })
}
