//! Files that are read, judged, written, and changed by a slip of the pen.

mod files;
mod mutants;
mod round_trip;
mod waits;
