//! The errors of a sketch, each with its place in the file.
//!
//! The principal type is [`SketchError`]: a position, a [`Mistake`] with its evidence, and a hint where one is known.
//! Its text has the form `file:line:column: mistake`, so that editors can jump to the place.

use crate::symmetry::SymmetryRejection;
use std::fmt;
use topology::closest;
use topology::quantity::QuantityError;

/// A place in a sketch file; lines and columns count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

/// A mistake in a sketch, and where it is.
#[derive(Clone, PartialEq, Debug)]
pub struct SketchError {
    /// The file, as the caller named it.
    pub file: String,
    /// The place of the mistake; `None` where the parser does not know it.
    pub position: Option<Position>,
    /// What is wrong. It is boxed to keep results small.
    pub mistake: Box<Mistake>,
}

impl SketchError {
    /// What the user could do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        self.mistake.hint()
    }
}

impl std::error::Error for SketchError {}

impl fmt::Display for SketchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(Position { line, column }) => write!(f, "{}:{line}:{column}: {}", self.file, self.mistake),
            None => write!(f, "{}: {}", self.file, self.mistake),
        }
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The text is not YAML, or exceeds a limit on sketches.
    #[error("{message}")]
    Unreadable {
        /// The parser's message.
        message: String,
    },
    /// The file has no keys.
    #[error("nothing but comments: a sketch has keys such as `links`, `relays` or `chunks_per_rank`")]
    Nothing,
    /// The file is too large, and was not parsed.
    #[error("a sketch of {bytes} bytes; at most {limit} are read")]
    TooLong {
        /// Its size.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// A key that is not known here.
    #[error("unknown key `{key}`")]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys that are accepted here.
        accepted: Vec<&'static str>,
    },
    /// A word that is not in the list of accepted words.
    #[error("unknown word `{word}`")]
    UnknownWord {
        /// The word.
        word: String,
        /// The words accepted here.
        accepted: Vec<&'static str>,
    },
    /// A value of the wrong kind, such as a list where a number belongs.
    #[error("expected {expected}, found {found}")]
    WrongKind {
        /// What is expected here.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A value of the right kind, but outside the accepted range.
    #[error("`{given}` is not {expected}")]
    BadValue {
        /// The value.
        given: String,
        /// What is expected here.
        expected: &'static str,
    },
    /// A size or a duration that cannot be read.
    #[error(transparent)]
    Quantity(QuantityError),
    /// An empty list, which would allow, forbid or name nothing.
    #[error("{what} is empty, which would {effect}")]
    Empty {
        /// The key.
        what: &'static str,
        /// What an empty list would mean.
        effect: &'static str,
    },
    /// More entries than a sketch may have.
    #[error("{what} has {count} entries; at most {limit} are accepted")]
    TooMany {
        /// The key.
        what: &'static str,
        /// The number of entries.
        count: usize,
        /// The most entries that are accepted.
        limit: usize,
    },
    /// A rank that does not exist.
    #[error("rank {rank} does not exist: {topology} has ranks 0 to {}", .ranks - 1)]
    NoSuchRank {
        /// The rank.
        rank: u64,
        /// How many ranks there are.
        ranks: usize,
        /// The topology's name.
        topology: String,
    },
    /// A local rank that no machine has.
    #[error("local rank {rank} does not exist: the machines of {topology} have local ranks 0 to {}", .ranks - 1)]
    NoSuchLocalRank {
        /// The local rank.
        rank: u64,
        /// How many ranks the largest machine has.
        ranks: usize,
        /// The topology's name.
        topology: String,
    },
    /// The topology is not of the shape that the sketch was written for.
    #[error("this sketch is for {expected}, but {topology} has {found}")]
    WrongShape {
        /// The shape that the sketch states.
        expected: String,
        /// The shape of the topology.
        found: String,
        /// The topology's name.
        topology: String,
        /// A SPEC that fits, if the sketch names one.
        such_as: Option<String>,
    },
    /// A rule that names no link of the topology.
    #[error("{rule} names no link of {topology}")]
    NoSuchLink {
        /// The rule, in words.
        rule: String,
        /// The topology's name.
        topology: String,
        /// What exists nearby, in words.
        nearby: Option<String>,
    },
    /// The sketch forbids every link.
    #[error("no link of {topology} is left: every one is forbidden by this sketch")]
    NothingLeft {
        /// The topology's name.
        topology: String,
    },
    /// A sender from which no allowed link leaves its machine.
    #[error("local rank {rank} is a sender, but no allowed link leads from it to another machine")]
    SenderCannotLeave {
        /// The local rank.
        rank: u64,
    },
    /// Keys that contradict or presuppose each other.
    #[error("{text}")]
    Inconsistent {
        /// What does not fit together.
        text: String,
    },
    /// A symmetry that the topology, or the rest of the sketch, does not have.
    #[error("{symmetry} is not a symmetry of {topology}: {why}")]
    NotASymmetry {
        /// The symmetry, as written.
        symmetry: String,
        /// The topology's name.
        topology: String,
        /// The evidence.
        why: SymmetryRejection,
    },
}

