//! Encrypts ids as one AES-128 block, which hides their time.

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockDecrypt as _, BlockEncrypt as _, KeyInit as _};

/// A secret key of 16 bytes that encrypts ids. With the key, the time in an id can be read.
///
/// ```
/// use semel_ids::codec::HidingKey;
/// use semel_ids::{Codec, Prefix};
/// use ulid::Ulid;
///
/// let key = HidingKey::from_hex("000102030405060708090a0b0c0d0e0f")?;
/// let codec = Codec::new().hiding_time([key]);
/// let (order, id) = (Prefix::new("ord")?, Ulid::from_parts(1_469_922_850_259, 7));
/// assert_eq!(codec.decode(&codec.encode(order, id))?, (order, id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct HidingKey(Aes128);

impl HidingKey {
    /// Creates a key from 16 random bytes.
    pub fn new(secret: [u8; 16]) -> Self {
        Self(Aes128::new(&secret.into()))
    }

    /// Parses a key from 32 hex digits of either case.
    ///
    /// # Errors
    /// [`InvalidHidingKey`] if `text` is not 32 hex digits.
    pub fn from_hex(text: &str) -> Result<Self, InvalidHidingKey> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(InvalidHidingKey);
        }
        let secret = u128::from_str_radix(text, 16).map_err(|_| InvalidHidingKey)?;
        Ok(Self::new(secret.to_be_bytes()))
    }

    pub(super) fn hide(&self, id: u128) -> u128 {
        let mut block = id.to_be_bytes().into();
        self.0.encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }

    pub(super) fn show(&self, hidden: u128) -> u128 {
        let mut block = hidden.to_be_bytes().into();
        self.0.decrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }
}

impl fmt::Debug for HidingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HidingKey(…)")
    }
}

/// The error of parsing text that is not a hiding key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hiding key is 32 hex digits (16 bytes)")]
pub struct InvalidHidingKey;
