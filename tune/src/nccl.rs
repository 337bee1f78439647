//! What a table chooses for NCCL: which of NCCL's own algorithms a call runs, as NCCL's tuner plugins may say.
//!
//! The principal type is [`NcclRule`]. Rules come from a tuning table, whose plans may be an [`NcclChoice`] instead of a schedule,
//! or from a file with a line for each rule, as NVIDIA's example plugin reads it:
//! `collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks[,pipe_ops[,registered]]`. Both ends of a range belong
//! to it, and −1 stands for any number. Sizes are those of NCCL, which are those of tables: all blocks together.

use crate::files::TableError;
use crate::store::{ChoiceRange, TuningTable};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;

schedule::words! {
    /// An algorithm of NCCL. Its position is NCCL's number.
    NcclAlgorithm {
        /// A binary tree, or two.
        Tree => "tree",
        /// Rings.
        Ring => "ring",
        /// Reduction in the network, every GPU for itself.
        CollNetDirect => "collnet_direct",
        /// Reduction in the network, along a chain of GPUs.
        CollNetChain => "collnet_chain",
        /// Reduction in the NVLink switch.
        Nvls => "nvls",
        /// The same in machines, with a tree between them.
        NvlsTree => "nvls_tree",
        /// Parallel aggregated trees.
        Pat => "pat",
    }
}

schedule::words! {
    /// A protocol of NCCL. Its position is NCCL's number.
    NcclProtocol {
        /// Data and flags together: least latency.
        Ll => "ll",
        /// The same in lines of 128 bytes.
        Ll128 => "ll128",
        /// Bulk slots: most bandwidth.
        Simple => "simple",
    }
}

/// What NCCL is asked to run. As a plan of a [`TuningTable`] it has the key `format` ([`NcclChoice::FORMAT`]) too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NcclChoice {
    /// The algorithm.
    pub algorithm: NcclAlgorithm,
    /// The protocol.
    pub protocol: NcclProtocol,
    /// How many channels; `None` leaves that to NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
}

/// The most channels that NCCL has (`MAXCHANNELS`).
const MOST_CHANNELS: u32 = 64;
/// The most rules of a file.
const MOST_RULES: usize = 1 << 16;

impl NcclChoice {
    /// The format of these plans in a table.
    pub const FORMAT: &str = "antiphon-nccl/1";

    /// The choice that a plan of a table is; `None` if the plan is something else, such as a schedule.
    ///
    /// # Errors
    /// What is wrong with a plan that says it is such a choice.
    pub fn of_plan(plan: &Value) -> Result<Option<Self>, String> {
        if plan.get("format").and_then(Value::as_str) != Some(Self::FORMAT) {
            return Ok(None);
        }
        let choice = Self::deserialize(plan).map_err(|error| error.to_string())?;
        choice.sensible().map(Some)
    }

    /// What a range of a table chooses for NCCL; `None` if that is a schedule, or stock.
    ///
    /// # Errors
    /// [`TableError::Senseless`] as [`Self::of_plan`]; `origin` names the table.
    pub(crate) fn of_range(table: &TuningTable, range: &ChoiceRange, origin: &str) -> Result<Option<Self>, TableError> {
        let Some((name, plan)) = range.plan.as_ref().and_then(|name| Some((name, table.plans.get(name)?))) else {
            return Ok(None);
        };
        let senseless =
            |what| TableError::Senseless { path: origin.to_owned(), what: format!("plan `{name}`: {what}") };
        Self::of_plan(plan).map_err(senseless)
    }

    fn sensible(self) -> Result<Self, String> {
        match self.channels {
            Some(channels) if !(1..=MOST_CHANNELS).contains(&channels) => {
                Err(format!("{channels} channels: NCCL has 1 to {MOST_CHANNELS}"))
            }
            _ => Ok(self),
        }
    }
}

