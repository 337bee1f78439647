//! The tuning table: for every collective, a map from all sizes to plans, without overlaps.
//!
//! The principal type is [`Table`]. Sizes between two measured ones get the plan of the smaller one. Below the smallest
//! and above the largest measured size stock is used, because nothing was measured there.

use crate::files::{self, TableError};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of stock in a table.
pub const STOCK: &str = "stock";

/// An algorithm to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// `stock`, or the name of a strategy.
    pub name: String,
    /// The schedule file, relative to the table; absent for stock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// One measured size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The operation.
    pub collective: Collective,
    /// From this size on (inclusive), in bytes.
    pub from_bytes: u64,
    /// Up to this size (exclusive), in bytes.
    pub to_bytes: u64,
    /// The algorithm to run.
    pub plan: Plan,
    /// Median of the plan at `from_bytes`, in microseconds.
    pub median_us: f64,
    /// Median of stock at `from_bytes`, in microseconds.
    pub stock_us: f64,
}

/// Measured sizes on one topology, with the best algorithm for each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Always [`Table::FORMAT`].
    pub format: String,
    /// Name of the topology it was measured on.
    pub topology: String,
    /// Digest of that topology.
    pub digest: String,
    /// How many ranks.
    pub ranks: usize,
    /// The entries, by collective and size.
    pub entries: Vec<Entry>,
}

impl Table {
    /// The format tag of the files.
    pub const FORMAT: &str = "antiphon-tuning/1";

    /// A table of measured sizes. The range of a size ends at the next measured size of the same collective; the range
    /// of the last size contains only this size.
    pub fn new(topology: &topology::Topology, mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| (entry.collective, entry.from_bytes));
        for index in 0..entries.len() {
            let next = entries.get(index + 1).filter(|next| next.collective == entries[index].collective);
            entries[index].to_bytes = next.map_or(entries[index].from_bytes + 1, |next| next.from_bytes);
        }
        let (topology, digest, ranks) = (topology.name().to_owned(), topology.digest(), topology.rank_count());
        Self { format: Self::FORMAT.to_owned(), topology, digest, ranks, entries }
    }

    /// The algorithm to run; `None` means stock (nothing better was measured there).
    pub fn lookup(&self, collective: Collective, size_bytes: u64) -> Option<&Plan> {
        let after =
            self.entries.partition_point(|entry| (entry.collective, entry.from_bytes) <= (collective, size_bytes));
        let entry = &self.entries[after.checked_sub(1)?];
        let hit = entry.collective == collective && size_bytes < entry.to_bytes && entry.plan.name != STOCK;
        hit.then_some(&entry.plan)
    }

    /// Reads and checks a table.
    ///
    /// # Errors
    /// [`TableError`] with the position of the mistake.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let table: Self = files::read(path)?;
        table.check()?;
        Ok(table)
    }

    /// Writes the table so that a reader sees the old one or the new one, never a mixture.
    ///
    /// # Errors
    /// [`TableError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        files::write(self, path)
    }

    fn check(&self) -> Result<(), TableError> {
        for pair in self.entries.windows(2) {
            let [first, second] = pair else { continue };
            let ordered = (first.collective, first.from_bytes) < (second.collective, second.from_bytes);
            let disjoint = first.collective != second.collective || first.to_bytes <= second.from_bytes;
            if !ordered || !disjoint {
                let (collective, first, second) = (first.collective, first.from_bytes, second.from_bytes);
                return Err(TableError::Overlap { collective, first, second });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{Topology, TopologyParts};

    fn table() -> Table {
        let topology = Topology::new(TopologyParts { name: "two".into(), ranks: 2, ..TopologyParts::default() });
        let entry = |from_bytes, name: &str| Entry {
            collective: Collective::AllGather,
            from_bytes,
            to_bytes: 0,
            plan: Plan { name: name.into(), file: (name != STOCK).then(|| format!("{name}.json")) },
            median_us: 1.0,
            stock_us: 2.0,
        };
        Table::new(&topology.unwrap(), vec![entry(4096, STOCK), entry(1024, "matching"), entry(8192, "milp")])
    }

    #[test]
    fn lookup_is_exact_at_every_edge_and_stock_outside() {
        let table = table();
        let name = |size| table.lookup(Collective::AllGather, size).map(|plan| plan.name.as_str());
        for (size, expected) in [
            (0, None),
            (1023, None),
            (1024, Some("matching")),
            (4095, Some("matching")),
            (4096, None),
            (8191, None),
            (8192, Some("milp")),
            (8193, None),
            (u64::MAX, None),
        ] {
            assert_eq!(name(size), expected, "{size} bytes");
        }
        assert_eq!(table.lookup(Collective::AllReduce, 1024), None);
    }

    #[test]
    fn written_tables_read_back_and_broken_ones_say_where() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        table().write(&path).unwrap();
        assert_eq!(Table::read(&path).unwrap(), table());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(Table::read(&path), Err(TableError::Syntax { line, .. }) if line > 1));
        let mut overlapping = table();
        overlapping.entries[0].to_bytes = 5000;
        overlapping.write(&path).unwrap();
        assert!(matches!(Table::read(&path), Err(TableError::Overlap { first: 1024, second: 4096, .. })));
    }
}
