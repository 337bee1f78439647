//! From an [`Algorithm`] to text, as the runtimes' readers want it: no declaration, one space between attributes,
//! double quotes, no tabs.

use super::document::{Algorithm, GpuElement, StepElement, ThreadblockElement};
use std::io::{self, Write};

/// Writes a file; [`super::parse`] reads the same back.
///
/// # Errors
/// Errors of `out`.
pub fn write(algorithm: &Algorithm, out: &mut dyn Write) -> io::Result<()> {
    let Algorithm { protocol, channels, chunks, ranks, .. } = algorithm;
    let name = quick_xml::escape::escape(algorithm.name.as_str());
    write!(out, r#"<algo name="{name}" proto="{protocol}" nchannels="{channels}" nchunksperloop="{chunks}""#)?;
    write!(out, r#" ngpus="{ranks}""#)?;
    if let Some(operation) = algorithm.operation {
        write!(out, r#" coll="{operation}""#)?;
    }
    let flags = [("inplace", algorithm.in_place), ("outofplace", algorithm.out_of_place)];
    for (name, flag) in flags {
        if let Some(flag) = flag {
            write!(out, r#" {name}="{}""#, u8::from(flag))?;
        }
    }
    let threads = algorithm.threads.map(u64::from);
    for (name, number) in [("minBytes", algorithm.min_bytes), ("maxBytes", algorithm.max_bytes), ("nthreads", threads)]
    {
        if let Some(number) = number {
            write!(out, r#" {name}="{number}""#)?;
        }
    }
    if let Some(reduction) = &algorithm.reduction {
        write!(out, r#" redop="{}""#, quick_xml::escape::escape(reduction.as_str()))?;
    }
    writeln!(out, ">")?;
    for gpu in &algorithm.gpus {
        write_gpu(gpu, out)?;
    }
    writeln!(out, "</algo>")
}

fn write_gpu(gpu: &GpuElement, out: &mut dyn Write) -> io::Result<()> {
    let GpuElement { id, input_chunks, output_chunks, scratch_chunks, .. } = gpu;
    writeln!(
        out,
        r#"  <gpu id="{id}" i_chunks="{input_chunks}" o_chunks="{output_chunks}" s_chunks="{scratch_chunks}">"#
    )?;
    for block in &gpu.blocks {
        let ThreadblockElement { id, .. } = block;
        let [send, recv, channel] = [block.send, block.recv, block.channel].map(or_minus_one);
        writeln!(out, r#"    <tb id="{id}" send="{send}" recv="{recv}" chan="{channel}">"#)?;
        for step in &block.steps {
            write_step(step, out)?;
        }
        writeln!(out, "    </tb>")?;
    }
    writeln!(out, "  </gpu>")
}

fn write_step(step: &StepElement, out: &mut dyn Write) -> io::Result<()> {
    let StepElement { number, kind, src, dst, count, .. } = step;
    let (source, destination) = (or_minus_one(src.offset), or_minus_one(dst.offset));
    let [block, after] = [step.after.map(|(block, _)| block), step.after.map(|(_, step)| step)].map(or_minus_one);
    write!(out, r#"      <step s="{number}" type="{kind}" srcbuf="{}" srcoff="{source}""#, src.space)?;
    write!(out, r#" dstbuf="{}" dstoff="{destination}" cnt="{count}""#, dst.space)?;
    writeln!(out, r#" depid="{block}" deps="{after}" hasdep="{}"/>"#, u8::from(step.announces))
}

fn or_minus_one(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}