/// The collectives that NCCL's tuner is asked about. The position is NCCL's number.
const COLLECTIVES: [Collective; 5] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// The calls that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclCall {
    /// Which collective.
    pub collective: Collective,
    /// Its size in bytes, all blocks together.
    pub bytes: u64,
    /// How many ranks.
    pub ranks: u64,
    /// On how many machines.
    pub nodes: u64,
    /// How many operations of a group are put together; `None` if NCCL does not say.
    pub pipe_ops: Option<i64>,
    /// Whether the buffers are registered (1) or not (0); `None` if NCCL does not say.
    pub registered: Option<i64>,
}

impl NcclCall {
    /// The collective with this number in NCCL's interface, if its tuner is asked about it.
    pub fn collective(number: i64) -> Option<Collective> {
        COLLECTIVES.get(usize::try_from(number).ok()?).copied()
    }
}

/// A choice, and the calls that it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclRule {
    /// Which collective.
    pub collective: Collective,
    /// From this size on (inclusive), in bytes.
    pub from_bytes: u64,
    /// Up to this size (inclusive), in bytes.
    pub last_bytes: u64,
    /// What to run.
    pub choice: NcclChoice,
    /// On how many machines; `None` for any number.
    pub nodes: Option<u64>,
    /// Among how many ranks; `None` for any number.
    pub ranks: Option<u64>,
    /// For so many operations that are put together; `None` for any number.
    pub pipe_ops: Option<i64>,
    /// For registered buffers (1), or others (0); `None` for both.
    pub registered: Option<i64>,
}

impl NcclRule {
    /// Whether the rule is for a call. What NCCL does not say about a call fits every rule.
    pub fn is_for(&self, call: &NcclCall) -> bool {
        let fits = |rule: Option<i64>, call: Option<i64>| rule.is_none() || call.is_none() || rule == call;
        self.collective == call.collective
            && (self.from_bytes..=self.last_bytes).contains(&call.bytes)
            && self.nodes.is_none_or(|nodes| nodes == call.nodes)
            && self.ranks.is_none_or(|ranks| ranks == call.ranks)
            && fits(self.pipe_ops, call.pipe_ops)
            && fits(self.registered, call.registered)
    }

    /// The rules of a tuning table, for as many ranks and machines as it was measured with. Ranges that choose stock or a
    /// schedule give none.
    ///
    /// # Errors
    /// [`TableError::Senseless`] if a plan says that it is a choice for NCCL and is none; `origin` names the table.
    pub fn of_table(table: &TuningTable, origin: &str) -> Result<Vec<Self>, TableError> {
        let mut rules = Vec::new();
        for (collective, range) in table.ranges() {
            let choice = NcclChoice::of_range(table, range, origin)?;
            rules.extend(choice.and_then(|choice| Self::of_range(table, collective, range, choice)));
        }
        Ok(rules)
    }

    /// The rule for a range of a table in which NCCL shall make this choice; `None` if NCCL's tuner is not asked about the
    /// collective.
    pub(crate) fn of_range(
        table: &TuningTable,
        collective: Collective,
        range: &ChoiceRange,
        choice: NcclChoice,
    ) -> Option<Self> {
        COLLECTIVES.contains(&collective).then(|| Self {
            collective,
            from_bytes: range.from_bytes,
            last_bytes: range.to_bytes.map_or(u64::MAX, |end| end - 1),
            choice,
            nodes: Some(table.key.machines.iter().max().map_or(0, |last| u64::from(*last) + 1)),
            ranks: Some(table.key.ranks as u64),
            pipe_ops: None,
            registered: None,
        })
    }

