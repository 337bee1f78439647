//! From one-sided operations to the messages of a [`Program`].
//!
//! If all accesses of a plan are ordered, its result does not depend on what orders them. So signals, semaphores and
//! barriers are left out, and every step gets its real dependencies: the last writes of the slots that it reads, and
//! the last accesses to the slots that it writes. Data that a threadblock writes to another rank becomes a send by this
//! threadblock and a receive by an additional threadblock of that rank. Data that is read from another rank becomes a
//! send by an additional threadblock there. All steps keep an order in which the plan can run, and wait only for
//! earlier steps, so the program cannot deadlock. [`ProgramBuilder`] makes the steps.

use super::builder::ProgramBuilder;
use super::document::ExecutionPlan;
use super::geometry::{CellSpan, Cells, PlanGeometry};
use super::order::Done;
use super::resolve::{Operand, OperationEffect, Script};
use super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};
use program::{Buffer, Layout, PartShape, Program, RankProgram, Tempo};
use schedule::{Demand, ReduceOp, Request};
use std::sync::Arc;
use topology::Rank;

/// A program, and the operation from which each of its steps comes.
pub(super) struct Converted {
    pub(super) program: Program,
    pub(super) origins: Vec<Vec<Vec<OpAt>>>,
    /// Operations that, in place, overwrite input outside the output.
    pub(super) overwritten: Vec<OpAt>,
}

/// A plan that was judged correct, and the order of its transfers.
pub(super) struct Judged<'a> {
    pub(super) plan: &'a ExecutionPlan,
    pub(super) script: &'a Script,
    pub(super) geometry: &'a PlanGeometry,
    pub(super) cells: &'a Cells,
    pub(super) order: &'a [Done],
}

/// A transfer's place and cells.
struct Moved {
    at: OpAt,
    sources: Vec<CellSpan>,
    targets: Vec<CellSpan>,
}

impl Judged<'_> {
    fn transfers(&self) -> Vec<Moved> {
        let moved = self.order.iter().filter_map(|&Done { at, number, iteration }| {
            let OperationEffect::Transfer { transfers, share, .. } = action_at(self.script, at)? else { return None };
            let transfer = transfers.get(number as usize)?;
            let span = |&operand: &Operand| match iteration {
                Some(iteration) => self.cells.slice(operand, iteration),
                None => self.cells.whole(operand, *share),
            };
            let spans = |operands: &[Operand]| operands.iter().map(span).collect();
            Some(Moved { at, sources: spans(&transfer.sources), targets: spans(&transfer.targets) })
        });
        moved.collect()
    }
}

/// The program of a judged plan, for a call of `size_bytes`.
pub(super) fn convert(
    judged: &Judged<'_>,
    size_bytes: u64,
    op: Option<ReduceOp>,
) -> Result<Converted, Vec<PlanViolation>> {
    let Judged { plan, geometry, cells, .. } = *judged;
    let refuse = |reason: String| vec![PlanViolation { at: PlanLocation::Plan, fault: PlanFault::Invalid { reason } }];
    let mut request = Request::new(geometry.collective, geometry.ranks as usize, size_bytes);
    request.chunks_per_rank = geometry.chunks_per_rank();
    if let (Some(wanted), Some(given)) = (request.op.as_mut(), op) {
        *wanted = given;
    }
    let demand = Arc::new(Demand::new(request).map_err(|error| refuse(error.to_string()))?);
    let layout = Layout::new(demand.clone(), geometry.in_place).map_err(|error| refuse(error.to_string()))?;
    let mut builder = ProgramBuilder::new(plan, geometry, cells, &layout);
    let transfers = judged.transfers();
    let mut overwritten = Vec::new();
    for Moved { at, targets, .. } in &transfers {
        builder
            .shadow(*at, targets, &mut overwritten)
            .map_err(|fault| vec![PlanViolation { at: PlanLocation::Op(*at), fault }])?;
    }
    builder.fill_shadows();
    for Moved { at, sources, targets } in &transfers {
        let placed = |fault| vec![PlanViolation { at: PlanLocation::Op(*at), fault }];
        builder.transfer(*at, sources, targets).map_err(placed)?;
    }
    builder.empty_shadows();
    let parts = geometry.block * geometry.factor;
    let ProgramBuilder { connections, ranks, .. } = builder;
    let mut origins = Vec::with_capacity(ranks.len());
    let mut programs = Vec::with_capacity(ranks.len());
    for (number, rank) in ranks.into_iter().enumerate() {
        let rank_id = Rank::from_index(number);
        let slots = |buffer| vec_of_parts(layout.slots(rank_id, buffer), parts);
        let scratch = cells.scratch_room(number as u32) + rank.shadow.map_or(0, |shadow| shadow.count);
        origins.push(rank.origins);
        programs.push(RankProgram {
            input_parts: slots(Buffer::Input),
            output_parts: slots(Buffer::Output),
            scratch_parts: vec![0; scratch as usize],
            threadblocks: rank.blocks,
        });
    }
    let op = demand.request().op;
    let program = Program {
        demand,
        op,
        in_place: geometry.in_place,
        shape: PartShape::Equal { parts },
        uniform: true,
        connections,
        ranks: programs,
        tempo: Tempo::default(),
    };
    Ok(Converted { program, origins, overwritten })
}

/// Slots of equal blocks: part after part.
fn vec_of_parts(slots: u32, parts: u32) -> Vec<u32> {
    (0..slots).map(|slot| slot % parts.max(1)).collect()
}

fn action_at(script: &Script, at: OpAt) -> Option<&OperationEffect> {
    let actions = script.ranks.get(at.rank as usize)?.get(at.threadblock as usize)?;
    let find = |actions: &[(OpAt, OperationEffect)]| actions.iter().position(|(place, _)| *place == at);
    if at.inner.is_none() {
        return find(actions).map(|place| &actions[place].1);
    }
    let outer = actions.iter().find(|(place, _)| OpAt { inner: None, ..at } == *place)?;
    let OperationEffect::Loop { body, .. } = &outer.1 else { return None };
    find(body).map(|place| &body[place].1)
}
