//! The little-endian codec of messages and journal payloads: fixed layouts, every read bounds-checked.
//!
//! Invariants
//! - `decode(encode(x)) == x`, and the bytes are the same on every machine.
//! - Decoding foreign bytes never panics, never allocates more than the bytes it was given announce,
//!   and names the type that did not fit.
//!
//! `wire_struct!` and `wire_enum!` derive both directions from one field list, so that the two cannot
//! drift apart. An enum's discriminants are part of the format: never reuse one.

use thiserror::Error;

/// Why foreign bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("{what}: the bytes end too early")]
    Short {
        /// Type being decoded.
        what: &'static str,
    },
    /// A discriminant, magic, length or reserved field has a value that this version does not know.
    #[error("{what}: value {value} is not known to this version")]
    Unknown {
        /// Type being decoded.
        what: &'static str,
        /// The offending value.
        value: u64,
    },
    /// Bytes remain after the value.
    #[error("{what}: {count} bytes too many")]
    Trailing {
        /// Type being decoded.
        what: &'static str,
        /// Bytes left over.
        count: usize,
    },
}

/// A cursor over foreign bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes the next `count` bytes.
    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if count > self.bytes.len() {
            return Err(DecodeError::Short { what });
        }
        let (head, tail) = self.bytes.split_at(count);
        self.bytes = tail;
        Ok(head)
    }

    /// Takes a fixed array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let bytes = self.take(N, what)?;
        bytes.try_into().map_err(|_| DecodeError::Short { what })
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Fails when bytes remain.
    pub fn finish(self, what: &'static str) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing { what, count }),
        }
    }
}

/// What can be written as bytes.
pub trait Encode {
    /// Appends the value's bytes to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// The value's bytes alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// What can be read back from bytes.
pub trait Decode: Sized {
    /// Takes the value from the reader's front.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Decodes a value that must fill `bytes`.
    fn from_bytes(bytes: &[u8], what: &'static str) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.finish(what)?;
        Ok(value)
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Encode for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $t {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$t>::from_le_bytes(reader.array(stringify!($t))?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, u128, i32, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Unknown {
                what: "bool",
                value: value.into(),
            }),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::decode(reader)? {
            Some(T::decode(reader)?)
        } else {
            None
        })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len())
            .expect("messages are bounded far below 2^32 items")
            .encode(out);
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::decode(reader)? as usize;
        // Every item takes a byte at least, so a lying count cannot make us allocate more than we got.
        if count > reader.remaining() {
            return Err(DecodeError::Short { what: "list" });
        }
        let mut items = Self::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::decode(reader)?);
        }
        Ok(items)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(reader)?, B::decode(reader)?))
    }
}

/// Bytes that travel as metadata (names, inline files, edge pieces, synchronous writes): at most
/// `limits::SMALL_BYTES_MAX`, so they may be copied by a core. Few enough lie in the value itself: a name is
/// copied several times on its way from the kernel to the journal, and each copy was an allocation.
#[derive(Clone)]
pub struct SmallBytes(Place);

/// Bytes that lie in the value itself; with them it has 32 bytes.
const SHORT_SIZE_MAX: usize = 30;
/// What an allocator takes of its own for one allocation, and loses by rounding, on average.
const ALLOCATION_OVERHEAD: usize = 16;

#[derive(Clone)]
enum Place {
    Short(u8, [u8; SHORT_SIZE_MAX]),
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<SmallBytes>() == 32);

impl SmallBytes {
    /// Copies `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self::short(bytes).unwrap_or_else(|| Self(Place::Long(bytes.into())))
    }

    /// Bytes that it takes beside itself, roughly.
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Place::Short(..) => 0,
            Place::Long(bytes) => bytes.len() + ALLOCATION_OVERHEAD,
        }
    }

    fn short(bytes: &[u8]) -> Option<Self> {
        let size = u8::try_from(bytes.len()).ok()?;
        let mut place = [0; SHORT_SIZE_MAX];
        place.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(Place::Short(size, place)))
    }
}

impl Default for SmallBytes {
    fn default() -> Self {
        Self(Place::Short(0, [0; SHORT_SIZE_MAX]))
    }
}

impl From<Vec<u8>> for SmallBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::short(&bytes).unwrap_or_else(|| Self(Place::Long(bytes.into_boxed_slice())))
    }
}

impl std::ops::Deref for SmallBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Short(size, place) => &place[..usize::from(*size)],
            Place::Long(bytes) => bytes,
        }
    }
}

/// Maps by such bytes are searched with any others: all of them compare and hash as slices.
impl std::borrow::Borrow<[u8]> for SmallBytes {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for SmallBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SmallBytes {}

impl PartialOrd for SmallBytes {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SmallBytes {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for SmallBytes {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::fmt::Debug for SmallBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.len() <= 64 {
            write!(f, "b\"{}\"", self.escape_ascii())
        } else {
            write!(f, "[{} bytes]", self.len())
        }
    }
}

impl Encode for SmallBytes {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len())
            .expect("small bytes are at most 64 KiB")
            .encode(out);
        out.extend_from_slice(self);
    }
}

