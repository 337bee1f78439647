//! How the two ends of a connection prove that they belong to the same job.
//!
//! The principal type is [`Secret`]: 32 bytes that a launcher gives every worker over its control channel, or that all
//! launchers of a job know. It never travels over a network; both ends answer the other's nonce with a keyed hash
//! (HMAC-SHA-256 [1]), and keys for other purposes are derived from it in the same way.
//!
//! [1] Krawczyk, Bellare, Canetti, RFC 2104, 1997.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;

/// Bytes of a secret, of a nonce and of a tag.
pub(crate) const BYTES: usize = 32;
/// The block of SHA-256.
const BLOCK: usize = 64;

/// The key of a job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret([u8; BYTES]);

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        nonce().map(Self)
    }

    /// The secret that a text stands for, whatever its length; who knows the text knows the secret.
    pub fn from_text(text: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(b"antiphon job secret\0").chain_update(text).finalize().into())
    }

    /// A key for one purpose.
    pub(crate) fn derive(&self, purpose: &[&[u8]]) -> Self {
        Self(self.tag(purpose))
    }

    /// The tag of a message.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        let padded =
            |byte: u8| -> [u8; BLOCK] { std::array::from_fn(|index| self.0.get(index).map_or(byte, |key| key ^ byte)) };
        let inner = parts.iter().fold(Sha256::new_with_prefix(padded(0x36)), |hash, part| hash.chain_update(part));
        let outer = Sha256::new_with_prefix(padded(0x5c)).chain_update(inner.finalize());
        outer.finalize().into()
    }

    /// Whether `tag` is the tag of a message; takes the same time wherever they differ.
    pub(crate) fn verify(&self, parts: &[&[u8]], tag: &[u8; BYTES]) -> bool {
        self.tag(parts).iter().zip(tag).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// A secret is not for logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Random bytes that are used once.
pub(crate) fn nonce() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, test cases 1 and 2, whose keys are shorter than ours: HMAC pads them with zeroes.
    #[test]
    fn tags_are_those_of_the_standard() {
        let secret = |key: &[u8]| Secret(std::array::from_fn(|index| key.get(index).copied().unwrap_or(0)));
        assert_eq!(
            hex(&secret(&[0x0b; 20]).tag(&[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(&secret(b"Jefe").tag(&[b"what do ya want for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn another_secret_message_or_tag_is_refused() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let tag = secret.tag(&[b"message"]);
        assert!(secret.verify(&[b"mess", b"age"], &tag));
        assert!(!other.verify(&[b"message"], &tag) && !secret.verify(&[b"massage"], &tag));
        for bit in 0..8 * BYTES {
            let mut wrong = tag;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.verify(&[b"message"], &wrong), "bit {bit}");
        }
        assert!(!format!("{secret:?}").contains(&hex(&secret.0[..4])));
    }
}
