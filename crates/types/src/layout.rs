//! Where the blocks of a file go: on which NSDs, in stripes of how many bytes.
//!
//! A layout steers *new* sectors only. Where bytes lie is said by extents, so that a layout may be anything
//! at any time without a byte being lost. It is part of the attributes, because a node needs it before it
//! writes the first sector, and inherited from the directory by what is made in it.

use std::fmt;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::{NsdId, limits};

/// The extended attribute that shows and sets it; root only, as all of `trusted.`.
pub const LAYOUT_XATTR: &[u8] = b"trusted.gupfs.layout";
/// Least block size of a layout, as a power of two: 64 KiB.
const BLOCK_SHIFT_MIN: u8 = 16;
/// Largest block size of a layout, as a power of two: one request's bytes.
const BLOCK_SHIFT_MAX: u8 = 20;
const _: () = assert!(1 << BLOCK_SHIFT_MAX == limits::BLOCK_SIZE_DEFAULT);

/// The NSDs that a file is striped over, and the block size. The default is the file system's: all NSDs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Layout {
    nsds: [NsdId; limits::LAYOUT_NSD_COUNT_MAX],
    count: u8,
    /// Power of two; 0 is the file system's block size.
    block_shift: u8,
}

/// The text says no layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a layout is written nsds=N[,N...] [block=BYTES]")]
pub struct BadLayout;

impl Layout {
    /// A layout over `nsds` in this order. `None` when there are too many, one comes twice, or the block size
    /// (`None`: the file system's) is no power of two between 64 KiB and 1 MiB.
    pub fn new(nsds: &[NsdId], block_size: Option<u32>) -> Option<Self> {
        let mut layout = Self::default();
        let is_twice = (1..nsds.len()).any(|index| nsds[..index].contains(&nsds[index]));
        if nsds.len() > limits::LAYOUT_NSD_COUNT_MAX || is_twice {
            return None;
        }
        layout.nsds[..nsds.len()].copy_from_slice(nsds);
        layout.count = u8::try_from(nsds.len()).ok()?;
        if let Some(size) = block_size {
            let shift = u8::try_from(size.trailing_zeros()).ok()?;
            if !size.is_power_of_two() || !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&shift) {
                return None;
            }
            layout.block_shift = shift;
        }
        Some(layout)
    }

    /// The file system's own.
    pub fn is_default(&self) -> bool {
        self.count == 0 && self.block_shift == 0
    }

    /// The NSDs named; empty: all.
    pub fn nsds(&self) -> &[NsdId] {
        &self.nsds[..usize::from(self.count)]
    }

    /// Bytes of a block, where it is not the file system's.
    pub fn block_size(&self) -> Option<u32> {
        (self.block_shift > 0).then(|| 1 << self.block_shift)
    }

    /// Reads the value of `LAYOUT_XATTR`: words `nsds=3,4` and `block=1048576` (or `64K`, `1M`), each at most
    /// once and at least one; the empty value is the default.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(value: &[u8]) -> Result<Self, BadLayout> {
        let text = std::str::from_utf8(value).map_err(|_| BadLayout)?;
        // setfattr and shells leave an end of line or a NUL behind.
        let text = text.trim_end_matches(['\n', '\0']);
        let (mut nsds, mut block) = (None, None);
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or(BadLayout)?;
            match key {
                "nsds" if nsds.is_none() => nsds = Some(parse_nsds(value)?),
                "block" if block.is_none() => block = Some(parse_size(value)?),
                _ => return Err(BadLayout),
            }
        }
        Self::new(&nsds.unwrap_or_default(), block).ok_or(BadLayout)
    }
}

fn parse_nsds(text: &str) -> Result<Vec<NsdId>, BadLayout> {
    let number = |word: &str| word.parse().map(NsdId).map_err(|_| BadLayout);
    text.split(',').map(number).collect()
}

fn parse_size(text: &str) -> Result<u32, BadLayout> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| BadLayout)?;
    number.checked_mul(unit).ok_or(BadLayout)
}

/// As `parse` reads it.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (index, nsd) in self.nsds().iter().enumerate() {
            let before = if index == 0 { "nsds=" } else { "," };
            write!(f, "{before}{}", nsd.0)?;
            space = " ";
        }
        match self.block_size() {
            Some(size) => write!(f, "{space}block={size}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layout({self})")
    }
}

/// Two bytes and two for each NSD: most inodes have the default, and pay little for it.
impl Encode for Layout {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        self.block_shift.encode(out);
        self.nsds().iter().for_each(|nsd| nsd.encode(out));
    }
}

impl Decode for Layout {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u8::decode(reader)?;
        let shift = u8::decode(reader)?;
        let unknown = |value: u8| DecodeError::Unknown {
            what: "layout",
            value: u64::from(value),
        };
        if usize::from(count) > limits::LAYOUT_NSD_COUNT_MAX {
            return Err(unknown(count));
        }
        let nsds = (0..count).map(|_| NsdId::decode(reader));
        let nsds: Vec<NsdId> = nsds.collect::<Result<_, _>>()?;
        let block = (shift > 0).then(|| 1_u32.checked_shl(u32::from(shift)).unwrap_or(0));
        Self::new(&nsds, block).ok_or_else(|| unknown(shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        Layout::parse(text.as_bytes()).ok().map(|l| l.to_string())
    }

    #[test]
    fn text_is_read_and_written_back() {
        assert_eq!(parsed("nsds=3,4"), Some("nsds=3,4".into()));
        assert_eq!(
            parsed("block=64K nsds=9\n"),
            Some("nsds=9 block=65536".into())
        );
        assert_eq!(parsed("block=1M"), Some("block=1048576".into()));
        assert_eq!(parsed(""), Some(String::new()));
        assert!(Layout::parse(b"").expect("the default").is_default());
        let bad = [
            "nsds=",
            "nsds=3,3",
            "nsds=3,",
            "nsds=x",
            "nsds=70000",
            "block=3K",
            "block=32K",
            "block=2M",
            "block=9999999M",
            "stripes=2",
            "nsds",
            "nsds=1 nsds=2",
            "nsds=1,2,3,4,5",
            "\u{e4}",
        ];
        for text in bad {
            assert_eq!(parsed(text), None, "{text:?}");
        }
        assert_eq!(Layout::parse(&[0xff]), Err(BadLayout));
    }

    #[test]
    fn bytes_are_read_and_checked() {
        for text in ["", "nsds=1", "nsds=1,2,3,4 block=131072", "block=65536"] {
            let layout = Layout::parse(text.as_bytes()).expect("good");
            let bytes = layout.to_bytes();
            assert_eq!(bytes.len(), 2 + 2 * layout.nsds().len());
            assert_eq!(Layout::from_bytes(&bytes, "layout"), Ok(layout));
        }
        for bytes in [
            &[5, 0][..],
            &[1, 0],
            &[2, 0, 1, 0, 1, 0],
            &[0, 3],
            &[0, 21],
            &[0, 40],
        ] {
            assert!(Layout::from_bytes(bytes, "layout").is_err(), "{bytes:?}");
        }
    }
}
