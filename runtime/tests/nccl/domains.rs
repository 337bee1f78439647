//! Plans whose kernel moves the messages between ranks that have mapped each other's memory, with and without messages of NCCL's.
//!
//! Ranks are processes, each with a GPU. They pretend to be on several machines.

use crate::rank::{BLOCK, LIMIT, NcclCase, NcclRank, give_id, is_real, nccl, started, take_id};
use crate::{PLAIN, cases};
use cudarc::driver::DevicePtr;
use program::testing::schedules::{Random, demand, random_trees, ring, ring_allreduce};
use program::testing::{checked, lowered};
use runtime::{DType, DomainMemory, DomainTerms, GpuDevice, NcclError, NcclRounds, RoundPlan};
use schedule::Collective;
use std::path::Path;
use std::time::{Duration, Instant};

/// Threads of a block.
const THREADS: u32 = 4;
/// For the messages of all plans of a test.
const ROOM: usize = 8 << 20;
/// For calls that cannot be done in time.
const SHORT: Duration = Duration::from_secs(3);

/// NCCL cannot launch the first messages of rank 1.
const FAULT: &str = "1:4:launch";

/// Set for processes that are ranks: rank, the machine of each rank, what to do, and the file of the unique id.
const PROCESS: &str = "DOMAIN_TEST_RANK";

/// A rank of a communicator that has mapped memory.
struct DomainRank {
    rank: NcclRank,
    memory: DomainMemory,
}

impl DomainRank {
    fn terms(machine: u32, bytes: usize) -> DomainTerms {
        DomainTerms { bytes, machine, dtypes: DType::ALL.to_vec(), threads: THREADS, limit: LIMIT }
    }

    /// A plan with the domains of this communicator.
    fn rounds(&mut self, (program, terms): &NcclCase) -> Result<NcclRounds, NcclError> {
        let (rank, size) = (self.rank.comm.rank(), (terms.count, terms.dtype));
        let plan = RoundPlan::within(self.memory.domains(), program, rank, size, BLOCK).unwrap();
        let place = plan.mapped_needs().map(|needs| self.memory.place(&needs).expect("there is room"));
        let region = place.map(|place| self.memory.region(&self.rank.gpu, place)).transpose()?;
        NcclRounds::new(&self.rank.gpu, plan, THREADS, region)
    }

    /// Nobody leaves before all are done.
    fn meet(&mut self) {
        self.rank.comm.agree(&self.rank.gpu, 1, LIMIT).unwrap();
    }
}

/// A rank that is a process. It is a test only so that it can be started.
#[test]
fn domain_process() {
    let Ok(text) = std::env::var(PROCESS) else { return };
    let [rank, machines, mode, file] = text.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
    let (rank, file) = (rank.parse::<usize>().unwrap(), Path::new(file));
    let machines: Vec<u32> = machines.split(',').map(|of| of.parse().unwrap()).collect();
    let id = if rank == 0 { give_id(file) } else { take_id(file) };
    // A process has a fake GPU of its own.
    let gpu = if is_real() { rank % GpuDevice::count().unwrap() } else { 0 };
    let mut joined = NcclRank::join_on(gpu, id, rank, machines.len());
    let room = if mode == "narrow" { 4096 } else { ROOM };
    let memory = DomainMemory::new(&joined.gpu, &mut joined.comm, &DomainRank::terms(machines[rank], room));
    let memory = match memory {
        Ok(memory) => memory,
        Err(why) => return println!("\nsaid {why}"),
    };
    let first = |of: &u32| machines.iter().position(|other| other == of).unwrap() as u32;
    assert_eq!(memory.domains(), machines.iter().map(first).collect::<Vec<_>>());
    let mut own = DomainRank { rank: joined, memory };
    let said = match mode {
        "all" => all_collectives(&mut own),
        "long" => long_calls(&mut own),
        "graph" => graphs(&mut own),
        "narrow" => narrow(&mut own),
        "leaves" | "stalls" => missing(&mut own, mode),
        "breaks" => {
            let (said, _rank) = broken(own);
            return println!("\nsaid {said}");
        }
        other => panic!("{other}"),
    };
    println!("\nsaid {said}");
}

