//! Excerpts of programs: each rank computes the digest of the whole from its own steps, and wrong steps give another
//! digest.

use super::options::fused;
use super::schedules::{self, Random};
use super::{STANDARD, checked, lowered};
use crate::{Buffer, Excerpt, RankProgram, VerifiedProgram, digest, has_excerpts, lower, write_excerpts};
use std::io::{self, Cursor};
use topology::Rank;

fn written(program: &VerifiedProgram) -> String {
    let mut text = Vec::new();
    write_excerpts(program, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn read(text: &str, rank: Option<Rank>, digest: &str) -> io::Result<Excerpt> {
    Excerpt::read(&mut Cursor::new(text), rank, digest)
}

#[test]
fn every_rank_finds_its_excerpt_and_the_digest_of_the_whole() {
    for collective in STANDARD {
        for in_place in [false, true] {
            let program = checked(lowered(&schedules::direct(&schedules::demand(collective, 5, 2)), in_place));
            assert!(has_excerpts(&program), "{collective}");
            let (text, whole, digest) = (written(&program), program.program(), digest(program.program()));
            for rank in [None, Some(0), Some(2), Some(4)].map(|rank| rank.map(Rank)) {
                let excerpt = read(&text, rank, &digest).unwrap();
                assert_eq!(excerpt.digest(), digest);
                let excerpt = excerpt.program();
                assert_eq!(
                    (&excerpt.demand, &excerpt.connections, &excerpt.shape),
                    (&whole.demand, &whole.connections, &whole.shape)
                );
                for (index, own) in excerpt.ranks.iter().enumerate() {
                    let is_own = rank == Some(Rank::from_index(index));
                    assert_eq!(*own, if is_own { whole.ranks[index].clone() } else { RankProgram::default() });
                }
            }
            assert!(read(&text, Some(Rank(5)), &digest).is_err());
        }
    }
}

/// A rank notices if its own steps differ from the whole program; the hashes stand for the steps of the others.
#[test]
fn an_excerpt_of_anything_else_is_refused() {
    let program = |chunks| checked(lowered(&schedules::ring_allreduce(3, chunks), false));
    let (text, other) = (written(&program(1)), written(&program(2)));
    let right = digest(program(1).program());
    assert!(read(&other, Some(Rank(1)), &right).is_err());
    let lines: Vec<&str> = text.lines().collect();
    let joined = |lines: &[&str]| lines.join("\n") + "\n";
    assert_eq!(joined(&lines), text);
    for (rank, of) in [(1, 2), (2, 1)] {
        let mut swapped = lines.clone();
        swapped.swap(rank, of);
        assert!(read(&joined(&swapped), Some(Rank(0)), &right).is_err());
        assert!(read(&joined(&swapped), Some(Rank(1)), &right).is_err());
    }
    // A change of any digit, in the head or in the steps, is noticed or changes nothing.
    let mut random = Random(5);
    for _ in 0..300 {
        let mut bytes = text.clone().into_bytes();
        let end = lines[0].len() + 1 + lines[1].len();
        let at = random.below(end);
        let digit = b'0' + random.below(10) as u8;
        // Exceptions: lengths only locate an excerpt, and the size of the request decides nothing.
        if !bytes[at].is_ascii_digit() || bytes[at] == digit {
            continue;
        }
        bytes[at] = digit;
        let Ok(excerpt) = read(std::str::from_utf8(&bytes).unwrap(), Some(Rank(0)), &right) else { continue };
        assert_eq!(excerpt.program().ranks[0], program(1).program().ranks[0]);
        assert_eq!(excerpt.program().connections, program(1).program().connections);
        assert_eq!(excerpt.program().shape, program(1).program().shape);
    }
    for cut in [0, 1, lines[0].len(), lines[0].len() + 5] {
        assert!(read(&text[..cut], Some(Rank(0)), &right).is_err());
    }
}

#[test]
fn programs_that_need_room_or_list_their_chunks_have_no_excerpts() {
    let mut random = Random(9);
    let listed = schedules::random_listed(4, &mut random);
    assert!(!has_excerpts(&checked(lowered(&schedules::direct(&listed), false))));
    let paired = checked(lower(&schedules::ring_allreduce(4, 2), &fused(false)).unwrap());
    assert!(paired.window() > 0 && !has_excerpts(&paired));
    assert_eq!(paired.program().ranks[0].parts(Buffer::Input).len(), 8);
}
