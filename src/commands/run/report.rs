//! What a run prints: the table of nccl-tests, or a line of JSON for each call.

use crate::screen::table;
use schedule::{Collective, ReduceOp};
use serde::Serialize;
use topology::Rank;

/// One line of the table.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) collective: Collective,
    pub(super) size_bytes: u64,
    pub(super) count: u64,
    pub(super) dtype: runtime::DType,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: Option<Rank>,
    pub(super) in_place: bool,
    pub(super) time_us: f64,
    pub(super) algbw_gbps: f64,
    pub(super) busbw_gbps: f64,
    pub(super) wrong: u64,
    pub(super) plan: String,
    pub(super) ranks: usize,
    /// Where several plans run at the same time.
    #[serde(flatten)]
    pub(super) together: Option<Together>,
}

/// What a plan that runs beside others has to say of them.
#[derive(Clone, Serialize)]
pub(super) struct Together {
    /// Which of the plans it is, from 1.
    pub(super) number: usize,
    /// The ranks that take part in it.
    pub(super) group: Vec<Rank>,
    /// The time from the common start until the last of all plans was done.
    pub(super) together_us: f64,
}

/// The table of nccl-tests: a line per size, out of place and in place side by side. Where plans run together, a line for
/// each, and how long all of them took.
pub(super) fn report(rows: &[Row]) -> String {
    let dash = || "-".to_owned();
    let half = |row: Option<&Row>| match row {
        Some(row) => [
            format!("{:.2}", row.time_us),
            format!("{:.2}", row.algbw_gbps),
            format!("{:.2}", row.busbw_gbps),
            row.wrong.to_string(),
        ],
        None => std::array::from_fn(|_| dash()),
    };
    let lines = rows.chunk_by(|row, next| !row.in_place && next.in_place).map(|pair| {
        let of = |in_place: bool| pair.iter().find(|row| row.in_place == in_place);
        let row = &pair[0];
        let mut line = vec![
            row.size_bytes.to_string(),
            row.count.to_string(),
            row.dtype.to_string(),
            row.op.map_or_else(dash, |op| op.to_string()),
            row.root.map_or_else(dash, |root| root.to_string()),
        ];
        line.extend(half(of(false)));
        line.extend(half(of(true)));
        let mut plans: Vec<&str> = pair.iter().map(|row| row.plan.as_str()).collect();
        plans.dedup();
        line.push(plans.join(", "));
        if row.together.is_some() {
            let together = |row: Option<&Row>| row.and_then(|row| row.together.as_ref()).map(|all| all.together_us);
            line.extend([of(false), of(true)].map(|row| together(row).map_or_else(dash, |time| format!("{time:.2}"))));
            let ranks = row.together.as_ref().map_or_else(dash, |together| spelled(&together.group));
            line.push(format!("{} by {ranks}", row.collective));
        }
        line
    });
    let header =
        ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw"];
    let is_together = rows.iter().any(|row| row.together.is_some());
    let together: &[_] = if is_together { &["all", "all", "collective"] } else { &[] };
    let header: Vec<_> = header.into_iter().chain(["#wrong", "plan"]).chain(together.iter().copied()).collect();
    let units = "(B)  (elements)  times in µs (median of the global span), GB/s; out of place, then in place";
    let name = match rows.first() {
        Some(_) if is_together => "at the same time  ".to_owned(),
        Some(row) => format!("{} on {} ranks  ", row.collective, row.ranks),
        None => String::new(),
    };
    format!("# {name}{units}\n{}", table(&header, &lines.collect::<Vec<_>>()))
}

/// Ranks for people, neighbours as a range: `0-3,6`.
fn spelled(ranks: &[Rank]) -> String {
    let runs = ranks.chunk_by(|rank, next| rank.0 + 1 == next.0);
    let run = |run: &[Rank]| match run {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_range() {
        let ranks = |ranks: &[u32]| spelled(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(ranks(&[]), "");
        assert_eq!(ranks(&[4]), "4");
        assert_eq!(ranks(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