/// Calls of all collectives, each twice.
fn all_collectives(own: &mut DomainRank) -> String {
    let ranks = own.rank.comm.ranks();
    let (mut wrong, mut exchanges) = (0, 0);
    for case in cases(ranks, &mut Random(5 + ranks as u64)) {
        let mut rounds = own.rounds(&case).unwrap();
        for call in 0..2 {
            wrong += own.rank.call(&mut rounds, &case, call, LIMIT).unwrap_or_else(|error| panic!("{error}"));
        }
        exchanges += rounds.plan().exchanges().iter().flatten().count();
    }
    own.meet();
    format!("wrong {wrong}, {}", if exchanges == 0 { "no messages of NCCL's" } else { "some messages of NCCL's" })
}

/// Messages of several tiles, and several plans at work in turn.
fn long_calls(own: &mut DomainRank) -> String {
    let ranks = own.rank.comm.ranks();
    let all = [40_000, 25, 9_001]
        .map(|count| (checked(lowered(&ring_allreduce(ranks, 2), count == 25)), crate::Terms { count, ..PLAIN }));
    let mut rounds: Vec<_> = all.iter().map(|case| own.rounds(case).unwrap()).collect();
    let mut wrong = 0;
    for call in 0..3 {
        for (rounds, case) in rounds.iter_mut().zip(&all) {
            wrong += own.rank.call(rounds, case, call, LIMIT).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    own.meet();
    format!("wrong {wrong}")
}

/// Two graphs with the tables of other buffers and the same region, launched in turn, and plain calls between them.
fn graphs(own: &mut DomainRank) -> String {
    let ranks = own.rank.comm.ranks();
    let case: NcclCase = (checked(lowered(&ring_allreduce(ranks, 1), true)), crate::Terms { count: 77, ..PLAIN });
    let plan = RoundPlan::within(own.memory.domains(), &case.0, own.rank.comm.rank(), (77, DType::F32), BLOCK).unwrap();
    let place = own.memory.place(&plan.mapped_needs().unwrap()).unwrap();
    let region = own.memory.region(&own.rank.gpu, place).unwrap();
    let of_plan = || NcclRounds::new(&own.rank.gpu, plan.clone(), THREADS, Some(region.clone())).unwrap();
    let (mut plain, mut recorded) = (of_plan(), [of_plan(), of_plan()]);
    let stream = own.rank.context.new_stream().unwrap();
    let buffers = [(); 2].map(|()| stream.alloc_zeros::<f32>(77).unwrap());
    let graphs: Vec<_> = recorded
        .iter_mut()
        .zip(&buffers)
        .map(|(rounds, buffer)| {
            let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            let at = buffer.device_ptr(&stream).0;
            stream.begin_capture(mode).unwrap();
            // SAFETY: the buffer has this length, and lives longer than the graph.
            unsafe { rounds.record(&mut own.rank.comm, &own.rank.gpu, stream.cu_stream().cast(), [at, at]) }.unwrap();
            stream.end_capture(cudarc::driver::sys::CUgraphInstantiate_flags(0)).unwrap().unwrap()
        })
        .collect();
    let (mut wrong, mut buffers) = (0, buffers);
    for turn in 0..4 {
        let (of, value) = (turn % 2, (own.rank.comm.rank().0 + turn as u32) as f32);
        stream.memcpy_htod(&vec![value; 77], &mut buffers[of]).unwrap();
        graphs[of].launch().unwrap();
        let result = stream.clone_dtoh(&buffers[of]).unwrap();
        stream.synchronize().unwrap();
        let expected: u32 = (0..ranks as u32).map(|rank| rank + turn as u32).sum();
        wrong += result.iter().filter(|value| **value != expected as f32).count() as u64;
        wrong += own.rank.call(&mut plain, &case, turn as u64, LIMIT).unwrap();
    }
    own.meet();
    drop(graphs);
    format!("wrong {wrong}")
}

/// Plans for which there is no room any more, on all ranks at the same one.
fn narrow(own: &mut DomainRank) -> String {
    let ranks = own.rank.comm.ranks();
    let case: NcclCase = (checked(lowered(&ring_allreduce(ranks, 1), false)), PLAIN);
    let plan = RoundPlan::within(own.memory.domains(), &case.0, own.rank.comm.rank(), (13, DType::F32), BLOCK).unwrap();
    let refused = NcclRounds::new(&own.rank.gpu, plan.clone(), THREADS, None).err().unwrap();
    let mut counts = Vec::new();
    for _ in 0..2 {
        let places = std::iter::from_fn(|| own.memory.place(&plan.mapped_needs().unwrap()));
        let regions: Vec<_> =
            places.collect::<Vec<_>>().into_iter().map(|place| own.memory.region(&own.rank.gpu, place)).collect();
        counts.push(regions.len());
        // The last one works, and so does it when the room was given back.
        let region = regions.into_iter().last().unwrap().unwrap();
        let mut rounds = NcclRounds::new(&own.rank.gpu, plan.clone(), THREADS, Some(region)).unwrap();
        (0..2).for_each(|call| assert_eq!(own.rank.call(&mut rounds, &case, call, LIMIT).unwrap(), 0));
        drop(rounds);
        own.memory.clear(&own.rank.gpu, &mut own.rank.comm, LIMIT).unwrap();
    }
    assert_eq!(counts[0], counts[1]);
    format!("{} regions, {refused}", counts[0])
}

/// Rank 1 ends instead of calling, or does not call in time.
fn missing(own: &mut DomainRank, mode: &str) -> String {
    let ranks = own.rank.comm.ranks();
    let case: NcclCase = (checked(lowered(&ring_allreduce(ranks, 1), false)), PLAIN);
    let mut rounds = own.rounds(&case).unwrap();
    own.rank.call(&mut rounds, &case, 0, LIMIT).unwrap();
    let begin = Instant::now();
    if own.rank.comm.rank().0 == 1 {
        if mode == "leaves" {
            std::process::exit(86);
        }
        while begin.elapsed() < 3 * SHORT {
            std::thread::yield_now();
        }
        return "came late".to_owned();
    }
    let limit = if mode == "leaves" { LIMIT } else { SHORT };
    let ended = own.rank.call(&mut rounds, &case, 1, limit).unwrap_err();
    assert!(begin.elapsed() < limit + Duration::from_secs(20));
    // Nothing runs there any more.
    let again = own.rank.call(&mut rounds, &case, 2, limit).unwrap_err();
    format!("{ended} | {again}")
}

/// A call of which NCCL refuses a part on one rank. That rank gives everything up, and lives. Whoever waits for it in the kernel is told.
fn broken(mut own: DomainRank) -> (String, NcclRank) {
    let ranks = own.rank.comm.ranks();
    let along = random_trees(&ring(ranks), &demand(Collective::Broadcast, ranks, 1), &mut Random(1));
    let case: NcclCase = (checked(lowered(&along, true)), PLAIN);
    let mut rounds = own.rounds(&case).unwrap();
    let stream = own.rank.context.new_stream().unwrap();
    let buffer = stream.alloc_zeros::<f32>(64).unwrap();
    stream.synchronize().unwrap();
    let at = buffer.device_ptr(&stream).0;
    let NcclRank { gpu, comm, .. } = &mut own.rank;
    // SAFETY: the buffer is longer than the call, and lives until nothing works any more.
    let put = unsafe { rounds.enqueue(comm, gpu, stream.cu_stream().cast(), [at, at]) };
    let (begin, fault) = (Instant::now(), own.memory.fault().clone());
    let said = match put {
        Ok(()) => {
            while fault.gone().is_none() && begin.elapsed() < SHORT {
                std::thread::yield_now();
            }
            format!("{:?} is gone", fault.gone())
        }
        Err(why) => {
            // What was put there is done, so nothing that ends tells of the rest.
            stream.synchronize().unwrap();
            why.to_string()
        }
    };
    fault.end().unwrap();
    drop((rounds, own.memory));
    // Its process is there for longer than the others look.
    while begin.elapsed() < 2 * SHORT && !said.ends_with("is gone") {
        std::thread::yield_now();
    }
    (said, own.rank)
}

/// What each rank says.
fn job(machines: &[u32], mode: &str) -> Vec<String> {
    job_with(machines, mode, None)
}

/// The same where NCCL makes a fault.
fn job_with(machines: &[u32], mode: &str, fault: Option<&str>) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let list: Vec<_> = machines.iter().map(u32::to_string).collect();
    started("domains::domain_process", machines.len(), &|rank| {
        let file = folder.path().join("id");
        let job = format!("{rank} {} {mode} {}", list.join(","), file.display());
        let fault = fault.map(|fault| ("FAKE_NCCL_FAULT", fault.to_owned()));
        [(PROCESS, job), ("FAKE_CUDA_GPU", rank.to_string())].into_iter().chain(fault).collect()
    })
}

fn all_say(machines: &[u32], mode: &str, said: &str) {
    if !has_gpus(machines.len()) {
        return;
    }
    assert_eq!(job(machines, mode), vec![format!("said {said}"); machines.len()], "{machines:?} {mode}");
}

/// Whether so many ranks can be tried: kernels that wait for each other in several processes need a GPU each.
#[expect(clippy::print_stderr, reason = "says what is skipped")]
fn has_gpus(ranks: usize) -> bool {
    nccl();
    let has = if is_real() { GpuDevice::count().unwrap() } else { usize::MAX };
    if has < ranks {
        eprintln!("skipped: {ranks} ranks that map memory of each other need as many GPUs; there are {has}");
    }
    has >= ranks
}

#[test]
fn the_kernel_moves_all_messages_of_one_domain() {
    for machines in [&[0, 0][..], &[7; 3], &[0; 5]] {
        all_say(machines, "all", "wrong 0, no messages of NCCL's");
    }
}

#[test]
fn domains_exchange_messages_over_nccl() {
    for machines in [&[0, 0, 1][..], &[0, 0, 1, 1], &[0, 1, 0, 1, 0], &[3, 3, 1, 1, 2, 2]] {
        all_say(machines, "all", "wrong 0, some messages of NCCL's");
    }
}

#[test]
fn long_messages_and_plans_in_turn() {
    for machines in [&[0, 0][..], &[0, 0, 0], &[0, 0, 1, 1]] {
        all_say(machines, "long", "wrong 0");
    }
}

#[test]
fn graphs_with_mapped_memory() {
    for machines in [&[0, 0][..], &[0, 0, 1]] {
        all_say(machines, "graph", "wrong 0");
    }
}

#[test]
fn where_there_is_no_room_all_ranks_know() {
    if !has_gpus(4) {
        return;
    }
    let said = job(&[0, 0, 1, 1], "narrow");
    assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
    assert!(said[0].ends_with("regions, nothing over mapped memory: the plan has no mapped memory"), "{said:?}");
    let regions = said[0].split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    assert!((1..100).contains(&regions), "{said:?}");
    all_say(&[0, 1, 2], "all", "rank 1 is on another computer than rank 0, or in another container");
}

#[test]
fn a_rank_that_leaves_or_does_not_come_is_named() {
    for machines in [&[0, 0, 0][..], &[0, 0, 1, 1]] {
        if !has_gpus(machines.len()) {
            return;
        }
        let said = job(machines, "leaves");
        assert!(said[1].contains("86"), "{said:?}");
        // Ranks of its domain see that its process has ended; the others hear of it from NCCL.
        assert!(said[0].contains("rank 1"), "{said:?}");
        let said = job(machines, "stalls");
        assert_eq!(said[1], "said came late", "{said:?}");
        // Where NCCL moves messages, a rank may hear of the end of one that was late before.
        let is_late = |line: &String| line.contains("not done after 3 s");
        let is_told = |line: &String| is_late(line) || machines.contains(&1) && line.contains("is gone");
        let others = || said.iter().enumerate().filter(|(rank, _)| *rank != 1).map(|(_, line)| line);
        assert!(others().all(is_told) && others().any(is_late), "{said:?}");
        // Whoever waits for it itself says so.
        assert!(said.iter().any(|line| line.contains("with rank 1: ")), "{said:?}");
    }
}

/// A broadcast from rank 0 over rank 1, which cannot receive it, to rank 2, which waits for it in the kernel and has no messages of NCCL's.
#[test]
fn a_call_that_is_only_partly_there_leaves_nobody_waiting() {
    nccl();
    if is_real() {
        return eprintln!("skipped: only the fake NCCL makes such a fault");
    }
    let said = job_with(&[0, 1, 1], "breaks", Some(FAULT));
    assert!(said[1].starts_with("said rank 1, round 1 of 1, with rank 0: NCCL gives the result 2"), "{said:?}");
    // It may be told before its call is all there.
    let told = ["said Some(Rank(1)) is gone", "said rank 2: the process of rank 1 is gone"];
    assert!(told.contains(&said[2].as_str()), "{said:?}");
}
