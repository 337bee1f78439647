//! PTX from its text.

use crate::code::{
    Comparison, Instruction, Kernel, Kind, MemoryAccess, Module, Operand, Operation, Order, Scope, Space, Type,
};
use std::collections::BTreeMap;

/// A line that the machine does not understand.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}: {text}")]
pub struct PtxError {
    /// The line, from 1.
    pub line: u32,
    /// What is wrong.
    pub what: String,
    /// The line itself.
    pub text: String,
}

impl Module {
    /// Reads all kernels of a text.
    ///
    /// # Errors
    /// [`PtxError`] with the first line that the machine does not understand.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        let mut kernels = BTreeMap::new();
        let mut draft: Option<Draft> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let code = line.split("//").next().unwrap_or("").trim();
            let failed = |what: String| PtxError { line: number, what, text: line.trim().to_owned() };
            if let Some((_, rest)) = code.split_once(".entry ") {
                let name = rest.split('(').next().unwrap_or("").trim().to_owned();
                draft = Some(Draft { name, ..Draft::default() });
                continue;
            }
            let Some(kernel) = &mut draft else {
                if code.starts_with(".func") || code.contains(" .func") || code.starts_with(".global") {
                    return Err(failed("functions and global variables are unknown".to_owned()));
                }
                continue;
            };
            if code == "}" {
                let kernel = draft.take().map(Draft::finish).transpose().map_err(failed)?;
                kernels.extend(kernel);
            } else {
                kernel.line(number, code).map_err(failed)?;
            }
        }
        Ok(Self { kernels })
    }
}

/// A kernel that is being read.
#[derive(Default)]
struct Draft {
    name: String,
    kernel: Kernel,
    registers: BTreeMap<String, u32>,
    /// Where variables lie in shared memory, and parameters among each other.
    variables: BTreeMap<String, u64>,
    labels: BTreeMap<String, usize>,
    /// Branches whose labels come later: the instruction and the label.
    jumps: Vec<(usize, String)>,
}

const NO_TYPE: Type = Type { kind: Kind::Bits, bytes: 0 };

fn unknown(what: &str, word: &str) -> String {
    format!("unknown {what} `{word}`")
}

impl Draft {
    fn finish(mut self) -> Result<(String, Kernel), String> {
        for (at, label) in self.jumps {
            let target = *self.labels.get(&label).ok_or_else(|| unknown("label", &label))?;
            self.kernel.code[at].operation = Operation::Branch(target);
        }
        self.kernel.registers = self.registers.len();
        Ok((self.name, self.kernel))
    }

    fn line(&mut self, number: u32, code: &str) -> Result<(), String> {
        let code = code.trim_end_matches([';', ',']).trim();
        if let Some(rest) = code.strip_prefix(".param ") {
            let (ty, name) = rest.rsplit_once(' ').ok_or_else(|| unknown("parameter", rest))?;
            if type_of(ty.trim().trim_start_matches('.')).is_none_or(|ty| ty.bytes != 8) {
                return Err("parameters must have eight bytes".to_owned());
            }
            self.variables.insert(name.to_owned(), 8 * self.kernel.parameters as u64);
            self.kernel.parameters += 1;
            return Ok(());
        }
        if let Some(rest) = code.strip_prefix(".shared ") {
            return self.shared(rest);
        }
        if let Some(label) = code.strip_suffix(':') {
            self.labels.insert(label.to_owned(), self.kernel.code.len());
            return Ok(());
        }
        let is_directive = [".reg ", ".maxntid", ".minnctapersm", ".reqntid", ".pragma", ".loc", ".file"]
            .iter()
            .any(|word| code.starts_with(word));
        if is_directive || ["", "{", ")", "("].contains(&code) {
            return Ok(());
        }
        if code.starts_with('.') {
            return Err("unknown directive".to_owned());
        }
        let instruction = self.instruction(number, code)?;
        self.kernel.code.push(instruction);
        Ok(())
    }

