//! Writers of one table that are killed, while others write it and read it.

use schedule::{Collective, Demand, ReduceOp, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tune::{ChoiceRange, Evidence, Summary, TableCell, TableKey, TuningTable};

/// How often two writers are killed in the midst of it.
const KILLS: usize = 25;
/// So many ranges make a file that takes a while to write.
const RANGES: u64 = 4000;
const LIMIT: Duration = Duration::from_secs(100);

/// A plan of two ranks.
fn plan() -> serde_json::Value {
    let topology = Arc::new(topology::resolve("ring:2").unwrap());
    let request = Request { op: Some(ReduceOp::Sum), ..Request::new(Collective::AllReduce, 2, 1 << 10) };
    let problem = synth::Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
    let plan = schedule::verify(synth::textbook(&problem).unwrap().remove(0), &topology).unwrap();
    let mut text = Vec::new();
    schedule::file::write(&plan, &mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Times that are all the same.
fn around(us: f64) -> Summary {
    tune::summarize(&[us; 6]).unwrap()
}

/// A table of many ranges, all of the same length in bytes.
fn table(step: u64) -> TuningTable {
    let range = |number: u64| ChoiceRange {
        from_bytes: number * step,
        to_bytes: (number + 1 < RANGES).then_some((number + 1) * step),
        plan: (number % 2 == 1).then(|| "plan".to_owned()),
        evidence: vec![Evidence {
            bytes: number * step,
            choice: around(if number % 2 == 1 { 1.0 } else { 2.0 }),
            stock: around(2.0),
            launches: 1,
            dtype: "f32".to_owned(),
            ranking: Vec::new(),
        }],
    };
    TuningTable::new(
        TableKey::of(vec![0; 2], env!("CARGO_PKG_VERSION")),
        vec![TableCell::of_any(Collective::AllReduce, (0..RANGES).map(range).collect())],
        BTreeMap::from([("plan".to_owned(), plan())]),
    )
}

/// The step of a table, if it is whole.
fn step_of(path: &Path) -> u64 {
    let read = TuningTable::read(path).unwrap_or_else(|error| panic!("half a table: {error}"));
    let ranges = &read.cells[0].ranges;
    let step = ranges[1].from_bytes;
    assert!(ranges.len() as u64 == RANGES && ranges.iter().zip(0..).all(|(range, at)| range.from_bytes == at * step));
    step
}

/// A process that writes a table in place of another one.
fn writer(from: &Path, to: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.args(["tune", "merge", "--force", "-o"]).arg(to).arg(from).arg(from);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The files that writers have begun and not ended.
fn begun(folder: &Path) -> BTreeSet<String> {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

/// The reader ends also if the test fails.
struct EndOfReading<'a>(&'a AtomicBool);

impl Drop for EndOfReading<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn writers_that_are_killed_leave_a_whole_table() {
    let [inputs, outputs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let steps = [8, 9];
    let from = steps.map(|step| inputs.path().join(format!("{step}.json")));
    steps.iter().zip(&from).for_each(|(step, path)| table(*step).write(path).unwrap());
    let to = outputs.path().join("table.json");
    table(steps[0]).write(&to).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert!(steps.contains(&step_of(&to)));
                reads += 1;
            }
            reads
        });
        let _over = EndOfReading(&is_over);
        let (begin, mut kills) = (Instant::now(), 0);
        while kills < KILLS && !reader.is_finished() {
            assert!(begin.elapsed() < LIMIT, "{kills} writers were in the midst of it");
            let mut writers = [0, 1].map(|which| writer(&from[which], &to));
            let left = begun(outputs.path());
            // One has begun, or both have ended meanwhile.
            while begun(outputs.path()).is_subset(&left)
                && writers.iter_mut().any(|of| of.try_wait().unwrap().is_none())
            {}
            for writer in &mut writers {
                let _ = writer.kill();
                let status = writer.wait().unwrap();
                assert!(status.success() || status.signal() == Some(9), "{status}");
                kills += usize::from(!status.success());
            }
            assert!(steps.contains(&step_of(&to)));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    // Who comes next writes it, and clears up.
    assert!(writer(&from[1], &to).wait().unwrap().success());
    assert_eq!((step_of(&to), begun(outputs.path())), (steps[1], BTreeSet::new()));
}