impl Decode for SmallBytes {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::decode(reader)? as usize;
        Ok(Self::new(reader.take(count, "bytes")?))
    }
}

/// Implements the codec of a struct, field by field in the order given.
#[macro_export]
macro_rules! wire_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $name {
            #[allow(unused_variables, reason = "a struct without fields writes nothing")]
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }
        impl $crate::codec::Decode for $name {
            #[allow(unused_variables, reason = "a struct without fields reads nothing")]
            fn decode(
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                $(let $field = $crate::codec::Decode::decode(reader)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// Implements the codec of an enum: one discriminant byte, then the variant's fields.
///
/// `wire_enum!(Shape { 1 => Circle { radius }, 2 => Empty {} });`: unit variants are written with
/// empty braces, tuple variants of one field as `3 => Boxed(inner)`.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($number:literal => $variant:ident $body:tt),* $(,)? }) => {
        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::wire_enum!(@encode self out $name $number $variant $body);)*
            }
        }
        impl $crate::codec::Decode for $name {
            fn decode(
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let number = <u8 as $crate::codec::Decode>::decode(reader)?;
                match number {
                    $($number => Ok($crate::wire_enum!(@decode reader $name $variant $body)),)*
                    value => Err($crate::codec::DecodeError::Unknown {
                        what: stringify!($name),
                        value: value.into(),
                    }),
                }
            }
        }
    };
    (@encode $self:ident $out:ident $name:ident $number:literal $variant:ident { $($field:ident),* $(,)? }) => {
        #[allow(irrefutable_let_patterns, reason = "an enum may have one variant")]
        if let $name::$variant { $($field),* } = $self {
            <u8 as $crate::codec::Encode>::encode(&$number, $out);
            $($crate::codec::Encode::encode($field, $out);)*
        }
    };
    (@encode $self:ident $out:ident $name:ident $number:literal $variant:ident ($field:ident)) => {
        #[allow(irrefutable_let_patterns, reason = "an enum may have one variant")]
        if let $name::$variant($field) = $self {
            <u8 as $crate::codec::Encode>::encode(&$number, $out);
            $crate::codec::Encode::encode($field, $out);
        }
    };
    (@decode $reader:ident $name:ident $variant:ident { $($field:ident),* $(,)? }) => {
        {
            $(let $field = $crate::codec::Decode::decode($reader)?;)*
            $name::$variant { $($field),* }
        }
    };
    (@decode $reader:ident $name:ident $variant:ident ($field:ident)) => {
        $name::$variant($crate::codec::Decode::decode($reader)?)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bytes_are_the_same_wherever_they_lie() {
        let all: Vec<u8> = (0..=255).collect();
        for size in [0, 1, 29, 30, 31, 255] {
            let (copied, moved) = (
                SmallBytes::new(&all[..size]),
                SmallBytes::from(all[..size].to_vec()),
            );
            assert_eq!(&*copied, &all[..size]);
            assert_eq!(copied, moved);
            assert_eq!(copied.clone(), copied);
            assert_eq!(copied.cmp(&SmallBytes::new(&all[..30])), size.cmp(&30));
            let mut bytes = Vec::new();
            copied.encode(&mut bytes);
            assert_eq!(
                SmallBytes::decode(&mut Reader::new(&bytes)).unwrap(),
                copied
            );
        }
        assert_eq!(SmallBytes::default(), SmallBytes::new(b""));
    }

    #[derive(Debug, PartialEq)]
    struct Point {
        x: u32,
        y: Option<i64>,
    }
    wire_struct!(Point { x, y });

    #[derive(Debug, PartialEq)]
    enum Shape {
        Empty,
        Circle { centre: Point, radius: u8 },
        List(Vec<u16>),
    }
    wire_enum!(Shape { 0 => Empty {}, 1 => Circle { centre, radius }, 7 => List(points) });

    #[test]
    fn every_shape_comes_back_and_every_cut_is_refused() {
        for shape in [
            Shape::Empty,
            Shape::Circle {
                centre: Point { x: 1, y: Some(-2) },
                radius: 3,
            },
            Shape::List(vec![1, 2, 3]),
        ] {
            let bytes = shape.to_bytes();
            assert_eq!(Shape::from_bytes(&bytes, "shape"), Ok(shape));
            for cut in 0..bytes.len() {
                assert!(Shape::from_bytes(&bytes[..cut], "shape").is_err());
            }
        }
        assert!(Shape::from_bytes(&[9], "shape").is_err());
        assert!(Shape::from_bytes(&[0, 0], "shape").is_err());
        assert!(Shape::from_bytes(&[7, 255, 255, 255, 255], "shape").is_err());
    }
}
