//! The secret with which the two ends of a connection prove that they belong to the same job.
//!
//! The principal type is [`Secret`]: 32 bytes. A launcher gives them to every worker over its control channel, or all
//! launchers of a job know them. The secret never travels over a network: each end answers the other's nonce with a
//! keyed hash (HMAC-SHA-256, RFC 2104). Keys for other purposes are derived from it (HKDF, RFC 5869).

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;

/// The bytes of a secret, of a nonce and of a tag.
pub(crate) const BYTES: usize = 32;

/// The key of a job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret([u8; BYTES]);

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// If the kernel provides no random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        nonce().map(Self)
    }

    /// The secret of a text of any length. Anybody who knows the text knows the secret.
    pub fn from_text(text: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(b"antiphon job secret\0").chain_update(text).finalize().into())
    }

    /// A key for one purpose. It reveals nothing about this secret.
    pub(crate) fn derive(&self, purpose: &[&[u8]]) -> Self {
        let mut key = [0; BYTES];
        // Only a key much longer than the hash would be too long.
        let derived = Hkdf::<Sha256>::new(None, &self.0).expand_multi_info(purpose, &mut key);
        debug_assert!(derived.is_ok());
        Self(key)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC pads a key to the block length of the hash.
        let mut key = hmac::digest::Key::<Hmac<Sha256>>::default();
        key[..BYTES].copy_from_slice(&self.0);
        parts.iter().fold(Hmac::new(&key), |mac, part| mac.chain_update(part))
    }

    /// The tag of a message, which is the concatenation of `parts`.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the tag of a message. The time does not depend on where they differ.
    pub(crate) fn verify(&self, parts: &[&[u8]], tag: &[u8; BYTES]) -> bool {
        self.mac(parts).verify(tag.into()).is_ok()
    }
}

/// Hides the bytes, so that no log contains a secret.
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

    /// RFC 4231, test cases 1 and 2. Their keys are shorter than 32 bytes; HMAC pads them with zeroes.
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

    /// RFC 5869, test case 3: without salt and without purpose.
    #[test]
    fn keys_are_those_of_the_standard() {
        let expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d";
        let mut key = [0; BYTES];
        Hkdf::<Sha256>::new(None, &[0x0b; 22]).expand_multi_info(&[], &mut key).unwrap();
        assert_eq!(hex(&key), expected);
        let secret = Secret::random().unwrap();
        let purposes: [&[&[u8]]; 4] = [&[], &[b"one"], &[b"another"], &[b"one", b"more"]];
        let keys = purposes.map(|purpose| secret.derive(purpose));
        let different = keys.iter().enumerate().all(|(index, key)| *key != secret && !keys[..index].contains(key));
        assert!(different && keys[1] == secret.derive(&[b"o", b"ne"]));
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
