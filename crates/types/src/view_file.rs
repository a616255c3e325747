//! The cluster view as a file: what the built-in config store keeps in the state directory.
//!
//! Layout, little-endian: magic (8 bytes), format (u32), length of the body (u32), CRC32C of the body (u32),
//! body = the view in the wire codec. The file ends with the body.
//!
//! Invariant: `decode(encode(view)) == view`, and every damaged byte is noticed.

use crate::checksum::crc32c;
use crate::{ClusterView, Decode as _, DecodeError, Encode as _, Reader};

const MAGIC: [u8; 8] = *b"GUPFSvew";
/// Format of the file that this program reads and writes.
pub const FORMAT: u32 = 1;
const HEADER_SIZE: usize = 20;

/// Why a view file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewFileError {
    /// Not a view file at all, or cut short.
    #[error("no cluster view: {0}")]
    Foreign(&'static str),
    /// Written by another version of the program: use that one.
    #[error("format {0} of the cluster view is unknown; this program knows {FORMAT}")]
    Format(u32),
    /// The bytes changed since they were written: recover the view from the labels of the NSDs.
    #[error("the cluster view is damaged: its checksum does not match")]
    Damaged,
    /// The checksum is right and the body is not: a bug of the writer.
    #[error("the cluster view cannot be decoded: {0}")]
    Body(#[from] DecodeError),
}

/// The bytes of the file that holds `view`.
pub fn encode(view: &ClusterView) -> Vec<u8> {
    let mut body = Vec::new();
    view.encode(&mut body);
    let length = u32::try_from(body.len()).expect("a view is far smaller than 4 GiB");
    let mut out = Vec::with_capacity(HEADER_SIZE + body.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// The view that the file's `bytes` hold.
///
/// # Errors
/// A file that is foreign, of another format, or damaged.
pub fn decode(bytes: &[u8]) -> Result<ClusterView, ViewFileError> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|w| w.first_chunk::<4>());
        word.copied().map(u32::from_le_bytes)
    };
    if !bytes.starts_with(&MAGIC) {
        return Err(ViewFileError::Foreign("the first bytes are not its magic"));
    }
    let (Some(format), Some(length), Some(crc)) = (word(8), word(12), word(16)) else {
        return Err(ViewFileError::Foreign("it is cut short"));
    };
    if format != FORMAT {
        return Err(ViewFileError::Format(format));
    }
    let body = &bytes[HEADER_SIZE..];
    if usize::try_from(length) != Ok(body.len()) || crc32c(body) != crc {
        return Err(ViewFileError::Damaged);
    }
    let mut reader = Reader::new(body);
    let view = ClusterView::decode(&mut reader)?;
    reader.finish("cluster view")?;
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterId, Epoch, FsId, Incarnation, NodeId, NodeView, NsdId, NsdView};

    fn view() -> ClusterView {
        ClusterView {
            cluster: ClusterId(7),
            fs: FsId(8),
            epoch: Epoch(9),
            manager: NodeId(1),
            nodes: vec![NodeView {
                id: NodeId(1),
                address: "10.77.0.1:7077".to_owned(),
                incarnation: Incarnation(3),
            }],
            nsds: vec![NsdView {
                id: NsdId(1),
                servers: vec![NodeId(1)],
                sector_count: 100,
                data_begin: 40,
                failure_group: 2,
                has_volatile_cache: true,
            }],
            owners: vec![NodeId(1); 3],
            block_size: 1 << 20,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(decode(&encode(&view())), Ok(view()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = encode(&view());
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad).is_err(), "byte {at} bit {bit}");
            }
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(decode(&longer), Err(ViewFileError::Damaged));
    }

    #[test]
    fn another_format_is_named() {
        let mut other = encode(&view());
        other[8] = 2;
        assert_eq!(decode(&other), Err(ViewFileError::Format(2)));
    }
}
