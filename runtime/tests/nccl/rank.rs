//! A rank of these tests: its GPU, its communicator, and calls that are judged.

use cudarc::driver::{CudaContext, DevicePtr};
use libloading::Library;
use program::VerifiedProgram;
use runtime::{
    DType, GpuDevice, NcclCommunicator, NcclError, NcclId, NcclLibrary, NcclRounds, NcclSearch, Reference, RoundPlan,
};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use topology::Rank;

/// Long enough for the slowest computer.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// For calls that cannot be done in time.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);
/// The bytes of a block's work; few, so that stages have several blocks.
pub(crate) const BLOCK: u64 = 512;

/// Whether NCCL and the driver are those of the computer.
pub(crate) fn is_real() -> bool {
    std::env::var("ANTIPHON_GPU").is_ok_and(|driver| driver == "real")
}

/// The fake driver, under the name by which cudarc and the fake NCCL look for it, and the fake NCCL.
pub(crate) fn nccl() -> &'static NcclLibrary {
    static LOADED: OnceLock<(Option<Library>, NcclLibrary)> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        if is_real() {
            return (None, NcclLibrary::find(&NcclSearch::from_environment()).unwrap());
        }
        let beside = |name: &str| std::env::current_exe().unwrap().with_file_name(name);
        // SAFETY: the library has no constructors.
        let driver = unsafe { Library::new(beside("libfake_cuda.so")) }.unwrap();
        let named = Some(beside("libfake_nccl.so"));
        (Some(driver), NcclLibrary::find(&NcclSearch { named, folders: Vec::new() }).unwrap())
    });
    &loaded.1
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) count: u64,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
}

/// A program, and how it is called.
pub(crate) type NcclCase = (VerifiedProgram, Terms);

/// One rank: its GPU and its communicator.
pub(crate) struct NcclRank {
    pub(crate) gpu: GpuDevice,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) comm: NcclCommunicator,
}

impl NcclRank {
    /// On the first GPU.
    pub(crate) fn join(id: NcclId, rank: usize, ranks: usize) -> Self {
        Self::join_on(0, id, rank, ranks)
    }

    /// On the GPU of this number.
    pub(crate) fn join_on(gpu: usize, id: NcclId, rank: usize, ranks: usize) -> Self {
        // It loads the driver too.
        let nccl = nccl();
        let context = CudaContext::new(gpu).unwrap();
        let gpu = GpuDevice::open(gpu).unwrap();
        // SAFETY: all buffers here are used in one stream, or waited for.
        unsafe { context.disable_event_tracking() };
        let comm = NcclCommunicator::join(nccl, &gpu, id, (Rank::from_index(rank), ranks), LIMIT).unwrap();
        Self { gpu, context, comm }
    }

    /// The program in rounds, without domains.
    pub(crate) fn rounds(&self, (program, terms): &NcclCase) -> NcclRounds {
        let plan = RoundPlan::new(program, self.comm.rank(), terms.count, terms.dtype, BLOCK).unwrap();
        NcclRounds::new(&self.gpu, plan, 4, None).unwrap()
    }

    /// One call with fresh buffers; how many elements are wrong.
    pub(crate) fn call(
        &mut self,
        rounds: &mut NcclRounds,
        case: &NcclCase,
        call: u64,
        limit: Duration,
    ) -> Result<u64, NcclError> {
        let (program, terms) = (case.0.program(), case.1);
        let (rank, size, in_place) = (self.comm.rank(), terms.dtype.size(), program.in_place);
        let seed = terms.seed.wrapping_add(call << 32);
        let reference = Reference::new(&program.demand, program.op, terms.count as usize, terms.dtype, seed);
        let places = reference.places(rank);
        let common = (places.output_at + places.output).max(places.input_at + places.input);
        let (first, at) = if in_place { (common, places.input_at) } else { (places.input, 0) };
        let mut filled = vec![0xA5; (first * size).max(1)];
        reference.fill(rank, &mut filled[..first * size], at);
        let stream = self.context.new_stream().unwrap();
        let input = stream.clone_htod(&filled).unwrap();
        let output = stream.clone_htod(&vec![0xA5; (places.output * size).max(1)]).unwrap();
        stream.synchronize().unwrap();
        let (from, to) = (input.device_ptr(&stream).0, output.device_ptr(&stream).0);
        // SAFETY: the buffers have these lengths, and live until the call is done.
        unsafe { rounds.call(&mut self.comm, [from, if in_place { from } else { to }], limit)? };
        let read = |of| {
            let bytes = stream.clone_dtoh(of).unwrap();
            stream.synchronize().unwrap();
            bytes
        };
        let input = read(&input);
        Ok(match in_place {
            true => reference.wrong(rank, &input[..(places.output_at + places.output) * size], places.output_at),
            false => {
                let changed = reference.changed(rank, &input[..places.input * size]);
                changed + reference.wrong(rank, &read(&output)[..places.output * size], 0)
            }
        })
    }
}

pub(crate) fn give_id(file: &Path) -> NcclId {
    let id = NcclCommunicator::unique_id(nccl()).unwrap();
    let part = file.with_extension("part");
    std::fs::write(&part, id.0).unwrap();
    std::fs::rename(part, file).unwrap();
    id
}

pub(crate) fn take_id(file: &Path) -> NcclId {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Ok(bytes) = std::fs::read(file) {
            return NcclId(bytes.try_into().unwrap());
        }
        std::thread::yield_now();
    }
    panic!("rank 0 never came");
}

/// Starts a test of this binary as so many processes, each with its environment. What each says, or its exit status.
pub(crate) fn started(test: &str, ranks: usize, of_rank: &dyn Fn(usize) -> Vec<(&'static str, String)>) -> Vec<String> {
    let start = |rank: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command.env("FAKE_NCCL_LIMIT_MS", "60000").env("FAKE_CUDA_SEED", (rank + 1).to_string());
        command.envs(of_rank(rank));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..ranks).map(start).collect();
    let said = |Output { status, stdout, stderr }: Output| {
        let (out, error) =
            (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
        let is_told = |line: &&str| ["wrong", "late", "failed", "said"].iter().any(|word| line.starts_with(word));
        let line = out.lines().find(is_told).map(str::to_owned);
        line.unwrap_or_else(|| format!("{status} {out} {error}"))
    };
    children.into_iter().map(|child| said(child.wait_with_output().unwrap())).collect()
}
