//! Small kernels with known faults, and instructions with known results.
#![allow(clippy::unwrap_used, missing_docs)]

use ptx::{Fault, Launch, Machine, Module};

/// A kernel that takes one address, in `%rd1`. Lines of `body` begin at line 10 of the text.
fn kernel(body: &str) -> Module {
    let text = format!(
        ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 p\n)\n{{\n\
         .shared .align 8 .b8 box[64];\nld.param.u64 %rd1, [p];\n{body}\nret;\n}}\n"
    );
    Module::parse(&text).unwrap()
}

/// Runs a kernel with 256 bytes of memory; the memory afterwards.
fn run_on(module: &Module, devices: &[u32], threads: u32, seed: u64) -> Result<Vec<u8>, Fault> {
    let mut machine = Machine::new();
    let memory = machine.allocate(256, 256);
    let launch = Launch { kernel: "k", devices, threads, parameters: &[memory], seed };
    machine.launch(module, &launch)?;
    machine.read(memory, 256)
}

/// How many of some interleavings have a race.
fn races(body: &str, devices: &[u32], threads: u32) -> usize {
    let module = kernel(body);
    let is_race = |seed| match run_on(&module, devices, threads, seed) {
        Err(Fault::Race { .. }) => true,
        Ok(_) => false,
        Err(other) => panic!("{other}"),
    };
    (0..20).filter(|&seed| is_race(seed)).count()
}

/// Block 0 writes and then sets a flag; block 1 waits for the flag and then reads.
fn message(store: &str, load: &str) -> String {
    format!(
        "mov.u32 %r1, %ctaid.x;\nsetp.eq.s32 %p1, %r1, 1;\n@%p1 bra $reader;\nst.global.u32 [%rd1], 7;\n\
         {store} [%rd1+64], 1;\nret;\n$reader:\n{load} %rd2, [%rd1+64];\nsetp.eq.s64 %p2, %rd2, 0;\n@%p2 bra $reader;\n\
         ld.global.u32 %r2, [%rd1];\nst.global.u32 [%rd1+128], %r2;"
    )
}

const STRONG_STORE: &str = "st.release.sys.global.u64";
const STRONG_LOAD: &str = "ld.acquire.sys.global.u64";

#[test]
fn a_release_and_an_acquire_order_two_blocks() {
    let module = kernel(&message(STRONG_STORE, STRONG_LOAD));
    for seed in 0..20 {
        let memory = run_on(&module, &[0, 1], 1, seed).unwrap();
        assert_eq!(memory[128..132], [7, 0, 0, 0], "seed {seed}");
    }
    for (store, load, devices, is_race) in [
        ("st.relaxed.sys.global.u64", STRONG_LOAD, [0, 0], true),
        (STRONG_STORE, "ld.relaxed.sys.global.u64", [0, 0], true),
        ("st.global.u64", STRONG_LOAD, [0, 0], true),
        ("st.volatile.global.u64", "ld.volatile.global.u64", [0, 0], true),
        // Within a device its scope suffices, between devices it does not.
        ("st.release.gpu.global.u64", "ld.acquire.gpu.global.u64", [0, 0], false),
        ("st.release.gpu.global.u64", "ld.acquire.gpu.global.u64", [0, 1], true),
        (STRONG_STORE, "ld.acquire.gpu.global.u64", [0, 1], true),
        ("st.release.gpu.global.u64", STRONG_LOAD, [0, 1], true),
        ("st.release.cta.global.u64", STRONG_LOAD, [0, 0], true),
    ] {
        assert_eq!(races(&message(store, load), &devices, 1) > 0, is_race, "{store}, {load}, {devices:?}");
    }
}

/// In a stream, a device begins its next kernel when its own blocks have ended, and not when those of other devices have.
#[test]
fn kernels_follow_each_other_on_each_device() {
    let write =
        "mov.u32 %r1, %ctaid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], 7;";
    // Block 0 reads what block 1 has written, and the other way round.
    let read = "mov.u32 %r1, %ctaid.x;\nxor.b32 %r1, %r1, 1;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n\
                ld.global.u32 %r2, [%rd3];\nst.global.u32 [%rd3+64], %r2;";
    let run = |devices: &[u32], seed| {
        let (write, read) = (kernel(write), kernel(read));
        let mut machine = Machine::new();
        let parameters = [machine.allocate(256, 256)];
        let launch = Launch { kernel: "k", devices, threads: 1, parameters: &parameters, seed };
        machine.launch_in_order(&[(&write, launch.clone()), (&read, launch)])?;
        machine.read(parameters[0] + 64, 8)
    };
    for seed in 0..20 {
        assert_eq!(run(&[0, 0], seed).unwrap(), [7, 0, 0, 0, 7, 0, 0, 0], "seed {seed}");
        assert!(matches!(run(&[0, 1], seed), Err(Fault::Race { .. })), "seed {seed}");
    }
}

