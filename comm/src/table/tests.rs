//! Which plans of tables, and of folders of tables, serve which calls.

use super::*;
use schedule::Collective;
use std::path::Path;
use tune::{ChoiceRange, MachineLinks, RankTransport, TableCell, TuningTable};

const MACHINES: [u32; 3] = [0; 3];

/// A plan of a ring of three ranks.
fn plan(collective: Collective) -> serde_json::Value {
    let topology = Arc::new(topology::resolve("ring:3").unwrap());
    let mut request = Request::new(collective, 3, 3 << 10);
    request.op = collective.combines().then_some(ReduceOp::Sum);
    let problem = synth::Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
    let plan = schedule::verify(synth::textbook(&problem).unwrap().remove(0), &topology).unwrap();
    let mut text = Vec::new();
    file::write(&plan, &mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A cell that chooses the plan of this name, and from 4096 bytes on stock.
fn cell(name: &str) -> TableCell {
    let range = |from_bytes, to_bytes, plan: Option<&str>| ChoiceRange {
        from_bytes,
        to_bytes,
        plan: plan.map(str::to_owned),
        evidence: Vec::new(),
    };
    TableCell::of_any(Collective::AllReduce, vec![range(0, Some(4096), Some(name)), range(4096, None, None)])
}

fn tuned(cells: Vec<TableCell>) -> TuningTable {
    let names: Vec<String> = cells.iter().filter_map(|cell| cell.ranges[0].plan.clone()).collect();
    let plan = plan(Collective::AllReduce);
    TuningTable::new(
        TableKey::of(MACHINES.to_vec(), env!("CARGO_PKG_VERSION")),
        cells,
        names.into_iter().map(|name| (name, plan.clone())).collect(),
    )
}

fn kind(op: ReduceOp, in_place: bool) -> CallKind {
    CallKind { op: Some(op), in_place, ..CallKind::plain(Collective::AllReduce) }
}

/// The plan that serves a call, by its name in the table; none if it is stock.
fn serving(plans: &PlanTable, call: (CallKind, DType), bytes: u64) -> Option<String> {
    let entry = plans.find(RankPlaces::on(&MACHINES), call, bytes)?;
    let name = plans.name(entry);
    Some(name.split('`').nth(1).unwrap_or(name).to_owned())
}

#[test]
fn the_cell_that_was_measured_for_a_call_serves_it() {
    let class = |name, op, dtype: Option<&str>, in_place| {
        let dtype = dtype.map(str::to_owned);
        TableCell { op, dtype, in_place, ..cell(name) }
    };
    let mut plans = PlanTable::default();
    let cells = vec![
        class("any", None, None, None),
        class("f64", None, Some("f64"), None),
        class("sum", Some(ReduceOp::Sum), None, None),
        class("sum f32", Some(ReduceOp::Sum), Some("f32"), Some(true)),
        class("max i32", Some(ReduceOp::Max), Some("i32"), Some(true)),
    ];
    plans.add_tuned(&tuned(cells), "t").unwrap();
    let of = |op, dtype, in_place| serving(&plans, (kind(op, in_place), dtype), 100).unwrap();
    for (op, dtype, in_place, expected) in [
        (ReduceOp::Sum, DType::F32, true, "sum f32"),
        // Where the result lies is said by one only, and it says something else.
        (ReduceOp::Sum, DType::F32, false, "sum"),
        // A type of the same width.
        (ReduceOp::Sum, DType::I32, true, "sum f32"),
        (ReduceOp::Sum, DType::F64, true, "sum"),
        (ReduceOp::Max, DType::F32, true, "max i32"),
        (ReduceOp::Max, DType::F64, true, "f64"),
        (ReduceOp::Min, DType::F32, true, "any"),
    ] {
        assert_eq!(of(op, dtype, in_place), expected, "{op} {dtype} {in_place}");
    }
    assert_eq!(serving(&plans, (kind(ReduceOp::Sum, true), DType::F32), 4096), None, "stock");
}

/// No cell was measured for the call: the nearest serves it, first by the reduction, then by the width.
#[test]
fn where_no_cell_was_measured_for_a_call_the_nearest_serves_it() {
    let class = |name, op, dtype: &str| TableCell { op: Some(op), dtype: Some(dtype.to_owned()), ..cell(name) };
    let mut plans = PlanTable::default();
    let cells =
        [("sum f32", ReduceOp::Sum, "f32"), ("max f64", ReduceOp::Max, "f64"), ("max f16", ReduceOp::Max, "f16")];
    let cells = cells.map(|(name, op, dtype)| class(name, op, dtype)).to_vec();
    plans.add_tuned(&tuned(cells), "t").unwrap();
    for (op, dtype, expected) in [
        (ReduceOp::Sum, DType::F64, "sum f32"),
        (ReduceOp::Prod, DType::I64, "max f64"),
        (ReduceOp::Prod, DType::F16, "max f16"),
        (ReduceOp::Prod, DType::U8, "sum f32"),
        (ReduceOp::Max, DType::F32, "max f64"),
    ] {
        assert_eq!(serving(&plans, (kind(op, true), dtype), 100).as_deref(), Some(expected), "{op} {dtype}");
    }
}

#[test]
fn a_table_serves_only_ranks_that_have_its_key() {
    let mut tuned = tuned(vec![cell("ring")]);
    tuned.key.transport = Some(RankTransport::Shm);
    tuned.key.hardware = vec!["A, 2 logical cores".to_owned()];
    let mut plans = PlanTable::default();
    plans.add_tuned(&tuned, "t").unwrap();
    let call = (kind(ReduceOp::Sum, true), DType::F32);
    let [own, other] = ["A, 2 logical cores", "B, 2 logical cores"].map(|text| vec![String::new(), text.to_owned()]);
    let places = |machines, transport, hardware| RankPlaces { machines, transport: Some(transport), hardware };
    for (machines, transport, hardware, why) in [
        (&[1, 1, 1][..], RankTransport::Shm, Some(&own[..]), ""),
        (&[1, 1, 1], RankTransport::Auto, Some(&own), ""),
        (&[1, 1, 1], RankTransport::Auto, None, ""),
        (&[1, 1], RankTransport::Shm, Some(&own), "3 ranks on 1 machine, not 2 ranks on 1 machine"),
        (&[1, 0, 1], RankTransport::Shm, Some(&own), "3 ranks on 1 machine, not 3 ranks on 2 machines"),
        (&[1, 1, 1], RankTransport::Tcp, Some(&own), "the transport shm, not tcp"),
        (&[1, 1, 1], RankTransport::Shm, Some(&other), "machine 0 as `A, 2 logical cores`, not `B, 2 logical cores`"),
        (&[0, 0, 0], RankTransport::Shm, Some(&own), "machine 0 as `A, 2 logical cores`, not ``"),
    ] {
        let places = places(machines, transport, hardware);
        assert_eq!(plans.find(places, call, 100).is_some(), why.is_empty(), "{why}");
        let said = plans.misfits(places).join("\n");
        let expected = format!("t serves no calls of these ranks: it was measured with {why}");
        assert_eq!(said, if why.is_empty() { "" } else { &expected });
    }
}

fn write(folder: &Path, name: &str, table: &TuningTable) {
    table.write(&folder.join(name)).unwrap();
}

fn sum(plans: &PlanTable) -> Option<String> {
    let entry = plans.find(RankPlaces::on(&MACHINES), (kind(ReduceOp::Sum, true), DType::F32), 100)?;
    Some(plans.name(entry).rsplit('/').next().unwrap().to_owned())
}

/// The first table that has measured a class has the word, also where it has found nothing better than stock.
#[test]
fn of_the_tables_of_a_folder_the_first_owns_its_cells() {
    let folder = tempfile::tempdir().unwrap();
    let stock = TableCell {
        ranges: vec![ChoiceRange { to_bytes: None, plan: None, ..cell("x").ranges[0].clone() }],
        ..cell("x")
    };
    write(folder.path(), "a.json", &tuned(vec![stock]));
    write(folder.path(), "b.json", &tuned(vec![cell("ring")]));
    let read = || PlanTable::read_for(folder.path(), None).unwrap();
    assert_eq!(sum(&read()), None);
    let table = read();
    let [note] = table.notes() else { panic!("{:?}", table.notes()) };
    assert!(note.contains("b.json: ") && note.ends_with("a.json comes first for allreduce"), "{note}");
    // Tables for other ranks take nothing away, and a single plan serves what no table has.
    let mut others = tuned(vec![cell("ring")]);
    others.key.transport = Some(RankTransport::Tcp);
    write(folder.path(), "a.json", &others);
    let places = RankPlaces { transport: Some(RankTransport::Auto), ..RankPlaces::on(&MACHINES) };
    let call = (kind(ReduceOp::Sum, true), DType::F32);
    let table = read();
    assert!(table.name(table.find(places, call, 100).unwrap()).contains("b.json"));
    assert!(table.notes().is_empty() || table.notes()[0].contains("comes first"), "{:?}", table.notes());
    std::fs::write(folder.path().join("c.json"), plan(Collective::AllGather).to_string()).unwrap();
    std::fs::write(folder.path().join("d.json"), plan(Collective::AllGather).to_string()).unwrap();
    let table = read();
    let gather = table.find(places, (CallKind::plain(Collective::AllGather), DType::U8), 100).unwrap();
    assert!(table.name(gather).contains("c.json"));
    assert!(table.notes().iter().any(|note| note.contains("d.json: ") && note.contains("c.json comes first")));
}

/// What is no table, or one of another version, is left out with a line, and the others serve.
#[test]
fn what_cannot_be_used_of_a_folder_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut older = tuned(vec![cell("ring")]);
    older.key.version = "0".to_owned();
    write(folder.path(), "a.json", &older);
    let read = || PlanTable::read_for(folder.path(), None);
    assert!(read().unwrap_err().to_string().contains("version `0`"));
    std::os::unix::fs::symlink(at("nowhere"), at("dangling.json")).unwrap();
    std::fs::create_dir(at("folder.json")).unwrap();
    std::fs::write(at("package.json"), r#"{"name": "something else"}"#).unwrap();
    write(folder.path(), "good.json", &tuned(vec![cell("ring")]));
    // A table whose last plan is none is left out with all its cells.
    let mut broken = tuned(vec![TableCell { op: Some(ReduceOp::Sum), ..cell("good") }, cell("none")]);
    broken.plans.insert("none".to_owned(), serde_json::Value::Null);
    broken.links = Some(links());
    write(folder.path(), "broken.json", &broken);
    let plans = read().unwrap();
    assert!(sum(&plans).unwrap().contains("good.json"), "{:?}", sum(&plans));
    assert_eq!(plans.links(RankPlaces::on(&MACHINES)), None);
    assert_eq!((plans.len(), plans.notes().len()), (1, 5), "{:?}", plans.notes());
    assert!(plans.notes()[..4].iter().all(|note| note.ends_with("it is left out")), "{:?}", plans.notes());
    assert!(plans.notes()[4].ends_with("1 more such line"), "{:?}", plans.notes());
    assert!(PlanTable::read(folder.path()).is_err(), "who wants to know hears of the first");
    let empty = tempfile::tempdir().unwrap();
    let why = PlanTable::read_for(empty.path(), None).unwrap_err().to_string();
    assert!(why.ends_with("the folder has no file whose name ends with .json"), "{why}");
}

/// Costs of messages on one machine.
fn links() -> MachineLinks {
    MachineLinks { alpha_us: vec![vec![1.0]], beta_us_per_byte: vec![vec![1e-4]], cores: vec![2] }
}

#[test]
fn what_messages_cost_is_told_by_tables_for_these_ranks_only() {
    let with = |change: &dyn Fn(&mut TuningTable)| {
        let mut table = tuned(vec![cell("ring")]);
        table.links = Some(links());
        change(&mut table);
        let mut plans = PlanTable { only_for: Some(None), ..PlanTable::default() };
        plans.add_tuned(&table, "t").unwrap();
        let hardware = [String::from("A")];
        let places = RankPlaces { hardware: Some(&hardware), ..RankPlaces::on(&MACHINES) };
        assert_eq!(plans.is_for(places), plans.misfits(places).is_empty());
        plans.links(places).cloned()
    };
    assert_eq!(with(&|_| {}), Some(links()));
    assert_eq!(with(&|table| table.key.hardware = vec!["A".to_owned()]), Some(links()));
    assert_eq!(with(&|table| table.key.hardware = vec!["B".to_owned()]), None);
    assert_eq!(with(&|table| table.key.topology = Some("an emulated machine".to_owned())), None);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.json"), plan(Collective::AllGather).to_string()).unwrap();
    let plans = PlanTable::read(folder.path()).unwrap();
    assert!(plans.is_for(RankPlaces::on(&MACHINES)) && !plans.is_for(RankPlaces::on(&[0, 0])));
    assert!(!PlanTable::default().is_for(RankPlaces::on(&MACHINES)));
}

#[test]
fn an_index_hides_only_the_plans_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let index = r#"{"format": "antiphon-sweep/1", "windows": [{"from_bytes": 10, "to_bytes": 20, "file": "p.json"}]}"#;
    std::fs::write(folder.path().join("index.json"), index).unwrap();
    std::fs::write(folder.path().join("p.json"), plan(Collective::AllGather).to_string()).unwrap();
    write(folder.path(), "a.json", &tuned(vec![cell("ring")]));
    let plans = PlanTable::read(folder.path()).unwrap();
    let gather =
        |bytes| plans.find(RankPlaces::on(&MACHINES), (CallKind::plain(Collective::AllGather), DType::U8), bytes);
    assert_eq!([9, 10, 19, 20].map(|bytes| gather(bytes).is_some()), [false, true, true, false]);
    assert!(sum(&plans).is_some());
}

/// Every rank reads the table: a plan is read once, however many ranges name it.
#[test]
fn many_ranges_of_one_plan_are_read_at_once() {
    let mut tuned = tuned(vec![cell("ring")]);
    let range = |number: u64| {
        let to_bytes = (number < 19_999).then_some(8 * (number + 1));
        let plan = (number % 2 == 1).then(|| "ring".to_owned());
        ChoiceRange { from_bytes: 8 * number, to_bytes, plan, evidence: Vec::new() }
    };
    tuned.cells[0].ranges = (0..20_000).map(range).collect();
    let mut plans = PlanTable::default();
    plans.add_tuned(&tuned, "t").unwrap();
    assert_eq!(plans.len(), 1);
    let call = (kind(ReduceOp::Sum, true), DType::F32);
    assert_eq!([15, 16, 160_000].map(|bytes| serving(&plans, call, bytes).is_some()), [true, false, true]);
}

/// Why stock serves a call.
fn why(plans: &PlanTable, places: RankPlaces<'_>, call: (CallKind, DType), bytes: u64) -> String {
    assert_eq!(plans.find(places, call, bytes), None);
    plans.why_stock(places, call, bytes).unwrap_or_default()
}

#[test]
fn it_is_said_why_a_table_has_no_plan_for_a_call() {
    let sum = (kind(ReduceOp::Sum, true), DType::F32);
    let here = RankPlaces::on(&MACHINES);
    assert_eq!(why(&PlanTable::default(), here, sum, 100), "", "there is no table");
    let mut measured = cell("ring");
    measured.ranges[1].to_bytes = Some(8192);
    let around = |us| tune::summarize(&[us; 6]).unwrap();
    measured.ranges[1].evidence.push(tune::Evidence {
        bytes: 4096,
        choice: around(10.0),
        stock: around(10.0),
        launches: 1,
        dtype: "f32".to_owned(),
        ranking: Vec::new(),
    });
    measured.ranges.push(ChoiceRange { from_bytes: 8192, to_bytes: None, plan: None, evidence: Vec::new() });
    let table = tuned(vec![measured]);
    let read = |table: &TuningTable| {
        let mut plans = PlanTable { only_for: Some(None), ..PlanTable::default() };
        plans.add_tuned(table, "t").unwrap();
        plans
    };
    let plans = read(&table);
    assert!(plans.find(here, sum, 4095).is_some());
    assert_eq!(why(&plans, here, sum, 4096), "the table names no plan for allreduce of this size");
    assert_eq!(why(&plans, here, sum, 8192), "allreduce of this size was not measured for the table");
    let gather = (CallKind::plain(Collective::AllGather), DType::F32);
    assert_eq!(why(&plans, here, gather, 100), "the table has no plan for allgather");
    // What of the key does not fit.
    let with = |edit: &dyn Fn(&mut TuningTable)| {
        let mut edited = table.clone();
        edit(&mut edited);
        read(&edited)
    };
    let spread = RankPlaces::on(&[0, 0, 1]);
    let over = RankPlaces { transport: Some(RankTransport::Tcp), ..here };
    let hardware = [String::from("A, 2 logical cores")];
    let on = RankPlaces { hardware: Some(&hardware), ..here };
    for (plans, places, part) in [
        (with(&|_| ()), spread, "measured with 3 ranks on 1 machine, not 3 ranks on 2 machines"),
        (with(&|_| ()), RankPlaces::on(&[0, 0]), "3 ranks on 1 machine, not 2 ranks on 1 machine"),
        (
            with(&|table| table.key.transport = Some(RankTransport::Shm)),
            over,
            "measured with the transport shm, not tcp",
        ),
        (
            with(&|table| table.key.hardware = vec!["B".to_owned()]),
            on,
            "measured with machine 0 as `B`, not `A, 2 logical cores`",
        ),
        (
            with(&|table| table.key.topology = Some("abc".to_owned())),
            here,
            "measured on an emulated machine, not on this one",
        ),
    ] {
        let said = why(&plans, places, sum, 100);
        assert!(said.starts_with("t serves no calls") && said.ends_with(part), "{said}");
        assert!(!why(&plans, places, gather, 100).contains("of this size"), "{said}");
    }
}

/// The same of single plans, which serve their ranks wherever they are.
#[test]
fn it_is_said_what_single_plans_lack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.json");
    let mut request = Request::new(Collective::Broadcast, 3, 3 << 10);
    request.root = Some(topology::Rank(1));
    let topology = Arc::new(topology::resolve("ring:3").unwrap());
    let problem = synth::Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
    let plan = schedule::verify(synth::textbook(&problem).unwrap().remove(0), &topology).unwrap();
    let mut text = Vec::new();
    file::write(&plan, &mut text).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    value["produced_by"]["strategy"] = "ring\nantiphon: all is well\u{1b}[31m".into();
    std::fs::write(&path, value.to_string()).unwrap();
    let index = r#"{"format": "antiphon-sweep/1", "windows": [{"from_bytes": 10, "to_bytes": 20, "file": "p.json"}]}"#;
    std::fs::write(folder.path().join("index.json"), index).unwrap();
    let plans = PlanTable::read(folder.path()).unwrap();
    let call =
        |root, collective| (CallKind { root: Some(topology::Rank(root)), ..CallKind::plain(collective) }, DType::U8);
    let (here, broadcast) = (RankPlaces::on(&[0, 1, 1]), call(1, Collective::Broadcast));
    let entry = plans.find(here, broadcast, 10).unwrap();
    assert!(plans.name(entry).starts_with("ring\\u{a}antiphon: all is well\\u{1b}[31m of "), "{}", plans.name(entry));
    assert_eq!(why(&plans, here, broadcast, 20), "the table has no plan for broadcast of this size");
    assert_eq!(
        why(&plans, here, call(0, Collective::Broadcast), 10),
        "the table has no plan for broadcast with root 0"
    );
    assert_eq!(why(&plans, here, call(1, Collective::Gather), 10), "the table has no plan for gather");
    let two = RankPlaces::on(&[0, 1]);
    assert_eq!(why(&plans, two, broadcast, 10), "the table has no plan for broadcast of 2 ranks");
}
