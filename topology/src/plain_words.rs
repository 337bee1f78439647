//! Errors of parsers in the words of people who write files.
//!
//! The principal function is [`plain_words`].

/// What parsers call a value, and what it is for people. A longer name stands before a shorter one that it begins with.
const EXPECTED: [(&str, &str); 20] = [
    ("expected sequence start", "expected a list such as `[…]`"),
    ("expected mapping start", "expected keys with values such as `{key: value}`"),
    ("expected string scalar", "expected a text"),
    ("invalid boolean (true or false expected)", "expected `true` or `false`"),
    ("expected a sequence", "expected a list such as `[…]`"),
    ("expected a boolean", "expected `true` or `false`"),
    ("expected a map", "expected keys with values such as `{key: value}`"),
    ("expected a string", "expected a text"),
    ("expected usize", "expected a whole number ≥ 0"),
    ("expected u64", "expected a whole number ≥ 0"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u8", "expected a whole number from 0 to 255"),
    ("expected i32", "expected a whole number"),
    ("expected i64", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("invalid usize", "expected a whole number ≥ 0"),
    ("invalid u64", "expected a whole number ≥ 0"),
    ("invalid u32", "expected a whole number from 0 to 4294967295"),
    ("invalid u8", "expected a whole number from 0 to 255"),
    ("invalid f64", "expected a number"),
];

/// What JSON's parser calls the value that it found.
const FOUND: [(&str, &str); 9] = [
    ("invalid type: ", "found "),
    ("invalid value: ", "found "),
    ("found integer `", "found the number `"),
    ("found floating point `", "found the number `"),
    ("found string \"", "found the text \""),
    ("found boolean `", "found the word `"),
    ("found sequence", "found a list"),
    ("found map", "found keys with values"),
    ("unknown variant `", "unknown word `"),
];

/// The same error without names of types of this program.
pub(crate) fn plain_words(error: &str) -> String {
    if error.starts_with("EOF while parsing") {
        return "the text ends here, and something is missing: was the file cut off?".to_owned();
    }
    // What a user wrote may stand between the beginning and the end, and stays as it is.
    let mut text = error.to_owned();
    if let Some(start) = text.rfind("expected struct ") {
        text.replace_range(start.., "expected keys with values such as `{key: value}`");
    }
    for (theirs, ours) in EXPECTED {
        if let Some(start) = text.strip_suffix(theirs) {
            text = format!("{start}{ours}");
            break;
        }
    }
    for (theirs, ours) in FOUND {
        if let Some(rest) = text.strip_prefix(theirs) {
            text = format!("{ours}{rest}");
        }
    }
    if text.starts_with("invalid length ") {
        text.replace("invalid length ", "found a list of the length ")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::plain_words;

    #[test]
    fn names_of_types_are_not_shown() {
        for (theirs, ours) in [
            ("invalid type: string \"x\", expected usize", "found the text \"x\", expected a whole number ≥ 0"),
            ("invalid value: integer `-1`, expected usize", "found the number `-1`, expected a whole number ≥ 0"),
            (
                "invalid type: sequence, expected struct File",
                "found a list, expected keys with values such as `{key: value}`",
            ),
            ("EOF while parsing an object", "the text ends here, and something is missing: was the file cut off?"),
            ("invalid u32", "expected a whole number from 0 to 4294967295"),
            ("expected sequence start", "expected a list such as `[…]`"),
            ("missing field `ranks`", "missing field `ranks`"),
            ("unknown field `expected u32`, expected `a`", "unknown field `expected u32`, expected `a`"),
        ] {
            assert_eq!(plain_words(theirs), ours);
        }
    }
}
