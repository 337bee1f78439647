//! From text to an [`Algorithm`].
//!
//! The principal function is [`parse`]. Decisions:
//! * Everything wrong with the values of attributes is reported at once; only broken XML ends the reading.
//! * What a runtime would skip (an unknown attribute or element, the old `<copy>` tags) is skipped as well, and
//!   noted, because it often means that the author expected something else.
//! * Numbers are decimal. The runtimes read `010` as eight, so such a number is refused instead of guessed.
//! * Memory is proportional to the text; elements nest at most four deep and have at most 32 attributes.

use super::attributes::{Attribute, Attributes, MOST_ATTRIBUTES, shown, unescaped};
use super::document::{
    Algorithm, ClaimedCollective, GpuElement, Protocol, StepElement, StepType, TextPosition, ThreadblockElement,
};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use topology::document::TextError;

/// The most faults that are listed; a file with more is no MSCCL file.
const MOST_FAULTS: usize = 100;

/// A file that was read, and notes about parts without meaning.
#[derive(Clone, PartialEq, Debug)]
pub struct Parsed {
    /// The file.
    pub algorithm: Algorithm,
    /// Parts that every runtime skips; at most a hundred are listed.
    pub notes: Vec<TextError>,
}

/// Reads an MSCCL file. `origin` names it in errors.
///
/// # Errors
/// Broken XML, a missing root, attributes that are missing or have no value of their type; all that are found, each
/// with line and column.
pub fn parse(text: &str, origin: &str) -> Result<Parsed, Vec<TextError>> {
    let mut parser = Parser::new(text, origin);
    let algorithm = parser.document();
    let Parser { faults, notes, .. } = parser;
    match algorithm {
        Ok(algorithm) if faults.is_empty() => Ok(Parsed { algorithm, notes }),
        _ => Err(faults),
    }
}

/// Reading cannot continue; the reason is in the list of faults.
struct Broken;

/// An element's start tag.
struct Tag<'t> {
    at: TextPosition,
    start: BytesStart<'t>,
    /// `<…/>`: there is no end tag.
    empty: bool,
}

