//! Names: one name for each type in the whole workspace, and no public name that only its author understands.

use super::{Source, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Words with a private meaning that is neither in a dictionary nor in the literature.
const METAPHORS: &[&str] = &[
    "bought", "charge", "courier", "diary", "duty", "enclave", "ensemble", "haggle", "haggled", "muster", "newborn",
    "nursery", "rival", "ride", "seat", "taste",
];

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
    let shared = |(_, places): &(&String, &Vec<&str>)| places.len() > 1;
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

/// Whether one of these words is in a name, also as a plural.
fn has_metaphor(name: &str) -> bool {
    let is_metaphor = |part: &str| METAPHORS.contains(&part);
    let singulars =
        |part: &str| [part.strip_suffix('s'), part.strip_suffix("es")].into_iter().flatten().any(is_metaphor);
    parts(name).iter().any(|part| is_metaphor(part) || singulars(part))
}

#[test]
fn public_names_are_words_of_the_field() {
    let mut found = BTreeSet::new();
    for source in sources("").iter().filter(|source| !source.is_test()) {
        for declared in source.code().lines().filter_map(declared).filter(|declared| declared.is_public) {
            if has_metaphor(declared.name) {
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
    assert!(
        has_metaphor("Rival") && has_metaphor("rivals") && has_metaphor("of_two_tastes") && !has_metaphor("arrivals")
    );
}
