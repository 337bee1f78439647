//! PTX as the machine executes it.

use std::collections::BTreeMap;

/// The kernels of a PTX text.
#[derive(Debug)]
pub struct Module {
    pub(crate) kernels: BTreeMap<String, Kernel>,
}

impl Module {
    /// Whether there is a kernel with this name.
    pub fn has_kernel(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    /// How many parameters of eight bytes a kernel takes.
    pub fn parameters(&self, kernel: &str) -> usize {
        self.kernels.get(kernel).map_or(0, |kernel| kernel.parameters)
    }
}

/// One entry point.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) code: Vec<Instruction>,
    /// How many registers a thread has.
    pub(crate) registers: usize,
    /// The bytes of shared memory of a block.
    pub(crate) shared_bytes: u64,
    /// How many parameters of eight bytes it takes.
    pub(crate) parameters: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Bits,
    Float,
    Predicate,
}

/// The type of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    Register(u32),
    Constant(u64),
    ThreadIndex,
    BlockIndex,
    BlockSize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    IsNan,
    IsNumber,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Global memory, also by a generic address.
    Global,
    Shared,
    Parameter,
}

/// How far an ordered access reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// An ordinary access.
    Weak,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
}

impl Order {
    pub(crate) fn scope(self) -> Option<Scope> {
        match self {
            Self::Weak => None,
            Self::Relaxed(scope) | Self::Acquire(scope) | Self::Release(scope) => Some(scope),
        }
    }
}

/// A load or a store of one or several values that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryAccess {
    pub(crate) space: Space,
    pub(crate) order: Order,
    pub(crate) values: usize,
    pub(crate) offset: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Move,
    Add,
    Subtract,
    Multiply,
    /// The product has twice the bytes of the operands.
    MultiplyWide,
    Divide,
    Remainder,
    Least,
    Greatest,
    And,
    Or,
    Xor,
    Not,
    ShiftLeft,
    ShiftRight,
    /// From this type to that of the instruction.
    Convert(Type),
    /// The flag says whether a NaN makes it true.
    Compare(Comparison, bool),
    Select,
    /// `bfi`: bits of the first operand, inserted into the second.
    Insert,
    /// `prmt`: bytes chosen from two words.
    Permute,
    /// Several registers become one, the first one lowest.
    Pack(usize),
    /// One register becomes several.
    Unpack(usize),
    Load(MemoryAccess),
    Store(MemoryAccess),
    Branch(usize),
    Barrier,
    Return,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    /// The line of the text, from 1.
    pub(crate) line: u32,
    /// It is executed only if this register has this value.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) operation: Operation,
    pub(crate) ty: Type,
    pub(crate) to: [u32; 4],
    pub(crate) from: [Operand; 5],
}
