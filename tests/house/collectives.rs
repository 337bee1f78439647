//! A new collective must not compile where it is not handled: what code does with each collective is an exhaustive
//! `match`, or a method of `Collective`, which has one.

use super::code::{item_end, plain};
use super::sources;
use std::collections::BTreeSet;

#[test]
fn what_depends_on_the_collective_names_all_of_them() {
    let mut found = Vec::new();
    for source in sources("").iter().filter(|source| !source.is_test()) {
        let enumeration = if source.path == "schedule/src/collective.rs" { "Self::" } else { "Collective::" };
        found
            .extend(incomplete(&source.code(), enumeration).into_iter().map(|what| format!("{}: {what}", source.path)));
    }
    assert!(found.is_empty(), "write these exhaustively:\n{}", found.join("\n"));
}

/// The places in code that a new variant of an enumeration would slip through.
fn incomplete(code: &str, enumeration: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("].contains(") {
        let listed = &code[opening(&code[..=at])..=at];
        if names(listed, enumeration) {
            found.push(format!("{listed}.contains"));
        }
    }
    for (at, _) in code.match_indices("matches!(").filter(|(at, _)| is_word(code, *at)) {
        let asked = &code[at..at + closing(&code[at..])];
        if names(asked, enumeration) {
            found.push(asked.to_owned());
        }
    }
    for (at, _) in code.match_indices("match ").filter(|(at, _)| is_word(code, *at)) {
        let Some(arms) = code[at..item_end(code, at)].split_once('{').map(|(_, arms)| patterns(arms)) else { continue };
        let places: Vec<Vec<&str>> = arms.iter().map(|arm| parts(arm)).collect();
        let named: BTreeSet<usize> = places
            .iter()
            .flat_map(|parts| parts.iter().enumerate().filter(|(_, part)| names(part, enumeration)).map(|(at, _)| at))
            .collect();
        let is_open = |parts: &&Vec<&str>| match &parts[..] {
            [only] => is_wildcard(only),
            parts => named.iter().any(|at| parts.get(*at).is_some_and(|part| is_wildcard(part))),
        };
        if let (Some(_), Some(open)) = (named.first(), places.iter().find(is_open)) {
            found.push(format!("the arm `{}` of `{}`", open.join(", "), code[at..].lines().next().unwrap()));
        }
    }
    found
}

/// Whether a word begins here.
fn is_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
}

fn names(code: &str, enumeration: &str) -> bool {
    code.match_indices(enumeration).any(|(at, _)| {
        let variant = &code[at + enumeration.len()..];
        is_word(code, at) && variant.starts_with(char::is_uppercase)
    })
}

fn is_wildcard(pattern: &str) -> bool {
    pattern.starts_with(|first: char| first.is_lowercase() || first == '_')
        && pattern.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
        && !["true", "false"].contains(&pattern)
}

/// The bytes up to the bracket that closes the first one.
fn closing(code: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in code.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 1 => return at + 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Where the bracket begins that the last one closes.
fn opening(code: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in code.char_indices().rev() {
        match letter {
            ')' | ']' | '}' => depth += 1,
            '(' | '[' | '{' if depth == 1 => return at,
            '(' | '[' | '{' => depth -= 1,
            _ => {}
        }
    }
    0
}

/// The patterns of the arms of a `match`, without their conditions.
fn patterns(mut arms: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((pattern, rest)) = arms.split_once("=>") {
        found.push(pattern.split(" if ").next().unwrap().trim());
        arms = &rest[arm_end(rest)..];
    }
    found
}

/// Where the body of an arm ends: after its block, or after the comma that follows it.
fn arm_end(code: &str) -> usize {
    let is_block = code.trim_start().starts_with('{');
    let mut depth = 0_usize;
    for (at, letter) in code.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return code.len(),
            ')' | ']' | '}' => {
                depth -= 1;
                if is_block && depth == 0 && letter == '}' {
                    return at
                        + 1
                        + code[at + 1..].find(|next: char| !next.is_whitespace() && next != ',').unwrap_or(0);
                }
            }
            ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The parts of a tuple's pattern; any other pattern is its only part.
fn parts(pattern: &str) -> Vec<&str> {
    let Some(mut inside) = pattern.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else {
        return vec![pattern];
    };
    let mut parts = Vec::new();
    while !inside.is_empty() {
        let end = arm_end(inside);
        parts.push(inside[..end].trim_end_matches(',').trim());
        inside = inside[end..].trim_start();
    }
    parts
}

#[test]
fn incomplete_matches_are_found() {
    let incomplete = |code| incomplete(&plain(code), "Collective::").len();
    for code in [
        "matches!(it, Collective::Reduce | Collective::Gather)",
        "[Collective::Reduce, Collective::Gather].contains(&it)",
        "match it { Collective::Reduce => 1, _ => 2 }",
        "match it {\n    Collective::Reduce => { f(\"}\") }\n    other if other.is_rooted() => 2,\n}",
        "match (it, what) { (Collective::Reduce, true) => f(match what { _ => 1 }), (_, false) => 2 }",
        "match what { Some(it) => match it { Collective::Reduce => 1, _ => 2 }, None => 3 }",
    ] {
        assert_eq!(incomplete(code), 1, "{code}");
    }
    for code in [
        "matches!(it, ClaimedCollective::Reduce)",
        "[1, 2].contains(&what) && it == Collective::Reduce",
        "match it { ClaimedCollective::Reduce => 1, _ => 2 }",
        "match what { Some(Collective::Reduce) => 1, None => 2 }",
        "match what { Some(2) => Collective::Reduce, _ => Collective::Gather }",
        "match (it, what) { (Collective::Reduce, _) => 1, (Collective::Gather, true) => 2 }",
        "match it { Collective::Reduce => match what { 1 => 2, _ => 3 } }",
    ] {
        assert_eq!(incomplete(code), 0, "{code}");
    }
}
