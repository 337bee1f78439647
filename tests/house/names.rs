//! Names: one name for each type in the whole workspace, and no public name that only its author understands.

use super::{Source, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Type names that several modules share, and how many. Words of other tools' formats may stay; the others need better
/// names, and this list may only shrink.
const SHARED: &[(&str, usize)] = &[
    ("Action", 2),
    ("Agent", 2),
    ("Algorithm", 2),
    ("Arena", 2),
    ("Bench", 2),
    ("Block", 3),
    ("Builder", 4),
    ("Calendar", 2),
    ("Call", 3),
    ("Cause", 2),
    ("Cell", 3),
    ("Check", 2),
    ("Choice", 3),
    ("Chunks", 2),
    ("Claim", 2),
    ("Classes", 2),
    ("Clock", 4),
    ("Command", 2),
    ("Connections", 2),
    ("Cost", 2),
    ("Decision", 2),
    ("Delivery", 2),
    ("DeliveryId", 2),
    ("Departure", 2),
    ("Desk", 2),
    ("Document", 2),
    ("Draft", 2),
    ("Emitter", 2),
    ("End", 2),
    ("Ends", 2),
    ("Entries", 3),
    ("Entry", 2),
    ("Event", 6),
    ("Expansion", 2),
    ("ExportError", 2),
    ("ExportOptions", 2),
    ("Fault", 3),
    ("Finding", 3),
    ("Flow", 3),
    ("Found", 3),
    ("Geometry", 2),
    ("Gpu", 2),
    ("Grid", 2),
    ("Group", 3),
    ("Grouping", 2),
    ("Groups", 3),
    ("Growth", 2),
    ("History", 2),
    ("Holding", 2),
    ("Holdings", 2),
    ("Hop", 3),
    ("Identity", 2),
    ("Images", 2),
    ("Item", 2),
    ("Job", 2),
    ("Judge", 3),
    ("Kind", 4),
    ("Label", 2),
    ("Lane", 4),
    ("Lanes", 2),
    ("Latency", 2),
    ("Leg", 2),
    ("Limits", 2),
    ("Line", 2),
    ("Listed", 2),
    ("Load", 3),
    ("Location", 2),
    ("Machine", 2),
    ("Memory", 4),
    ("Merged", 2),
    ("Message", 2),
    ("Messages", 3),
    ("Moment", 3),
    ("Network", 2),
    ("Node", 2),
    ("NotASymmetry", 2),
    ("Options", 2),
    ("Orbits", 2),
    ("Order", 2),
    ("Origin", 2),
    ("Outcome", 3),
    ("Outgoing", 2),
    ("Pair", 2),
    ("Pairs", 2),
    ("Part", 4),
    ("Path", 2),
    ("Place", 5),
    ("Placed", 2),
    ("Places", 2),
    ("Plan", 2),
    ("Played", 3),
    ("Player", 3),
    ("Point", 4),
    ("Poll", 2),
    ("Port", 2),
    ("Program", 2),
    ("Rank", 2),
    ("Ranks", 3),
    ("Ready", 3),
    ("Relaxed", 2),
    ("Report", 2),
    ("Resolver", 2),
    ("Round", 3),
    ("Routes", 2),
    ("Routing", 2),
    ("Row", 4),
    ("Rule", 4),
    ("Sample", 2),
    ("Scope", 2),
    ("Seen", 3),
    ("Sets", 2),
    ("Setup", 2),
    ("Shape", 3),
    ("Shared", 2),
    ("Side", 2),
    ("Source", 3),
    ("Span", 3),
    ("Spreading", 2),
    ("Stage", 2),
    ("State", 4),
    ("Step", 4),
    ("Steps", 2),
    ("Table", 2),
    ("Task", 2),
    ("Terms", 2),
    ("Threadblock", 2),
    ("Timed", 2),
    ("Timeline", 2),
    ("Traffic", 2),
    ("Transfer", 2),
    ("Trial", 2),
    ("Turn", 2),
    ("Unit", 2),
    ("Units", 2),
    ("Use", 3),
    ("Value", 2),
    ("Verdict", 3),
    ("Violation", 2),
    ("Waiting", 2),
    ("Watch", 3),
    ("Way", 3),
    ("Which", 5),
    ("Window", 5),
    ("Work", 2),
    ("Worker", 3),
    ("World", 2),
];

/// Words with a private meaning that is neither in a dictionary nor in the literature.
const METAPHORS: &[&str] = &[
    "bought", "charge", "courier", "diary", "duty", "enclave", "ensemble", "haggle", "haggled", "muster", "newborn",
    "nursery", "rival", "ride", "seat", "taste",
];

/// Public names that still contain one.
const STILL: &[&str] = &["Rival", "charge"];

const KEYWORDS: &[&str] = &["struct", "enum", "trait", "union", "type", "fn", "mod", "const", "static"];

/// The declaration of a line: the keyword, the name, and whether it is public.
struct Declared<'a> {
    keyword: &'a str,
    name: &'a str,
    is_public: bool,
}

