//! Words in messages: the accepted word nearest to a mistyped one, quotes that stay short, and counted nouns.
//!
//! The principal functions are [`closest`] and [`shorten`]. Every parser of user input (SPECs, sketches, the command
//! line, plans) uses both, so they are in the lowest crate.

/// The candidate nearest to `word`, if it may be a typing error: at most one edit in three letters, where swapping two
/// neighbouring letters counts as one edit.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A word this long is not a typing error, and the computation takes time proportional to the product of the
    // lengths.
    if word.len() > 64 {
        return None;
    }
    let allowed = (word.chars().count() / 3).max(1);
    let word = word.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&word, &candidate.to_lowercase());
    let near = candidates.into_iter().map(|candidate| (distance(candidate), candidate));
    near.filter(|(distance, _)| *distance <= allowed).min_by_key(|(distance, _)| *distance).map(|(_, found)| found)
}

/// Whether a terminal shows a character where it stands: it is no control character, and does not change the direction of text.
pub fn is_printable(letter: char) -> bool {
    !letter.is_control()
        && !matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first 80 characters of an input, to quote it in a message. Characters that are not printable are escaped: they could do
/// something to a terminal.
pub fn shorten(text: &str) -> String {
    shorten_to(text, 80)
}

/// The same, with at most this many characters.
pub fn shorten_to(text: &str, most: usize) -> String {
    let mut short = String::new();
    for letter in text.chars().take(most) {
        if is_printable(letter) { short.push(letter) } else { short.extend(letter.escape_unicode()) }
    }
    if text.chars().nth(most).is_some() {
        short.push('…');
    }
    short
}

/// A parser's message that quotes its input: of a long message, only the beginning and the end.
pub fn shorten_message(text: &str) -> String {
    const BEGINNING: usize = 200;
    const END: usize = 800;
    let cut = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at += 1;
        }
        at
    };
    if text.len() <= 2 * (BEGINNING + END) {
        return text.to_owned();
    }
    format!("{} … {}", &text[..cut(BEGINNING)], &text[cut(text.len() - END)..])
}

/// `1 rank`, `2 ranks`, `2 switches`.
pub fn counted(count: usize, noun: &str) -> String {
    let plural = match noun {
        _ if count == 1 => "",
        noun if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_cut() {
        assert_eq!(shorten("short"), "short");
        assert_eq!(shorten(&"é".repeat(1000)).chars().count(), 81);
        let message = format!("unknown field `{}`, expected `a` or `b`", "é".repeat(100_000));
        let cut = shorten_message(&message);
        assert!(cut.len() < 1100 && cut.starts_with("unknown field `é") && cut.ends_with("`a` or `b`"), "{cut}");
        assert_eq!(shorten_message("as it is"), "as it is");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([counted(1, "rank"), counted(0, "rank"), counted(2, "switch")], ["1 rank", "0 ranks", "2 switches"]);
    }

    #[test]
    fn suggests_slips_and_nothing_else() {
        for (word, expected) in [
            ("rnig", Some("ring")),
            ("torus2", Some("torus2d")),
            ("Clique", Some("clique")),
            ("r", None),
            ("elephant", None),
            ("", None),
        ] {
            assert_eq!(closest(word, ["ring", "torus2d", "clique"]), expected, "{word}");
        }
    }
}
