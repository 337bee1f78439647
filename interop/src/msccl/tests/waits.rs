//! Files that stop, or lose count, though every step of theirs does what it should.

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

/// A threadblock without peers, of copies of the rank's chunk to itself.
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
    let copy = Step { number: 2, kind: Kind::Send, after: None, announces: true, ..steps[0] };
    steps.push(copy);
    steps[1].after = Some((1, 0));
    let verdict = judge(&file, Dialect::Executor, 1000);
    let kinds: Vec<&str> = verdict.violations.iter().map(Violation::kind).collect();
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
