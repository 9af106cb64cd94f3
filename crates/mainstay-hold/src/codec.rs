//! The bytes that our binary formats are made of: little-endian numbers and length-prefixed fields.

use std::fmt;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end before the value does.
    Short,
    /// The value ends before the bytes do.
    Trailing,
    /// A version that this build does not know.
    Version(u32),
    /// A field holds something that it must not hold.
    Invalid(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("the bytes end too early"),
            Self::Trailing => f.write_str("there are bytes after the end"),
            Self::Version(version) => write!(f, "version {version} is unknown"),
            Self::Invalid(what) => write!(f, "the field `{what}` is invalid"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Takes values off the front of a byte slice.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Everything that is left.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that nothing is left.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A field that was appended later: 0 if the peer does not send it.
    pub(crate) fn appended_u64(&mut self) -> Result<u64, DecodeError> {
        if self.0.is_empty() { Ok(0) } else { self.u64() }
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid(what)),
        }
    }

    pub(crate) fn maybe_i32(&mut self, what: &'static str) -> Result<Option<i32>, DecodeError> {
        let (some, value) = (self.bool(what)?, self.i32()?);
        Ok(some.then_some(value))
    }

    /// A field that begins with its length.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        let (field, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(field)
    }

    /// A field that begins with its length and is text.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| DecodeError::Invalid(what))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }
}

/// Appends values to a byte vector, as [`Reader`] reads them.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_i32(&mut self, value: i32);
    fn put_maybe_i32(&mut self, value: Option<i32>);
    fn put_bytes(&mut self, field: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_maybe_i32(&mut self, value: Option<i32>) {
        self.put_u8(u8::from(value.is_some()));
        self.put_i32(value.unwrap_or_default());
    }

    fn put_bytes(&mut self, field: &[u8]) {
        self.put_u32(length(field.len()));
        self.extend_from_slice(field);
    }
}

/// A length as it is written.
pub(crate) fn length(len: usize) -> u32 {
    u32::try_from(len).expect("a field is smaller than 4 GiB")
}
