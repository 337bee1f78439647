//! "Did you mean …?": the accepted word nearest to a mistyped one.
//!
//! Every parser of user input (SPECs, sketches, the command line) owes its reader this hint, so it lives at the
//! bottom of the workspace.

/// The candidate nearest to `word`, if it is near enough to be a slip: at most one edit in three letters,
/// where swapping two neighbouring letters counts once (Damerau–Levenshtein, optimal string alignment).
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody mistypes a word this long, and the distance costs the product of the lengths.
    if word.len() > 64 {
        return None;
    }
    let allowed = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) =
        (left.to_lowercase().chars().collect(), right.to_lowercase().chars().collect());
    let mut table = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                let mut best = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                    best = best.min(table[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    table[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

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
