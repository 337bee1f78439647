//! All combinations of what four ranks may have been given as a table.

use super::*;
use std::path::PathBuf;

const LIMIT: Duration = Duration::from_secs(20);

/// What a rank may have been given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    Hit,
    Miss,
    Corrupt,
    Older,
}

const ALL: [Given; 4] = [Given::Hit, Given::Miss, Given::Corrupt, Given::Older];

/// Tables in a folder: one that fits, one that was cut off, and one of another version.
struct Tables {
    folder: tempfile::TempDir,
    /// Whether a rank that misses has no table named, or one that is not there.
    names_none: bool,
}

const TABLE: &str = r#"{"format": "antiphon-table/1", "key": {"ranks": 4, "machines": [0, 0, 0, 0], "version": "VERSION",
    "policy": 1}, "cells": [{"collective": "allreduce", "ranges": [{"from_bytes": 0, "to_bytes": null, "plan": null,
    "evidence": []}], "functions": [{"from_bytes": 0, "to_bytes": 9, "function": "mine", "dtype": "f32", "op": "sum",
    "evidence": []}]}], "plans": {}}"#;

impl Tables {
    fn new(names_none: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = TABLE.replace("VERSION", env!("CARGO_PKG_VERSION"));
        for (name, text) in [
            ("Hit", own.clone()),
            ("Corrupt", own[..own.len() / 2].to_owned()),
            ("Older", TABLE.replace("VERSION", "0")),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self { folder, names_none }
    }

    fn path(&self, of: Given) -> Option<PathBuf> {
        (of != Given::Miss || !self.names_none).then(|| self.folder.path().join(format!("{of:?}")))
    }
}

/// What each rank has and says, where each was given something.
fn agreed(paths: &[Option<PathBuf>], besides: impl Fn(usize) -> u64 + Sync) -> Vec<(bool, Vec<String>)> {
    let sessions = Session::local(paths.len()).unwrap();
    std::thread::scope(|scope| {
        let rank = |(session, path): (Session, &Option<PathBuf>)| {
            let (path, besides) = (path.clone(), &besides);
            let none_is_named = paths.iter().all(Option::is_none);
            scope.spawn(move || {
                let own = OwnTable::read(path.as_deref());
                let agreed = own.agree(&session, besides(session.rank().index()), LIMIT).unwrap();
                let AgreedTable { table, lines, why_none } = agreed;
                assert_eq!(why_none.is_none(), !table.is_empty() || none_is_named);
                (table.is_empty(), lines)
            })
        };
        let threads: Vec<_> = sessions.into_iter().zip(paths).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Four ranks that were given anything: all use the table, or none does, and a line names the ranks that differ.
#[test]
fn all_combinations_end_in_one_decision() {
    for tables in [Tables::new(true), Tables::new(false)] {
        for combination in 0..ALL.len().pow(4) {
            let given: Vec<Given> = (0..4).map(|rank| ALL[combination >> (2 * rank) & 3]).collect();
            let paths: Vec<Option<PathBuf>> = given.iter().map(|of| tables.path(*of)).collect();
            let all = agreed(&paths, |_| 0);
            let is_same = given.iter().all(|of| *of == given[0]);
            let is_used = is_same && given[0] == Given::Hit;
            assert!(all.iter().all(|(is_empty, _)| *is_empty != is_used), "{given:?}");
            let lines = |rank: usize| all[rank].1.join("\n");
            if is_same {
                let is_told = !is_used && (given[0] != Given::Miss || !tables.names_none);
                assert_eq!(lines(0).starts_with("no table is used: "), is_told, "{given:?}: {}", lines(0));
                assert!((1..4).all(|rank| all[rank].1.is_empty()), "{given:?}");
                continue;
            }
            // Who cannot use its table says why, and rank 0 says who has none and who cannot use it.
            let last = all[0].1.last().unwrap();
            assert!(last.starts_with("stock serves all calls, because the ranks have different tables: "), "{last}");
            for (rank, of) in given.iter().enumerate() {
                let is_refused =
                    matches!(of, Given::Corrupt | Given::Older) || *of == Given::Miss && !tables.names_none;
                assert_eq!(
                    lines(rank).contains(&format!("rank {rank} cannot use its table: ")),
                    is_refused,
                    "{given:?}"
                );
                let is_named = last.split([' ', ',']).any(|word| word == rank.to_string());
                assert_eq!(is_named, *of != Given::Hit, "{given:?}: {last}");
            }
            assert_eq!(last.contains("cannot use"), last.split("; ").any(|part| part.contains("own")), "{last}");
        }
    }
}

/// A table that differs in any field of its key, or in what it chooses, on one rank.
#[test]
fn every_field_that_decides_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let own = TABLE.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let edits = [
        (r#""ranks": 4, "machines": [0, 0, 0, 0]"#, r#""ranks": 3, "machines": [0, 0, 0]"#),
        ("[0, 0, 0, 0]", "[0, 0, 1, 1]"),
        (r#""policy": 1"#, r#""policy": 1, "transport": "tcp""#),
        (r#""policy": 1"#, r#""policy": 1, "hardware": ["another"]"#),
        (r#""policy": 1"#, r#""policy": 2"#),
        (r#""version": ""#, r#""version": "9"#),
        (r#""policy": 1"#, r#""policy": 1, "topology": "abc""#),
        (r#""collective": "allreduce""#, r#""collective": "allreduce", "op": "max""#),
        (r#""collective": "allreduce""#, r#""collective": "allreduce", "dtype": "f64""#),
        (r#""collective": "allreduce""#, r#""collective": "allreduce", "in_place": false"#),
        (r#""to_bytes": 9"#, r#""to_bytes": 10"#),
        ("mine", "yours"),
        (r#""dtype": "f32""#, r#""dtype": "f64""#),
        (r#""op": "sum""#, r#""op": "max""#),
    ];
    let path = |name: String, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let right = path("right".to_owned(), &own);
    for (number, (from, to)) in edits.into_iter().enumerate() {
        let edited = own.replacen(from, to, 1);
        assert_ne!(edited, own, "{from}");
        let wrong = path(number.to_string(), &edited);
        let paths = [right.clone(), right.clone(), wrong, right.clone()];
        let all = agreed(&paths, |_| 0);
        let line = all[0].1.last().unwrap();
        assert!(all.iter().all(|(is_empty, _)| *is_empty) && line.contains(": rank 2 "), "{to}: {line}");
    }
    // The same table, but only some ranks are to confirm it.
    let all = agreed(&[right.clone(), right.clone(), right.clone(), right], |rank| u64::from(rank == 3));
    let line = all[0].1.last().unwrap();
    assert!(
        line.ends_with("rank 3 has another than rank 0, or another ANTIPHON_CONFIRM or ANTIPHON_TRANSPORT"),
        "{line}"
    );
}

#[test]
fn of_many_ranks_a_few_are_named() {
    let all: Vec<[u64; 2]> = (0..40).map(|rank| if rank < 25 { [7, 1] } else { [9, 2] }).collect();
    assert_eq!(named(&all), "ranks 25, 26, 27, 28, 29, 30, 31, 32 and 7 more cannot use their own");
    // What most ranks have is right, also where rank 0 has something else.
    let all = [[1, 1], [2, 1], [2, 1]];
    assert!(named(&all).starts_with("rank 0 has another than rank 1"), "{}", named(&all));
}
