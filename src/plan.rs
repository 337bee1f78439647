//! From the words of the user to the values that the crates take: topologies, requests, sketches, schedule files.

use crate::cli::{ChunkCount, RequestArgs, SearchArgs};
use crate::content::{self, Content};
use crate::failure::{Failure, Outcome, read_text, write_to};
use crate::foreign::{self, ForeignPlan, no_plan};
use crate::interrupt;
use crate::screen::Screen;
use program::VerifiedProgram;
use schedule::file::{self, AnyScheduleFile, CompressedFile, ScheduleFile};
use schedule::{Demand, MOST_PLAIN_TRANSFERS, Request, Schedule, VerifiedCompressed, VerifiedSchedule};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use synth::sketch::{Sketch, SketchError, SketchFile, obey};
use synth::{Deadline, JointTask, Problem, SearchOptions};
use topology::{Rank, Topology, counted, shorten};

/// Resolves a SPEC or reads a topology file.
pub(crate) fn topology(spec: &str) -> Outcome<Arc<Topology>> {
    Ok(Arc::new(::topology::load(spec)?))
}

/// To repair a plan may take one part in this many of a limited time.
const REPAIR_PART: u32 = 4;

/// A planning task, resolved.
pub(crate) struct PlanningTask {
    /// One problem per chunk count worth trying, or one for the pinned count; never empty.
    pub problems: Vec<Problem>,
    /// The sketch, if one was given.
    pub sketch: Option<Sketch>,
    /// The collectives that the problems consist of, if there are several.
    pub joint: Option<JointTask>,
}

impl PlanningTask {
    /// Opens the plan that the search is to begin with, and admits the chunks that it is cut into. A plan for a machine
    /// that has changed since, or for more ranks, is repaired.
    pub(crate) fn warm_start(
        &mut self,
        path: &Path,
        args: &RequestArgs,
        (options, screen): (&SearchOptions, &Screen),
    ) -> Outcome<Schedule> {
        let warm = match open_schedule(path, Some(&args.topology)) {
            Ok(warm) => warm.into_schedule(),
            Err(failure) => match open_schedule(path, None) {
                Ok(old) if old.topology().digest() != self.problems[0].topology.digest() => {
                    return self.repaired(old.schedule(), path, args, (options, screen));
                }
                _ => return Err(failure),
            },
        };
        let first = &self.problems[0];
        let (origin, chunks) = (path.display(), warm.demand.request().chunks_per_rank);
        let wanted = first.demand.request();
        if wanted.clone().with_chunks(chunks) != *warm.demand.request() {
            return match has_lost_members(warm.demand.request(), wanted) {
                true => self.repaired(&warm, path, args, (options, screen)),
                false => Err(other_request(path, &warm, wanted)),
            };
        }
        if let Some(violation) = obey(&warm, &first.topology, &first.constraints).first() {
            return Err(
                Failure::bad_input(anyhow::anyhow!("{violation}")).context(format!("{origin}: breaks the sketch"))
            );
        }
        self.admit(&warm, path, args)?;
        Ok(warm)
    }

    /// The plan for the machine of this task, made from a plan for the machine as it was.
    fn repaired(
        &mut self,
        old: &Schedule,
        path: &Path,
        args: &RequestArgs,
        (options, screen): (&SearchOptions, &Screen),
    ) -> Outcome<Schedule> {
        let (wanted, before) = (self.problems[0].demand.request(), old.demand.request());
        let is_like = wanted.collective == before.collective && wanted.op == before.op;
        if !is_like || wanted.size_bytes != before.size_bytes {
            return Err(other_request(path, old, wanted));
        }
        let demand = match wanted.collective.is_listed() {
            true => (*self.problems[0].demand).clone(),
            false => Demand::new(wanted.clone().with_chunks(before.chunks_per_rank)).map_err(Failure::bad_input)?,
        };
        let problem = Problem { demand: Arc::new(demand), ..self.problems[0].clone() };
        let origin = path.display();
        let deadline = Deadline::after(options.time_limit, options.cancel.clone()).part(REPAIR_PART);
        let repaired = synth::repaired(&problem, old, &deadline)
            .map_err(|error| Failure::no(error).context(format!("{origin}: cannot be repaired for this machine")))?;
        let gone: Vec<String> = repaired.gone.iter().map(ToString::to_string).collect();
        let gone =
            if gone.is_empty() { String::new() } else { format!("; taken to be gone: rank {}", gone.join(", ")) };
        screen.note(&format!(
            "note: {origin} is for another machine, and was repaired: {} deliveries take another way{gone}",
            repaired.rerouted
        ));
        self.admit(&repaired.schedule, path, args)?;
        Ok(repaired.schedule)
    }

