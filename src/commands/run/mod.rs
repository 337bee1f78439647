//! `antiphon run`: runs plans on real buffers with real ranks, checks the results, and prints the table of nccl-tests.

mod fixed;
mod loop_job;
mod looped;
mod report;
mod stock;
mod tabled;

use crate::amounts::{self, bus_factor, count};
use crate::cli::RunArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::{Launch, Role};
use crate::loading::MemoryMode;
use crate::plan;
use crate::screen::{Bar, Screen, bytes};
use crate::workbench::{Installed, Setup, Workbench};
use fixed::Fixed;
use report::{CSV, ReportRow, Together, header};
use runtime::{Check, Group, Trial, TrialReport};
use schedule::Request;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tabled::RunTable;
use topology::{Micros, Rank, Topology, counted};
use tune::{Summary, summarize};

/// The kinds of calls, as the table shows them.
const BOTH: [MemoryMode; 2] = [MemoryMode::OutOfPlace, MemoryMode::InPlace];

/// Runs the command.
pub(crate) fn run(args: &RunArgs, screen: &Screen) -> Outcome {
    if args.is_loop {
        return looped::conduct(args, screen);
    }
    Role::take(&args.launch)?.play(|launch| conduct(args, launch, screen))
}

/// Runs one rank of `run --loop`.
pub(crate) use looped::run_rank as run_loop_rank;

/// Runs the command on the process that coordinates.
fn conduct(args: &RunArgs, launch: Option<Launch>, screen: &Screen) -> Outcome {
    interrupt::ends(screen);
    let open = |path: &PathBuf| {
        let is_csv = args.csv && path.extension().is_some_and(|extension| extension == "csv");
        let hint = is_csv.then_some("--csv takes no value: CSV goes to stdout");
        fixed::open(path, args, screen).map(Rc::new).map_err(|failure| failure.hint_if(hint))
    };
    let fixed = args.files.iter().map(open);
    let fixed = fixed.collect::<Outcome<Vec<_>>>()?;
    let launch = launch.map_or_else(|| local(args, &fixed), Ok)?;
    let ranks = launch.ranks();
    let groups = groups(args, &fixed, ranks)?;
    let setup = Setup {
        launch,
        transport: args.transport,
        emulate: args.emulate.clone().map(|spec| (spec, args.slowdown)),
        ready_timeout: args.launch.ready_limit(ranks),
        timeout: args.timeout,
        lowering: args.lowering.clone(),
    };
    let is_together = groups.len() > 1 || args.split.is_some();
    let head = match (args.csv, screen.is_json()) {
        (true, _) => Some(CSV.to_owned()),
        (false, true) => None,
        (false, false) => Some(header(&title(args, &fixed, ranks, is_together), is_together)),
    };
    let bar = screen.progress("run");
    bar.message(format!("starting {ranks} ranks"));
    let mut bench = Workbench::open(&setup)?;
    let mut session = RunSession { args, bench: &mut bench, screen, bar, head, wrong: 0, emulated: None };
    if let Some(spec) = &args.emulate {
        session.emulated = Some(plan::topology(spec)?);
    }
    let done = session.rows(&fixed, &groups, ranks).map(|()| session.wrong);
    drop(session);
    let wrong = done.inspect_err(|error| bench.call_off(error))?;
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// The plans and the ranks, as a title.
fn title(args: &RunArgs, fixed: &[Rc<Fixed>], ranks: usize, is_together: bool) -> String {
    let collective = fixed.first().map(|fixed| fixed.request().collective).or(args.collective);
    let what = match collective {
        Some(collective) if !is_together => format!("{collective} on {}", counted(ranks, "rank")),
        _ => format!("several collectives at the same time on {ranks} ranks"),
    };
    let times = |count: u32, noun| counted(count as usize, noun);
    let (iterations, warmups) = (times(args.iterations, "iteration"), times(args.warmups, "warm-up"));
    let how = format!("{what}, median of {iterations} after {warmups}");
    match &args.emulate {
        None => how,
        Some(spec) if args.slowdown == 1.0 => format!("{how}; emulating {spec}"),
        Some(spec) => format!("{how}; emulating {spec} {} times slower, all times as they pass here", args.slowdown),
    }
}

/// The state of the command while it measures.
struct RunSession<'a> {
    args: &'a RunArgs,
    bench: &'a mut Workbench,
    screen: &'a Screen,
    bar: Bar,
    /// What stands above the first row, until there is one.
    head: Option<String>,
    /// The number of wrong elements.
    wrong: u64,
    /// The machine that the ranks emulate.
    emulated: Option<Arc<Topology>>,
}

