//! Files that are read, judged and written again.

use super::super::*;
use expect_test::{Expect, expect};

/// Two ranks that exchange their halves.
pub(super) const PAIR: &str = r#"<!-- a comment -->
<algo name="pair" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0" outofplace="1" minBytes="0" maxBytes="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"#;

pub(super) fn written(algorithm: &Algorithm) -> String {
    let mut text = Vec::new();
    write(algorithm, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let parsed = parse(PAIR, "pair.xml").unwrap();
    assert_eq!(parsed.notes, []);
    let text = written(&parsed.algorithm);
    assert_eq!(text, PAIR.split_once('\n').unwrap().1);
    assert_eq!(written(&parse(&text, "again").unwrap().algorithm), text);
    let awkward = Algorithm { name: r#"<"&'> and é"#.to_owned(), ..parsed.algorithm };
    assert_eq!(parse(&written(&awkward), "awkward").unwrap().algorithm.name, awkward.name);
}

/// The faults of `PAIR` with `old` replaced by `new`.
fn check_faults(old: &str, new: &str, expected: Expect) {
    assert!(PAIR.contains(old), "{old}");
    let faults = parse(&PAIR.replacen(old, new, 1), "f.xml").unwrap_err();
    expected.assert_eq(&faults.iter().map(|fault| format!("{fault}\n")).collect::<String>());
}

#[test]
fn faults_say_where_and_why() {
    check_faults(
        "nchannels",
        "channels",
        expect![[r#"
        f.xml:2:1: <algo> has no attribute `nchannels`; did `channels` mean that?
    "#]],
    );
    check_faults(
        r#"proto="LL""#,
        r#"proto="LL64""#,
        expect![[r#"
        f.xml:2:19: `proto` is `LL64`; one of: Simple LL LL128
    "#]],
    );
    check_faults(
        r#"type="cpy""#,
        r#"type="ra""#,
        expect![[r#"
        f.xml:7:19: `type` is `ra`; one of: s r rcs rrs rrc rrcs cpy re nop
    "#]],
    );
    check_faults(
        r#"srcoff="0""#,
        r#"srcoff="-2""#,
        expect![[r#"
        f.xml:5:39: `srcoff` is -2, but at least -1 is needed
    "#]],
    );
    check_faults(
        r#"cnt="1""#,
        r#"cnt="010""#,
        expect![[r#"
        f.xml:5:72: `cnt` is 010, which the runtimes read as octal
    "#]],
    );
    check_faults(
        r#"cnt="1""#,
        r#"cnt="99999999999999999999""#,
        expect![[r#"
        f.xml:5:72: `cnt` is 99999999999999999999, but at most 4294967295 is possible
    "#]],
    );
    check_faults(
        r#"cnt="1""#,
        r#"cnt="1" cnt="1""#,
        expect![[r#"
        f.xml:5:7: the attributes of <step> are broken: position 72: duplicated attribute, previous declaration at position 64
    "#]],
    );
    check_faults(
        r#"cnt="1""#,
        r#"cnt="0x1""#,
        expect![[r#"
        f.xml:5:72: `cnt` is `0x1`, which is not a decimal number
    "#]],
    );
    check_faults(
        r#"cnt="1" depid="-1""#,
        r#"cnt="&lol;" depid="one""#,
        expect![[r#"
        f.xml:5:72: the value of `cnt` has an unknown escape
        f.xml:5:7: <step> has no attribute `cnt`
        f.xml:5:84: `depid` is `one`, which is not a decimal number
        f.xml:5:96: `deps` is -1, but at least 0 is needed
    "#]],
    );
    check_faults(
        "</gpu>",
        "</cpu>",
        expect![[r#"
        f.xml:9:3: this is not XML: ill-formed document: expected `</gpu>`, but `</cpu>` was found
    "#]],
    );
    check_faults(
        "</gpu>",
        "",
        expect![[r#"
        f.xml:17:1: this is not XML: ill-formed document: expected `</gpu>`, but `</algo>` was found
    "#]],
    );
    check_faults(
        "</algo>",
        "",
        expect![[r#"
        f.xml:18:1: the file ends inside an element
    "#]],
    );
    check_faults(
        "</algo>",
        "</algo><algo/>",
        expect![[r#"
        f.xml:17:8: there is a second element after <algo>
    "#]],
    );
    check_faults(
        "<algo",
        "<?xml version='1.0'?><algo",
        expect![[r#"
        f.xml:2:1: the runtimes' readers take no XML declaration; remove it
    "#]],
    );
    check_faults(
        "<algo",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><algo",
        expect![[r#"
        f.xml:2:1: only elements and comments are accepted here
    "#]],
    );
    check_faults(
        "<algo",
        "words <algo",
        expect![[r#"
        f.xml:1:19: only elements and comments are accepted here
    "#]],
    );
    check_faults(
        "<algo",
        "<topology",
        expect![[r#"
        f.xml:2:1: the file starts with <topology>, not with <algo>
    "#]],
    );
}

#[test]
fn what_no_runtime_reads_is_noted() {
    let text = PAIR.replacen("<tb", "<copy i_off=\"0\" o_off=\"0\"/><what><is/></what>\n<tb", 1);
    let parsed = parse(&text.replacen("s_chunks", "colour=\"red\" s_chunks", 1), "f.xml").unwrap();
    let notes: String = parsed.notes.iter().map(|note| format!("{note}\n")).collect();
    expect![[r#"
        f.xml:3:41: `colour` is skipped: <gpu> has no such attribute
        f.xml:4:5: <copy> is skipped: today's runtimes copy only in steps of type cpy
        f.xml:4:32: <what> is skipped: it is not an element of this format
    "#]]
    .assert_eq(&notes);
    assert_eq!(parsed.algorithm.gpus.len(), 2);
    assert_eq!(parsed.algorithm.gpus[0].blocks.len(), 1);
}

#[test]
fn hostile_texts_end_in_an_error() {
    let deep = format!("<algo>{}", "<a>".repeat(200_000));
    let wide = format!("<algo {}/>", (0..200_000).map(|i| format!("a{i}=\"\" ")).collect::<String>());
    let long = format!("<algo name=\"{}\"/>", "x".repeat(1 << 20));
    for text in ["", "<", "<algo", "<algo name=", "<algo>\0", "\u{feff}", "<!--", "<algo/><!--", &deep, &wide, &long] {
        let faults = parse(text, "hostile").unwrap_err();
        assert!((1..=100).contains(&faults.len()));
        assert!(faults.iter().all(|fault| fault.reason.len() < 300), "{:.400}", faults[0].reason);
    }
}
