//! Files that deadlock or lose count, although each of their steps is right.

use super::super::*;
use expect_test::{Expect, expect};

/// Two ranks that exchange their chunks in place; rank 0 has more threadblocks.
fn pair(more: &str) -> Algorithm {
    let rank = |id: u32, more: &str| {
        let peer = 1 - id;
        format!(
            r#"<gpu id="{id}" i_chunks="1" o_chunks="2" s_chunks="0">
<tb id="0" send="{peer}" recv="{peer}" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{id}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{peer}" cnt="1" depid="-1" deps="-1" hasdep="1"/>
</tb>
{more}
</gpu>
"#
        )
    };
    let header = r#"<algo name="pair" proto="Simple" nchannels="2" nchunksperloop="2" ngpus="2" coll="allgather" inplace="1" outofplace="0" minBytes="0" maxBytes="0">"#;
    parse(&format!("{header}\n{}{}</algo>\n", rank(0, more), rank(1, "")), "pair.xml").unwrap().algorithm
}

/// A threadblock without peers, with copies of the rank's chunk to itself.
fn idle(id: u32, waits: &[(i32, i32)]) -> String {
    let step = |(number, (block, step)): (usize, &(i32, i32))| {
        format!(
            r#"<step s="{number}" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="{block}" deps="{step}" hasdep="1"/>"#
        )
    };
    let steps: Vec<String> = waits.iter().enumerate().map(step).collect();
    format!("<tb id=\"{id}\" send=\"-1\" recv=\"-1\" chan=\"0\">\n{}\n</tb>\n", steps.join("\n"))
}

fn check_verdict(more: &str, expected: Expect) {
    let verdict = judge(&pair(more), Dialect::Executor, 1000);
    assert_eq!(verdict.calls.is_empty(), !verdict.violations.is_empty());
    expected.assert_eq(&verdict.violations.iter().map(|violation| format!("{violation}\n")).collect::<String>());
}

#[test]
fn steps_that_do_nothing_wait_all_the_same() {
    let right = [idle(1, &[(0, 1), (2, 0)]), idle(2, &[(1, 0), (1, 1)])].concat();
    check_verdict(&right, expect![""]);
    let circle = [idle(1, &[(2, 0)]), idle(2, &[(1, 0)])].concat();
    check_verdict(
        &circle,
        expect![[r#"
            8:1: deadlock: 2 steps of rank 0 wait for each other in a cycle (with 11:1)
        "#]],
    );
    let round_about = [idle(1, &[(-1, -1), (2, 1)]), idle(2, &[(3, 0), (-1, -1)]), idle(3, &[(1, 1)])].concat();
    check_verdict(
        &round_about,
        expect![[r#"
            9:1: deadlock: 4 steps of rank 0 wait for each other in a cycle (with 13:1, 12:1, 16:1)
        "#]],
    );
}

/// The receive waits for a copy to itself, which waits for a step after the receive.
#[test]
fn a_cycle_may_pass_through_steps_that_move_data() {
    let mut file = pair(&idle(1, &[(0, 2)]));
    let steps = &mut file.gpus[0].blocks[0].steps;
    let copy = StepElement { number: 2, kind: StepType::Send, after: None, announces: true, ..steps[0] };
    steps.push(copy);
    steps[1].after = Some((1, 0));
    let verdict = judge(&file, Dialect::Executor, 1000);
    let kinds: Vec<&str> = verdict.violations.iter().map(FileViolation::kind).collect();
    assert_eq!(kinds, ["deadlock"]);
}

#[test]
fn an_idle_threadblock_shares_no_peer_and_channel() {
    let block = |channel| format!(r#"<tb id="1" send="1" recv="-1" chan="{channel}"></tb>"#);
    check_verdict(&block(1), expect![""]);
    check_verdict(
        &block(0),
        expect![[r#"
            7:1: another threadblock of rank 0 sends to rank 1 on channel 0 as well; the runtimes lose count of the messages (with 3:1)
        "#]],
    );
}

/// Two ranks that both send all their chunks before they receive any.
fn ahead(chunks: u32, protocol: &str) -> Algorithm {
    let rank = |id: u32| {
        let peer = 1 - id;
        let step = |number: u32, kind: &str, from: u32, to: u32| {
            format!(
                r#"<step s="{number}" type="{kind}" srcbuf="i" srcoff="{from}" dstbuf="o" dstoff="{to}" cnt="1" depid="-1" deps="-1" hasdep="0"/>"#
            )
        };
        let sends = (0..chunks).map(|chunk| step(chunk, "s", chunk, id * chunks + chunk));
        let receives = (0..chunks).map(|chunk| step(chunks + chunk, "r", chunk, peer * chunks + chunk));
        let steps: Vec<String> = sends.chain(receives).collect();
        format!(
            r#"<gpu id="{id}" i_chunks="{chunks}" o_chunks="{}" s_chunks="0">
<tb id="0" send="{peer}" recv="{peer}" chan="0">
{}
</tb>
</gpu>
"#,
            2 * chunks,
            steps.join("\n")
        )
    };
    let header = format!(
        r#"<algo name="ahead" proto="{protocol}" nchannels="1" nchunksperloop="{}" ngpus="2" coll="allgather" inplace="1" outofplace="0" minBytes="0" maxBytes="0">"#,
        2 * chunks
    );
    parse(&format!("{header}\n{}{}</algo>\n", rank(0), rank(1)), "ahead.xml").unwrap().algorithm
}

#[test]
fn a_connection_has_room_for_as_many_messages_as_its_protocol_says() {
    for (chunks, protocol, is_right) in
        [(2, "Simple", true), (3, "Simple", false), (3, "LL", true), (8, "LL128", true), (9, "LL", false)]
    {
        let verdict = judge(&ahead(chunks, protocol), Dialect::Executor, 1000);
        let kinds: Vec<&str> = verdict.violations.iter().map(FileViolation::kind).collect();
        assert_eq!(kinds, if is_right { vec![] } else { vec!["room"] }, "{chunks} chunks, {protocol}");
        // A transport with more room runs it.
        assert_eq!(verdict.calls.len(), 1);
    }
}

/// A short text with a million chunks that never arrive: the list of violations stays short.
#[test]
fn what_is_wrong_in_a_short_file_takes_little_memory() {
    const RANKS: usize = 1000;
    let gpus: String =
        (0..RANKS).map(|id| format!(r#"<gpu id="{id}" i_chunks="1" o_chunks="{RANKS}" s_chunks="0"></gpu>"#)).collect();
    let text = format!(
        r#"<algo name="empty" proto="Simple" nchannels="1" nchunksperloop="{RANKS}" ngpus="{RANKS}" coll="allgather" inplace="1" outofplace="0" minBytes="0" maxBytes="0">{gpus}</algo>"#
    );
    let file = parse(&text, "empty.xml").unwrap().algorithm;
    let verdict = judge(&file, Dialect::Executor, 1000);
    assert_eq!((verdict.violations.total(), verdict.violations.iter().len()), (999_000, 1000));
}