    /// `.align 8 .b8 name[96]` or `.align 8 .u64 name`.
    fn shared(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let &[".align", align, ty, name] = words.as_slice() else { return Err("unknown declaration".to_owned()) };
        let align: u64 = align.parse().map_err(|_| unknown("alignment", align))?;
        let element = type_of(ty.trim_start_matches('.')).ok_or_else(|| unknown("type", ty))?;
        let (name, count) = match name.split_once('[') {
            None => (name, 1),
            Some((name, count)) => {
                (name, count.trim_end_matches(']').parse::<u64>().map_err(|_| unknown("size", count))?)
            }
        };
        let start = self.kernel.shared_bytes.next_multiple_of(align.max(1));
        self.variables.insert(name.to_owned(), start);
        self.kernel.shared_bytes = start + count * u64::from(element.bytes);
        Ok(())
    }

    fn instruction(&mut self, line: u32, code: &str) -> Result<Instruction, String> {
        let (guard, code) = match code.strip_prefix('@') {
            None => (None, code),
            Some(rest) => {
                let (register, code) = rest.split_once(char::is_whitespace).ok_or("no instruction")?;
                let name = register.trim_start_matches('!');
                (Some((self.register(name), name == register)), code.trim())
            }
        };
        let (name, rest) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        let mut operands = operands(rest);
        let empty = Instruction {
            line,
            guard,
            operation: Operation::Return,
            ty: NO_TYPE,
            to: [u32::MAX; 4],
            from: [Operand::Constant(0); 5],
        };
        let parts: Vec<&str> = name.split('.').collect();
        match parts[0] {
            "ret" | "exit" => return Ok(empty),
            "bra" => {
                self.jumps.push((self.kernel.code.len(), rest.trim().to_owned()));
                return Ok(Instruction { operation: Operation::Branch(usize::MAX), ..empty });
            }
            "bar" | "barrier" if parts.get(1) == Some(&"sync") && rest.trim() == "0" => {
                return Ok(Instruction { operation: Operation::Barrier, ..empty });
            }
            _ => {}
        }
        let ty = parts.last().and_then(|last| type_of(last)).ok_or_else(|| unknown("instruction", name))?;
        let mut instruction = Instruction { ty, ..empty };
        if matches!(parts[0], "ld" | "st") {
            return self.access(instruction, &parts, operands);
        }
        if parts[0] == "mov" && operands.len() == 2 {
            // Braces around a destination or a source.
            for (at, pack) in [(0, false), (1, true)] {
                if operands[at].starts_with('{') {
                    let list = group(&operands[at]);
                    let count = list.len();
                    instruction.operation = if pack { Operation::Pack(count) } else { Operation::Unpack(count) };
                    operands.splice(at..=at, list);
                    return self.filled(instruction, &operands, if pack { 1 } else { count });
                }
            }
        }
        instruction.operation = operation(&parts).ok_or_else(|| unknown("instruction", name))?;
        self.filled(instruction, &operands, 1)
    }

    /// An instruction with its registers: first those that it writes.
    fn filled(
        &mut self,
        mut instruction: Instruction,
        operands: &[String],
        written: usize,
    ) -> Result<Instruction, String> {
        if operands.len() < written || written > 4 || operands.len() - written > 5 {
            return Err("a strange number of operands".to_owned());
        }
        for (slot, name) in instruction.to.iter_mut().zip(&operands[..written]) {
            *slot = self.register(name);
        }
        for (slot, text) in instruction.from.iter_mut().zip(&operands[written..]) {
            *slot = self.operand(text)?;
        }
        Ok(instruction)
    }

