//! Processes that may not or cannot take part: strangers, other jobs, absent ranks, and ranks that fail before or after
//! they join.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn strangers_at_the_rendezvous_do_not_matter() {
    // On a busy computer the ranks may have met before the stranger gets to knock: then they meet once more.
    let knocks = std::iter::repeat_with(meeting_with_a_stranger).take(20).find(|&knocks| knocks > 0);
    assert!(knocks.is_some(), "the stranger never came in time");
}

/// Ranks meet while a stranger connects again and again; how often that succeeded.
fn meeting_with_a_stranger() -> usize {
    let (port, over) = (free_port(), AtomicBool::new(false));
    let knock = || {
        let mut said = 0;
        while !over.load(Ordering::Relaxed) {
            match std::net::TcpStream::connect(("127.0.0.1", port)) {
                Ok(mut stream) => {
                    let _ = stream.write_all([b"GET / HTTP/1.1\r\n\r\n", &[255; 200][..]][said % 2]);
                    said += 1;
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        said
    };
    std::thread::scope(|scope| {
        let knocking = scope.spawn(knock);
        let run = Launched::start(&["a", "b", "b"], "run --collective allreduce --size 10KB --json -q", |rank| {
            (format!("--rank {rank} --world-size 3 --master 127.0.0.1:{port}"), Vec::new())
        });
        let ran = run.end();
        over.store(true, Ordering::Relaxed);
        assert_right(ran, 2);
        knocking.join().unwrap()
    })
}

#[test]
fn another_secret_another_size_and_an_absent_rank_are_named_everywhere() {
    let secret = |rank: usize| {
        let text = if rank == 1 { "another secret, which is wrong" } else { "the secret of this whole job" };
        vec![("ANTIPHON_SECRET".to_owned(), text.to_owned())]
    };
    let port = free_port();
    let arguments = "run --collective allreduce --size 1KB --ready-timeout 3s";
    let run = Launched::start(&["a", "b"], arguments, |rank| {
        (format!("--rank {rank} --world-size 2 --master 127.0.0.1:{port}"), secret(rank))
    });
    let ran = run.end();
    assert!(ran.iter().all(|ran| ran.code == 1 && ran.stderr.contains("--secret-file")), "{}", ran[0].stderr);
    assert!(ran[0].stderr.contains("rank 1 did not come"), "{}", ran[0].stderr);
    assert!(ran[1].stderr.contains("does not belong to this job"), "{}", ran[1].stderr);

    let port = free_port();
    let run = Launched::start(&["a", "b"], arguments, |rank| {
        (format!("--rank {rank} --world-size {} --master 127.0.0.1:{port}", rank + 2), Vec::new())
    });
    let ran = run.end();
    for ran in ran {
        assert!(ran.code == 1 && ran.stderr.contains("one of 3 ranks, rank 0 as one of 2"), "{}", ran.stderr);
    }

    let port = free_port();
    let run = Launched::start(&["a", "b"], arguments, |rank| {
        (format!("--rank {rank} --world-size 4 --master 127.0.0.1:{port}"), Vec::new())
    });
    for ran in run.end() {
        assert!(ran.code == 1 && ran.stderr.contains("ranks 2, 3 did not come"), "{}", ran.stderr);
    }
}

#[test]
fn a_rank_that_cannot_take_part_says_why_and_nobody_waits_for_it() {
    let good = "run --collective allreduce --size 1KB";
    let cases = [
        (0, "run nowhere.json", "nowhere.json"),
        (0, "run --collective allreduce --size 1KB --no-such-option", "--no-such-option"),
        (1, "run --collective allreduce --size 1KB --no-such-option", "--no-such-option"),
        (2, "run --collective allreduce --size 1KB --interface nowhere7", "nowhere7"),
    ];
    for (odd, bad, expected) in cases {
        let port = free_port();
        let begin = Instant::now();
        let run = Launched::start(&["a", "a", "b", "c"], "", |rank| {
            let line = if rank == odd { bad } else { good };
            (format!("{line} --rank {rank} --world-size 4 --master 127.0.0.1:{port}"), Vec::new())
        });
        for (rank, ran) in run.end().into_iter().enumerate() {
            let words = &ran.stderr;
            assert_eq!(ran.code, if rank == odd { 2 } else { 1 }, "{bad}: rank {rank}: {words}");
            assert!(words.contains(expected), "{bad}: rank {rank}: {words}");
            assert!(rank == odd || words.contains(&format!("rank {odd} cannot take part")), "rank {rank}: {words}");
        }
        assert!(begin.elapsed() < Duration::from_secs(15), "{bad}: others waited {:?}", begin.elapsed());
    }
}

#[test]
fn a_rank_0_that_fails_later_tells_the_others() {
    // No temporary file can be written, which is noticed after all have joined; and memory cannot be shared between
    // machines.
    for (options, variable, expected) in
        [("", ("TMPDIR", "/nowhere/at/all"), "temporary file"), ("--transport shm", ("NOTHING", ""), "share no memory")]
    {
        let (port, begin) = (free_port(), Instant::now());
        let run = Launched::start(&["a", "b", "b"], "run --collective allreduce --size 1KB", |rank| {
            let variable = [(variable.0.to_owned(), variable.1.to_owned())];
            (format!("{options} --rank {rank} --world-size 3 --master 127.0.0.1:{port}"), variable.into())
        });
        for (rank, ran) in run.end().into_iter().enumerate() {
            assert!(ran.code != 0 && ran.stderr.contains(expected), "rank {rank}: {}", ran.stderr);
        }
        assert!(begin.elapsed() < Duration::from_secs(15), "{expected}: {:?}", begin.elapsed());
    }
}
