//! The imports between the rooms of a crate: a room is a module of `lib.rs`, and it imports only rooms before it.
//!
//! Paths are followed as they are written: `crate::room::…`, `super::…` if it reaches the crate's root, and names that
//! `lib.rs` exports from a room. Tests may import everything.

use super::{ROOT, Source, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rooms of each crate in order: a room may import only rooms before it.
const FLOORS: &[(&str, &[&str])] = &[
    (
        "topology",
        &[
            "units",
            "resource_ids",
            "adjacency",
            "line",
            "robust",
            "spelling",
            "plain_words",
            "document",
            "quantity",
            "probe",
            "rounds",
            "error",
            "link",
            "graph",
            "connectivity",
            "fit",
            "free_times",
            "interchange",
            "concurrent",
            "measured",
            "spec",
            "symmetry",
            "family",
            "machine",
            "profile",
            "catalog",
            "import",
        ],
    ),
    (
        "schedule",
        &[
            "collective",
            "rank_set",
            "chunk",
            "findings",
            "threads",
            "usage",
            "tolerance",
            "error",
            "request",
            "order",
            "demand",
            "transfer",
            "compressed",
            "verify",
            "file",
            "replay",
            "timeline",
            "explain",
            "reverse",
            "simulate",
            "testing",
        ],
    ),
    (
        "program",
        &[
            "instruction",
            "orbits",
            "shape",
            "digest",
            "layout",
            "check",
            "listing",
            "rewrite",
            "excerpt",
            "lower",
            "timing",
            "testing",
        ],
    ),
    ("interop", &["msccl", "mscclpp", "nccl", "view"]),
    (
        "synth",
        &["problem", "symmetry", "sketch", "solver", "bounds", "ordering", "epochs", "strategies", "polish", "planner"],
    ),
    (
        "runtime",
        &[
            "background",
            "clock",
            "reduction",
            "dtype",
            "element",
            "verdict",
            "numbers",
            "error",
            "group",
            "memory",
            "transport",
            "plan",
            "pacing",
            "interpreter",
            "execution",
            "device",
            "session",
            "measure",
            "control",
            "launch",
        ],
    ),
    (
        "comm",
        &[
            "launcher",
            "log",
            "error",
            "statistics",
            "numbers",
            "links",
            "stock",
            "table",
            "confirm",
            "confirmed",
            "bounded",
            "plan_store",
            "plans",
            "call_state",
            "communicator",
            "hardware",
            "memory",
            "request",
            "point_to_point",
            "started",
            "split",
            "operation",
            "collectives",
            "functions",
            "gpu",
            "probe",
            "agreed",
            "rebuild",
            "connect",
            "tuner",
        ],
    ),
    (
        "plugin",
        &[
            "status",
            "handles",
            "memory",
            "lifecycle",
            "buffers",
            "requests",
            "tuning",
            "call",
            "collectives",
            "rooted",
            "exchange",
            "messages",
        ],
    ),
    (
        "python",
        &[
            "errors",
            "elements",
            "memory",
            "arrange",
            "waiting",
            "carrying",
            "ongoing",
            "call_thread",
            "exchange",
            "operation",
            "communicator",
            "counts",
            "straight",
            "tuning",
        ],
    ),
    (
        "tune",
        &[
            "statistics",
            "accuracy",
            "decide",
            "files",
            "turns",
            "key",
            "links",
            "store",
            "choose",
            "merge",
            "composed",
            "guidelines",
            "nccl",
            "textbook",
            "export",
        ],
    ),
    (
        "plugin/nccl",
        &[
            "abi",
            "names",
            "settings",
            "rules",
            "tuner",
            "real",
            "background",
            "prepared",
            "places",
            "domains",
            "peers",
            "seen",
            "members",
            "plans",
            "choices",
            "counters",
            "groups",
            "trampolines",
            "collectives",
            "lifecycle",
        ],
    ),
];

#[test]
fn no_arrow_leads_back_up_between_rooms() {
    let mut wrong = Vec::new();
    for (crate_name, floors) in FLOORS {
        let floor = |room: &str| floors.iter().position(|other| *other == room);
        let root = std::fs::read_to_string(Path::new(ROOT).join(crate_name).join("src/lib.rs")).unwrap();
        let plan = Plan::of(&root);
        let missing: Vec<_> = plan.rooms.iter().filter(|room| floor(room).is_none()).collect();
        assert!(missing.is_empty(), "{crate_name} has rooms that FLOORS does not place: {missing:?}");
        let gone: Vec<_> = floors.iter().filter(|room| !plan.rooms.contains(**room)).collect();
        assert!(gone.is_empty(), "FLOORS places rooms that {crate_name} does not have: {gone:?}");
        assert_eq!(floors.len(), plan.rooms.len(), "FLOORS places a room of {crate_name} twice");
        for source in sources(&format!("{crate_name}/src")) {
            let modules = modules_of(&source);
            let Some(room) = modules.first().filter(|_| !source.is_test()) else { continue };
            for used in plan.rooms_used(&source.code(), modules.len()) {
                if floor(used) > floor(room) {
                    wrong.push(format!("{}: `{room}` imports `{used}`, which stands above it", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The strategies that use another one: it and the other.
const LENT: &[(&str, &str)] = &[("improve", "matching"), ("milp", "matching"), ("milp", "trees")];

#[test]
fn strategies_use_each_other_only_where_they_may() {
    let mut files = sources("synth/src/strategies");
    // Files outside the folders of strategies are for all.
    files.retain(|source| source.path.split('/').count() > 4);
    let folder = |source: &Source| modules_of(source)[1].to_owned();
    let folders: BTreeSet<String> = files.iter().map(folder).collect();
    let mut used = BTreeSet::new();
    for source in files.iter().filter(|source| !source.is_test()) {
        let code = source.code();
        let own = folder(source);
        // As many `super::` lead to `strategies`.
        let depth = modules_of(source).len() - 1;
        let named = ["crate::strategies::".to_owned(), "super::".repeat(depth)].map(|root| first_names(&code, &root));
        let others = named.concat().into_iter().filter(|name| *name != own && folders.contains(*name));
        used.extend(others.map(|other| (own.clone(), other.to_owned())));
    }
    let lent: BTreeSet<_> = LENT.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect();
    assert_eq!(used, lent, "found, and what LENT allows");
}

/// `runtime/src/tcp/ring.rs` → `["tcp", "ring"]`; none for `lib.rs`.
fn modules_of(source: &Source) -> Vec<&str> {
    let inside = source.path.split_once("/src/").unwrap().1.trim_end_matches(".rs");
    inside.split('/').filter(|module| *module != "mod" && *module != "lib").collect()
}

/// The facts in `lib.rs`: its modules, and the module from which it exports each name.
struct Plan<'a> {
    rooms: BTreeSet<&'a str>,
    exported: BTreeMap<&'a str, &'a str>,
}

impl<'a> Plan<'a> {
    fn of(root: &'a str) -> Self {
        let mut rooms = BTreeSet::new();
        let mut exported = BTreeMap::new();
        let mut is_for_tests = false;
        for statement in root.split_inclusive([';', ']']) {
            let statement = statement.lines().rfind(|line| !line.trim_start().starts_with("//")).unwrap_or("").trim();
            if let Some((_, room)) = statement.trim_end_matches(';').rsplit_once("mod ")
                && !is_for_tests
            {
                rooms.insert(room);
            }
            is_for_tests = statement.starts_with("#[cfg(test)");
        }
        for statement in root.split(';') {
            let Some((room, names)) = statement.rsplit_once("pub use ").and_then(|(_, path)| path.split_once("::"))
            else {
                continue;
            };
            exported.extend(words(names).map(|name| (name, room)));
        }
        Self { rooms, exported }
    }

    /// The rooms that a piece of code names; the code is `depth` modules below the root.
    fn rooms_used(&self, code: &str, depth: usize) -> BTreeSet<&str> {
        let resolve = |name: &str| self.rooms.get(name).or_else(|| self.exported.get(name)).copied();
        let names = ["crate::".to_owned(), "super::".repeat(depth)].map(|root| first_names(code, &root));
        names.concat().into_iter().filter_map(resolve).filter(|room| self.rooms.contains(room)).collect()
    }
}

/// The names that directly follow `root` in a piece of code, including those in braces.
fn first_names<'a>(code: &'a str, root: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(root) {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let rest = &code[at + root.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            names.extend(words(rest).next());
            continue;
        };
        let (mut depth, mut is_first) = (0, true);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                _ if is_first && letter.is_alphabetic() => {
                    names.extend(words(&group[at..]).next());
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

#[test]
fn paths_are_followed_to_their_rooms() {
    let plan = Plan::of("mod ground;\n#[cfg(test)]\nmod trial;\npub mod roof;\npub use roof::{Tile, deep::Beam};\n");
    assert_eq!(plan.rooms, BTreeSet::from(["ground", "roof"]));
    for code in
        ["use crate::roof::Tile;", "crate::Beam::new()", "use crate::{a::{b, c}, roof};", "use super::super::roof;"]
    {
        assert_eq!(plan.rooms_used(code, 2), BTreeSet::from(["roof"]), "{code}");
    }
    for code in ["use super::roof;", "mycrate::roof", "use crate::{a::{roof}};", "use crate::trial::it;"] {
        assert!(plan.rooms_used(code, 2).is_empty(), "{code}");
    }
}
