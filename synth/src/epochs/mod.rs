//! Time cut into epochs: which departures could matter, how copies spread, and a schedule from departures.
//!
//! The principal types are [`routes::Routes`] and [`time_expanded::TimeExpandedFlow`]; [`timing::schedule_of`] goes back to
//! microseconds. The time-expanded models of `milp` and `exact` use this module.

pub(crate) mod routes;
pub(crate) mod time_expanded;
pub(crate) mod timing;