impl RunSession<'_> {
    /// Measures all plans at all sizes.
    fn rows(&mut self, fixed: &[Rc<Fixed>], groups: &[Group], ranks: usize) -> Outcome {
        let sizes: Vec<Option<u64>> = match &self.args.size {
            None => vec![None],
            Some(sizes) => sizes.0.iter().copied().map(Some).collect(),
        };
        let table = self
            .args
            .table
            .as_deref()
            .map(|path| RunTable::open(self.args, path, ranks, self.bench, self.screen))
            .transpose()?;
        for size in sizes {
            self.bar.message("planning");
            let chosen = match (&table, size) {
                (Some(table), Some(size)) => table.part(self.args, ranks, size, (self.bench, self.screen))?,
                _ => None,
            };
            let parts = match fixed {
                _ if chosen.is_some() => chosen.into_iter().collect(),
                [] => stock::parts(self.args, groups, ranks, size, self.bench)?,
                fixed => fixed_parts(self.args, fixed, groups, self.bench)?,
            };
            for memory in BOTH {
                self.measure(&parts, size, memory)?;
            }
        }
        Ok(())
    }

    /// Measures all parts at one size in one kind of call, if all parts serve it.
    fn measure(&mut self, parts: &[GroupPlans], size: Option<u64>, memory: MemoryMode) -> Outcome {
        let plans: Option<Vec<&RunnablePlan>> = parts.iter().map(|part| part.plan(memory)).collect();
        let Some(plans) = plans else { return Ok(()) };
        let mut trials = Vec::new();
        for (index, (part, plan)) in parts.iter().zip(&plans).enumerate() {
            let asked = size.unwrap_or(plan.installed.request().size_bytes);
            let trial = self.trial(&plan.installed, asked, index == 0 && memory == BOTH[0]);
            trials.push((&plan.installed, part.group.clone(), trial));
        }
        let shown = trials.first().map(|(plan, _, trial)| bytes(amounts::bytes(plan.request(), trial)));
        let call = if memory == MemoryMode::InPlace { "in place" } else { "out of place" };
        self.bar.message(format!("{}, {call}", shown.unwrap_or_default()));
        let reports = self.bench.run_together(&trials, memory)?;
        let together_us = summary(&TrialReport::spans_of_all(&reports)).median_us;
        let is_together = parts.len() > 1 || self.args.split.is_some();
        for (index, (report, plan)) in reports.iter().zip(plans).enumerate() {
            let together = Together { number: index + 1, group: parts[index].members.clone(), together_us };
            self.tell(report, plan, &trials[index].2, memory, is_together.then_some(together))?;
        }
        Ok(())
    }

    /// As many elements as fit into the size that was asked for. If bytes are left over, a note says so.
    fn trial(&self, plan: &Installed, asked: u64, is_first: bool) -> Trial {
        let (count, size_bytes) = count(plan.request(), asked, self.args.dtype, plan.granularity());
        if is_first {
            note_rounding(plan.request(), asked, size_bytes, self.args, self.screen);
        }
        Trial {
            count,
            dtype: self.args.dtype,
            warmups: self.args.warmups,
            repetitions: self.args.iterations,
            seed: self.args.seed,
            check: Check::FirstAndLast,
            steps: false,
        }
    }

    /// Prints the results.
    fn tell(
        &mut self,
        report: &TrialReport,
        plan: &RunnablePlan,
        trial: &Trial,
        memory: MemoryMode,
        together: Option<Together>,
    ) -> Outcome {
        let request = plan.installed.request();
        let size_bytes = amounts::bytes(request, trial);
        let Summary { median_us: time_us, min_us, max_us, p99_us, .. } = summary(&report.spans());
        let algbw = if time_us > 0.0 { size_bytes as f64 / time_us * 1e-3 } else { 0.0 };
        // The model assumes that a plan has the links for itself, so there is no prediction for plans that run
        // together.
        let model = plan.model.as_ref().filter(|_| together.is_none());
        let predicted = model.and_then(|model| model.predicted(size_bytes, memory, self.emulated.as_ref()));
        let predicted_us = predicted.map(|time| time.0 * self.args.slowdown);
        let row = ReportRow {
            format: report::FORMAT,
            collective: request.collective,
            size_bytes,
            count: trial.count,
            dtype: trial.dtype,
            op: request.op,
            root: request.root,
            in_place: memory == MemoryMode::InPlace,
            time_us,
            min_us,
            p99_us,
            max_us,
            algbw,
            busbw: algbw * bus_factor(request),
            predicted_us,
            ratio: predicted_us.filter(|predicted| *predicted > 0.0).map(|predicted| time_us / predicted),
            emulated: self.args.emulate.is_some(),
            wrong: report.wrong(),
            plan: plan.name.clone(),
            ranks: request.ranks,
            together,
        };
        self.wrong += row.wrong;
        if let Some(head) = self.head.take() {
            self.bar.pause(|| if self.args.csv { self.screen.line(&head) } else { self.screen.say(&head) });
        }
        let line = match (self.args.csv, self.screen.is_json()) {
            (true, _) => row.csv(),
            (false, true) => serde_json::to_string(&row).map_err(Failure::no)?,
            (false, false) if self.screen.is_quiet() => return Ok(()),
            (false, false) => row.line(),
        };
        self.bar.pause(|| self.screen.line(&line));
        Ok(())
    }
}

