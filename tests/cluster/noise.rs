//! Measuring on a busy computer: whatever else runs there takes time from links that are as fast as its cores let them be,
//! and what has waited meanwhile comes too fast.

/// What is wrong with a measurement.
pub(crate) type Checked = Result<(), String>;

pub(crate) fn check(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// A measurement is right, of three at most.
pub(crate) fn assert_once(measure: impl FnMut() -> Checked) {
    let mut wrong = Vec::new();
    for attempt in std::iter::repeat_with(measure).take(3) {
        match attempt {
            Ok(()) => return,
            Err(what) => wrong.push(what),
        }
    }
    panic!("{wrong:#?}");
}
