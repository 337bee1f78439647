//! The import of TACCL [1] sketches.
//!
//! The principal function is [`import_taccl`]. It translates the JSON of TACCL's examples into a sketch of this crate,
//! as text, with notes about fields that have no meaning here. The meanings of the fields follow TACCL's code, not its
//! documentation:
//!
//! | TACCL | here |
//! |---|---|
//! | `nnodes` | `topology.machines` |
//! | `intranode_sketch`: `switch` with `uc-min`, `uc-max` | `connections`: `few`, `many` per switch |
//! | `intranode_sketch`: `minmax`, `maxmin` | `objective`: `bandwidth`, `balance` |
//! | `internode_conn`: a map, `direct-map`, `fully-connected` | `relays`: a map, `direct`, `all` |
//! | its routing model: a chunk goes directly to every other machine | `max_machine_hops: 1` |
//! | `gpus_to_sender_rev_map` | `senders` |
//! | `enforce_ordering` | `own_chunks_first` |
//! | `symmetry_offsets`: `[offset, size]` | `symmetry`: `{rotate: offset, within: size}` |
//! | `input_chunkup` | `chunks_per_rank` |
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023.

use super::error::{Mistake, SketchError};
use super::file::{error_at, read_yaml};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use topology::Topology;

/// A sketch translated from TACCL's JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportedSketch {
    /// The sketch, as YAML.
    pub yaml: String,
    /// Remarks about the translation for the user.
    pub notes: Vec<String>,
}

/// Translates TACCL's `text`; `name` is the sketch's name, `origin` the name of the file in errors.
///
/// If the topology is given, it supplies the shape that TACCL takes from its command line.
///
/// # Errors
/// [`SketchError`] with the position of the first mistake.
pub fn import_taccl(
    text: &str,
    origin: &str,
    name: &str,
    topology: Option<&Topology>,
) -> Result<ImportedSketch, SketchError> {
    // JSON is valid YAML except for tabs, which JSON allows between tokens only.
    let document: TacclDocument = read_yaml(&text.replace('\t', " "), origin)?;
    let mut translation = Translation { origin, topology, yaml: String::new(), notes: Vec::new() };
    translation.sketch(&document, name)?;
    let Translation { mut yaml, notes, .. } = translation;
    let head: String = notes.iter().map(|note| format!("# Note: {note}\n")).collect();
    yaml.insert_str(0, &format!("# Translated from the TACCL sketch {}.\n{head}", one_line(origin)));
    Ok(ImportedSketch { yaml, notes })
}

