//! Sums that several ranks want, planned as one.
//!
//! The principal function is [`Planning::plan_as_one`]. Where some ranks have more capacity than others, the slow ones
//! limit both halves of a sum, first when all is collected and then when all is spread. Trees that do both at once keep
//! them busy in both directions all the time.

use super::portfolio::{StrategyLine, chosen};
use super::search::CountSearch;
use super::{Planning, SynthError};
use std::time::Instant;

/// The part of the time left that it may take: the halves rarely lead to anything better.
const PART: f64 = 0.75;

impl<'a> Planning<'a, '_> {
    /// Lets each strategy that plans sums as one do so at the chunk count that promises most.
    ///
    /// # Errors
    /// As [`super::synthesize`].
    pub(super) fn plan_as_one(&self, searches: &mut Vec<CountSearch<'a>>) -> Result<(), SynthError> {
        if self.problems[0].demand.starts_later() {
            // What plans sums as one does not know starts.
            return Ok(());
        }
        let deadline = match self.deadline.remaining() {
            Some(left) if !self.is_alone() => self.deadline.within(left.mul_f64(PART)),
            _ => self.deadline.clone(),
        };
        let is_honoured = |line: &&StrategyLine| !self.problems[0].constraints.exceeds(line.strategy.honours());
        for line in chosen(self.options.strategy).filter(is_honoured) {
            let Some(index) = line.strategy.promising_count(self.problems, &deadline) else { continue };
            while searches.len() <= index && self.open_next(searches) {}
            let (search, started) = (&mut searches[index], Instant::now());
            self.announce(search, line.strategy.name());
            search.planned_as_one.push(line.kind());
            let context = self.context(search, self.options, &deadline);
            match line.strategy.propose_directly(search.problem, &context) {
                Ok(attempts) => self.judge_all(search, attempts, started.elapsed().as_secs_f64()),
                Err(error) => search.refuse(line.strategy.name(), started, error, &self.options.cancel),
            }
        }
        Ok(())
    }
}
