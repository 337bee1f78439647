//! The verifier against hand-made plans, mutations of them, and a second verifier written differently.

mod plans;
mod valid;
