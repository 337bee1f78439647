//! `antiphon profile --device gpu`: messages between GPUs over NCCL, timed by their events.
//!
//! The principal function is [`run`]. This process is rank 0: it starts the others, or somebody else has started all of them.

use super::dump::NcclDump;
use super::{Profile, TIMEOUT, check_ranks, conclude, made_at, profiled};
use crate::cli::ProfileArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::config_of;
use crate::launch::library::LibraryRanks;
use crate::screen::Screen;
use comm::{CommError, Communicator, Config, GpuRank};
use topology::Micros;
use topology::concurrent::Sharing;
use topology::profile::ProfileOptions;

/// About how long the longest message of a pair should take: launches take some microseconds.
const SAMPLE: Micros = Micros(1000.0);
/// The longest message: the fastest links carry it in about that time.
const LONGEST: u64 = 256 << 20;
/// No link between GPUs lets the first bytes pass at once.
const LEAST: u64 = 128 << 10;
/// A margin of α that is good enough.
const ALPHA_FLOOR: Micros = Micros(0.3);

/// Runs the command.
pub(super) fn run(args: &ProfileArgs, screen: &Screen) -> Outcome {
    interrupt::ends(screen);
    if args.emulate.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!(
            "GPUs emulate no other machine: --emulate is for --device host"
        )));
    }
    if args.launch.ranks.is_none()
        && let Some(config) = config_of(&args.launch)?
    {
        check_ranks(config.size)?;
        // Rank 0 alone reads it, before the others wait for it.
        let dump = if config.rank == 0 { dump_of(args, config.size)? } else { None };
        let comm = connected(&config)?;
        return if config.rank == 0 { measure((args, dump), &comm, screen) } else { serve(&comm) };
    }
    let ranks = match args.launch.ranks {
        Some(ranks) => ranks as usize,
        None => runtime::GpuDevice::count().map_err(Failure::no)?,
    };
    check_ranks(ranks)?;
    let dump = dump_of(args, ranks)?;
    let (mut others, mut config) = LibraryRanks::start_others(ranks, |command| {
        command.arg("profile-rank");
    })?;
    config.joining = args.launch.ready_limit(ranks);
    let measured = connected(&config).and_then(|comm| measure((args, dump), &comm, screen));
    match measured {
        Ok(()) => {
            // They end their communicators by themselves. What was measured is there, however that goes.
            let _ = others.finish(TIMEOUT, |_| {});
            Ok(())
        }
        // They are ended.
        Err(failure) => Err(match others.said_by_failed() {
            Some(said) if !failure.to_string().contains(&said) && !said.contains(&failure.to_string()) => {
                failure.context(said)
            }
            _ => failure,
        }),
    }
}

/// One of the ranks that `run` has started.
pub(crate) fn run_rank() -> Outcome {
    let mut config = Config::from_env().map_err(Failure::no)?;
    config.joining = TIMEOUT;
    serve(&connected(&config)?)
}

fn connected(config: &Config) -> Outcome<Communicator> {
    let config = Config { table: None, ..config.clone() };
    let comm = Communicator::connect(&config).map_err(told)?;
    // While a rank waits for NCCL, the others wait for the rank.
    comm.set_time_limit(TIMEOUT * 3);
    Ok(comm)
}

fn told(error: CommError) -> Failure {
    Failure::no(error)
}

fn serve(comm: &Communicator) -> Outcome {
    let mut gpu = GpuRank::open(comm, TIMEOUT).map_err(told)?;
    gpu.link_notes(comm).and_then(|_| gpu.serve_probe(comm)).map_err(told)
}

/// What NCCL has written about the machine, if the user names it.
fn dump_of(args: &ProfileArgs, ranks: usize) -> Outcome<Option<NcclDump>> {
    args.nccl_dump.as_ref().map(|path| NcclDump::read(path, ranks)).transpose()
}

/// Measures as rank 0.
fn measure((args, dump): (&ProfileArgs, Option<NcclDump>), comm: &Communicator, screen: &Screen) -> Outcome {
    let mut gpu = GpuRank::open(comm, TIMEOUT).map_err(told)?;
    let (about, links) = (about(&gpu), gpu.link_notes(comm).map_err(told)?);
    let mut probe = gpu.probe(comm);
    let mut options = if args.quick { ProfileOptions::quick() } else { ProfileOptions::default() };
    (options.sample_time, options.alpha_floor) = (SAMPLE, ALPHA_FLOOR);
    (options.longest, options.least) = (LONGEST, LEAST);
    (options.limit, options.machines) = (args.budget, Some(probe.machines()));
    let profile = profiled(&mut probe, &options, (Sharing::Fair, args.check as usize), screen)?;
    drop(probe);
    let Profile { mut measured, held_out } = profile;
    measured.notes.extend(notes(&gpu).into_iter().chain(links));
    measured.notes.extend(dump.iter().flat_map(|dump| dump.notes(gpu.bus_ids())));
    conclude(args, Profile { measured, held_out }, &about, screen)
}

/// When and where it was measured.
fn about(gpu: &GpuRank) -> String {
    let ranks = gpu.names().len();
    made_at(&format!("messages between the GPUs of {ranks} ranks over NCCL {}, timed by events", gpu.nccl_version()))
}

/// What the ranks are.
fn notes(gpu: &GpuRank) -> Vec<String> {
    let of = |(rank, (name, bus)): (usize, (&String, &String))| format!("Rank {rank}: {name}, at {bus}.");
    let mut notes: Vec<String> = gpu.names().iter().zip(gpu.bus_ids()).enumerate().map(of).collect();
    notes.push(
        "α contains the launch of a message's kernel. Messages of one rank in one set end together, when the last of them does."
            .to_owned(),
    );
    notes
}