    /// Adds the problem that `warm` solves, if its chunk count may be chosen.
    fn admit(&mut self, warm: &Schedule, path: &Path, args: &RequestArgs) -> Outcome {
        let first = &self.problems[0];
        if self.problems.iter().any(|problem| problem.demand == warm.demand) {
            return Ok(());
        }
        let is_same = Demand::new(warm.demand.request().clone()).is_ok_and(|demand| demand == *warm.demand);
        let is_pinned = self.sketch.as_ref().is_some_and(|sketch| sketch.pins.chunks_per_rank.is_some());
        if args.chunks != ChunkCount::Auto || is_pinned || !is_same {
            return Err(other_request(path, warm, first.demand.request()));
        }
        self.problems.push(Problem { demand: warm.demand.clone(), ..first.clone() });
        Ok(())
    }
}

/// Whether `now` is what `before` was, among fewer members.
fn has_lost_members(before: &Request, now: &Request) -> bool {
    let same = Request { members: before.members.clone(), root: before.root, ..now.clone() };
    same.with_chunks(before.chunks_per_rank) == *before
        && now.members.len() < before.members.len()
        && now.members.iter().all(|&member| before.members.has(member))
}

fn other_request(path: &Path, plan: &Schedule, wanted: &Request) -> Failure {
    let (is_for, wanted) = (describe_request(plan.demand.request()), describe_request(wanted));
    Failure::bad_input(anyhow::anyhow!("{}: is for {is_for}, not for {wanted}", path.display()))
}

/// Resolves the topology, the sketch and the request.
pub(crate) fn task(args: &RequestArgs, size: Option<u64>, screen: &Screen) -> Outcome<PlanningTask> {
    let topology = topology(&args.topology)?;
    let sketch = args.sketch.as_deref().map(|path| sketch(path, &topology)).transpose()?;
    let mut content = Content::read(args.matrix.as_deref(), args.demand.as_deref())?;
    let request = request(args, &topology, content.size(size)?)?;
    if let Some(groups) = &args.groups {
        content = Content::in_groups(groups, &request)?;
    }
    let pinned = match args.chunks {
        ChunkCount::Pinned(count) => Some(count),
        ChunkCount::Auto => None,
    };
    let problems = problems(&topology, &request, &content, sketch.as_ref(), pinned)?;
    let joint = content.joint(&topology, &request, sketch.as_ref(), pinned);
    let size_bytes = problems.first().map_or(request.size_bytes, |problem| problem.demand.request().size_bytes);
    if let Some(given) = size.filter(|&given| given != size_bytes && args.groups.is_none()) {
        screen.note(&format!("note: the chunks make the size {size_bytes} B, so --size says nothing ({given} B)"));
    }
    if let Some(sketch) = sketch.as_ref().filter(|sketch| !sketch.pins.sizes.contains(size_bytes)) {
        screen.note(&format!("note: sketch {} is meant for {}, not for this size", sketch.name, sketch.pins.sizes));
    }
    Ok(PlanningTask { problems, sketch, joint })
}

/// One problem per chunk count worth trying; one for the count that the user or the sketch pins.
pub(crate) fn problems(
    topology: &Arc<Topology>,
    request: &Request,
    content: &Content,
    sketch: Option<&Sketch>,
    pinned: Option<u32>,
) -> Outcome<Vec<Problem>> {
    let pinned = pinned.or_else(|| sketch?.pins.chunks_per_rank);
    if let Some(task) = content.joint(topology, request, sketch, pinned) {
        return task.problems().map_err(Failure::bad_input);
    }
    let counts = pinned.map_or_else(|| synth::chunk_counts(topology, request), |count| vec![count]);
    let constraints = sketch.map(|sketch| Arc::new(sketch.constraints.clone()));
    let problem = |count: u32| {
        let demand = content.demand(request.clone().with_chunks(count))?;
        let mut problem = Problem::new(topology.clone(), Arc::new(demand));
        if let Some(constraints) = &constraints {
            problem.constraints = constraints.clone();
        }
        Ok(problem)
    };
    counts.into_iter().map(problem).collect()
}

