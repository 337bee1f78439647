//! Memory that others than the machine change, and launches that go on a piece at a time.
#![allow(clippy::unwrap_used, missing_docs)]

use ptx::{Fault, Launch, Machine, Module, OutsideMemory, Progress, Running};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that a test changes while a kernel runs.
struct Bytes(Vec<AtomicU8>);

impl OutsideMemory for Bytes {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn load(&self, at: usize, size: usize) -> u64 {
        self.0[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | u64::from(byte.load(Ordering::SeqCst)))
    }

    fn store(&self, at: usize, size: usize, value: u64) {
        let bytes = value.to_le_bytes();
        self.0[at..at + size].iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::SeqCst));
    }
}

/// Waits for a word, then copies the next one behind it, and to its own memory.
const WAITS: &str = ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 p,\n.param .u64 q\n)\n{\n\
    ld.param.u64 %rd1, [p];\nld.param.u64 %rd2, [q];\n$again:\nld.acquire.sys.global.u64 %rd3, [%rd1];\n\
    setp.eq.s64 %p1, %rd3, 0;\n@%p1 bra $again;\nld.global.u32 %r1, [%rd1+8];\nst.global.u32 [%rd1+12], %r1;\n\
    st.global.u32 [%rd2], %r1;\nret;\n}\n";

const AT: u64 = 0x600_0000;

fn memory(bytes: usize) -> Arc<Bytes> {
    Arc::new(Bytes((0..bytes).map(|_| AtomicU8::new(0)).collect()))
}

#[test]
fn a_launch_waits_for_others_and_lets_the_host_in() {
    let (module, outside, mut machine) = (Module::parse(WAITS).unwrap(), memory(19), Machine::new());
    assert!(machine.put(AT, outside.clone()));
    let own = machine.allocate(4, 4);
    let parameters = [AT, own];
    let launch = Launch { kernel: "k", devices: &[0], threads: 2, parameters: &parameters, seed: 3 };
    // Both threads write the same word: that is a race of the test's, unless only one of them runs.
    let launch = Launch { threads: 1, ..launch };
    let mut running: Running<'_> = machine.begin(&[(&module, launch)]).unwrap();
    let mut seen = Vec::new();
    for turn in 0..2000 {
        let progress = running.go_on(&mut machine, 50).unwrap();
        match progress {
            Progress::Ended(_) => break,
            other => seen.push(other),
        }
        // The host uses the machine meanwhile.
        machine.write(own, &[turn as u8; 4]).unwrap();
        if turn == 400 {
            outside.store(8, 4, 77);
            outside.store(0, 8, 1);
        }
    }
    assert!(seen.contains(&Progress::Idles) && seen.contains(&Progress::Runs), "{seen:?}");
    assert_eq!(outside.load(12, 4), 77);
    assert_eq!(machine.read(own, 4).unwrap(), [77, 0, 0, 0]);
    assert_eq!(machine.read(AT + 7, 6).unwrap(), [0, 77, 0, 0, 0, 77]);
    machine.write(AT + 7, &[9; 10]).unwrap();
    assert_eq!((outside.load(6, 1), outside.load(7, 1), outside.load(16, 1), outside.load(17, 1)), (0, 9, 9, 0));
}

#[test]
fn outside_memory_has_bounds_and_an_end() {
    let (module, mut machine) = (Module::parse(WAITS).unwrap(), Machine::new());
    assert!(machine.put(AT, memory(64)));
    assert!(!machine.put(AT + 63, memory(8)) && !machine.put(AT - 7, memory(8)), "there is some already");
    assert!(machine.put(AT + 64, memory(8)) && machine.put(AT - 8, memory(8)));
    assert!(machine.read(AT + 60, 8).is_err(), "across two");
    assert_eq!(machine.allocations(), 3);
    let own = machine.allocate(4, 4);
    let waits = |machine: &mut Machine| {
        let parameters = [AT, own];
        let launch = Launch { kernel: "k", devices: &[0], threads: 1, parameters: &parameters, seed: 3 };
        let mut running = machine.begin(&[(&module, launch)]).unwrap();
        assert_eq!(running.go_on(machine, 5000), Ok(Progress::Idles));
        assert!(matches!(running.deadlock(), Fault::Deadlock { waiting } if waiting.len() == 1));
        assert!(machine.release(AT) && !machine.release(AT));
        running.go_on(machine, 10)
    };
    // What is taken away during a launch is no memory any more.
    assert!(matches!(waits(&mut machine), Err(Fault::OutOfBounds { .. })));
}