struct Parser<'t> {
    origin: &'t str,
    text: &'t str,
    /// The byte at which each line starts.
    lines: Vec<usize>,
    xml: Reader<&'t [u8]>,
    faults: Vec<TextError>,
    notes: Vec<TextError>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, origin: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(index, _)| index + 1)).collect();
        let mut xml = Reader::from_str(text);
        xml.config_mut().check_comments = true;
        Self { origin, text, lines, xml, faults: Vec::new(), notes: Vec::new() }
    }

    fn document(&mut self) -> Result<Algorithm, Broken> {
        let end = self.text.len();
        let Some(tag) = self.child(None)? else {
            return Err(self.fatal(end, "the file has no <algo> element".to_owned()));
        };
        if !self.is(&tag, "algo") {
            let reason = format!("the file starts with <{}>, not with <algo>", shown(tag.start.name().0));
            return Err(self.fatal_at(tag.at, reason));
        }
        let algorithm = self.algorithm(&tag)?;
        if let Some(next) = self.child(None)? {
            return Err(self.fatal_at(next.at, "there is a second element after <algo>".to_owned()));
        }
        Ok(algorithm)
    }

    fn algorithm(&mut self, tag: &Tag<'t>) -> Result<Algorithm, Broken> {
        let mut values = self.attributes(tag, "algo");
        let mut algorithm = Algorithm {
            at: tag.at,
            name: values.text("name"),
            protocol: values.word("proto", Protocol::from_word, Protocol::ALL, Protocol::Simple),
            channels: values.number("nchannels", 0, u32::MAX.into()) as u32,
            chunks: values.number("nchunksperloop", 1, u32::MAX.into()) as u32,
            ranks: values.number("ngpus", 1, u32::MAX.into()) as u32,
            operation: values.has("coll").then(|| {
                values.word("coll", ClaimedCollective::from_word, ClaimedCollective::ALL, ClaimedCollective::Custom)
            }),
            in_place: values.optional("inplace", 0, 1).map(|value| value == 1),
            out_of_place: values.optional("outofplace", 0, 1).map(|value| value == 1),
            min_bytes: values.optional("minBytes", 0, i64::MAX).map(|value| value as u64),
            max_bytes: values.optional("maxBytes", 0, i64::MAX).map(|value| value as u64),
            threads: values.optional("nthreads", 0, u32::MAX.into()).map(|value| value as u32),
            reduction: values.has("redop").then(|| values.text("redop")),
            gpus: Vec::new(),
        };
        self.close(values);
        while let Some(child) = self.child(Some(tag))? {
            if self.is(&child, "gpu") {
                let gpu = self.gpu(&child)?;
                algorithm.gpus.push(gpu);
            } else {
                self.skip(&child)?;
            }
        }
        Ok(algorithm)
    }

    fn gpu(&mut self, tag: &Tag<'t>) -> Result<GpuElement, Broken> {
        let mut values = self.attributes(tag, "gpu");
        let mut gpu = GpuElement {
            at: tag.at,
            id: values.number("id", 0, u32::MAX.into()) as u32,
            input_chunks: values.number("i_chunks", 0, u32::MAX.into()) as u32,
            output_chunks: values.number("o_chunks", 0, u32::MAX.into()) as u32,
            scratch_chunks: values.number("s_chunks", 0, u32::MAX.into()) as u32,
            blocks: Vec::new(),
        };
        self.close(values);
        while let Some(child) = self.child(Some(tag))? {
            if self.is(&child, "tb") {
                let block = self.block(&child)?;
                gpu.blocks.push(block);
            } else {
                self.skip(&child)?;
            }
        }
        Ok(gpu)
    }

    fn block(&mut self, tag: &Tag<'t>) -> Result<ThreadblockElement, Broken> {
        let mut values = self.attributes(tag, "tb");
        let peer = |value: i64| u32::try_from(value).ok();
        let mut block = ThreadblockElement {
            at: tag.at,
            id: values.number("id", 0, u32::MAX.into()) as u32,
            send: peer(values.number("send", -1, u32::MAX.into())),
            recv: peer(values.number("recv", -1, u32::MAX.into())),
            channel: peer(values.number("chan", -1, u32::MAX.into())),
            steps: Vec::new(),
        };
        self.close(values);
        while let Some(child) = self.child(Some(tag))? {
            if self.is(&child, "step") {
                let step = self.step(&child);
                block.steps.push(step);
                self.skip_content(&child)?;
            } else {
                self.skip(&child)?;
            }
        }
        Ok(block)
    }

    fn step(&mut self, tag: &Tag<'t>) -> StepElement {
        let mut values = self.attributes(tag, "step");
        let number = values.number("s", 0, u32::MAX.into()) as u32;
        let kind = values.word("type", StepType::from_word, StepType::ALL, StepType::Nop);
        let src = values.location("srcbuf", "srcoff");
        let dst = values.location("dstbuf", "dstoff");
        let count = values.number("cnt", 0, u32::MAX.into()) as u32;
        let block = values.number("depid", -1, u32::MAX.into());
        // Without `depid`, `deps` means nothing.
        let least = if block < 0 { i64::MIN } else { 0 };
        let step = values.number("deps", least, u32::MAX.into());
        let after = u32::try_from(block).ok().zip(u32::try_from(step).ok());
        let announces = values.number("hasdep", 0, 1) == 1;
        self.close(values);
        StepElement { at: tag.at, number, kind, src, dst, count, after, announces }
    }

    /// The next element inside `parent`; `None` at its end.
    fn child(&mut self, parent: Option<&Tag<'t>>) -> Result<Option<Tag<'t>>, Broken> {
        if parent.is_some_and(|parent| parent.empty) {
            return Ok(None);
        }
        loop {
            let start = self.xml.buffer_position() as usize;
            let event = self.xml.read_event();
            let event = event.map_err(|error| {
                let position = self.xml.error_position() as usize;
                self.fatal(position, format!("this is not XML: {error}"))
            })?;
            let at = self.place(start);
            match event {
                Event::Start(start) => return Ok(Some(Tag { at, start, empty: false })),
                Event::Empty(start) => return Ok(Some(Tag { at, start, empty: true })),
                Event::End(_) => return Ok(None),
                Event::Comment(_) => {}
                Event::Text(content) if content.chars().all(|c| c.is_ascii_whitespace()) => {}
                Event::Eof => {
                    return match parent {
                        None => Ok(None),
                        Some(_) => Err(self.fatal(start, "the file ends inside an element".to_owned())),
                    };
                }
                Event::Decl(_) => {
                    let reason = "the runtimes' readers take no XML declaration; remove it";
                    return Err(self.fatal(start, reason.to_owned()));
                }
                Event::Text(_) | Event::CData(_) | Event::PI(_) | Event::DocType(_) | Event::GeneralRef(_) => {
                    return Err(self.fatal(start, "only elements and comments are accepted here".to_owned()));
                }
            }
        }
    }

    fn is(&self, tag: &Tag<'t>, name: &str) -> bool {
        tag.start.name().0 == name
    }

    /// Skips an element that no runtime reads.
    fn skip(&mut self, tag: &Tag<'t>) -> Result<(), Broken> {
        let name = shown(tag.start.name().0);
        let reason = match name.as_str() {
            "copy" => "<copy> is skipped: today's runtimes copy only in steps of type cpy".to_owned(),
            _ => format!("<{name}> is skipped: it is not an element of this format"),
        };
        self.note(tag.at, reason);
        self.skip_content(tag)
    }

    /// Skips the content of an element.
    fn skip_content(&mut self, tag: &Tag<'t>) -> Result<(), Broken> {
        let mut depth = u64::from(!tag.empty);
        while depth > 0 {
            // Any tag that is not empty serves as the parent.
            match self.child(Some(tag))? {
                Some(child) => depth += u64::from(!child.empty),
                None => depth -= 1,
            }
        }
        Ok(())
    }

    fn attributes(&mut self, tag: &Tag<'t>, element: &'static str) -> Attributes<'t> {
        let mut attributes = Attributes { element, at: tag.at, list: Vec::new(), faults: Vec::new() };
        // Offsets of attributes count from after the `<`.
        let content: &str = &tag.start;
        let base = self.offset(tag.at) + 1;
        for attribute in tag.start.attributes() {
            let attribute = match attribute {
                Ok(attribute) => attribute,
                Err(error) => {
                    attributes.faults.push((tag.at, format!("the attributes of <{element}> are broken: {error}")));
                    if attributes.faults.len() > MOST_ATTRIBUTES {
                        break;
                    }
                    continue;
                }
            };
            let key = attribute.key.0;
            let place = self.place(base + (key.as_ptr() as usize).saturating_sub(content.as_ptr() as usize));
            if attributes.list.len() == MOST_ATTRIBUTES {
                attributes.faults.push((place, format!("<{element}> has more than {MOST_ATTRIBUTES} attributes")));
                break;
            }
            let name = key.to_owned();
            match unescaped(&attribute.value) {
                Some(value) => attributes.list.push(Attribute { name, value, at: place, used: false }),
                None => {
                    attributes.faults.push((place, format!("the value of `{}` has an unknown escape", shown(&name))))
                }
            }
        }
        attributes
    }

    /// Collects the faults of an element's attributes, and notes attributes that were not read.
    fn close(&mut self, attributes: Attributes<'t>) {
        for (at, reason) in attributes.faults {
            self.fault(at, reason);
        }
        for attribute in attributes.list.iter().filter(|attribute| !attribute.used) {
            let (name, element) = (shown(&attribute.name), attributes.element);
            self.note(attribute.at, format!("`{name}` is skipped: <{element}> has no such attribute"));
        }
    }

    fn error(&self, at: TextPosition, reason: String) -> TextError {
        let TextPosition { line, column } = at;
        TextError { origin: self.origin.to_owned(), line: line as usize, column: column as usize, reason }
    }

    fn fault(&mut self, at: TextPosition, reason: String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(self.error(at, reason));
        }
    }

    fn note(&mut self, at: TextPosition, reason: String) {
        if self.notes.len() < MOST_FAULTS {
            self.notes.push(self.error(at, reason));
        }
    }

    fn fatal(&mut self, position: usize, reason: String) -> Broken {
        let at = self.place(position);
        self.fatal_at(at, reason)
    }

    fn fatal_at(&mut self, at: TextPosition, reason: String) -> Broken {
        // This fault is always added, even if the list is full.
        self.faults.truncate(MOST_FAULTS - 1);
        self.fault(at, reason);
        Broken
    }

    fn place(&self, position: usize) -> TextPosition {
        let line = self.lines.partition_point(|&start| start <= position).max(1);
        TextPosition { line: line as u32, column: (position - self.lines[line - 1] + 1) as u32 }
    }

    fn offset(&self, at: TextPosition) -> usize {
        self.lines[at.line as usize - 1] + at.column as usize - 1
    }
}
