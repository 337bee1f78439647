//! NCCL's own dump beside a profile, over the fakes.

use super::FakeGpus;
use crate::binary::repository;

/// NCCL's own dump tells what cannot be measured: links, switches and bridges. No number comes from it.
#[test]
fn a_profile_notes_what_nccl_has_dumped() {
    let gpus = FakeGpus::new(2, "link 0 1 10 0.002\nlink 1 0 10 0.002\ncollective AllGather 7 0\n");
    let device = |number: usize, other: usize| {
        format!(
            "<pci busid=\"0000:1{number}:00.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"{number}\" sm=\"90\" \
             rank=\"{number}\"><nvlink target=\"0000:1{other}:00.0\" count=\"4\"/></gpu></pci>"
        )
    };
    let dump = format!(
        "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\">{}{}</cpu></system>",
        device(0, 1),
        device(1, 0)
    );
    std::fs::write(gpus.path("dump.xml"), &dump).unwrap();
    let line = "profile --device gpu --quick --check 0 --force";
    let without = gpus.run(&format!("{line} -o without.yaml"), &[]).ok();
    assert!(!without.stderr.contains("dump"), "{}", without.stderr);
    gpus.run(&format!("{line} --nccl-dump dump.xml -o t.yaml"), &[]).ok();
    let text = std::fs::read_to_string(gpus.path("t.yaml")).unwrap().replace("\n# ", " ");
    for note in ["NCCL's dump dump.xml says how the GPUs are wired.", "Links of their own, says the dump: "] {
        assert!(text.contains(note), "{note}: {text}");
    }
    assert!(text.contains(" 0–1.") && !text.contains("may be of another machine"), "{text}");
    let costs = |file| gpus.topology(file)["links"].clone();
    assert_eq!(costs("t.yaml"), costs("without.yaml"), "the clock is counted");
    // A dump of other GPUs, of more of them, and none.
    std::fs::write(gpus.path("other.xml"), dump.replace("0000:11:00.0", "0000:99:00.0")).unwrap();
    gpus.run(&format!("{line} --nccl-dump other.xml -o t.yaml"), &[]).ok();
    let text = std::fs::read_to_string(gpus.path("t.yaml")).unwrap().replace("\n# ", " ");
    assert!(text.contains("The dump has no GPU at 0000:11:00.0: it may be of another machine."), "{text}");
    std::fs::write(gpus.path("broken.xml"), &dump[..dump.len() - 20]).unwrap();
    std::fs::write(gpus.path("text.xml"), "nothing").unwrap();
    let pair = repository("tests/data/import/nccl-nvswitch.xml");
    for (file, expected) in [
        (pair.to_str().unwrap(), "describes 8 GPUs, and there are 2 ranks"),
        ("broken.xml", "broken.xml:1:"),
        ("text.xml", "is no dump of NCCL's (hint: NCCL_TOPO_DUMP_FILE"),
        ("nowhere.xml", "nowhere.xml"),
    ] {
        let ran = gpus.run(&format!("{line} --nccl-dump {file} -o u.yaml"), &[]);
        assert!(ran.code != 0 && ran.stderr.contains(expected), "{file}: {}", ran.stderr);
    }
    assert!(!gpus.path("u.yaml").exists());
    let ran = gpus.run("profile --ranks 2 --nccl-dump dump.xml -o u.yaml", &[]);
    assert!(ran.code != 0 && ran.stderr.contains("--nccl-dump is for --device gpu"), "{}", ran.stderr);
}
