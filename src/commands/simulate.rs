//! `antiphon simulate`: the makespan, and the use of every link and resource.

use super::usage;
use crate::answer::answer;
use crate::cli::{PlanArgs, SimulateArgs};
use crate::failure::{Failure, Outcome, write_to};
use crate::foreign;
use crate::plan::{self, Verified};
use crate::screen::{Screen, time};
use interop::view;
use program::play;
use schedule::{Request, Simulation, Timeline, TopologyRef, Usage, VerifiedCompressed, simulate};
use serde_json::{Value, json};
use topology::{Micros, shorten};

/// Longer tables are only in the answer of `--json`.
const SHOWN: usize = 5000;

/// A plan that was played.
struct PlayedPlan {
    title: String,
    request: Request,
    /// For a compressed schedule, the timeline of the base.
    timeline: Timeline,
    /// The makespan that a schedule states.
    stated: Option<Micros>,
    links: Vec<Usage>,
    resources: Vec<Usage>,
}

/// Runs the command.
pub(crate) fn run(args: &SimulateArgs, screen: &Screen) -> Outcome {
    screen.may_write(args.trace.iter().chain(&args.html))?;
    if let Some(compressed) = plan::open_compressed(&args.plan.file, args.plan.topology.as_deref())?
        && args.trace.is_none()
        && args.html.is_none()
    {
        let played = played_compressed(&compressed);
        return screen.result(&as_json(&played)?, || for_people(&played));
    }
    let played = played(&args.plan, screen)?;
    if let Some(path) = &args.trace {
        write_to(path, |out| view::trace(&played.timeline, out))?;
    }
    if let Some(path) = &args.html {
        write_to(path, |out| view::html(&played.timeline, out))?;
    }
    screen.result(&as_json(&played)?, || for_people(&played))
}

fn played(args: &PlanArgs, screen: &Screen) -> Outcome<PlayedPlan> {
    match plan::open_verified(&args.file, args.topology.as_deref(), args.size, screen)? {
        Verified::Schedule(schedule) => {
            let Simulation { timeline, stated_makespan, links, resources, .. } = simulate(&schedule);
            let (title, request) = (plan::describe(schedule.schedule()), schedule.schedule().demand.request().clone());
            let stated = Some(stated_makespan);
            Ok(PlayedPlan { title, request, timeline: Timeline::of(&timeline), stated, links, resources })
        }
        Verified::Programs(programs) => {
            let topology = plan::needed_topology(args.topology.as_deref())?;
            let program = foreign::bound(&programs[0], &topology, None)?;
            let timeline = play(&program, &topology).map_err(Failure::no)?.timeline;
            let (links, resources) = timeline.usage();
            let request = program.program().demand.request().clone();
            let title = plan::describe_request(&request);
            Ok(PlayedPlan { title, request, timeline, stated: None, links, resources })
        }
    }
}

/// A compressed schedule at its stated times.
fn played_compressed(compressed: &VerifiedCompressed) -> PlayedPlan {
    let (links, resources) = compressed.usage();
    let (title, timeline) = (plan::describe(compressed.base()), Timeline::of_base(compressed));
    let request = compressed.base().demand.request().clone();
    PlayedPlan { title, request, timeline, stated: Some(compressed.makespan()), links, resources }
}

fn as_json(played: &PlayedPlan) -> Outcome<Value> {
    let PlayedPlan { timeline, .. } = played;
    let topology = &timeline.topology;
    let (links, resources) = usage::as_json(topology, &played.links, &played.resources);
    let mut value = json!({
        "makespan_us": timeline.makespan(), "size_bytes": timeline.size_bytes,
        "links": links, "resources": resources,
    });
    if let Some(stated) = played.stated {
        value["stated_makespan_us"] = json!(stated);
    }
    answer("simulate", Some(&TopologyRef::to(topology)), Some(&played.request), &value)
}

fn for_people(played: &PlayedPlan) -> String {
    let PlayedPlan { timeline, .. } = played;
    let topology = &timeline.topology;
    let stated = played.stated.map(|stated| format!(" (stated {})", time(stated.0))).unwrap_or_default();
    format!(
        "{} on {}\nmakespan {}{stated}\n\n{}",
        played.title,
        shorten(topology.name()),
        time(timeline.makespan().0),
        usage::table(topology, &played.links, &played.resources, SHOWN),
    )
}
