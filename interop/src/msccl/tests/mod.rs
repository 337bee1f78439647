//! Files that are read, judged, written, and changed by small mistakes.

mod files;
mod mutants;
mod round_trip;
mod waits;