type Numbers = Spanned<Vec<Spanned<u64>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TacclDocument {
    nnodes: Spanned<u64>,
    intranode_sketch: Inside,
    internode_sketch: Option<Spanned<Between>>,
    symmetry_offsets: Option<Spanned<Vec<Numbers>>>,
    hyperparameters: Parameters,
    /// Written by older versions of TACCL; nothing reads it.
    multinode_sketch: Option<Spanned<de::IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inside {
    strategy: Spanned<String>,
    switches: Option<Spanned<Vec<Numbers>>>,
    switch_hyperedge_strategy: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Between {
    strategy: Spanned<String>,
    internode_conn: Spanned<ConnectedPairs>,
    gpus_to_sender_rev_map: Option<Spanned<ConnectedPairs>>,
    enforce_ordering: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    input_chunkup: Spanned<u64>,
    /// Written by older versions of TACCL; nothing reads it.
    heuristic: Option<Spanned<de::IgnoredAny>>,
}

/// `"direct-map"`, or `{"1": [0]}` with local ranks.
enum ConnectedPairs {
    Word(String),
    Map(Vec<(Spanned<String>, Numbers)>),
}

impl<'de> Deserialize<'de> for ConnectedPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConnectedPairsVisitor;
        impl<'de> Visitor<'de> for ConnectedPairsVisitor {
            type Value = ConnectedPairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("local ranks with lists of local ranks, such as {\"1\": [0]}")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<ConnectedPairs, E> {
                Ok(ConnectedPairs::Word(word.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConnectedPairs, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(ConnectedPairs::Map(entries))
            }
        }
        deserializer.deserialize_any(ConnectedPairsVisitor)
    }
}

struct Translation<'a> {
    origin: &'a str,
    topology: Option<&'a Topology>,
    yaml: String,
    notes: Vec<String>,
}

impl Translation<'_> {
    fn error<T>(&self, at: Location, mistake: Mistake) -> Result<T, SketchError> {
        Err(error_at(self.origin, at, mistake))
    }

    fn inconsistent<T>(&self, at: Location, text: impl Into<String>) -> Result<T, SketchError> {
        self.error(at, Mistake::Inconsistent { text: text.into() })
    }

    fn unknown<T>(&self, word: &Spanned<String>, accepted: &[&'static str]) -> Result<T, SketchError> {
        self.error(word.referenced, Mistake::UnknownWord { word: word.value.clone(), accepted: accepted.to_vec() })
    }

    fn key(&mut self, key: &str, value: impl fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.yaml, "{key}: {value}");
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(one_line(&note.into()));
    }

    fn sketch(&mut self, document: &TacclDocument, name: &str) -> Result<(), SketchError> {
        let machines = document.nnodes.value;
        if machines == 0 {
            let (given, expected) = (machines.to_string(), "a number of machines (1 or more)");
            return self.error(document.nnodes.referenced, Mistake::BadValue { given, expected });
        }
        let switches = self.switches(&document.intranode_sketch)?;
        self.key("name", quoted(name));
        let per_machine = self.ranks_per_machine(&switches);
        let ranks = per_machine.map_or(String::new(), |ranks| format!(", ranks_per_machine: {ranks}"));
        let such_as = self.topology.map_or(String::new(), |it| format!(", such_as: {}", quoted(it.name())));
        self.key("topology", format_args!("{{machines: {machines}{ranks}{such_as}}}"));
        match (&document.internode_sketch, machines) {
            (Some(between), 2..) => self.between(&between.value, machines)?,
            (Some(_), _) => self.note("internode_sketch says nothing about one machine, and was left out"),
            (None, 1) => {}
            (None, _) => {
                let text = "more than one machine needs an `internode_sketch`";
                return self.inconsistent(document.nnodes.referenced, text);
            }
        }
        self.connections(&switches, per_machine);
        match &document.intranode_sketch.strategy.value[..] {
            "minmax" => self.key("objective", "bandwidth"),
            "maxmin" => self.key("objective", "balance"),
            _ => {}
        }
        self.symmetry(document.symmetry_offsets.as_ref())?;
        self.parameters(document)
    }

    /// The groups of local ranks on a switch, with the wish for their connections.
    fn switches(&mut self, inside: &Inside) -> Result<Vec<(Vec<u64>, &'static str)>, SketchError> {
        match &inside.strategy.value[..] {
            "switch" => {}
            "none" | "minmax" | "maxmin" => {
                if inside.switches.is_some() || inside.switch_hyperedge_strategy.is_some() {
                    self.note(format!("`switches` mean nothing with strategy `{}`", inside.strategy.value));
                }
                return Ok(Vec::new());
            }
            _ => return self.unknown(&inside.strategy, &["none", "switch", "minmax", "maxmin"]),
        }
        let (Some(switches), Some(words)) = (&inside.switches, &inside.switch_hyperedge_strategy) else {
            let text = "strategy `switch` needs `switches` and a `switch_hyperedge_strategy` for each";
            return self.inconsistent(inside.strategy.referenced, text);
        };
        if switches.value.is_empty() || switches.value.len() != words.value.len() {
            let (many, few) = (switches.value.len(), words.value.len());
            let text = format!("{many} `switches` with {few} entries in `switch_hyperedge_strategy`");
            return self.inconsistent(words.referenced, text);
        }
        let mut groups: BTreeMap<BTreeSet<u64>, (&'static str, usize)> = BTreeMap::new();
        for (switch, word) in switches.value.iter().zip(&words.value) {
            let wish = match &word.value[..] {
                "uc-min" => "few",
                "uc-max" => "many",
                _ => return self.unknown(word, &["uc-min", "uc-max"]),
            };
            let group: BTreeSet<u64> = switch.value.iter().map(|rank| rank.value).collect();
            if group.len() < 2 || group.len() != switch.value.len() {
                return self.inconsistent(switch.referenced, "a switch joins two or more different local ranks");
            }
            if groups.keys().any(|other| *other != group && !other.is_disjoint(&group)) {
                return self.inconsistent(switch.referenced, "two switches share some of their ranks, but not all");
            }
            groups.entry(group).or_insert((wish, 0)).1 += 1;
        }
        if groups.values().any(|(wish, _)| *wish != groups.values().next().map_or("", |(first, _)| first)) {
            self.note("TACCL reads only the first entry of switch_hyperedge_strategy; here every switch has its own");
        }
        if groups.values().any(|(_, planes)| *planes > 1) {
            self.note("a switch listed several times is several planes, which belong into the topology, not here");
        }
        Ok(groups.into_iter().map(|(group, (wish, _))| (group.into_iter().collect(), wish)).collect())
    }

    /// How many ranks a machine has; `None` where that is not certain.
    fn ranks_per_machine(&self, switches: &[(Vec<u64>, &'static str)]) -> Option<u64> {
        if let Some(topology) = self.topology {
            let size = topology.machines().first()?.len();
            return topology.machines().iter().all(|machine| machine.len() == size).then_some(size as u64);
        }
        let mut ranks: Vec<u64> = switches.iter().flat_map(|(group, _)| group).copied().collect();
        ranks.sort_unstable();
        (!ranks.is_empty() && (0..).zip(&ranks).all(|(position, &rank)| position == rank)).then_some(ranks.len() as u64)
    }

    fn connections(&mut self, switches: &[(Vec<u64>, &'static str)], per_machine: Option<u64>) {
        match switches {
            [] => {}
            [(group, wish)] if Some(group.len() as u64) == per_machine => self.key("connections", wish),
            _ => {
                let switch = |(group, wish): &(Vec<u64>, _)| format!("{{among: {group:?}, wish: {wish}}}");
                let list: Vec<String> = switches.iter().map(switch).collect();
                self.key("connections", format_args!("[{}]", list.join(", ")));
            }
        }
    }

    fn between(&mut self, between: &Between, machines: u64) -> Result<(), SketchError> {
        if between.strategy.value != "relay" {
            return self.unknown(&between.strategy, &["relay"]);
        }
        let relays = match &between.internode_conn.value {
            ConnectedPairs::Word(word) => match &word[..] {
                "direct-map" => "direct".to_owned(),
                "fully-connected" => "all".to_owned(),
                _ => {
                    let (word, accepted) = (word.clone(), vec!["direct-map", "fully-connected"]);
                    return self.error(between.internode_conn.referenced, Mistake::UnknownWord { word, accepted });
                }
            },
            ConnectedPairs::Map(map) => self.map(between.internode_conn.referenced, map)?,
        };
        self.key("relays", relays);
        if let Some(senders) = &between.gpus_to_sender_rev_map {
            let ConnectedPairs::Map(map) = &senders.value else {
                let text = "`gpus_to_sender_rev_map` is a map of senders, such as {\"1\": [0, 1]}";
                return self.inconsistent(senders.referenced, text);
            };
            let senders = self.map(senders.referenced, map)?;
            self.key("senders", senders);
        }
        if let Some(ordered) = between.enforce_ordering.as_ref().filter(|ordered| ordered.value) {
            if between.gpus_to_sender_rev_map.is_none() {
                return self.inconsistent(ordered.referenced, "`enforce_ordering` needs `gpus_to_sender_rev_map`");
            }
            self.key("own_chunks_first", true);
        }
        self.key("max_machine_hops", 1);
        if machines > 2 {
            self.note(
                "TACCL also lets a third machine bring a second copy of a chunk; here every copy comes straight from \
                 the chunk's own machine",
            );
        }
        Ok(())
    }

    /// A map of local ranks in the form `{1: [0], 3: [2]}`, sorted by key.
    fn map(&self, at: Location, map: &[(Spanned<String>, Numbers)]) -> Result<String, SketchError> {
        if map.is_empty() {
            return self.error(at, Mistake::Empty { what: "this map", effect: "let nothing leave its machine" });
        }
        let mut entries: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (key, ranks) in map {
            let Ok(sender) = key.value.trim().parse::<u64>() else {
                let (given, expected) = (key.value.clone(), "a local rank");
                return self.error(key.referenced, Mistake::BadValue { given, expected });
            };
            if ranks.value.is_empty() {
                let mistake = Mistake::Empty { what: "this list", effect: "let nothing leave its machine" };
                return self.error(ranks.referenced, mistake);
            }
            let list = ranks.value.iter().map(|rank| rank.value).collect();
            if entries.insert(sender, list).is_some() {
                return self.inconsistent(key.referenced, format!("local rank {sender} is given twice"));
            }
        }
        let entries: Vec<String> = entries.iter().map(|(sender, ranks)| format!("{sender}: {ranks:?}")).collect();
        Ok(format!("{{{}}}", entries.join(", ")))
    }

    fn symmetry(&mut self, offsets: Option<&Spanned<Vec<Numbers>>>) -> Result<(), SketchError> {
        let Some(offsets) = offsets.filter(|offsets| !offsets.value.is_empty()) else { return Ok(()) };
        let mut rules = Vec::new();
        for pair in &offsets.value {
            let [offset, size] = &pair.value[..] else {
                let text = format!("a symmetry is a pair [offset, size], not {} numbers", pair.value.len());
                return self.inconsistent(pair.referenced, text);
            };
            rules.push(format!("{{rotate: {}, within: {}}}", offset.value, size.value));
        }
        self.key("symmetry", format_args!("[{}]", rules.join(", ")));
        Ok(())
    }

    fn parameters(&mut self, document: &TacclDocument) -> Result<(), SketchError> {
        let chunks = &document.hyperparameters.input_chunkup;
        if chunks.value == 0 || chunks.value > u64::from(u32::MAX) {
            let (given, expected) = (chunks.value.to_string(), "a number of chunks (1 or more)");
            return self.error(chunks.referenced, Mistake::BadValue { given, expected });
        }
        self.key("chunks_per_rank", chunks.value);
        if document.hyperparameters.heuristic.is_some() {
            self.note("`heuristic` numbers TACCL's ordering heuristics, and was left out");
        }
        if document.multinode_sketch.is_some() {
            self.note("`multinode_sketch` is read by nothing in TACCL, and was left out");
        }
        Ok(())
    }
}

/// Text as a YAML scalar on one line.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text without line breaks, for comments.
fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Constraints;
    use crate::sketch::{Sketch, SketchFile};
    use expect_test::{Expect, expect};
    use std::path::Path;

    const ALL: &str = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]";

    /// JSON in TACCL's format.
    fn json(machines: u32, inside: &str, between: Option<&str>, symmetry: &str, chunks: u32) -> String {
        let between =
            between.map_or(String::new(), |it| format!("\"internode_sketch\": {{\"strategy\": \"relay\", {it}}},"));
        format!(
            "{{\"nnodes\": {machines}, \"intranode_sketch\": {{{inside}}}, {between}\n\t\"symmetry_offsets\": {symmetry},\n\t\
             \"hyperparameters\": {{\"input_chunkup\": {chunks}}}}}"
        )
    }

    /// The content of TACCL's example of this name; TACCL itself has no `-bound` example.
    fn example(name: &str) -> String {
        let free = "\"strategy\": \"none\"";
        let switch = |wish: &str| {
            format!("\"strategy\": \"switch\", \"switches\": [{ALL}], \"switch_hyperedge_strategy\": [\"{wish}\"]")
        };
        let map = |entry: &dyn Fn(u32) -> String, ranks: &mut dyn Iterator<Item = u32>| {
            format!("{{{}}}", ranks.map(entry).collect::<Vec<_>>().join(", "))
        };
        let pairs = map(&|odd| format!("\"{odd}\": [{}]", odd - 1), &mut (1..16).step_by(2));
        let senders = map(&|odd| format!("\"{odd}\": [{}, {odd}]", odd - 1), &mut (1..16).step_by(2));
        let themselves = map(&|rank| format!("\"{rank}\": [{rank}]"), &mut (0..16));
        let (one, direct, full) = ("{\"0\": [1]}", "\"direct-map\"", "\"fully-connected\"");
        let conn = |pairs: &str| format!("\"internode_conn\": {pairs}");
        match name {
            "sk1-ndv2-n1" => json(1, free, None, "[]", 1),
            "sk-ndv2-n1-cUp6" => json(1, free, None, "[]", 6),
            "sk1-ndv2-n2" => json(2, free, Some(&conn(one)), "[[8, 16]]", 1),
            "sk1-ndv2-n4" => json(4, free, Some(&conn(one)), "[[8, 32]]", 1),
            "sk2-ndv2-n2" => json(2, free, Some(&conn(full)), "[[8, 16]]", 1),
            "sk2-ndv2-n4" => json(4, free, Some(&conn(full)), "[[8, 32]]", 1),
            "sk3-ndv2-n2" => json(2, free, Some(&conn(direct)), "[[8, 16]]", 1),
            "sk1-dgx2-n1" => json(1, &switch("uc-min"), None, "[[2, 16]]", 1),
            "sk-dgx2-n1" => json(1, &switch("uc-min"), None, "[[2, 16]]", 2),
            "sk1-dgx2-n2" => {
                let between =
                    format!("{}, \"gpus_to_sender_rev_map\": {senders}, \"enforce_ordering\": true", conn(&pairs));
                json(2, &switch("uc-min"), Some(&between), "[[2, 16], [16, 32]]", 2)
            }
            "sk2-dgx2-n2" | "sk2-dgx2-n2-bound" => {
                let between = format!("{}, \"gpus_to_sender_rev_map\": {themselves}", conn(direct));
                json(2, &switch("uc-max"), Some(&between), "[[2, 16], [16, 32]]", 1)
            }
            other => panic!("no example is called {other}"),
        }
    }

    /// The constraints without their line numbers.
    fn unplaced(constraints: &Constraints) -> Constraints {
        let mut plain = constraints.clone();
        plain.forbidden.iter_mut().flatten().for_each(|line| *line = 0);
        plain.owners.iter_mut().flatten().for_each(|(_, line)| *line = 0);
        plain.max_machine_hops = plain.max_machine_hops.map(|(limit, _)| (limit, 0));
        plain.own_chunks_first = plain.own_chunks_first.map(|_| 0);
        plain.connections.iter_mut().for_each(|wish| wish.line = 0);
        plain
    }

    fn shipped(name: &str) -> (Sketch, Topology) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../sketches/{name}.yaml"));
        let file = SketchFile::parse(&std::fs::read_to_string(path).unwrap(), name).unwrap();
        let topology = topology::resolve(file.such_as().unwrap()).unwrap();
        (file.resolve(&topology).unwrap(), topology)
    }

    fn imported(name: &str, topology: Option<&Topology>) -> SketchFile {
        let imported = import_taccl(&example(name), "f.json", name, topology).unwrap_or_else(|error| panic!("{error}"));
        SketchFile::parse(&imported.yaml, "imported.yaml").unwrap_or_else(|error| panic!("{error}\n{}", imported.yaml))
    }

    #[test]
    fn every_shipped_translation_gives_the_freedom_of_the_original() {
        for name in [
            "sk1-ndv2-n1",
            "sk-ndv2-n1-cUp6",
            "sk1-ndv2-n2",
            "sk1-ndv2-n4",
            "sk2-ndv2-n2",
            "sk2-ndv2-n4",
            "sk3-ndv2-n2",
            "sk1-dgx2-n1",
            "sk-dgx2-n1",
            "sk1-dgx2-n2",
            "sk2-dgx2-n2",
            "sk2-dgx2-n2-bound",
        ] {
            let (ours, topology) = shipped(name);
            for shape in [None, Some(&topology)] {
                let theirs = imported(name, shape).resolve(&topology).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!((&theirs.name, theirs.pins), (&ours.name, ours.pins), "{name}");
                let mut theirs = unplaced(&theirs.constraints);
                if name == "sk2-dgx2-n2" {
                    // The shipped sketch leaves the senders out and says why; nothing else differs.
                    assert!(ours.constraints.owners.is_empty() && !theirs.owners.is_empty());
                    theirs.owners.clear();
                }
                assert_eq!(theirs, unplaced(&ours.constraints), "{name}");
            }
        }
    }

    fn check(text: &str, expected: Expect) {
        let text = match import_taccl(text, "f.json", "f", None) {
            Ok(imported) => imported.yaml,
            Err(error) => {
                format!("{error}{}\n", error.hint().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default())
            }
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_translation_reads_like_a_sketch() {
        check(
            &example("sk1-dgx2-n2"),
            expect![[r##"
            # Translated from the TACCL sketch f.json.
            name: "f"
            topology: {machines: 2, ranks_per_machine: 16}
            relays: {1: [0], 3: [2], 5: [4], 7: [6], 9: [8], 11: [10], 13: [12], 15: [14]}
            senders: {1: [0, 1], 3: [2, 3], 5: [4, 5], 7: [6, 7], 9: [8, 9], 11: [10, 11], 13: [12, 13], 15: [14, 15]}
            own_chunks_first: true
            max_machine_hops: 1
            connections: few
            symmetry: [{rotate: 2, within: 16}, {rotate: 16, within: 32}]
            chunks_per_rank: 2
        "##]],
        );
        let switches = "\"strategy\": \"switch\", \"switches\": [[0, 1], [2, 3], [0, 1]], \
                        \"switch_hyperedge_strategy\": [\"uc-min\", \"uc-max\", \"uc-min\"]";
        check(
            &json(3, switches, Some("\"internode_conn\": {\"3\": [1], \"0\": [0, 2]}"), "[]", 4),
            expect![[r##"
            # Translated from the TACCL sketch f.json.
            # Note: TACCL reads only the first entry of switch_hyperedge_strategy; here every switch has its own
            # Note: a switch listed several times is several planes, which belong into the topology, not here
            # Note: TACCL also lets a third machine bring a second copy of a chunk; here every copy comes straight from the chunk's own machine
            name: "f"
            topology: {machines: 3, ranks_per_machine: 4}
            relays: {0: [0, 2], 3: [1]}
            max_machine_hops: 1
            connections: [{among: [0, 1], wish: few}, {among: [2, 3], wish: many}]
            chunks_per_rank: 4
        "##]],
        );
        check(
            &json(1, "\"strategy\": \"minmax\"", None, "[]", 1),
            expect![[r##"
            # Translated from the TACCL sketch f.json.
            name: "f"
            topology: {machines: 1}
            objective: bandwidth
            chunks_per_rank: 1
        "##]],
        );
        check(
            &json(1, "\"strategy\": \"maxmin\", \"switches\": []", Some("\"internode_conn\": \"direct-map\""), "[]", 1),
            expect![[r##"
                # Translated from the TACCL sketch f.json.
                # Note: `switches` mean nothing with strategy `maxmin`
                # Note: internode_sketch says nothing about one machine, and was left out
                name: "f"
                topology: {machines: 1}
                objective: balance
                chunks_per_rank: 1
            "##]],
        );
    }

    #[test]
    fn mistakes_have_places() {
        let free = "\"strategy\": \"none\"";
        check(
            "",
            expect![[r#"
            f.json: nothing but comments: a sketch has keys such as `links`, `relays` or `chunks_per_rank`
        "#]],
        );
        check(
            "{",
            expect![[r#"
            f.json:1:1: unclosed bracket '{'
        "#]],
        );
        check(
            "{\"nnodes\": 1}",
            expect![[r#"
            f.json:1:2: missing field `intranode_sketch`
        "#]],
        );
        check(
            "{\"nnode\": 1}",
            expect![[r#"
            f.json:1:2: unknown key `nnode`
              hint: did you mean `nnodes`? accepted here: nnodes, intranode_sketch, internode_sketch, symmetry_offsets, hyperparameters, multinode_sketch
        "#]],
        );
        check(
            &json(0, free, None, "[]", 1),
            expect![[r#"
            f.json:1:12: `0` is not a number of machines (1 or more)
        "#]],
        );
        check(
            &json(2, free, None, "[]", 1),
            expect![[r#"
            f.json:1:12: more than one machine needs an `internode_sketch`
        "#]],
        );
        check(
            &json(1, free, None, "[]", 0),
            expect![[r#"
            f.json:3:39: `0` is not a number of chunks (1 or more)
        "#]],
        );
        check(
            &json(1, free, None, "[[1, 2, 3]]", 1),
            expect![[r#"
            f.json:2:23: a symmetry is a pair [offset, size], not 3 numbers
        "#]],
        );
        check(
            &json(1, free, None, "[[-1, 2]]", 1),
            expect![[r#"
            f.json:2:24: expected a whole number ≥ 0
        "#]],
        );
        check(
            &json(1, "\"strategy\": \"swich\"", None, "[]", 1),
            expect![[r#"
            f.json:1:48: unknown word `swich`
              hint: did you mean `switch`? accepted here: none, switch, minmax, maxmin
        "#]],
        );
        check(
            &json(1, "\"strategy\": \"switch\"", None, "[]", 1),
            expect![[r#"
            f.json:1:48: strategy `switch` needs `switches` and a `switch_hyperedge_strategy` for each
        "#]],
        );
        let switches = |switches: &str, words: &str| {
            let inside =
                format!("\"strategy\": \"switch\", \"switches\": {switches}, \"switch_hyperedge_strategy\": {words}");
            json(1, &inside, None, "[]", 1)
        };
        check(
            &switches("[[0, 1]]", "[]"),
            expect![[r#"
            f.json:1:109: 1 `switches` with 0 entries in `switch_hyperedge_strategy`
        "#]],
        );
        check(
            &switches("[[0, 1]]", "[\"uc-mid\"]"),
            expect![[r#"
            f.json:1:110: unknown word `uc-mid`
              hint: did you mean `uc-min`? accepted here: uc-min, uc-max
        "#]],
        );
        check(
            &switches("[[0, 1], [1, 2]]", "[\"uc-min\", \"uc-min\"]"),
            expect![[r#"
            f.json:1:79: two switches share some of their ranks, but not all
        "#]],
        );
        check(
            &switches("[[0, 0]]", "[\"uc-min\"]"),
            expect![[r#"
            f.json:1:71: a switch joins two or more different local ranks
        "#]],
        );
        let between = |between: &str| json(2, free, Some(between), "[]", 1);
        check(
            &between("\"internode_conn\": \"ring\""),
            expect![[r#"
            f.json:1:117: unknown word `ring`
              hint: accepted here: direct-map, fully-connected
        "#]],
        );
        check(
            &between("\"internode_conn\": {}"),
            expect![[r#"
            f.json:1:117: this map is empty, which would let nothing leave its machine
              hint: name at least one, or leave it out
        "#]],
        );
        check(
            &between("\"internode_conn\": {\"a\": [0]}"),
            expect![[r#"
            f.json:1:118: `a` is not a local rank
        "#]],
        );
        check(
            &between("\"internode_conn\": {\"0\": []}"),
            expect![[r#"
            f.json:1:123: this list is empty, which would let nothing leave its machine
              hint: name at least one, or leave it out
        "#]],
        );
        check(
            &between("\"internode_conn\": {\"0\": 1}"),
            expect![[r#"
            f.json:1:123: expected a list such as `[a, b]`
        "#]],
        );
        check(
            &between("\"internode_conn\": {\"0\": [1], \"0\": [2]}"),
            expect![[r#"
            f.json:1:128: key `0` is given twice
        "#]],
        );
        check(
            &between("\"internode_conn\": \"direct-map\", \"enforce_ordering\": true"),
            expect![[r#"
            f.json:1:151: `enforce_ordering` needs `gpus_to_sender_rev_map`
        "#]],
        );
        check(
            &between("\"internode_conn\": \"direct-map\", \"gpus_to_sender_rev_map\": \"all\""),
            expect![[r#"
            f.json:1:157: `gpus_to_sender_rev_map` is a map of senders, such as {"1": [0, 1]}
        "#]],
        );
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        /// A damaged file is translated into a readable sketch or refused with a position, but never causes a panic.
        #[test]
        fn damaged_files_do_no_harm(
            which in proptest::sample::select(vec!["sk1-dgx2-n2", "sk2-ndv2-n4", "sk2-dgx2-n2", "sk1-ndv2-n1"]),
            cuts in proptest::collection::vec((0usize..2000, "[-:{}&*!0-9a-z \\[\\]\"\n]{0,3}"), 1..4),
        ) {
            let mut text: Vec<char> = example(which).chars().collect();
            for (at, patch) in cuts {
                let at = at % text.len();
                text.splice(at..(at + 2).min(text.len()), patch.chars());
            }
            let text: String = text.into_iter().collect();
            match import_taccl(&text, "f.json", "f", None) {
                Ok(imported) => drop(SketchFile::parse(&imported.yaml, "i.yaml").unwrap_or_else(|error| panic!("{error}"))),
                Err(error) => proptest::prop_assert!(error.position.is_some(), "{}", error),
            }
        }
    }
}
