//! Measuring on a busy computer: whatever else runs there takes time from links that are as fast as its cores let them be,
//! and what has waited meanwhile comes too fast. Two cores that also ran two compilers gave a cable of 2 ms an α of 3.1 to 3.8 ms,
//! and a link of 200 Mbit/s 0.73 of its rate; so a measurement may be repeated twice. What is wrong with the code is wrong in
//! all three.

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
