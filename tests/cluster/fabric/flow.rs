//! TCP streams between hosts: the bytes that arrive in a time span, and the time of a small message.

use super::{Cluster, Family, Spec};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A read or write that takes longer than this is a fault of the cluster.
const PATIENCE: Duration = Duration::from_secs(10);

/// When to measure: after the streams have reached their rate, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub warm_up: Duration,
    pub length: Duration,
}

/// A connection between two hosts: the stream of each.
pub(crate) fn connect(cluster: &Cluster, from: usize, to: usize, (nic, family): (usize, Family)) -> [TcpStream; 2] {
    let listener = cluster.within(to, || TcpListener::bind((Spec::address(to, nic, family), 0))).expect("a port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let stream = cluster.within(from, || TcpStream::connect_timeout(&address, PATIENCE)).expect("a connection");
    let (other, _) = listener.accept().expect("who connected is there");
    for stream in [&stream, &other] {
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    }
    [stream, other]
}

/// The rates of simultaneous streams from host to host, each in bytes per second.
pub(crate) fn rates(cluster: &Cluster, flows: &[(usize, usize)], way: (usize, Family), window: Window) -> Vec<f64> {
    let streams: Vec<_> = flows.iter().map(|&(from, to)| connect(cluster, from, to, way)).collect();
    let all = Barrier::new(streams.len());
    std::thread::scope(|scope| {
        let receivers: Vec<_> = streams
            .into_iter()
            .map(|[sender, receiver]| {
                pushing(sender);
                scope.spawn(|| {
                    all.wait();
                    measured(receiver, window)
                })
            })
            .collect();
        receivers.into_iter().map(|thread| thread.join().expect("a stream that flows")).collect()
    })
}

/// A read takes everything that waits in a socket, so that bytes from before the window are not counted in it.
const WHOLE_SOCKET: usize = 8 << 20;

/// The rate at which bytes arrive during the window.
fn measured(mut stream: TcpStream, window: Window) -> f64 {
    let mut data = vec![0; WHOLE_SOCKET];
    let begin = Instant::now() + window.warm_up;
    let mut take = || match stream.read(&mut data) {
        Ok(0) => panic!("the stream ended"),
        Ok(length) => length,
        Err(error) => panic!("the stream stalled: {error}"),
    };
    while Instant::now() < begin {
        take();
    }
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < window.length {
        bytes += take();
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Whether nothing arrives for `limit`, after the bytes under way have arrived.
pub(crate) fn stalls(receiver: &mut TcpStream, limit: Duration) -> bool {
    receiver.set_read_timeout(Some(limit)).expect("a socket option");
    let mut data = vec![0; 64 << 10];
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match receiver.read(&mut data) {
            Ok(0) => panic!("the stream ended"),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return true,
            Err(error) => panic!("reading: {error}"),
        }
    }
    false
}

/// Writes from another thread until the other end closes the connection, or reads nothing for long.
pub(crate) fn pushing(mut stream: TcpStream) -> std::thread::JoinHandle<()> {
    stream.set_write_timeout(Some(3 * PATIENCE)).expect("a socket option");
    std::thread::spawn(move || {
        let data = vec![7; 64 << 10];
        while stream.write_all(&data).is_ok() {}
    })
}

/// The median time of a byte there and back.
pub(crate) fn round_trip(cluster: &Cluster, from: usize, to: usize, turns: usize) -> Duration {
    let [mut here, mut there] = connect(cluster, from, to, (0, Family::V4));
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
    });
    let mut times: Vec<Duration> = (0..turns)
        .map(|_| {
            let start = Instant::now();
            let mut byte = [1];
            here.write_all(&byte).and_then(|()| here.read_exact(&mut byte)).expect("an echo");
            start.elapsed()
        })
        .collect();
    drop(here);
    echo.join().expect("the echo ends with its stream");
    times.sort_unstable();
    times[turns / 2]
}
