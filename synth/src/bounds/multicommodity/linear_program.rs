//! The linear program of a concurrent flow, solved by HiGHS.
//!
//! The principal function is [`solve`].

use super::{Commodity, ConcurrentFlow};
use crate::problem::{Deadline, Problem};
use good_lp::solvers::highs::{HighsParallelType, HighsSolverType};
use good_lp::{
    Expression, ProblemVariables, Solution, SolutionStatus, SolutionWithDual, SolverModel, Variable, constraint,
    solvers::DualValues, solvers::highs::highs, variable,
};
use topology::LinkId;

/// The most simplex iterations. Flows take fewer iterations than columns, so the limit is reached only with bad
/// numerics.
const ITERATIONS: i32 = 50_000;

/// The optimal flow. `None` if nothing has to move or moving takes no time, if the solver fails, or if the time is up.
pub(super) fn solve(problem: &Problem, commodities: Vec<Commodity>, deadline: &Deadline) -> Option<ConcurrentFlow> {
    LinearProgram::new(problem, commodities)?.solve(deadline)
}

/// The linear program, scaled such that the largest demand of a rank and the largest β are 1.
struct LinearProgram<'a> {
    problem: &'a Problem,
    commodities: Vec<Commodity>,
    variables: ProblemVariables,
    /// T, which is minimised.
    time: Variable,
    /// The flow by commodity and link; `None` where it must be zero, or may be without loss.
    flow: Vec<Vec<Option<Variable>>>,
    unit_bytes: f64,
    unit_beta: f64,
}

impl<'a> LinearProgram<'a> {
    fn new(problem: &'a Problem, commodities: Vec<Commodity>) -> Option<Self> {
        let topology = &problem.topology;
        let unit_bytes = commodities.iter().flat_map(|commodity| &commodity.wanted).copied().fold(0.0, f64::max);
        let unit_beta = topology.links().iter().map(|link| link.beta.0).fold(0.0, f64::max);
        if unit_bytes == 0.0 || unit_beta == 0.0 {
            return None;
        }
        let mut variables = ProblemVariables::new();
        let time = variables.add(variable().min(0.0));
        let mut column = |commodity: &Commodity, link: LinkId| {
            let chunk = commodity.chunks[0];
            let returns = problem.demand.chunk(chunk).holders.has(topology.link(link).to);
            (!returns && problem.allows(chunk, link)).then(|| variables.add(variable().min(0.0)))
        };
        let mut row = |commodity| topology.link_ids().map(|link| column(commodity, link)).collect();
        let flow = commodities.iter().map(&mut row).collect();
        Some(Self { problem, commodities, variables, time, flow, unit_bytes, unit_beta })
    }

    fn solve(self, deadline: &Deadline) -> Option<ConcurrentFlow> {
        let topology = &self.problem.topology;
        let mut model = self.variables.minimise(self.time).using(highs);
        model = model.set_solver(HighsSolverType::Simplex).set_parallel(HighsParallelType::Off).set_threads(1);
        model = model.set_option("simplex_iteration_limit", ITERATIONS);
        if let Some(remaining) = deadline.remaining() {
            model = model.set_time_limit(remaining.as_secs_f64());
        }

        // A rank keeps what it wants: Σ_in f − Σ_out f = wanted.
        for (commodity, flow) in self.commodities.iter().zip(&self.flow) {
            let holders = &self.problem.demand.chunk(commodity.chunks[0]).holders;
            for rank in topology.ranks().filter(|&rank| !holders.has(rank)) {
                let over = |links: &[LinkId]| sum(links.iter().filter_map(|link| flow[link.index()]));
                let stays = over(topology.incoming(rank)) - over(topology.outgoing(rank));
                model.add_constraint(constraint!(stays == commodity.wanted[rank.index()] / self.unit_bytes));
            }
        }
        // No link or resource is busy for longer than T: β·Σ f ≤ T for each link, and for each resource over its links.
        let carried = |link: LinkId| sum(self.flow.iter().filter_map(|flow| flow[link.index()]));
        let mut within_time = |beta: f64, bytes: Expression| {
            model.add_constraint(constraint!(beta / self.unit_beta * bytes <= self.time))
        };
        let of_link = |link: LinkId| within_time(topology.link(link).beta.0, carried(link));
        let link_rows: Vec<_> = topology.link_ids().map(of_link).collect();
        let of_resource = |(index, resource): (usize, &topology::Resource)| {
            let users = topology.users(topology::ResourceId::from_index(index));
            within_time(resource.beta.0, users.iter().map(|&link| carried(link)).sum())
        };
        let resource_rows: Vec<_> = topology.resources().iter().enumerate().map(of_resource).collect();

        let mut solution = model.solve().ok().filter(|it| matches!(it.status(), SolutionStatus::Optimal))?;
        let mut commodities = self.commodities;
        for (commodity, columns) in commodities.iter_mut().zip(&self.flow) {
            for (bytes, column) in commodity.flow.iter_mut().zip(columns) {
                *bytes = column.map_or(0.0, |column| solution.value(column).max(0.0) * self.unit_bytes);
            }
        }
        // A row `busy ≤ T` of a minimisation has a dual ≤ 0; rounding may give a tiny value of the other sign.
        let duals = solution.compute_dual();
        let price = |row| (-duals.dual(row)).max(0.0);
        let link_prices = link_rows.into_iter().map(price).collect();
        let resource_prices = resource_rows.into_iter().map(price).collect();
        Some(ConcurrentFlow { commodities, link_prices, resource_prices })
    }
}

fn sum(variables: impl Iterator<Item = Variable>) -> Expression {
    variables.map(Expression::from).sum()
}