/// The declaration that a line of code begins.
fn declared(line: &str) -> Option<Declared<'_>> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub("));
    let first = words.next()?;
    let is_public = first == "pub" || line.trim_start().starts_with("pub(");
    let keyword = match first {
        "pub" => words.next()?,
        _ => first,
    };
    let keyword = KEYWORDS.iter().find(|known| **known == keyword)?;
    let name = words.next()?.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
    // An indented `type` belongs to a trait or an implementation.
    let is_associated = *keyword == "type" && line.starts_with(' ');
    (!is_associated && !name.is_empty()).then_some(Declared { keyword, name, is_public })
}

/// Where each type is declared, tests and benchmarks left out.
fn types(sources: &[Source]) -> BTreeMap<String, Vec<&str>> {
    let mut types: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        for declared in source.code().lines().filter_map(declared) {
            if ["struct", "enum", "trait", "union", "type"].contains(&declared.keyword) {
                types.entry(declared.name.to_owned()).or_default().push(&source.path);
            }
        }
    }
    types
}

#[test]
fn a_type_name_means_one_type() {
    let sources = sources("");
    let types = types(&sources);
    let most = |name: &str| SHARED.iter().find(|(shared, _)| *shared == name).map_or(1, |(_, most)| *most);
    let shared = |(name, places): &(&String, &Vec<&str>)| places.len() > most(name);
    let told: Vec<_> =
        types.iter().filter(shared).map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(told.is_empty(), "type names with two meanings:\n{}", told.join("\n"));
}

/// `CutSet`, `cut_set` → cut, set.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            parts.push(String::new());
        }
        if letter != '_' {
            parts.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    parts
}

#[test]
fn public_names_are_words_of_the_field() {
    let mut found = BTreeSet::new();
    for source in sources("").iter().filter(|source| !source.is_test()) {
        for declared in source.code().lines().filter_map(declared).filter(|declared| declared.is_public) {
            let is_metaphor = |part: &String| METAPHORS.contains(&part.as_str());
            if parts(declared.name).iter().any(is_metaphor) && !STILL.contains(&declared.name) {
                found.insert(format!("{} {}: {}", declared.keyword, declared.name, source.path));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn declarations_are_found() {
    let name = |line| declared(line).map(|declared| (declared.keyword, declared.name, declared.is_public));
    assert_eq!(name("pub(crate) struct Heap<T> {"), Some(("struct", "Heap", true)));
    assert_eq!(name("    enum Kind {"), Some(("enum", "Kind", false)));
    assert_eq!(name("pub type Cost = f64;"), Some(("type", "Cost", true)));
    assert_eq!(name("    type Item = u8;"), None);
    assert_eq!(name("let kind = structure;"), None);
    assert_eq!(parts("CutSet"), ["", "cut", "set"]);
}