/// The request of the user, before a chunk count is chosen.
pub(crate) fn request(args: &RequestArgs, topology: &Topology, size: u64) -> Outcome<Request> {
    let mut request = Request::new(args.collective, topology.rank_count(), size);
    if let Some(members) = &args.members {
        request.members = members.0.iter().copied().collect();
        request.root = request.root.and_then(|_| request.members.first().copied());
    }
    if let Some(root) = args.root {
        request.root = Some(Rank(root));
    }
    if let Some(op) = args.op {
        request.op = Some(op);
    }
    content::check_flags(args.collective, args.matrix.is_some(), args.demand.is_some(), true)?;
    Ok(request)
}

/// Reads a sketch and resolves it against a topology.
pub(crate) fn sketch(path: &Path, topology: &Topology) -> Outcome<Sketch> {
    let text = read_text(path)?;
    let file = SketchFile::parse(&text, &path.display().to_string());
    file.and_then(|file| file.resolve(topology)).map_err(sketch_failure)
}

/// A mistake in a sketch, with advice.
pub(crate) fn sketch_failure(error: SketchError) -> Failure {
    let hint = error.hint();
    Failure::bad_input(error).hint_if(hint)
}

/// Planner options from the command line, then from the sketch; Ctrl-C cancels the search.
pub(crate) fn options(args: &SearchArgs, sketch: Option<&Sketch>) -> SearchOptions {
    let cancel = interrupt::cancels();
    if let Some(threads) = args.threads {
        drop(rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads)).build_global());
    }
    SearchOptions {
        strategy: args.strategy.0.or_else(|| sketch?.pins.strategy),
        time_limit: args.time_limit.or_else(|| sketch?.pins.time_limit),
        gap: args.gap,
        seed: args.seed,
        threads: args.threads.map(usize::from),
        cancel,
        ..SearchOptions::default()
    }
}

/// The kinds of plan files.
pub(crate) enum Opened {
    /// A schedule of Antiphon.
    Schedule(Box<UnverifiedFile>),
    /// A compressed schedule.
    Compressed(Box<UnverifiedFile<CompressedFile>>),
    /// A plan of another tool.
    Foreign(ForeignPlan),
}

/// Opens a plan file of any format, and judges it for calls of `size` bytes. A schedule's topology is `spec`, else the
/// one that the file describes or names.
pub(crate) fn open_any(path: &Path, spec: Option<&str>, size: Option<u64>) -> Outcome<Opened> {
    let (text, origin) = (read_text(path)?, path.display().to_string());
    if foreign::is_foreign(&text) {
        return foreign::read(&text, &origin, size).map(Opened::Foreign);
    }
    if size.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!(
            "{origin}: a schedule has its own size, so --size says nothing"
        )));
    }
    claim(&text, &origin, spec)
}

/// A schedule file and the topology it is for, not yet verified.
pub(crate) struct UnverifiedFile<F = ScheduleFile> {
    /// The file as it was read.
    pub file: F,
    /// The topology of `--topology`, else the one that the file describes, or the SPEC that it names.
    pub topology: Arc<Topology>,
}

/// Reads a schedule, plain or compressed, and resolves its topology.
pub(crate) fn claim(text: &str, origin: &str, spec: Option<&str>) -> Outcome<Opened> {
    let file = file::read_any(text, origin)
        .map_err(|error| no_plan(text, origin).unwrap_or_else(|| Failure::bad_input(error)))?;
    let stated = match &file {
        AnyScheduleFile::Plain(file) => file,
        AnyScheduleFile::Compressed(file) => &file.base,
    };
    let named = &stated.schedule.topology.name;
    let own = stated.topology.clone().filter(|_| spec.is_none());
    let resolved = || spec.map_or_else(|| Ok(Arc::new(::topology::load_named(named, text.len())?)), topology);
    let topology = own.map_or_else(resolved, Ok).map_err(|failure| match spec {
        Some(_) => failure,
        None => failure
            .context(format!("{origin}: names the topology `{}`, which cannot be resolved", shorten(named)))
            .hint("say which topology it was made for with --topology SPEC"),
    })?;
    Ok(match file {
        AnyScheduleFile::Plain(file) => Opened::Schedule(Box::new(UnverifiedFile { file, topology })),
        AnyScheduleFile::Compressed(file) => Opened::Compressed(Box::new(UnverifiedFile { file, topology })),
    })
}

/// A plan that was verified.
pub(crate) enum Verified {
    /// A schedule of Antiphon.
    Schedule(Box<VerifiedSchedule>),
    /// The programs of another tool's plan, one for every kind of call that it serves correctly; never empty.
    Programs(Vec<VerifiedProgram>),
}