impl Mistake {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { key, accepted } => Some(suggestion(key, accepted)),
            Self::UnknownWord { word, accepted } => Some(suggestion(word, accepted)),
            Self::WrongShape { such_as: Some(spec), .. } => Some(format!("use it with a topology such as {spec}")),
            Self::NoSuchLink { nearby, .. } => nearby.clone(),
            Self::Empty { .. } => Some("name at least one, or leave it out".to_owned()),
            Self::SenderCannotLeave { rank } => {
                Some(format!("add `{rank}: […]` to `relays`, or give its chunks to another sender"))
            }
            Self::NotASymmetry { .. } => {
                Some("remove it, or write `symmetry: auto` to use what the topology has".to_owned())
            }
            _ => None,
        }
    }
}

fn suggestion(given: &str, accepted: &[&str]) -> String {
    let list = accepted.join(", ");
    match closest(given, accepted.iter().copied()) {
        Some(word) => format!("did you mean `{word}`? accepted here: {list}"),
        None => format!("accepted here: {list}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::sketch::SketchFile;
    use expect_test::{Expect, expect};
    use topology::{Latency, Link, Micros, MicrosPerByte, Rank, Topology, TopologyParts};

    /// Two machines of two ranks. Links: 0 ⇄ 1 and 2 ⇄ 3 inside the machines, 0 → 3 and 2 → 1 between them.
    fn two_pairs() -> Topology {
        let link = |(from, to)| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(1e-3),
            latency: Latency::Occupies,
            resources: [].into(),
        };
        let machines = vec![vec![Rank(0), Rank(1)], vec![Rank(2), Rank(3)]];
        let links = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 3), (2, 1)].map(link).into();
        Topology::new(TopologyParts { name: "pairs".into(), ranks: 4, machines, links, resources: vec![] }).unwrap()
    }

    fn check(text: &str, expected: Expect) {
        let sketch = SketchFile::parse(text, "s.yaml").and_then(|file| file.resolve(&two_pairs()));
        let error = sketch.expect_err(text);
        let hint = error.hint().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
        expected.assert_eq(&format!("{error}{hint}"));
    }

    #[test]
    fn spelling() {
        check(
            "name: a\nrelay: {1: [0]}\n",
            expect![[r#"
                s.yaml:2:1: unknown key `relay`
                  hint: did you mean `relays`? accepted here: name, why, topology, links, relays, senders, own_chunks_first, max_machine_hops, symmetry, stages, placement, connections, objective, chunks_per_rank, sizes, strategy, time_limit"#]],
        );
        check(
            "colour: red\n",
            expect![[r#"
                s.yaml:1:1: unknown key `colour`
                  hint: accepted here: name, why, topology, links, relays, senders, own_chunks_first, max_machine_hops, symmetry, stages, placement, connections, objective, chunks_per_rank, sizes, strategy, time_limit"#]],
        );
        check(
            "links:\n  forbids: [[0, 1]]\n",
            expect![[r#"
            s.yaml:2:3: unknown key `forbids`
              hint: did you mean `forbid`? accepted here: forbid, allow_only"#]],
        );
        check(
            "links:\n  forbid:\n    - between_machine\n",
            expect![[r#"
                s.yaml:3:7: unknown word `between_machine`
                  hint: did you mean `between_machines`? accepted here: inside, inside_machine, between, between_machines"#]],
        );
        check(
            "links:\n  forbid:\n    - {form: 0}\n",
            expect![[r#"
            s.yaml:3:8: unknown key `form`
              hint: did you mean `from`? accepted here: class, from, to, both_ways"#]],
        );
        check(
            "relays: directly\n",
            expect![[r#"
            s.yaml:1:1: unknown word `directly`
              hint: did you mean `direct`? accepted here: all, direct"#]],
        );
        check(
            "symmetry: automatic\n",
            expect![[r#"
            s.yaml:1:1: unknown word `automatic`
              hint: accepted here: auto, none"#]],
        );
        check(
            "symmetry: [{rotation: 1}]\n",
            expect![[r#"
                s.yaml:1:13: unknown key `rotation`
                  hint: accepted here: rotate, within, permutation, cycles, map"#]],
        );
        check(
            "connections: minimal\n",
            expect![[r#"
                s.yaml:1:1: unknown word `minimal`
                  hint: accepted here: few, many"#]],
        );
        check(
            "objective: latancy\n",
            expect![[r#"
                s.yaml:1:12: unknown word `latancy`
                  hint: did you mean `latency`? accepted here: latency, bandwidth, balance"#]],
        );
        check(
            "strategy: mlip\n",
            expect![[r#"
            s.yaml:1:11: unknown word `mlip`
              hint: did you mean `milp`? accepted here: auto, orbits, classic, flow, levels, trees, symmetric, matching, improve, milp, exact"#]],
        );
    }

    #[test]
    fn kinds_and_quantities() {
        check(
            "relays:\n",
            expect![
                "s.yaml:1:1: expected `all`, `direct`, or senders with receivers such as `{1: [0], 3: [2]}`, found unit value"
            ],
        );
        check(
            "relays: 3\n",
            expect![
                "s.yaml:1:1: expected `all`, `direct`, or senders with receivers such as `{1: [0], 3: [2]}`, found integer `3`"
            ],
        );
        check("senders: [1]\n", expect!["s.yaml:1:10: expected a map such as `{key: value}`"]);
        check("links: {forbid: 3}\n", expect!["s.yaml:1:17: expected a list such as `[a, b]`"]);
        check("links: {forbid: [[0, 1, 2]]}\n", expect!["s.yaml:1:18: invalid length 3, expected a pair [from, to]"]);
        check("links: {forbid: [[0]]}\n", expect!["s.yaml:1:18: invalid length 1, expected a pair [from, to]"]);
        check("links: {forbid: [[0, -1]]}\n", expect!["s.yaml:1:22: expected a whole number ≥ 0"]);
        check("own_chunks_first: maybe\n", expect!["s.yaml:1:19: expected true or false"]);
        check("chunks_per_rank: 0\n", expect!["s.yaml:1:18: `0` is not a number of chunks (1 or more)"]);
        check("chunks_per_rank: 1000000000000\n", expect!["s.yaml:1:18: expected a whole number ≥ 0"]);
        let many = expect!["s.yaml:1:18: `4000000000` is not a number of chunks up to 16777216"];
        check("chunks_per_rank: 4000000000\n", many);
        check("chunks_per_rank: 1.5\n", expect!["s.yaml:1:18: expected a whole number ≥ 0"]);
        check("max_machine_hops: 0\n", expect!["s.yaml:1:19: `0` is not a number of machine hops (1 or more)"]);
        check(
            "sizes: {from: 1kb}\n",
            expect![
                "s.yaml:1:15: `1kb` is not a size: unknown unit `kb`, did you mean `KB`? (accepted: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, or these without the B)"
            ],
        );
        check(
            "sizes: {from: 2MB, to: 1MB}\n",
            expect!["s.yaml:1:8: `sizes` ends at 1000000 bytes, before it begins at 2000000"],
        );
        check(
            "time_limit: 5 parsecs\n",
            expect![
                "s.yaml:1:13: `5 parsecs` is not a duration: unknown unit `parsecs` (accepted: ns, us, ms, s, m, h)"
            ],
        );
        check("time_limit: 0s\n", expect!["s.yaml:1:13: `0s` is not a time limit above zero"]);
        check(
            "time_limit: .inf\n",
            expect!["s.yaml:1:13: `.inf` is not a duration: it must begin with a plain number ≥ 0"],
        );
    }

    #[test]
    fn the_wrong_topology() {
        check(
            "topology: {machines: 4, such_as: ndv2x4}\n",
            expect![[r#"
            s.yaml:1:11: this sketch is for 4 machines, but pairs has 2 machines
              hint: use it with a topology such as ndv2x4"#]],
        );
        check(
            "topology: {ranks_per_machine: 8}\n",
            expect!["s.yaml:1:11: this sketch is for machines of 8 ranks, but pairs has a machine of 2 ranks"],
        );
        check("links: {forbid: [[0, 4]]}\n", expect!["s.yaml:1:22: rank 4 does not exist: pairs has ranks 0 to 3"]);
        check(
            "links: {forbid: [[0, 1000000000]]}\n",
            expect!["s.yaml:1:22: rank 1000000000 does not exist: pairs has ranks 0 to 3"],
        );
        check(
            "links:\n  forbid:\n    - [1, 3]\n",
            expect![[r#"
            s.yaml:3:7: 1 → 3 names no link of pairs
              hint: rank 1 sends to 0"#]],
        );
        check(
            "links: {forbid: [{from: [0], to: [2]}]}\n",
            expect![[r#"
            s.yaml:1:18: this rule names no link of pairs
              hint: rank 0 sends to 1, 3"#]],
        );
        check(
            "links: {forbid: [{class: inside_machine, from: 2}]}\n",
            expect!["s.yaml:1:48: local rank 2 does not exist: the machines of pairs have local ranks 0 to 1"],
        );
        check(
            "relays: direct\n",
            expect![[r#"
            s.yaml:1:9: `direct` (local rank i to local rank i) names no link of pairs
              hint: between machines there are (local ranks) 0 → 1"#]],
        );
        check(
            "relays:\n  0: [1]\n  1: [0]\n",
            expect![[r#"
            s.yaml:3:7: a relay from local rank 1 to local rank 0 names no link of pairs
              hint: between machines there are (local ranks) 0 → 1"#]],
        );
        check(
            "relays: {0: [7]}\n",
            expect!["s.yaml:1:14: local rank 7 does not exist: the machines of pairs have local ranks 0 to 1"],
        );
        check(
            "relays: {0: [1]}\nsenders:\n  0: [0]\n  1: [1]\n",
            expect![[r#"
            s.yaml:4:3: local rank 1 is a sender, but no allowed link leads from it to another machine
              hint: add `1: […]` to `relays`, or give its chunks to another sender"#]],
        );
    }

    #[test]
    fn nothing_left() {
        check(
            "relays: {}\n",
            expect![[r#"
                s.yaml:1:9: relays is empty, which would let nothing leave its machine
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "relays: {0: []}\n",
            expect![[r#"
                s.yaml:1:13: this list is empty, which would let nothing leave its machine
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "senders: {}\n",
            expect![[r#"
                s.yaml:1:10: senders is empty, which would let nothing leave its machine
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "links: {allow_only: []}\n",
            expect![[r#"
                s.yaml:1:21: links.allow_only is empty, which would forbid every link
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "links: {forbid: []}\n",
            expect![[r#"
                s.yaml:1:17: links.forbid is empty, which would forbid nothing
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "links: {forbid: [{from: []}]}\n",
            expect![[r#"
                s.yaml:1:25: from is empty, which would name no link
                  hint: name at least one, or leave it out"#]],
        );
        check(
            "links: {forbid: [{both_ways: true}]}\n",
            expect!["s.yaml:1:18: a rule needs `from`, `to` or `class`: this one would name every link"],
        );
        check(
            "links: {forbid: [inside_machine, between_machines]}\n",
            expect!["s.yaml:1:17: no link of pairs is left: every one is forbidden by this sketch"],
        );
        check(
            "relays: {0: [1]}\nlinks: {forbid: [inside_machine], allow_only: [inside_machine]}\n",
            expect!["s.yaml:2:47: no link of pairs is left: every one is forbidden by this sketch"],
        );
    }

    #[test]
    fn symmetries_that_are_none() {
        check(
            "symmetry: [{rotate: 1, within: 4}]\n",
            expect![[r#"
            s.yaml:1:12: rotating by 1 within 4 is not a symmetry of pairs: ranks 0 and 1 share a machine, but their images do not
              hint: remove it, or write `symmetry: auto` to use what the topology has"#]],
        );
        check(
            "symmetry: [{rotate: 1, within: 2}]\n",
            expect![[r#"
            s.yaml:1:12: rotating by 1 within 2 is not a symmetry of pairs: link 0 → 3 would become 1 → 2, which does not exist
              hint: remove it, or write `symmetry: auto` to use what the topology has"#]],
        );
        check(
            "symmetry: [{rotate: 1, within: 3}]\n",
            expect!["s.yaml:1:12: `within: 3` does not divide the 4 ranks into blocks"],
        );
        check(
            "symmetry: [{rotate: 1, within: 0}]\n",
            expect!["s.yaml:1:12: `within: 0` does not divide the 4 ranks into blocks"],
        );
        check(
            "symmetry: [{permutation: [0, 1, 2]}]\n",
            expect!["s.yaml:1:26: a permutation lists an image for each of the 4 ranks, not 3"],
        );
        check(
            "symmetry: [{permutation: [0, 1, 2, 2]}]\n",
            expect![[r#"
            s.yaml:1:12: this permutation is not a symmetry of pairs: rank 2 is the image of two ranks, or does not exist
              hint: remove it, or write `symmetry: auto` to use what the topology has"#]],
        );
        check(
            "symmetry: [{permutation: [0, 1, 2, 4]}]\n",
            expect!["s.yaml:1:36: rank 4 does not exist: pairs has ranks 0 to 3"],
        );
        check(
            "symmetry: [{rotate: 1, permutation: [0, 1, 2, 3]}]\n",
            expect!["s.yaml:1:12: a symmetry is one of `rotate` (with `within`), `permutation`, `cycles` and `map`"],
        );
        check(
            "symmetry: [{within: 2}]\n",
            expect!["s.yaml:1:12: a symmetry is one of `rotate` (with `within`), `permutation`, `cycles` and `map`"],
        );
        check(
            "links: {forbid: [[0, 3]]}\nsymmetry: [{rotate: 2}]\n",
            expect![[r#"
            s.yaml:2:12: rotating by 2 within 4 is not a symmetry of pairs: link 0 → 3 would become 2 → 1, which line 1 treats differently
              hint: remove it, or write `symmetry: auto` to use what the topology has"#]],
        );
    }

    #[test]
    fn text_that_is_no_sketch() {
        check(
            "",
            expect!["s.yaml: nothing but comments: a sketch has keys such as `links`, `relays` or `chunks_per_rank`"],
        );
        check("[1, 2]\n", expect!["s.yaml:1:1: expected a map such as `{key: value}`"]);
        check("name: [unclosed\n", expect!["s.yaml:1:7: expected a single value"]);
        check("name: a\nname: b\n", expect!["s.yaml:2:1: key `name` is given twice"]);
        check("name: a\n---\nname: b\n", expect!["s.yaml:2:1: a file holds one sketch"]);
        check("<<: {name: a}\n", expect!["s.yaml:1:1: merge keys (`<<`) are not accepted in sketches"]);
        check("relays: {1: [0], 1: [1]}\n", expect!["s.yaml:1:18: key `1` is given twice"]);
        check("name: *nobody\n", expect!["s.yaml:1:7: alias references unknown anchor"]);
        check("name: \u{0}\n", expect![[r#"s.yaml:1:7: unexpected character: `\u{0}'"#]]);
    }

    #[test]
    fn hostile_text_is_refused_before_it_costs_anything() {
        let nested = format!("links: {{forbid: {}0{}}}", "[".repeat(5000), "]".repeat(5000));
        check(&nested, expect!["s.yaml:1:28: recursion limit exceeded"]);
        let bomb: String = (1..20).map(|n| format!("  - &a{n} [*a{}, *a{}]\n", n - 1, n - 1)).collect();
        check(&format!("links:\n  forbid:\n  - &a0 [0, 1]\n{bomb}"), expect!["s.yaml:4:10: expected string scalar"]);
        let many = "[0, 1],".repeat(80_000);
        check(&format!("links: {{forbid: [{many}]}}"), expect!["s.yaml:1:466673: larger or deeper than any sketch"]);
        let rules = "[0, 1],".repeat(20_000);
        check(
            &format!("links: {{forbid: [{rules}]}}"),
            expect!["s.yaml:1:17: links.forbid has 20000 entries; at most 10000 are accepted"],
        );
        check(&"#".repeat(2 << 20), expect!["s.yaml: a sketch of 2097152 bytes; at most 1048576 are read"]);
        check(
            &format!("name: {}\nx: 1", "a".repeat(500_000)),
            expect![[r#"
                s.yaml:2:1: unknown key `x`
                  hint: accepted here: name, why, topology, links, relays, senders, own_chunks_first, max_machine_hops, symmetry, stages, placement, connections, objective, chunks_per_rank, sizes, strategy, time_limit"#]],
        );
    }
}
