//! Compares the chunks that a schedule lists with the chunks that a user asked for.
//!
//! The principal function is [`check_asked`]. A schedule of an alltoallv or a custom collective lists its own chunks. A
//! user who has the byte matrix or the demand file compares the two.

use super::Violation;
use crate::tolerance::differs;
use crate::{Demand, Findings, RankSet};
use std::collections::BTreeMap;
use topology::{Bytes, Micros};

/// The sizes of chunks with the same holders, receivers and release (as bits): in the schedule, and in the user's demand.
type ChunkSizes = BTreeMap<(RankSet, RankSet, bool, u64), [Vec<f64>; 2]>;

/// Compares the demand of a schedule with the demand that was asked for.
pub fn check_asked(claimed: &Demand, asked: &Demand) -> Findings<Violation> {
    let mut classes = ChunkSizes::new();
    for (side, demand) in [claimed, asked].into_iter().enumerate() {
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let release = (chunk.release + Micros::ZERO).0.to_bits();
            let class = (chunk.holders.clone(), chunk.wanted_by.clone(), chunk.combine, release);
            classes.entry(class).or_default()[side].push(demand.bytes_of(id).0);
        }
    }
    let differ = |[claimed, asked]: &mut [Vec<f64>; 2]| {
        claimed.sort_unstable_by(f64::total_cmp);
        asked.sort_unstable_by(f64::total_cmp);
        let equal = |(a, b): (&f64, &f64)| !differs(Micros(*a), Micros(*b));
        claimed.len() != asked.len() || !claimed.iter().zip(asked.iter()).all(equal)
    };
    let wrong = classes.into_iter().filter_map(|((holders, wanted_by, _, release), mut sizes)| {
        let release = Micros(f64::from_bits(release));
        let [claimed, asked] = differ(&mut sizes).then(|| sizes.map(|sizes| describe(&sizes, release)))?;
        Some(Violation::NotAsked { holders, wanted_by, claimed, asked })
    });
    wrong.collect()
}

/// The number of chunks, their bytes, and when they are released.
fn describe(sizes: &[f64], release: Micros) -> String {
    let all = Bytes(sizes.iter().sum());
    let what = match sizes {
        [] => return "nothing".to_owned(),
        [_] => format!("a chunk of {all}"),
        [first, .., last] if first == last => format!("{} chunks of {} each", sizes.len(), Bytes(*first)),
        _ => format!("{} chunks of {all} in all", sizes.len()),
    };
    if release > Micros::ZERO { format!("{what} that start at {release}") } else { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, Request};
    use expect_test::{Expect, expect};

    #[test]
    fn a_matrix_is_compared_entry_by_entry() {
        let of = |matrix: [[u64; 2]; 2], chunks| {
            let request = Request::new(Collective::AllToAllV, 2, 0).with_chunks(chunks);
            Demand::from_matrix(request, &matrix.map(Vec::from)).unwrap()
        };
        let check = |claimed: &Demand, expected: Expect| {
            let found = check_asked(claimed, &of([[0, 6], [4, 2]], 1));
            expected.assert_eq(&found.iter().map(|it| format!("{it}\n")).collect::<String>());
        };
        check(&of([[0, 6], [4, 2]], 1), expect![[""]]);
        check(
            &of([[1, 5], [0, 2]], 1),
            expect![[r#"
                from rank 0 to rank 0 the schedule has a chunk of 1 B, but nothing was asked for
                from rank 0 to rank 1 the schedule has a chunk of 5 B, but a chunk of 6 B was asked for
                from rank 1 to rank 0 the schedule has nothing, but a chunk of 4 B was asked for
            "#]],
        );
        assert_eq!(check_asked(&of([[0, 6], [4, 2]], 2), &of([[0, 6], [4, 2]], 1)).total(), 3);
    }
}
