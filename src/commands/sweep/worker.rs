//! `antiphon sweep-worker`: plans the cells that a sweep hands it over standard input, one after the other.

use super::crew::{PlanningOrder, Reply, read_line};
use super::store::{Record, whole};
use crate::cli::{SearchArgs, SweepWorkerArgs};
use crate::failure::{Failure, Outcome};
use crate::plan;
use schedule::{Request, Schedule, VerifiedSchedule, file};
use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::mpsc::channel;
use synth::sketch::Sketch;
use synth::{Constraints, SizeTask};

/// Serves one sweep until its input ends.
pub(crate) fn run(args: &SweepWorkerArgs) -> Outcome {
    let (orders, inbox) = channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        while let Ok(Some(order)) = read_line::<PlanningOrder>(&mut input) {
            if orders.send(order).is_err() {
                return;
            }
        }
        // The sweep has ended, so the plan in progress is not needed any more.
        std::process::exit(0);
    });
    for order in inbox {
        let record =
            plan_cell(&order, &args.search).unwrap_or_else(|failure| Record::None { reason: reason(&failure) });
        let reply = Reply { number: order.number, record };
        let mut line = serde_json::to_string(&reply).map_err(Failure::no)?;
        line.push('\n');
        let mut output = std::io::stdout().lock();
        output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(Failure::no)?;
    }
    Ok(())
}

/// The text of a failure, short enough for a line.
fn reason(failure: &Failure) -> String {
    const MOST: usize = 4000;
    failure.to_string().trim_start_matches("error: ").chars().take(MOST).collect()
}

/// A cell as a problem for the planner.
pub(super) struct PreparedCell {
    /// The request at any size.
    pub(super) task: SizeTask,
    sketch: Option<Sketch>,
}

impl PreparedCell {
    /// Resolves the topology and the sketch of a cell.
    pub(super) fn new(cell: &super::cells::SweepCell) -> Outcome<Self> {
        let topology = plan::topology(&cell.topology)?;
        let sketch = cell.sketch.as_deref().map(|path| plan::sketch(path, &topology)).transpose()?;
        let constraints = sketch.as_ref().map_or_else(Constraints::none, |sketch| sketch.constraints.clone());
        let chunks = cell.chunks.or_else(|| sketch.as_ref()?.pins.chunks_per_rank);
        let request = Request::new(cell.collective, topology.rank_count(), cell.size_bytes);
        let task = SizeTask { topology, constraints: Arc::new(constraints), request, chunks };
        Ok(Self { task, sketch })
    }

    /// Reads a plan that the sweep has saved.
    pub(super) fn open(&self, path: &std::path::Path) -> Outcome<VerifiedSchedule> {
        let text = std::fs::read_to_string(path).map_err(|error| crate::failure::io_failure(path, error))?;
        let read = file::read(&text, &path.display().to_string()).map_err(Failure::bad_input)?;
        read.verify(&self.task.topology).map_err(Failure::no)
    }
}

/// Plans a cell and saves its plan.
fn plan_cell(order: &PlanningOrder, search: &SearchArgs) -> Outcome<Record> {
    let desk = PreparedCell::new(&order.cell)?;
    let size = order.cell.size_bytes;
    let problems = desk.task.problems(size).map_err(Failure::bad_input)?;
    let warm: Vec<Schedule> = order
        .warm
        .iter()
        .filter_map(|path| desk.open(path).ok())
        .filter_map(|plan| synth::retimed(&plan, &desk.task, size))
        .collect();
    let options = plan::options(search, desk.sketch.as_ref());
    let found = synth::synthesize_from(&problems, &warm, &options, &|_| {});
    let explain = |error| crate::commands::synth::explain(error, order.cell.sketch.as_deref(), options.strategy);
    let found = found.map_err(explain)?;
    whole(&order.plan, |out| file::write(&found.schedule, out))
        .map_err(|error| crate::failure::io_failure(&order.plan, error))?;
    let schedule = found.schedule.schedule();
    Ok(Record::Found {
        makespan_us: found.report.makespan_us,
        lower_bound_us: found.report.lower_bound_us,
        bound: found.report.bound,
        gap: found.report.gap,
        strategy: found.report.strategy,
        stop_reason: found.report.stop_reason.to_string(),
        chunks_per_rank: schedule.demand.request().chunks_per_rank,
        transfers: schedule.transfers.len(),
        seconds: found.report.seconds,
    })
}