    /// Reads rules, one a line. Lines that are empty or begin with `#` are comments.
    ///
    /// # Errors
    /// [`TableError::Syntax`] with the line; `origin` names the text.
    pub fn read_csv(text: &str, origin: &str) -> Result<Vec<Self>, TableError> {
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let rule = match rules.len() < MOST_RULES {
                true => Self::parse(line),
                false => Err(format!("more than {MOST_RULES} rules")),
            };
            rules.push(rule.map_err(|message| TableError::Syntax {
                path: origin.to_owned(),
                line: index + 1,
                column: 1,
                message,
            })?);
        }
        Ok(rules)
    }

    fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if !(8..=10).contains(&fields.len()) {
            return Err(format!("{} fields; a rule has 8 to 10", fields.len()));
        }
        let unknown =
            |what: &str, word: &str| format!("there is no {what} `{}`", word.chars().take(40).collect::<String>());
        let collective = COLLECTIVES.into_iter().find(|known| known.as_str() == fields[0]);
        let number = |field: &str| field.parse::<u64>().map_err(|_| unknown("size", field));
        // −1, or nothing, is any number.
        let optional = |at: usize| match fields.get(at).copied().unwrap_or("-1") {
            "-1" => Ok(None),
            field => field.parse::<u32>().map(Some).map_err(|_| unknown("number", field)),
        };
        let channels = optional(5)?;
        let choice = NcclChoice {
            algorithm: NcclAlgorithm::from_word(fields[3]).ok_or_else(|| unknown("algorithm", fields[3]))?,
            protocol: NcclProtocol::from_word(fields[4]).ok_or_else(|| unknown("protocol", fields[4]))?,
            channels,
        };
        let rule = Self {
            collective: collective.ok_or_else(|| unknown("collective", fields[0]))?,
            from_bytes: number(fields[1])?,
            last_bytes: number(fields[2])?,
            choice: choice.sensible()?,
            nodes: optional(6)?.map(u64::from),
            ranks: optional(7)?.map(u64::from),
            pipe_ops: optional(8)?.map(i64::from),
            registered: optional(9)?.map(i64::from),
        };
        if rule.from_bytes > rule.last_bytes {
            return Err(format!("no size is from {} to {}", rule.from_bytes, rule.last_bytes));
        }
        Ok(rule)
    }

    /// Writes rules as [`Self::read_csv`] and NVIDIA's example plugin read them.
    pub fn to_csv(rules: &[Self]) -> String {
        let mut text =
            "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered\n".to_owned();
        let any = |number: Option<i64>| number.unwrap_or(-1);
        let count = |number: Option<u64>| any(number.and_then(|number| i64::try_from(number).ok()));
        for rule in rules {
            let Self { collective, from_bytes, last_bytes, choice, nodes, ranks, pipe_ops, registered } = *rule;
            let NcclChoice { algorithm, protocol, channels } = choice;
            let [algorithm, protocol] = [algorithm.as_str(), protocol.as_str()];
            let [channels, nodes, ranks] = [channels.map(u64::from), nodes, ranks].map(count);
            let [pipe_ops, registered] = [pipe_ops, registered].map(any);
            let collective = collective.as_str();
            // Writing to a text does not fail.
            let _ = writeln!(
                text,
                "{collective},{from_bytes},{last_bytes},{algorithm},{protocol},{channels},{nodes},{ranks},{pipe_ops},{registered}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChoiceRange, TableCell, TableKey};

    fn table() -> TuningTable {
        let range = ChoiceRange::unmeasured;
        let ranges = vec![
            range(0, Some(1), None),
            range(1, Some(65536), Some("nccl-tree-ll")),
            range(65536, Some(1 << 20), Some("ours")),
            range(1 << 20, None, Some("nccl-ring-simple-8")),
        ];
        let plan = |text| serde_json::from_str(text).unwrap();
        TuningTable::new(
            TableKey::of(vec![0, 0, 1, 1], "1"),
            [Collective::AllReduce, Collective::AllToAll]
                .map(|collective| TableCell::of_any(collective, ranges.clone()))
                .into(),
            [
                ("ours", plan(r#"{"format": "antiphon-schedule/1"}"#)),
                ("nccl-tree-ll", plan(r#"{"format": "antiphon-nccl/1", "algorithm": "tree", "protocol": "ll"}"#)),
                (
                    "nccl-ring-simple-8",
                    plan(r#"{"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "simple", "channels": 8}"#),
                ),
            ]
            .map(|(name, plan)| (name.to_owned(), plan))
            .into(),
        )
    }

    #[test]
    fn a_table_gives_rules_for_the_ranges_that_nccl_serves() {
        let table = table();
        assert_eq!(table.check(), Ok(()));
        let rules = NcclRule::of_table(&table, "t").unwrap();
        let text = NcclRule::to_csv(&rules);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "allreduce,1,65535,tree,ll,-1,2,4,-1,-1",
                "allreduce,1048576,18446744073709551615,ring,simple,8,2,4,-1,-1"
            ]
        );
        assert_eq!(NcclRule::read_csv(&text, "t").unwrap(), rules, "what is written is read");
    }

    #[test]
    fn rules_fit_calls_at_their_edges() {
        let rules = NcclRule::of_table(&table(), "t").unwrap();
        let call = |bytes| NcclCall {
            collective: Collective::AllReduce,
            bytes,
            ranks: 4,
            nodes: 2,
            pipe_ops: Some(1),
            registered: None,
        };
        let found = |call: NcclCall| rules.iter().position(|rule| rule.is_for(&call));
        for (bytes, expected) in
            [(0, None), (1, Some(0)), (65535, Some(0)), (65536, None), (1 << 20, Some(1)), (u64::MAX, Some(1))]
        {
            assert_eq!(found(call(bytes)), expected, "{bytes}");
        }
        assert_eq!(found(NcclCall { ranks: 5, ..call(1) }), None);
        assert_eq!(found(NcclCall { nodes: 1, ..call(1) }), None);
        assert_eq!(found(NcclCall { collective: Collective::AllGather, ..call(1) }), None);
        let rules = NcclRule::read_csv("allreduce,0,9,ring,ll,-1,-1,-1,4,1\n", "t").unwrap();
        let registered = |registered| rules[0].is_for(&NcclCall { pipe_ops: Some(4), registered, ..call(9) });
        assert_eq!([Some(1), Some(0), None].map(registered), [true, false, true]);
    }

    #[test]
    fn lines_that_are_no_rules_are_named() {
        for (line, expected) in [
            ("allreduce,0,1,ring,simple,1,1", "7 fields"),
            ("allreduce,0,1,ring,simple,1,1,1,1,1,1", "11 fields"),
            ("alltoall,0,1,ring,simple,1,1,1", "no collective `alltoall`"),
            ("allreduce,0,1,rings,simple,1,1,1", "no algorithm `rings`"),
            ("allreduce,0,1,ring,LL,1,1,1", "no protocol `LL`"),
            ("allreduce,-5,1,ring,ll,1,1,1", "no size `-5`"),
            ("allreduce,2,1,ring,ll,1,1,1", "no size is from 2 to 1"),
            ("allreduce,0,1,ring,ll,0,1,1", "0 channels"),
            ("allreduce,0,1,ring,ll,65,1,1", "65 channels"),
            ("allreduce,0,1,ring,ll,1,-2,1", "no number `-2`"),
            ("allreduce,0,99999999999999999999999,ring,ll,1,1,1", "no size `9"),
        ] {
            let error = NcclRule::read_csv(&format!("# comment\n\n{line}\n"), "rules").unwrap_err().to_string();
            assert!(error.starts_with("rules:3:1: ") && error.contains(expected), "{line}: {error}");
        }
        let mut table = table();
        table
            .plans
            .insert("nccl-tree-ll".to_owned(), serde_json::json!({"format": "antiphon-nccl/1", "algorithm": "x"}));
        let error = NcclRule::of_table(&table, "t").unwrap_err().to_string();
        assert!(error.starts_with("t: plan `nccl-tree-ll`: "), "{error}");
    }
}
