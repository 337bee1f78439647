//! A long cable: two TAP devices in two namespaces, and a thread for each direction that passes every frame on after a
//! delay. (Many kernels have no `netem`, which could delay frames.)
//!
//! Frames keep the header that describes outstanding work (checksum, segmentation), so that a frame of many segments
//! crosses as one. A cable does not limit the rate; the queues at its ends do.

use super::host::move_to;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The longest frame: 64 KiB of segments, and headers.
const FRAME: usize = 65536 + 256;

/// The most bytes under way in one direction; further frames are lost, as in any queue.
const UNDER_WAY: usize = 8 << 20;

/// A wait ends about this late, so the rest of the delay is a busy wait.
const OVERSHOOT: Duration = Duration::from_micros(60);

/// A cable; when it is dropped, it is cut and its devices are removed.
pub(crate) struct Cable {
    /// Closed to end the threads.
    stop: Option<OwnedFd>,
    directions: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Lays a cable between two new devices, each given by its namespace and name.
    pub(super) fn lay(ends: [(&str, &str); 2], delay: Duration) -> io::Result<Self> {
        let mut devices = Vec::new();
        for (namespace, name) in ends {
            devices.push(Arc::new(super::host::enter(namespace, || tap(name))?));
        }
        let (running, stop) = rustix::pipe::pipe()?;
        let running = Arc::new(running);
        let directions = [(0, 1), (1, 0)].map(|(from, to)| {
            let direction = Direction {
                from: devices[from].clone(),
                to: devices[to].clone(),
                delay,
                running: running.clone(),
                queue: VecDeque::new(),
                bytes: 0,
            };
            let home = ends[from].0.to_owned();
            std::thread::spawn(move || {
                move_to(&home);
                direction.carry();
            })
        });
        Ok(Self { stop: Some(stop), directions: directions.into() })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.directions.drain(..) {
            // A direction prints its errors on stderr itself.
            drop(thread.join());
        }
    }
}

/// A device in the namespace of the calling thread.
fn tap(name: &str) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new().name(name).layer(Layer::L2).offload(true).inherit_enable_state().build_sync()?;
    device.set_nonblocking(true)?;
    Ok(device)
}

/// One direction of a cable.
struct Direction {
    from: Arc<SyncDevice>,
    to: Arc<SyncDevice>,
    delay: Duration,
    running: Arc<OwnedFd>,
    /// Frames with their arrival times.
    queue: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

impl Direction {
    fn carry(mut self) {
        // Without this, a wait may end 50 µs late; if it fails, delays are only less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut frame = vec![0; FRAME];
        while self.wait() {
            // Each round takes the frames that are there, but never delays frames that are due.
            while let Ok(length) = self.from.recv(&mut frame) {
                self.take_in(&frame[..length]);
                self.hand_over();
            }
            self.hand_over();
        }
    }

    fn take_in(&mut self, frame: &[u8]) {
        if self.bytes + frame.len() <= UNDER_WAY {
            self.bytes += frame.len();
            self.queue.push_back((Instant::now() + self.delay, frame.to_vec()));
        }
    }

    fn hand_over(&mut self) {
        while self.queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, frame)) = self.queue.pop_front() else { return };
            self.bytes -= frame.len();
            // A device that is down takes no frames: the frame is lost, as on a cut cable.
            drop(self.to.send(&frame));
        }
    }

    /// Waits until there is a frame, or until one is due; false if the cable was cut.
    fn wait(&self) -> bool {
        let left = self.queue.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let sleep = left.map(|left| left.saturating_sub(OVERSHOOT));
        let timeout = sleep.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let mut ends = [
            PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN),
            PollFd::new(&*self.running, PollFlags::empty()),
        ];
        match poll(&mut ends, timeout.as_ref()) {
            // The other end of the pipe was closed.
            Ok(_) => !ends[1].revents().contains(PollFlags::HUP),
            Err(rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }
}
