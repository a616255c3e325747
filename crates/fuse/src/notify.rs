//! Notifications to the kernel, encoded. They have no answer but write(2)'s outcome.

use crate::abi::{self, OutHeader, notify_code};
use crate::node;
use client::request::Notice;
use types::{InodeId, Name};
use zerocopy::IntoBytes;

fn notification(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let header = OutHeader {
        len: u32::try_from(size_of::<OutHeader>() + size).expect("a structure and a name"),
        error: code,
        unique: 0,
    };
    let mut out = Vec::with_capacity(header.len as usize);
    out.extend_from_slice(header.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// The bytes of `notice`.
pub fn encode_notice(notice: &Notice) -> Vec<u8> {
    match notice {
        Notice::Data {
            ino,
            offset,
            length,
        } => {
            // The kernel takes a length of 0 or less as "to the end".
            let off = i64::try_from(*offset).unwrap_or(i64::MAX);
            inval_inode(*ino, off, i64::try_from(*length).unwrap_or(0))
        }
        Notice::Attributes { ino } => inval_inode(*ino, -1, 0),
        Notice::Entry { parent, name } => inval_entry(*parent, name, false),
        Notice::Epoch => notification(notify_code::INC_EPOCH, &[]),
        Notice::Prune { inos } => prune(inos),
    }
}

fn inval_inode(ino: InodeId, off: i64, len: i64) -> Vec<u8> {
    let body = abi::InvalInodeOut {
        ino: node::number_of(ino),
        off,
        len,
    };
    notification(notify_code::INVAL_INODE, &[body.as_bytes()])
}

fn prune(inos: &[InodeId]) -> Vec<u8> {
    let body = abi::PruneOut {
        count: u32::try_from(inos.len()).expect("some hundred"),
        padding: 0,
        spare: 0,
    };
    let ids: Vec<u64> = inos.iter().map(|ino| node::number_of(*ino)).collect();
    notification(notify_code::PRUNE, &[body.as_bytes(), ids.as_bytes()])
}

/// Drops a name; with `expire_only` it is looked up again at its next use instead.
pub fn inval_entry(parent: InodeId, name: &Name, expire_only: bool) -> Vec<u8> {
    let flags = if expire_only {
        abi::inval_entry_flag::EXPIRE_ONLY
    } else {
        0
    };
    let body = abi::InvalEntryOut {
        parent: node::number_of(parent),
        namelen: name_size(name),
        flags,
    };
    let parts: [&[u8]; 3] = [body.as_bytes(), name.bytes(), &[0]];
    notification(notify_code::INVAL_ENTRY, &parts)
}

/// Says that `name`, which led to `child`, was removed.
pub fn delete(parent: InodeId, child: InodeId, name: &Name) -> Vec<u8> {
    let body = abi::DeleteOut {
        parent: node::number_of(parent),
        child: node::number_of(child),
        namelen: name_size(name),
        padding: 0,
    };
    let parts: [&[u8]; 3] = [body.as_bytes(), name.bytes(), &[0]];
    notification(notify_code::DELETE, &parts)
}

/// Asks for cached bytes; they come as `Decoded::Retrieved` with `notify_unique`.
pub fn retrieve(notify_unique: u64, ino: InodeId, offset: u64, size: u32) -> Vec<u8> {
    let body = abi::RetrieveOut {
        notify_unique,
        nodeid: node::number_of(ino),
        offset,
        size,
        padding: 0,
    };
    notification(notify_code::RETRIEVE, &[body.as_bytes()])
}

/// What goes before `size` bytes that the kernel is to put into the page cache of `ino`, from its beginning on. It may block on folios that are
/// locked, and drops the attributes that it knows where the file gets longer by it.
pub fn store_head(ino: InodeId, size: u32) -> Vec<u8> {
    let body = abi::StoreOut {
        nodeid: node::number_of(ino),
        offset: 0,
        size,
        padding: 0,
    };
    let size_of_head = size_of::<OutHeader>() + size_of::<abi::StoreOut>();
    let header = OutHeader {
        len: u32::try_from(size_of_head).expect("40") + size,
        error: notify_code::STORE,
        unique: 0,
    };
    [header.as_bytes(), body.as_bytes()].concat()
}

/// Asks the kernel to send again what it sent and has no answer to.
pub fn resend() -> Vec<u8> {
    notification(notify_code::RESEND, &[])
}

fn name_size(name: &Name) -> u32 {
    u32::try_from(name.bytes().len()).expect("names are at most 255 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn lengths_and_codes_are_as_the_kernel_checks_them() {
        let name = Name::new(b"file").unwrap();
        let ino = InodeId::from_raw(7);
        let notices = [
            (Notice::Attributes { ino }, 2, 40),
            (
                Notice::Entry {
                    parent: ino,
                    name: name.clone(),
                },
                3,
                16 + 16 + 5,
            ),
            (Notice::Epoch, 8, 16),
            (
                Notice::Prune {
                    inos: vec![ino, ino],
                },
                9,
                16 + 16 + 16,
            ),
        ];
        for (notice, code, size) in notices {
            let bytes = encode_notice(&notice);
            let (header, _) = OutHeader::read_from_prefix(&bytes).unwrap();
            assert_eq!(bytes.len(), size);
            assert_eq!(header.len as usize, size);
            assert_eq!((header.error, header.unique), (code, 0));
        }
        assert_eq!(delete(ino, ino, &name).len(), 16 + 24 + 5);
        assert_eq!(retrieve(1, ino, 0, 4096).len(), 48);
    }

    #[test]
    fn a_range_reaches_the_kernel() {
        let notice = |offset, length| Notice::Data {
            ino: InodeId::ROOT,
            offset,
            length,
        };
        for (offset, length, off, len) in [
            (4096, 8192, 4096, 8192),
            (0, 0, 0, 0),
            (4096, u64::MAX, 4096, 0),
        ] {
            let bytes = encode_notice(&notice(offset, length));
            let body = abi::InvalInodeOut::read_from_bytes(&bytes[16..]).unwrap();
            assert_eq!((body.ino, body.off, body.len), (1, off, len));
        }
    }

    /// Where a notice named an inode by another number than answers do, the kernel would not find it, and go on to believe it.
    #[test]
    fn notices_name_inodes_as_answers_do() {
        let ino = InodeId::from_raw(0x0002_0000_0000_0007);
        let child = InodeId::from_raw(0x0003_0000_0000_0009);
        let number = 0x0002_3c6e_f372_fe93;
        let name = Name::new(b"file").unwrap();
        let word = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[16 + at..16 + at + 8].try_into().unwrap())
        };
        assert_eq!(word(&encode_notice(&Notice::Attributes { ino }), 0), number);
        assert_eq!(word(&inval_entry(ino, &name, true), 0), number);
        let bytes = delete(ino, child, &name);
        assert_eq!(word(&bytes, 0), number);
        assert_eq!(node::inode_of(word(&bytes, 8)), child);
        let inos = vec![ino];
        assert_eq!(word(&encode_notice(&Notice::Prune { inos }), 16), number);
        assert_eq!(word(&retrieve(1, ino, 0, 4096), 8), number);
    }
}
