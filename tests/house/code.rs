//! Reads source text: what in it is code, and where an item ends.

/// The text with spaces in place of comments and of what strings contain. Every byte keeps its place.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let is_inside_word = plain.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let hidden = match letter {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            '"' => 1 + quoted(&rest[1..], '"'),
            'r' if !is_inside_word || plain.ends_with('b') => raw(rest).unwrap_or(0),
            // A lifetime has no quote at its end.
            '\'' if rest.starts_with("'\\") => 1 + quoted(&rest[1..], '\''),
            '\'' if rest.chars().nth(2) == Some('\'') => 2 + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ => 0,
        };
        let (first, others) = rest.split_at(hidden.max(letter.len_utf8()));
        match hidden {
            0 => plain.push_str(first),
            _ => plain.extend(first.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' })),
        }
        rest = others;
    }
    plain
}

/// The bytes up to and with the quote that ends a string.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        if letter == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    text.len()
}

/// The bytes of the raw string with which a text begins.
fn raw(text: &str) -> Option<usize> {
    let fences = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let inside = text[1 + fences..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(fences));
    Some(inside.find(&end).map_or(text.len(), |at| 2 + fences + at + end.len()))
}

/// Where the item ends that begins at `at`: after its `;`, or after the brace that closes its body.
pub(super) fn item_end(plain: &str, at: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, letter) in plain[at..].char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if letter == '}' && depth == 0 {
                    return at + offset + 1;
                }
            }
            ';' if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    plain.len()
}

/// A text without the items that are compiled for unit tests only. `plain` is the same text, made by [`plain`].
pub(super) fn without_tests(text: &str, plain: &str) -> String {
    let mut kept = String::new();
    let mut next = 0;
    for (at, _) in plain.match_indices("#[cfg(test)]") {
        if at >= next && (at == 0 || plain[..at].ends_with('\n')) {
            kept.push_str(&text[next..at]);
            next = item_end(plain, at) + 1;
        }
    }
    kept + text.get(next..).unwrap_or("")
}

#[test]
fn strings_and_comments_are_no_code() {
    for (text, code) in [
        ("a // b {\nc", "a       \nc"),
        ("f(\"{\\\"\") + '{' + '\\'' + b'}'", "f(     ) +     +      + b   "),
        ("&'a str, r#\"{\"{\"#, for_r\"\"", "&'a str,         , for_r  "),
        ("/* {\n */ π", "    \n    π"),
    ] {
        assert_eq!(plain(text), code);
        assert_eq!(plain(text).len(), text.len());
    }
}

#[test]
fn only_the_item_for_tests_is_left_out() {
    let text = "#[cfg(test)]\nmod tests;\nfn a() {}\n#[cfg(test)]\nmod more {\n    fn b() { \"}\" }\n}\nfn c() {}\n";
    assert_eq!(without_tests(text, &plain(text)), "fn a() {}\nfn c() {}\n");
}
