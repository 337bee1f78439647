//! How fast collectives run on this computer, compared with bounds that are measured on it.
//!
//! Every bound is measured in the same run as the collective, in turns, so that other work on the computer affects
//! both. Run it with `cargo bench -p antiphon --bench execution`.
//!
//! * **Copy bound.** In an AllReduce of S bytes on n ranks each rank must receive at least 2·(n−1)/n·S bytes [1], and
//!   each of them has to be written to memory at least once: a copy of n·2·(n−1)/n·S bytes by all cores together. The
//!   copy rate is that of `memcpy` between buffers of S bytes, on as many threads as there are cores (or ranks, if
//!   fewer) at the same time.
//! * **Loopback.** A plain stream over TCP: messages of the same size, written by one thread and read by another.
//!
//! [1] Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

const ROUNDS: usize = 3;

fn main() {
    println!("{:<44} {:>10} {:>10} {:>10} {:>7}", "what", "µs", "GB/s", "bound µs", "share");
    for (ranks, mib) in [(2, 64), (4, 64), (4, 16), (8, 64)] {
        allreduce(ranks, mib << 20);
    }
    for kib in [64, 1024, 16 << 10, 64 << 10] {
        tcp(kib << 10);
    }
    forms();
    for (transport, ranks) in [("shm", 2), ("shm", 4), ("tcp", 2)] {
        let line =
            format!("--collective allreduce --ranks {ranks} --size 1KB --transport {transport} --iterations 2000");
        let times = run(&line);
        print_row(&format!("allreduce 1KB, {ranks} ranks, {transport}"), times[0], 1000, None);
    }
}

fn print_row(what: &str, time: f64, bytes: usize, bound: Option<f64>) {
    let rate = bytes as f64 / time / 1e3;
    let (bound, share) =
        bound.map_or(Default::default(), |bound| (format!("{bound:.0}"), format!("{:.0} %", bound / time * 100.0)));
    println!("{what:<44} {time:>10.1} {rate:>10.2} {bound:>10} {share:>7}");
}

/// The median times of a run out of place and in place, in µs.
fn run(line: &str) -> Vec<f64> {
    let output = Command::new(env!("CARGO_BIN_EXE_antiphon")).arg("run").args(line.split(' ')).arg("--json").output();
    let output = output.expect("the binary was built with the benchmark");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let time = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).expect("a line of JSON for each measurement");
        assert_eq!(row["wrong"], 0, "{line}");
        row["time_us"].as_f64().expect("a measured time")
    };
    String::from_utf8_lossy(&output.stdout).lines().map(time).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn allreduce(ranks: usize, bytes: usize) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(ranks);
    let (mut times, mut bounds) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..ROUNDS {
        let line = format!("--collective allreduce --ranks {ranks} --size {bytes} --iterations 5 --warmups 2");
        times.iter_mut().zip(run(&line)).for_each(|(times, time)| times.push(time));
        let received = 2.0 * (ranks - 1) as f64 * bytes as f64;
        bounds.push(received / copy_rate(cores, bytes));
    }
    let what = format!("allreduce {} MiB, {ranks} ranks, shm", bytes >> 20);
    let bound = median(bounds);
    for (times, call) in times.into_iter().zip(["", ", in place"]) {
        print_row(&format!("{what}{call}"), median(times), bytes, Some(bound));
    }
}

/// The effect of channels, instances and fused steps: a ring, in which all but the first and last step can be fused.
fn forms() {
    const FORMS: [&str; 5] = ["", " --fuse", " --channels 2", " --instances 2", " --instances 4"];
    let folder = tempfile::tempdir().expect("a place for the plan");
    let plan = folder.path().join("ring.json");
    let plan = plan.to_str().expect("a path in UTF-8");
    let made = "synth --topology ring:4 --collective allreduce --size 64MiB --chunks 1 --strategy classic -o";
    let made = Command::new(env!("CARGO_BIN_EXE_antiphon")).args(made.split(' ')).arg(plan).output();
    assert!(made.expect("the binary was built with the benchmark").status.success(), "a ring is always planned");
    for transport in ["threads", "shm", "tcp"] {
        for (size, iterations) in [(64 << 10, 500), (16 << 20, 10)] {
            let mut times = FORMS.map(|_| Vec::new());
            for _ in 0..ROUNDS {
                for (times, form) in times.iter_mut().zip(FORMS) {
                    let line = format!("{plan} --topology ring:4 --size {size} --transport {transport}");
                    times.push(run(&format!("{line} --iterations {iterations}{form}"))[0]);
                }
            }
            for (times, form) in times.into_iter().zip(FORMS) {
                print_row(&format!("ring {} KiB, 4 ranks, {transport}{form}", size >> 10), median(times), size, None);
            }
        }
    }
}

/// Bytes per µs that this many threads copy together, each between its own buffers.
fn copy_rate(threads: usize, bytes: usize) -> f64 {
    let start = Barrier::new(threads);
    let copy = || {
        let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
        start.wait();
        let begin = Instant::now();
        for _ in 0..8 {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        }
        begin.elapsed().as_secs_f64() * 1e6
    };
    let slowest = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        running.into_iter().map(|thread| thread.join().expect("a copy cannot fail")).fold(0.0, f64::max)
    });
    (8 * threads * bytes) as f64 / slowest
}

/// A broadcast to one other rank is one message.
fn tcp(bytes: usize) {
    let (mut times, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let line = format!("--collective broadcast --ranks 2 --size {bytes} --transport tcp --iterations 20");
        // In place, because out of place the root copies its input as well.
        times.push(run(&line)[1]);
        plain.push(loopback(bytes));
    }
    let size = if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
    print_row(&format!("message of {size}, tcp; bound: loopback"), median(times), bytes, Some(median(plain)));
}

/// The median time of a message over a plain connection, in µs, from the write of its first byte to the read of its
/// last.
fn loopback(bytes: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("this computer has a loopback interface");
    let address = listener.local_addr().expect("a listener has an address");
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    let clock = Instant::now();
    let (starts, ends) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut stream = TcpStream::connect(address).expect("the listener is there");
            stream.set_nodelay(true).expect("a TCP option");
            let data = vec![1u8; bytes];
            let message = |_| {
                begin.wait();
                let start = clock.elapsed();
                stream.write_all(&data).expect("the receiver is there");
                end.wait();
                start
            };
            (0..25).map(message).collect::<Vec<_>>()
        });
        let (mut stream, _) = listener.accept().expect("the sender comes");
        let mut data = vec![0u8; bytes];
        let message = |_| {
            begin.wait();
            stream.read_exact(&mut data).expect("the sender is there");
            let arrival = clock.elapsed();
            end.wait();
            arrival
        };
        let ends: Vec<_> = (0..25).map(message).collect();
        (sender.join().expect("it sends what is received"), ends)
    });
    // The first messages are warm-up.
    median(starts.iter().zip(&ends).skip(5).map(|(start, end)| (*end - *start).as_secs_f64() * 1e6).collect())
}
