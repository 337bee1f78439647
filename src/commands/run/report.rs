//! The output of a run: a line for each kind of call at each size, printed as soon as it is measured, with the columns
//! of nccl-tests; or the same as CSV, or as a line of JSON (`antiphon-run/1`).

use schedule::{Collective, RankSet, ReduceOp};
use serde::Serialize;
use topology::{Rank, shorten};

/// One line.
#[derive(Serialize)]
pub(super) struct ReportRow {
    pub(super) format: &'static str,
    pub(super) collective: Collective,
    pub(super) size_bytes: u64,
    pub(super) count: u64,
    pub(super) dtype: runtime::DType,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: Option<Rank>,
    pub(super) in_place: bool,
    /// The span of all ranks: the median here, and its spread in the next fields.
    pub(super) time_us: f64,
    pub(super) min_us: f64,
    pub(super) p99_us: f64,
    #[serde(skip)]
    pub(super) max_us: f64,
    #[serde(rename = "algbw_GBps")]
    pub(super) algbw: f64,
    #[serde(rename = "busbw_GBps")]
    pub(super) busbw: f64,
    /// The predicted time on the plan's topology, or on the emulated one; `None` without a model.
    pub(super) predicted_us: Option<f64>,
    /// How many times the prediction the median is.
    pub(super) ratio: Option<f64>,
    pub(super) emulated: bool,
    pub(super) wrong: u64,
    pub(super) plan: String,
    pub(super) ranks: usize,
    /// Only if several plans run at the same time.
    #[serde(flatten)]
    pub(super) together: Option<Together>,
}

/// The `format` of a line.
pub(super) const FORMAT: &str = "antiphon-run/1";

/// Further facts about a plan that runs together with others.
#[derive(Clone, Serialize)]
pub(super) struct Together {
    /// The number of the plan, from 1.
    pub(super) number: usize,
    /// The ranks that take part in it.
    pub(super) group: Vec<Rank>,
    /// The time from the common start until the last of all plans was done.
    pub(super) together_us: f64,
}

/// The columns of the table and their least widths; the last ones are only for plans that run together.
const COLUMNS: [(&str, usize); 19] = [
    ("size", 11),
    ("count", 11),
    ("type", 4),
    ("redop", 5),
    ("root", 4),
    ("call", 4),
    ("time", 9),
    ("min", 9),
    ("p99", 9),
    ("max", 9),
    ("predicted", 9),
    ("ratio", 5),
    ("algbw", 6),
    ("busbw", 6),
    ("#wrong", 6),
    ("plan", 18),
    ("all", 9),
    ("collective", 13),
    ("by", 1),
];
const ALONE: usize = COLUMNS.len() - 3;

/// The title of the table, and its columns.
pub(super) fn header(name: &str, is_together: bool) -> String {
    let units = "# size in bytes, count in elements; time, min, p99, max, predicted in µs; ratio: time ÷ predicted; algbw, busbw in GB/s";
    format!("# {name}\n{units}\n{}", padded(COLUMNS.map(|(name, _)| name.to_owned()).to_vec(), is_together))
}

fn padded(mut cells: Vec<String>, is_together: bool) -> String {
    cells.truncate(if is_together { COLUMNS.len() } else { ALONE });
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    cells.collect::<Vec<_>>().join("  ")
}

fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

impl ReportRow {
    /// A line of the table.
    pub(super) fn line(&self) -> String {
        let time = |time: f64| if time.abs() < 1e15 { format!("{time:.2}") } else { format!("{time:.2e}") };
        let together = self.together.as_ref();
        let cells = vec![
            self.size_bytes.to_string(),
            self.count.to_string(),
            self.dtype.to_string(),
            dash(self.op),
            dash(self.root),
            if self.in_place { "in" } else { "out" }.to_owned(),
            time(self.time_us),
            time(self.min_us),
            time(self.p99_us),
            time(self.max_us),
            dash(self.predicted_us.map(time)),
            dash(self.ratio.map(time)),
            time(self.algbw),
            time(self.busbw),
            self.wrong.to_string(),
            shorten(&self.plan),
            dash(together.map(|all| time(all.together_us))),
            self.collective.to_string(),
            dash(together.map(|all| all.group.iter().copied().collect::<RankSet>())),
        ];
        padded(cells, together.is_some())
    }

    /// The same for spreadsheets; [`CSV`] is the line above the first.
    pub(super) fn csv(&self) -> String {
        let cells = [
            self.collective.to_string(),
            self.size_bytes.to_string(),
            self.count.to_string(),
            self.dtype.to_string(),
            self.op.map(|op| op.to_string()).unwrap_or_default(),
            self.root.map(|root| root.to_string()).unwrap_or_default(),
            self.in_place.to_string(),
            self.time_us.to_string(),
            self.min_us.to_string(),
            self.p99_us.to_string(),
            self.max_us.to_string(),
            self.algbw.to_string(),
            self.busbw.to_string(),
            self.predicted_us.map(|time| time.to_string()).unwrap_or_default(),
            self.ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
            self.emulated.to_string(),
            self.wrong.to_string(),
            quoted(&shorten(&self.plan)),
            self.ranks.to_string(),
        ];
        cells.join(",")
    }
}

/// The names of the columns.
pub(super) const CSV: &str = "collective,size_bytes,count,dtype,op,root,in_place,time_us,min_us,p99_us,max_us,algbw_GBps,busbw_GBps,predicted_us,ratio,emulated,wrong,plan,ranks";

/// A text as a CSV field.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(plan: &str) -> ReportRow {
        ReportRow {
            format: FORMAT,
            collective: Collective::AllReduce,
            size_bytes: 4096,
            count: 1024,
            dtype: runtime::DType::F32,
            op: Some(ReduceOp::Sum),
            root: None,
            in_place: true,
            time_us: 12.345,
            min_us: 11.0,
            p99_us: 14.0,
            max_us: 15.0,
            algbw: 0.33,
            busbw: 0.5,
            predicted_us: None,
            ratio: None,
            emulated: false,
            wrong: 0,
            plan: plan.to_owned(),
            ranks: 4,
            together: None,
        }
    }

    #[test]
    fn every_line_has_a_cell_for_every_column() {
        assert!(row("a \"b\", c").csv().ends_with("false,0,\"a \"\"b\"\", c\",4"));
        let alone = row("ring");
        assert_eq!(alone.csv().split(',').count(), CSV.split(',').count());
        let columns = |header: String| header.lines().last().unwrap_or_default().split_whitespace().count();
        assert_eq!(alone.line().split_whitespace().count(), columns(header("x", false)));
        let together = Some(Together { number: 1, group: vec![Rank(0), Rank(1)], together_us: 13.0 });
        let beside = ReportRow { together, ..alone };
        assert_eq!(beside.line().split_whitespace().count(), columns(header("x", true)));
    }
}
