//! A small tree of XML elements with their places, read from untrusted text.
//!
//! The principal function is [`parse`]. Depth and the number of elements are bounded. Document types, and with them
//! user-defined entities, are refused. Text between elements is skipped.

use super::at_byte;
use crate::document::TextError;
use crate::spelling::shorten;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

const MAX_DEPTH: usize = 64;
const MAX_ELEMENTS: usize = 200_000;
const MAX_ATTRIBUTES: usize = 64;

/// An element.
pub(super) struct XmlElement {
    pub(super) name: String,
    attributes: Vec<(String, String)>,
    pub(super) children: Vec<XmlElement>,
    /// The byte where it begins.
    pub(super) at: usize,
}

impl XmlElement {
    /// The value of an attribute, if it has one.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Its children of one name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a XmlElement> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Reads the one root element.
pub(super) fn parse(text: &str, origin: &str) -> Result<XmlElement, TextError> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<XmlElement> = Vec::new();
    let mut root = None;
    let mut count = 0;
    loop {
        let at = reader.buffer_position() as usize;
        let fault = |reason: String| at_byte(text, origin, at, reason);
        let event = reader.read_event();
        let event =
            event.map_err(|error| at_byte(text, origin, reader.error_position() as usize, error.to_string()))?;
        let closed = match event {
            Event::Start(start) | Event::Empty(start) if root.is_some() => {
                let name = start.name().into_inner().to_owned();
                return Err(fault(format!("<{}> follows after the end of the document", shorten(&name))));
            }
            Event::Start(start) => {
                count += 1;
                open.push(element(&start, at).map_err(fault)?);
                None
            }
            Event::Empty(start) => {
                count += 1;
                Some(element(&start, at).map_err(fault)?)
            }
            Event::End(_) => open.pop(),
            Event::DocType(_) => return Err(fault("document types are not accepted here".to_owned())),
            Event::Eof => break,
            _ => None,
        };
        if open.len() > MAX_DEPTH || count > MAX_ELEMENTS {
            return Err(fault(format!("more than {MAX_DEPTH} levels or {MAX_ELEMENTS} elements are not accepted")));
        }
        if let Some(element) = closed {
            match open.last_mut() {
                Some(parent) => parent.children.push(element),
                None => root = Some(element),
            }
        }
    }
    match (open.last(), root) {
        (Some(element), _) => {
            Err(at_byte(text, origin, element.at, format!("<{}> has no end", shorten(&element.name))))
        }
        (None, Some(root)) => Ok(root),
        (None, None) => Err(at_byte(text, origin, 0, "there is no element")),
    }
}

fn element(start: &BytesStart<'_>, at: usize) -> Result<XmlElement, String> {
    let name = start.name().into_inner().to_owned();
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        if attributes.len() == MAX_ATTRIBUTES {
            return Err(format!("<{}> has more than {MAX_ATTRIBUTES} attributes", shorten(&name)));
        }
        let key = attribute.key.into_inner().to_owned();
        let value =
            attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?.into_owned();
        attributes.push((key, value));
    }
    Ok(XmlElement { name, attributes, children: Vec::new(), at })
}
