//! `antiphon tune verify`: whether a table and all its plans are right, and what in it is doubtful.

use super::show::{read, rows};
use crate::failure::{Failure, Outcome};
use crate::plan::{self, Opened};
use crate::screen::{Screen, bytes};
use comm::PlanTable;
use std::collections::BTreeSet;
use std::path::Path;
use topology::counted;
use tune::{ChoiceRange, NcclChoice, TableCell, TuningTable};

pub(super) fn verify(path: &Path, screen: &Screen) -> Outcome {
    let table = read(path)?;
    verified(path, &table)?;
    let doubts = doubts(&table);
    let (ranges, distinct) = (rows(&table).len(), table.plans.len());
    screen.result(
        &serde_json::json!({
            "format": "antiphon-tune-verify/1", "key": table.key, "valid": true, "ranges": ranges, "plans": distinct,
            "warnings": doubts,
        }),
        || {
            let (ranges, plans) = (counted(ranges, "range"), counted(distinct, "plan"));
            let doubts: Vec<String> = doubts.iter().map(|doubt| format!("\nwarning: {doubt}")).collect();
            format!("{}: {ranges}, {plans}, all valid{}", path.display(), doubts.concat())
        },
    )
}

/// Checks all plans of a table, also those that serve nothing, as they are checked before they serve a call.
pub(super) fn verified(path: &Path, table: &TuningTable) -> Outcome {
    let plans = PlanTable::read(path).map_err(Failure::bad_input)?;
    plans.verify().map_err(|why| Failure::no(anyhow::anyhow!("{}: {why}", path.display())))?;
    for name in unused(table) {
        let content = &table.plans[name];
        if NcclChoice::of_plan(content).is_ok_and(|choice| choice.is_some()) {
            continue;
        }
        let origin = format!("{}, plan `{name}`, which serves nothing", path.display());
        let Opened::Schedule(claim) = plan::claim(&content.to_string(), &origin, None)? else {
            return Err(Failure::bad_input(anyhow::anyhow!("{origin}: it does not list every message")));
        };
        let rejected = |rejection| Failure::no(rejection).context(format!("{origin}: it is not valid"));
        claim.file.verify(&claim.topology).map_err(rejected)?;
    }
    Ok(())
}

fn unused(table: &TuningTable) -> impl Iterator<Item = &String> {
    let used: BTreeSet<&String> = table.ranges().filter_map(|(_, range)| range.plan.as_ref()).collect();
    table.plans.keys().filter(move |name| !used.contains(name))
}

/// What may be a mistake, and harms no call: plans where nobody has measured them, and plans that nothing uses.
fn doubts(table: &TuningTable) -> Vec<String> {
    let unused = unused(table).map(|name| format!("nothing uses the plan `{name}`"));
    table.cells.iter().flat_map(doubts_of).chain(unused).collect()
}

fn doubts_of(cell: &TableCell) -> Vec<String> {
    let measured = |ranges: &[ChoiceRange]| ranges.iter().any(|range| !range.evidence.is_empty());
    let mut doubts = Vec::new();
    for (index, range) in cell.ranges.iter().enumerate() {
        let Some(plan) = &range.plan else { continue };
        let sizes = || range.evidence.iter().map(|evidence| evidence.bytes);
        let named = format!("{}, `{plan}` from {} on", cell.collective, bytes(range.from_bytes));
        let (Some(first), Some(last)) = (sizes().min(), sizes().max()) else {
            doubts.push(format!("{named}: it was not measured there"));
            continue;
        };
        // Beside another measured size, the edge of a range was measured; beyond all of them, nothing was.
        if range.from_bytes < first && !measured(&cell.ranges[..index]) {
            doubts.push(format!("{named}: nothing was measured below {}", bytes(first)));
        }
        if range.to_bytes != last.checked_add(1) && !measured(&cell.ranges[index + 1..]) {
            doubts.push(format!("{named}: nothing was measured above {}", bytes(last)));
        }
        let losses =
            range.evidence.iter().filter(|of| of.choice.samples > 0 && of.choice.median_us >= of.stock.median_us);
        doubts.extend(losses.map(|of| format!("{named}: it was not faster than stock at {}", bytes(of.bytes))));
    }
    doubts
}
