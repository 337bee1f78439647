//! `antiphon run`: plans on real buffers by real ranks, checked, in the table that nccl-tests prints.

mod fixed;
mod report;
mod stock;

use crate::amounts::{bus_factor, count};
use crate::cli::RunArgs;
use crate::failure::{Failure, Outcome};
use crate::launch::{Launch, Role};
use crate::loading::Memory;
use crate::screen::Screen;
use crate::workbench::{Installed, Setup, Workbench};
use fixed::Fixed;
use report::{Row, Together, report};
use runtime::{Check, Group, Trial, TrialReport};
use std::rc::Rc;
use topology::Rank;
use tune::summarize;

/// The kinds of calls, as the table shows them.
const BOTH: [Memory; 2] = [Memory::OutOfPlace, Memory::InPlace];

/// Runs the command.
pub(crate) fn run(args: &RunArgs, screen: &Screen) -> Outcome {
    Role::take(&args.launch)?.play(|launch| conduct(args, launch, screen))
}

/// Runs it as the process that decides.
fn conduct(args: &RunArgs, launch: Option<Launch>, screen: &Screen) -> Outcome {
    let fixed = args.files.iter().map(|path| fixed::open(path, args, screen)).collect::<Outcome<Vec<_>>>()?;
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
    let mut bench = Workbench::open(&setup)?;
    let rows = rows(args, &mut bench, (&fixed, &groups, ranks), screen).inspect_err(|error| bench.call_off(error))?;
    screen.say(&report(&rows));
    match rows.iter().map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// Measures all plans at all sizes.
fn rows(
    args: &RunArgs,
    bench: &mut Workbench,
    (fixed, groups, ranks): (&[Fixed], &[Group], usize),
    screen: &Screen,
) -> Outcome<Vec<Row>> {
    let sizes: Vec<Option<u64>> = match &args.size[..] {
        [] => vec![None],
        sizes => sizes.iter().copied().map(Some).collect(),
    };
    let mut rows = Vec::new();
    for size in sizes {
        let parts = match fixed {
            [] => stock::parts(args, groups, ranks, size, bench)?,
            fixed => fixed_parts(args, fixed, groups, bench)?,
        };
        let first = rows.len();
        for memory in BOTH {
            measure(args, bench, &parts, (size, memory), |row| {
                if screen.is_json() {
                    screen.line(&serde_json::to_string(&row).unwrap_or_default());
                }
                rows.push(row);
            })?;
        }
        rows[first..].sort_by_key(|row| row.together.as_ref().map(|together| together.number));
    }
    Ok(rows)
}

/// As many local ranks as the plans, or the groups, need.
fn local(args: &RunArgs, fixed: &[Fixed]) -> Outcome<Launch> {
    let needed = match &args.split {
        Some(split) => split.least_ranks(),
        None => fixed.first().map(|fixed| fixed.request().ranks),
    };
    needed.map(Launch::Local).ok_or_else(|| Failure::bad_input(anyhow::anyhow!("--ranks is needed without a plan")))
}

/// The group of every plan: all ranks, or those of `--split`.
fn groups(args: &RunArgs, fixed: &[Fixed], ranks: usize) -> Outcome<Vec<Group>> {
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
struct Ready {
    installed: Installed,
    name: String,
}

/// Plans for kinds of calls; the first that serves a kind is run.
type Plans = Vec<(Ready, &'static [Memory])>;

/// What runs in a group.
struct Part {
    /// The ranks of the plan.
    group: Group,
    /// Those that take part in its collective.
    members: Vec<Rank>,
    /// Groups may share them.
    plans: Rc<Plans>,
}

impl Part {
    fn plan(&self, memory: Memory) -> Option<&Ready> {
        let serves = |(plan, calls): &&(Ready, &[Memory])| calls.contains(&memory) && plan.installed.serves(memory);
        self.plans.iter().find(serves).map(|(plan, _)| plan)
    }
}

/// The plans of files, one in every group, or one in all.
fn fixed_parts(args: &RunArgs, fixed: &[Fixed], groups: &[Group], bench: &Workbench) -> Outcome<Vec<Part>> {
    let mut ready: Vec<Rc<Plans>> = Vec::with_capacity(fixed.len());
    for plan in fixed {
        let (installed, name) = plan.install(args.op, bench)?;
        ready.push(Rc::new(vec![(Ready { installed, name }, &BOTH[..])]));
    }
    let part = |(index, group): (usize, &Group)| {
        let plans = ready.get(index).unwrap_or(&ready[0]).clone();
        let numbers = &plans[0].0.installed.request().members;
        let members = numbers.iter().map(|number| group.ranks()[number.index()]).collect();
        Part { group: group.clone(), members, plans }
    };
    Ok(groups.iter().enumerate().map(part).collect())
}

/// Measures all parts at one size in one kind of call, if all serve it.
fn measure(
    args: &RunArgs,
    bench: &mut Workbench,
    parts: &[Part],
    (size, memory): (Option<u64>, Memory),
    mut emit: impl FnMut(Row),
) -> Outcome {
    let plans: Option<Vec<&Ready>> = parts.iter().map(|part| part.plan(memory)).collect();
    let Some(plans) = plans else { return Ok(()) };
    let (mut sizes, mut trials) = (Vec::new(), Vec::new());
    for (part, plan) in parts.iter().zip(&plans) {
        let request = plan.installed.request();
        let size = size.unwrap_or(request.size_bytes);
        let (count, size_bytes) = count(request, size, args.dtype, plan.installed.granularity());
        sizes.push((count, size_bytes));
        let trial = Trial {
            count,
            dtype: args.dtype,
            warmups: args.warmups,
            repetitions: args.iterations,
            seed: args.seed,
            check: Check::FirstAndLast,
        };
        trials.push((&plan.installed, part.group.clone(), trial));
    }
    let reports = bench.run_together(&trials, memory)?;
    let together_us = median(&TrialReport::spans_of_all(&reports));
    for (index, (report, plan)) in reports.iter().zip(plans).enumerate() {
        let (request, (count, size_bytes)) = (plan.installed.request(), sizes[index]);
        let time_us = median(&report.spans());
        let algbw_gbps = if time_us > 0.0 { size_bytes as f64 / time_us * 1e-3 } else { 0.0 };
        let group = parts[index].members.clone();
        let together = Together { number: index + 1, group, together_us };
        emit(Row {
            collective: request.collective,
            size_bytes,
            count,
            dtype: args.dtype,
            op: request.op,
            root: request.root,
            in_place: memory == Memory::InPlace,
            time_us,
            algbw_gbps,
            busbw_gbps: algbw_gbps * bus_factor(request),
            wrong: report.wrong(),
            plan: plan.name.clone(),
            ranks: request.ranks,
            together: (parts.len() > 1 || args.split.is_some()).then_some(together),
        });
    }
    Ok(())
}

/// In microseconds.
fn median(spans: &[topology::Micros]) -> f64 {
    let spans: Vec<f64> = spans.iter().map(|span| span.0).collect();
    summarize(&spans).map_or(0.0, |summary| summary.median_us)
}