#[test]
fn a_race_names_both_lines() {
    let module = kernel("mov.u32 %r1, %tid.x;\nst.global.u32 [%rd1], %r1;");
    let Err(Fault::Race { first, second, .. }) = run_on(&module, &[0], 2, 1) else { panic!("no race") };
    assert_eq!((first.line, second.line), (11, 11));
    assert_ne!(first.thread, second.thread);
}

#[test]
fn barriers_order_the_threads_of_a_block() {
    // Each thread writes its place, and reads that of its neighbour.
    let place = "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nst.shared.u32 [%rd2], %r1;\n";
    let neighbour = "xor.b32 %r2, %r1, 1;\nmul.wide.u32 %rd3, %r2, 4;\nld.shared.u32 %r3, [%rd3];\nadd.s64 %rd4, %rd1, %rd2;\n\
                     st.global.u32 [%rd4], %r3;";
    let with = format!("{place}bar.sync 0;\n{neighbour}");
    assert_eq!(races(&with, &[0, 0], 4), 20, "two blocks write to the same place");
    assert_eq!(races(&with, &[0], 4), 0);
    let memory = run_on(&kernel(&with), &[0], 4, 3).unwrap();
    assert_eq!([memory[0], memory[4], memory[8], memory[12]], [1, 0, 3, 2]);
    assert_eq!(races(&format!("{place}{neighbour}"), &[0], 4), 20, "without the barrier");
    // A barrier is only for its own block.
    let between = "mov.u32 %r1, %ctaid.x;\nbar.sync 0;\nst.global.u32 [%rd1], %r1;";
    assert_eq!(races(between, &[0, 0], 1), 20);
}

#[test]
fn deadlocks_and_barriers_that_some_do_not_reach() {
    let waits = "$again:\nld.acquire.sys.global.u64 %rd2, [%rd1];\nsetp.eq.s64 %p1, %rd2, 0;\n@%p1 bra $again;";
    for seed in 0..5 {
        match run_on(&kernel(waits), &[0, 1], 2, seed) {
            Err(Fault::Deadlock { waiting }) => {
                assert_eq!(waiting.len(), 4);
                assert!(waiting.iter().all(|place| (10..=13).contains(&place.line)), "{waiting:?}");
            }
            other => panic!("{other:?}"),
        }
        let ended = "mov.u32 %r1, %tid.x;\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 ret;\nbar.sync 0;";
        assert!(matches!(run_on(&kernel(ended), &[0], 3, seed), Err(Fault::Divergence { .. })));
        let other =
            "mov.u32 %r1, %tid.x;\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 bra $other;\nbar.sync 0;\nret;\n$other:\nbar.sync 0;";
        assert!(matches!(run_on(&kernel(other), &[0], 3, seed), Err(Fault::Divergence { .. })));
    }
}

#[test]
fn addresses_are_checked() {
    let fault = |body: &str| run_on(&kernel(body), &[0], 1, 0).unwrap_err();
    for body in [
        "ld.global.u32 %r1, [%rd1+256];",
        "st.global.u64 [%rd1+252], 0;",
        "ld.u32 %r1, [%rd9];",
        "st.shared.u32 [64], 0;",
    ] {
        let fault = fault(body);
        let is_aligned = !body.contains("252");
        assert_eq!(matches!(fault, Fault::OutOfBounds { .. }), is_aligned, "{body}: {fault}");
    }
    for body in
        ["ld.global.u32 %r1, [%rd1+2];", "st.global.v4.u32 [%rd1+8], {%r1, %r1, %r1, %r1};", "st.shared.u64 [4], 0;"]
    {
        assert!(matches!(fault(body), Fault::Misaligned { .. }), "{body}");
    }
    assert!(matches!(fault("mov.u32 %r1, 0;\ndiv.u32 %r2, %r1, %r1;"), Fault::NoResult { .. }));
}

/// The word that an instruction leaves in `%r9`.
fn word(body: &str) -> u32 {
    let memory = run_on(&kernel(&format!("{body}\nst.global.u32 [%rd1], %r9;")), &[0], 1, 0).unwrap();
    u32::from_le_bytes(memory[..4].try_into().unwrap())
}