    fn access(
        &mut self,
        mut instruction: Instruction,
        parts: &[&str],
        operands: Vec<String>,
    ) -> Result<Instruction, String> {
        let mut access = MemoryAccess { space: Space::Global, order: Order::Weak, values: 1, offset: 0 };
        let mut order = None;
        for &part in &parts[1..parts.len() - 1] {
            match part {
                "global" => access.space = Space::Global,
                "shared" => access.space = Space::Shared,
                "param" => access.space = Space::Parameter,
                "v2" => access.values = 2,
                "v4" => access.values = 4,
                "weak" => {}
                "relaxed" | "acquire" | "release" => order = Some(part),
                "cta" | "gpu" | "sys" => {
                    let scope = match part {
                        "cta" => Scope::Block,
                        "gpu" => Scope::Device,
                        _ => Scope::System,
                    };
                    access.order = match order {
                        Some("relaxed") => Order::Relaxed(scope),
                        Some("acquire") if parts[0] == "ld" => Order::Acquire(scope),
                        Some("release") if parts[0] == "st" => Order::Release(scope),
                        _ => return Err(unknown("order", part)),
                    };
                }
                "volatile" => access.order = Order::Relaxed(Scope::System),
                _ => return Err(unknown("modifier", part)),
            }
        }
        let [first, second] = operands.try_into().map_err(|_| "it needs two operands".to_owned())?;
        let (address, values) = if parts[0] == "ld" { (&second, &first) } else { (&first, &second) };
        let inner = address.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        access.offset = offset.parse().map_err(|_| unknown("offset", offset))?;
        let list = if values.starts_with('{') { group(values) } else { vec![values.clone()] };
        if list.len() != access.values {
            return Err("another number of values than it says".to_owned());
        }
        instruction.from[0] = self.operand(base)?;
        if parts[0] == "ld" {
            instruction.operation = Operation::Load(access);
            list.iter().zip(&mut instruction.to).for_each(|(name, slot)| *slot = self.register(name));
        } else {
            instruction.operation = Operation::Store(access);
            for (text, slot) in list.iter().zip(&mut instruction.from[1..]) {
                *slot = self.operand(text)?;
            }
        }
        Ok(instruction)
    }

    fn register(&mut self, name: &str) -> u32 {
        let next = self.registers.len() as u32;
        *self.registers.entry(name.to_owned()).or_insert(next)
    }

    fn operand(&mut self, text: &str) -> Result<Operand, String> {
        if let Some(&at) = self.variables.get(text) {
            return Ok(Operand::Constant(at));
        }
        let hexadecimal = |digits| u64::from_str_radix(digits, 16).map_err(|_| unknown("number", text));
        Ok(match text {
            "%tid.x" => Operand::ThreadIndex,
            "%ctaid.x" => Operand::BlockIndex,
            "%ntid.x" => Operand::BlockSize,
            _ if text.starts_with('%') && !text.contains('.') => Operand::Register(self.register(text)),
            _ if text.starts_with("0f") || text.starts_with("0d") => Operand::Constant(hexadecimal(&text[2..])?),
            _ if text.starts_with("0x") => Operand::Constant(hexadecimal(&text[2..])?),
            _ => {
                let number: i128 = text.parse().map_err(|_| unknown("operand", text))?;
                Operand::Constant(number as u64)
            }
        })
    }
}

/// The operands of an instruction; commas in braces do not part them.
fn operands(text: &str) -> Vec<String> {
    let mut list = vec![String::new()];
    let mut depth = 0;
    for letter in text.chars().filter(|letter| !letter.is_whitespace()) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match (letter, list.last_mut()) {
            (',', _) if depth == 0 => list.push(String::new()),
            (_, Some(last)) => last.push(letter),
            (_, None) => {}
        }
    }
    list.retain(|operand| !operand.is_empty());
    list
}

/// The parts of `{a,b}`.
fn group(text: &str) -> Vec<String> {
    text.trim_matches(['{', '}']).split(',').map(str::to_owned).collect()
}

