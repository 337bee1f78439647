//! Measuring on a busy computer: other programs take time from links that are as fast as the cores allow, and data that
//! had to wait meanwhile then arrives too fast.

/// The result of a measurement: an error if it is wrong.
pub(crate) type Checked = Result<(), String>;

pub(crate) fn check(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// At least one of three measurements must be right; prints what was wrong with the others.
pub(crate) fn right_in_three(measure: impl FnMut() -> Checked) {
    for (attempt, result) in (1..=3).zip(std::iter::repeat_with(measure)) {
        match result {
            Ok(()) => return,
            Err(what) => println!("wrong {attempt} of 3 times: {what}"),
        }
    }
    panic!("none of three measurements was right");
}