/// Results by hand, from the description of the instruction set.
#[test]
fn instructions_have_the_results_of_their_description() {
    let two =
        |instruction: &str, x: &str, y: &str| word(&format!("mov.b32 %r1, {x};\nmov.b32 %r2, {y};\n{instruction}"));
    for (instruction, x, y, expected) in [
        ("add.s32 %r9, %r1, %r2;", "-1", "2", 1),
        ("sub.s32 %r9, %r1, %r2;", "1", "2", u32::MAX),
        ("mul.lo.s32 %r9, %r1, %r2;", "65537", "65537", 131_073),
        ("div.s32 %r9, %r1, %r2;", "-7", "2", -3i32 as u32),
        ("div.u32 %r9, %r1, %r2;", "-7", "2", (u32::MAX - 6) / 2),
        ("min.s32 %r9, %r1, %r2;", "-1", "1", u32::MAX),
        ("min.u32 %r9, %r1, %r2;", "-1", "1", 1),
        ("max.s32 %r9, %r1, %r2;", "-1", "1", 1),
        ("shr.u32 %r9, %r1, %r2;", "-1", "28", 15),
        ("shr.s32 %r9, %r1, %r2;", "-16", "2", -4i32 as u32),
        ("shl.b32 %r9, %r1, %r2;", "1", "32", 0),
        ("bfi.b32 %r9, %r1, %r2, 8, 4;", "0xff", "0", 0xf00),
        ("prmt.b32 %r9, %r1, %r2, 0x7531;", "0x33221100", "0x77665544", 0x7755_3311),
        ("prmt.b32 %r9, %r1, %r2, 0x8880;", "0x00000080", "0", 0xffff_ff80),
        ("add.rn.f32 %r9, %r1, %r2;", "0f3F800000", "0f40000000", 0x4040_0000),
        ("mul.rn.f32 %r9, %r1, %r2;", "0f00000001", "0f3F000000", 0),
        ("div.rn.f32 %r9, %r1, %r2;", "0f3F800000", "0f40400000", 0x3eaa_aaab),
        ("setp.lt.f32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "0f7FC00000", "0f00000000", 2),
        ("setp.ltu.f32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "0f7FC00000", "0f00000000", 1),
        ("setp.nan.f32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "0f7FC00000", "0f00000000", 1),
        ("setp.eq.f32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "0f80000000", "0f00000000", 1),
        ("setp.lt.s32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "-1", "0", 1),
        ("setp.lt.u32 %p1, %r1, %r2;\nselp.b32 %r9, 1, 2, %p1;", "-1", "0", 2),
        // To the nearest, ties to even; 65520 is too large for two bytes.
        ("cvt.rn.f16.f32 %rs1, %r1;\ncvt.u32.u16 %r9, %rs1;", "0f3F801000", "0", 0x3c00),
        ("cvt.rn.f16.f32 %rs1, %r1;\ncvt.u32.u16 %r9, %rs1;", "0f3F803000", "0", 0x3c02),
        ("cvt.rn.f16.f32 %rs1, %r1;\ncvt.u32.u16 %r9, %rs1;", "0f477FF000", "0", 0x7c00),
        ("cvt.u16.u32 %rs1, %r1;\ncvt.f32.f16 %r9, %rs1;", "0x0001", "0", 0x3380_0000),
        ("cvt.s64.s32 %rd2, %r1;\nmov.b64 {%r3, %r9}, %rd2;", "-2", "0", u32::MAX),
        (
            "mov.b64 %rd2, {%r1, %r2};\nshr.u64 %rd3, %rd2, 16;\ncvt.u32.u64 %r9, %rd3;",
            "0x11112222",
            "0x33334444",
            0x4444_1111,
        ),
    ] {
        let found = two(instruction, x, y);
        assert_eq!(found, expected, "{instruction} of {x}, {y}: {found:#x}");
    }
}

#[test]
fn what_the_machine_does_not_know_is_refused_by_name() {
    for (line, name) in [
        ("fma.rn.f32 %f1, %f1, %f1, %f1;", "fma.rn.f32"),
        ("add.rz.f32 %f1, %f1, %f1;", "add.rz.f32"),
        ("add.ftz.f32 %f1, %f1, %f1;", "add.ftz.f32"),
        ("atom.global.add.u32 %r1, [%rd1], 1;", "atom.global.add.u32"),
        ("ld.global.nc.u32 %r1, [%rd1];", "nc"),
        ("min.f32 %f1, %f1, %f1;", "min.f32"),
        ("bar.sync 1;", "bar.sync"),
        ("call foo;", "call"),
    ] {
        let text = format!(".visible .entry k(\n)\n{{\n{line}\nret;\n}}\n");
        let error = Module::parse(&text).unwrap_err();
        assert!(error.line == 4 && error.to_string().contains(name), "{line}: {error}");
    }
    assert!(
        Module::parse(".visible .entry k(\n)\n{\nbra $nowhere;\n}\n").unwrap_err().to_string().contains("$nowhere")
    );
}

#[test]
fn a_seed_decides_everything() {
    let module = kernel(&message(STRONG_STORE, STRONG_LOAD));
    let ran = |seed| {
        let mut machine = Machine::new();
        let memory = machine.allocate(256, 256);
        let launch = Launch { kernel: "k", devices: &[0, 1], threads: 1, parameters: &[memory], seed };
        machine.launch(&module, &launch).unwrap().instructions
    };
    assert!((0..10).all(|seed| ran(seed) == ran(seed)));
    assert!((0..10).any(|seed| ran(seed) != ran(0)), "different seeds give different interleavings");
}
