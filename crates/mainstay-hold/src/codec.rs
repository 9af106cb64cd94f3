//! Our binary formats: little-endian numbers and length-prefixed fields.
//!
//! `encoded!` declares a struct or an enum together with its encoding. Fields are written in the order of the
//! declaration, a variant begins with its number. Three forms of a field exist:
//!
//! - `name: Type`;
//! - `name: Type = 0`: appended in a later version, with this value if the writer is older;
//! - `name: Vec<u8> as rest`: all remaining bytes, without a length.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the bytes end too early")]
    Short,
    /// The value ends before the bytes do.
    #[error("there are bytes after the end")]
    Trailing,
    /// A version that this build does not know.
    #[error("version {0} is unknown")]
    Version(u32),
    /// A field has a value that it must not have.
    #[error("the field `{0}` is invalid")]
    Invalid(&'static str),
}

/// A value that can be a field.
pub(crate) trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// `name` is that of the field, for errors.
    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError>;
}

/// An enum whose variants are numbered.
pub(crate) trait Message: Sized {
    fn kind(&self) -> u8;
    fn put_fields(&self, out: &mut Vec<u8>);
    /// `None` if no variant has this number.
    fn take_fields(kind: u8, from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError>;
}

macro_rules! encoded {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type,)* }

        impl $crate::codec::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Field::put(&self.$field, out);)*
            }

            fn take(
                from: &mut $crate::codec::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Field::take(from, stringify!($field))?,)* })
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $(
                $(#[$variant_meta:meta])*
                $variant:ident = $kind:tt $({
                    $(
                        $(#[$field_meta:meta])*
                        $field:ident: $type:ty $(= $default:literal)? $(as $mode:ident)?,
                    )*
                })?,
            )*
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$variant_meta])* $variant $({ $($(#[$field_meta])* $field: $type,)* })?,)*
        }

        impl $crate::codec::Message for $name {
            fn kind(&self) -> u8 {
                match self { $(Self::$variant { .. } => $kind,)* }
            }

            #[allow(unused_variables, clippy::match_same_arms, reason = "some variants have no fields")]
            fn put_fields(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field,)* })? => {
                        $($(encoded!(@put $field, out $(, $mode)?);)*)?
                    })*
                }
            }

            #[allow(unused_variables, reason = "an enum may have no fields")]
            fn take_fields(
                kind: u8,
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Option<Self>, $crate::codec::DecodeError> {
                Ok(Some(match kind {
                    $($kind => Self::$variant $({
                        $($field: encoded!(@take $field, from $(, = $default)? $(, $mode)?),)*
                    })?,)*
                    _ => return Ok(None),
                }))
            }
        }
    };
    (@put $field:ident, $out:ident) => { $crate::codec::Field::put($field, $out) };
    (@put $field:ident, $out:ident, rest) => { $out.extend_from_slice($field) };
    (@take $field:ident, $from:ident) => {
        $crate::codec::Field::take($from, stringify!($field))?
    };
    (@take $field:ident, $from:ident, = $default:literal) => {
        if $from.is_empty() { $default } else { encoded!(@take $field, $from) }
    };
    (@take $field:ident, $from:ident, rest) => { $from.take_rest() };
}

pub(crate) use encoded;

/// Takes values off the front of a byte slice.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

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

    /// A field that begins with its length.
    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        let (field, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }
}

/// Writes a field that begins with its length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: &[u8]) {
    length(field.len()).put(out);
    out.extend_from_slice(field);
}

/// A length as it is written.
pub(crate) fn length(len: usize) -> u32 {
    u32::try_from(len).expect("a field is smaller than 4 GiB")
}

macro_rules! number {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
                from.array().map(Self::from_le_bytes)
            }
        })*
    };
}

number!(u32, u64, i32);

/// Fields that are bytes with a length.
macro_rules! bytes {
    ($($type:ty: $as_bytes:expr, $from_bytes:expr;)*) => {
        $(impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let as_bytes: fn(&Self) -> &[u8] = $as_bytes;
                put_bytes(out, as_bytes(self));
            }

            fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
                let from_bytes: fn(Vec<u8>) -> Option<Self> = $from_bytes;
                from_bytes(from.bytes()?.to_vec()).ok_or(DecodeError::Invalid(name))
            }
        })*
    };
}

bytes! {
    Vec<u8>: Vec::as_slice, Some;
    String: String::as_bytes, |bytes| String::from_utf8(bytes).ok();
    OsString: |text| text.as_bytes(), |bytes| Some(Self::from_vec(bytes));
    PathBuf: |path| path.as_os_str().as_bytes(), |bytes| Some(OsString::from_vec(bytes).into());
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid(name)),
        }
    }
}

impl Field for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_secs().put(out);
        self.subsec_nanos().put(out);
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        match (u64::take(from, name)?, from.u32()?) {
            (secs, nanos @ 0..1_000_000_000) => Ok(Self::new(secs, nanos)),
            _ => Err(DecodeError::Invalid(name)),
        }
    }
}

/// The number takes the same room if there is none.
impl Field for Option<i32> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.unwrap_or_default().put(out);
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        let (some, value) = (bool::take(from, name)?, i32::take(from, name)?);
        Ok(some.then_some(value))
    }
}

macro_rules! optional {
    ($($type:ty),*) => {
        $(impl Field for Option<$type> {
            fn put(&self, out: &mut Vec<u8>) {
                self.is_some().put(out);
                if let Some(field) = self {
                    field.put(out);
                }
            }

            fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
                bool::take(from, name)?.then(|| <$type>::take(from, name)).transpose()
            }
        })*
    };
}

optional!(String, PathBuf);

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        Ok((A::take(from, name)?, B::take(from, name)?))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        length(self.len()).put(out);
        for field in self {
            field.put(out);
        }
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        (0..from.u32()?).map(|_| T::take(from, name)).collect()
    }
}

impl<M: Message> Field for M {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        self.put_fields(out);
    }

    fn take(from: &mut Reader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        let kind = from.u8()?;
        Self::take_fields(kind, from)?.ok_or(DecodeError::Invalid(name))
    }
}
