//! The time-expanded 0/1 strategy.

mod solver;
