//! What a rank does with the bytes of a message that it receives.
//!
//! The principal type is [`Sink`].

use crate::dtype::Kernel;

/// Where the bytes of a message go.
pub(crate) enum Sink<'a> {
    /// To this buffer.
    Copy(&'a mut [u8]),
    /// Into sums: `result = result ⊕ bytes`.
    Accumulate { kernel: Kernel, result: &'a mut [u8] },
    /// Into sums with another operand: `result = operand ⊕ bytes`.
    Combine { kernel: Kernel, operand: &'a [u8], result: &'a mut [u8] },
}

impl Sink<'_> {
    /// How many bytes the message must have.
    pub(crate) fn len(&self) -> usize {
        let (Self::Copy(result) | Self::Accumulate { result, .. } | Self::Combine { result, .. }) = self;
        result.len()
    }

    /// Takes the part of the message that begins at `at`. Parts begin and end between elements.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, piece: &[u8]) {
        let part = at..at + piece.len();
        match self {
            Self::Copy(result) => result[part].copy_from_slice(piece),
            Self::Accumulate { kernel, result } => (kernel.accumulate)(&mut result[part], piece),
            Self::Combine { kernel, operand, result } => {
                (kernel.combine)(&mut result[part.clone()], &operand[part], piece);
            }
        }
    }

    /// The buffer, if the bytes need no work.
    pub(crate) fn plain(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Copy(result) => Some(result),
            Self::Accumulate { .. } | Self::Combine { .. } => None,
        }
    }
}