/// Says that other bytes are run than were asked for, if that is so.
fn note_rounding(request: &Request, asked: u64, size_bytes: u64, args: &RunArgs, screen: &Screen) {
    if size_bytes != asked {
        let Request { collective, members, .. } = request;
        screen.note(&format!(
            "note: {asked} bytes are no whole number of {} in {collective} over {} ranks: {size_bytes} bytes are run",
            args.dtype,
            members.len()
        ));
    }
}

/// As many local ranks as the plans or the groups need.
fn local(args: &RunArgs, fixed: &[Rc<Fixed>]) -> Outcome<Launch> {
    let needed = match &args.split {
        Some(split) => split.least_ranks(),
        None => fixed.first().map(|fixed| fixed.request().ranks),
    };
    let needed = needed.ok_or_else(|| Failure::bad_input(anyhow::anyhow!("--ranks is needed without a plan")))?;
    Launch::local(needed)
}

/// The group of every plan: all ranks, or those of `--split`.
fn groups(args: &RunArgs, fixed: &[Rc<Fixed>], ranks: usize) -> Outcome<Vec<Group>> {
    let bad = |what: String| Err(Failure::bad_input(anyhow::anyhow!(what)));
    let groups = match &args.split {
        None => vec![Group::all(ranks); fixed.len().max(1)],
        Some(split) => {
            if let Some(needed) = split.least_ranks().filter(|&needed| needed > ranks) {
                return bad(format!("--split names rank {}, but {ranks} ranks are to run", needed - 1));
            }
            let groups = split.groups(ranks).into_iter().map(Group::new).collect::<Result<Vec<_>, _>>();
            groups.map_err(Failure::bad_input)?
        }
    };
    if args.split.is_some() && fixed.len() > 1 && fixed.len() != groups.len() {
        return bad(format!(
            "{} plans cannot run in {} groups: give one plan, or one for each",
            fixed.len(),
            groups.len()
        ));
    }
    let of_group = |index: usize| fixed.get(index).or(fixed.first());
    for (index, group) in groups.iter().enumerate() {
        let given = group.ranks().len();
        match of_group(index).map(|fixed| fixed.request().ranks) {
            Some(has) if has != given && args.split.is_none() => {
                return bad(format!("the plan has {has} ranks, but {given} are to run"));
            }
            Some(has) if has != given => return bad(format!("the plan has {has} ranks, but its group has {given}")),
            _ => {}
        }
    }
    Ok(groups)
}

/// A plan that is ready to run.
struct RunnablePlan {
    installed: Installed,
    name: String,
    /// The plan that predicts the time, if the rates of links are known.
    model: Option<Rc<Fixed>>,
}

/// Plans for kinds of calls; the first plan that serves a kind is used.
type Plans = Vec<(RunnablePlan, &'static [MemoryMode])>;

/// The plans of one group.
struct GroupPlans {
    /// The ranks of the plan.
    group: Group,
    /// The ranks that take part in its collective.
    members: Vec<Rank>,
    /// Shared, because several groups may use the same plans.
    plans: Rc<Plans>,
}

impl GroupPlans {
    fn plan(&self, memory: MemoryMode) -> Option<&RunnablePlan> {
        let serves =
            |(plan, calls): &&(RunnablePlan, &[MemoryMode])| calls.contains(&memory) && plan.installed.serves(memory);
        self.plans.iter().find(serves).map(|(plan, _)| plan)
    }
}

/// The plans from files: one for every group, or one for all.
fn fixed_parts(args: &RunArgs, fixed: &[Rc<Fixed>], groups: &[Group], bench: &Workbench) -> Outcome<Vec<GroupPlans>> {
    let mut ready: Vec<Rc<Plans>> = Vec::with_capacity(fixed.len());
    for plan in fixed {
        let (installed, name) = plan.install(args.op, bench)?;
        let model = Some(plan.clone());
        ready.push(Rc::new(vec![(RunnablePlan { installed, name, model }, &BOTH[..])]));
    }
    let part = |(index, group): (usize, &Group)| {
        let plans = ready.get(index).unwrap_or(&ready[0]).clone();
        let numbers = &plans[0].0.installed.request().members;
        let members = numbers.iter().map(|number| group.ranks()[number.index()]).collect();
        GroupPlans { group: group.clone(), members, plans }
    };
    Ok(groups.iter().enumerate().map(part).collect())
}

/// In microseconds; zeros if nothing was measured.
fn summary(spans: &[Micros]) -> Summary {
    let spans: Vec<f64> = spans.iter().map(|span| span.0).collect();
    summarize(&spans).unwrap_or_default()
}