fn type_of(name: &str) -> Option<Type> {
    if name == "pred" {
        return Some(Type { kind: Kind::Predicate, bytes: 1 });
    }
    let kind = match name.chars().next()? {
        'u' => Kind::Unsigned,
        's' => Kind::Signed,
        'b' => Kind::Bits,
        'f' => Kind::Float,
        _ => return None,
    };
    let bytes = match &name[1..] {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        _ => return None,
    };
    Some(Type { kind, bytes })
}

/// What an instruction without memory does, by the parts of its name. Roundings other than to the nearest are unknown.
fn operation(parts: &[&str]) -> Option<Operation> {
    let ty = type_of(parts.last()?)?;
    let between = &parts[1..parts.len() - 1];
    let plain = |operation| between.is_empty().then_some(operation);
    let rounded = |operation| match (ty.kind, between) {
        (Kind::Float, [] | ["rn"]) | (Kind::Unsigned | Kind::Signed | Kind::Bits, []) => Some(operation),
        _ => None,
    };
    match parts[0] {
        "mov" => plain(Operation::Move),
        "add" => rounded(Operation::Add),
        "sub" => rounded(Operation::Subtract),
        "mul" => match (ty.kind, between) {
            (Kind::Float, [] | ["rn"]) | (Kind::Unsigned | Kind::Signed, ["lo"]) => Some(Operation::Multiply),
            (Kind::Unsigned | Kind::Signed, ["wide"]) => Some(Operation::MultiplyWide),
            _ => None,
        },
        "div" => match (ty.kind, between) {
            (Kind::Float, ["rn"]) | (Kind::Unsigned | Kind::Signed, []) => Some(Operation::Divide),
            _ => None,
        },
        "rem" => plain(Operation::Remainder).filter(|_| ty.kind != Kind::Float),
        "min" => plain(Operation::Least).filter(|_| ty.kind != Kind::Float),
        "max" => plain(Operation::Greatest).filter(|_| ty.kind != Kind::Float),
        "and" => plain(Operation::And),
        "or" => plain(Operation::Or),
        "xor" => plain(Operation::Xor),
        "not" => plain(Operation::Not),
        "shl" => plain(Operation::ShiftLeft),
        "shr" => plain(Operation::ShiftRight),
        "selp" => plain(Operation::Select),
        "bfi" => plain(Operation::Insert),
        "prmt" => plain(Operation::Permute),
        "cvta" => (between == ["to", "global"]).then_some(Operation::Move),
        "cvt" => conversion(parts),
        "setp" => comparison(between, ty),
        _ => None,
    }
}

/// `cvt` with the rounding that it needs, and no other.
fn conversion(parts: &[&str]) -> Option<Operation> {
    let [_, modifiers @ .., to, from] = parts else { return None };
    let (to, from) = (type_of(to)?, type_of(from)?);
    let rounds = to.kind == Kind::Float && (from.kind != Kind::Float || to.bytes < from.bytes);
    let is_exact = !rounds && (to.kind == Kind::Float) == (from.kind == Kind::Float);
    let is_known = if rounds { modifiers == ["rn"] } else { is_exact && modifiers.is_empty() };
    is_known.then_some(Operation::Convert(to))
}

/// `setp` without a second predicate.
fn comparison(modifiers: &[&str], ty: Type) -> Option<Operation> {
    let &[name] = modifiers else { return None };
    let (name, nan) = match name.strip_suffix('u') {
        Some(rest) if ty.kind == Kind::Float => (rest, true),
        _ => (name, false),
    };
    let comparison = match name {
        "eq" => Comparison::Equal,
        "ne" => Comparison::NotEqual,
        "lt" | "lo" => Comparison::Less,
        "le" | "ls" => Comparison::LessOrEqual,
        "gt" | "hi" => Comparison::Greater,
        "ge" | "hs" => Comparison::GreaterOrEqual,
        "nan" => Comparison::IsNan,
        "num" => Comparison::IsNumber,
        _ => return None,
    };
    Some(Operation::Compare(comparison, nan))
}