/// Opens and verifies a plan file. Notes about it go to the screen.
pub(crate) fn open_verified(path: &Path, spec: Option<&str>, size: Option<u64>, screen: &Screen) -> Outcome<Verified> {
    let origin = path.display().to_string();
    match open_any(path, spec, size)? {
        Opened::Schedule(claim) => Ok(Verified::Schedule(Box::new(claim.verified(&origin)?))),
        Opened::Compressed(claim) => Ok(Verified::Schedule(Box::new(expanded(&claim.verified(&origin)?, &origin)?))),
        Opened::Foreign(mut plan) => {
            let programs = plan.verified(&origin)?;
            plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
            Ok(Verified::Programs(programs))
        }
    }
}

/// Opens and verifies a schedule file.
pub(crate) fn open_schedule(path: &Path, spec: Option<&str>) -> Outcome<VerifiedSchedule> {
    let origin = path.display().to_string();
    match claim(&read_text(path)?, &origin, spec)? {
        Opened::Schedule(claim) => claim.verified(&origin),
        Opened::Compressed(claim) => expanded(&claim.verified(&origin)?, &origin),
        Opened::Foreign(_) => Err(Failure::bad_input(anyhow::anyhow!("{origin}: is no schedule"))),
    }
}

/// The schedule file, verified, if it is compressed.
pub(crate) fn open_compressed(path: &Path, spec: Option<&str>) -> Outcome<Option<VerifiedCompressed>> {
    let (text, origin) = (read_text(path)?, path.display().to_string());
    if foreign::is_foreign(&text) || !text.contains("\"symmetry\"") {
        return Ok(None);
    }
    match claim(&text, &origin, spec)? {
        Opened::Compressed(claim) => claim.verified(&origin).map(Some),
        _ => Ok(None),
    }
}

/// The plain form of a compressed schedule, verified by the plain verifier as well.
pub(crate) fn expanded(compressed: &VerifiedCompressed, origin: &str) -> Outcome<VerifiedSchedule> {
    let schedule = compressed.expand(MOST_PLAIN_TRANSFERS).map_err(|error| {
        Failure::no(error)
            .context(format!("{origin}: is orbit-compressed, and this needs every transfer"))
            .hint("`verify` and `simulate` take it as it is")
    })?;
    schedule::verify(schedule, compressed.topology()).map_err(|rejection| invalid(rejection, origin))
}

fn invalid(rejection: schedule::Rejection, origin: &str) -> Failure {
    Failure::no(rejection)
        .context(format!("{origin}: is not a valid schedule"))
        .hint(format!("`antiphon verify {origin}` lists every violation"))
}

impl UnverifiedFile {
    fn verified(self, origin: &str) -> Outcome<VerifiedSchedule> {
        self.file.verify(&self.topology).map_err(|rejection| invalid(rejection, origin))
    }
}

impl UnverifiedFile<CompressedFile> {
    /// Verifies it without expanding it.
    fn verified(self, origin: &str) -> Outcome<VerifiedCompressed> {
        self.file.verify(&self.topology).map_err(|rejection| invalid(rejection, origin))
    }
}

/// The topology for a plan that does not name one.
pub(crate) fn needed_topology(spec: Option<&str>) -> Outcome<Arc<Topology>> {
    match spec {
        Some(spec) => topology(spec),
        None => Err(Failure::bad_input(anyhow::anyhow!("the plan names no topology"))
            .hint("say on which machine it runs with --topology SPEC")),
    }
}

/// Writes a verified schedule.
pub(crate) fn save(schedule: &VerifiedSchedule, path: &Path) -> Outcome {
    write_to(path, |out| file::write(schedule, out))
}

/// Writes a verified compressed schedule; in plain form if it has few enough transfers, and the time limit is long enough.
pub(crate) fn save_compressed(schedule: &VerifiedCompressed, limit: Option<Duration>, path: &Path) -> Outcome {
    let is_late = limit.is_some_and(|limit| synth::verification_time(schedule.deliveries() as f64) > limit);
    if schedule.transfers() <= MOST_PLAIN_TRANSFERS as u64 && !is_late {
        return save(&expanded(schedule, &path.display().to_string())?, path);
    }
    write_to(path, |out| file::write_compressed(schedule, out))
}

/// One line about a schedule, such as `allgather 8 MB over 16 ranks, 1 chunk each`.
pub(crate) fn describe(schedule: &Schedule) -> String {
    describe_request(schedule.demand.request())
}

/// The same about a request.
pub(crate) fn describe_request(request: &Request) -> String {
    format!(
        "{} {} over {}, {} each",
        request.collective,
        crate::screen::bytes(request.size_bytes),
        counted(request.members.len(), "rank"),
        counted(request.chunks_per_rank as usize, "chunk"),
    )
}
