//! The copy of the cluster view on an NSD: two slots written in turn, so that one is always whole.
//!
//! A slot is a header (magic, version, length, epoch, cluster, CRC32C over header and body), the
//! encoded `ClusterView`, and zeros up to a whole sector. The writer never overwrites the newest
//! whole slot, so a torn write costs the older view only.

use thiserror::Error;
use types::{ClusterView, Decode, Encode, Epoch, SECTOR_SIZE};
use zerocopy::byteorder::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use types::checksum::crc32c;

/// Sectors of a slot; slot `i` begins at sector `2 + i * VIEW_SLOT_SECTORS`.
pub const VIEW_SLOT_SECTORS: u64 = 31;

const SLOT_SIZE: usize = 31 * 4096;
const SLOT_COUNT: usize = 2;
const FIRST_SECTOR: u64 = 2;
const MAGIC: [u8; 8] = *b"GUPFSVEW";
const VERSION: u32 = 1;
const HEADER_SIZE: usize = size_of::<RawHeader>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    body_size: U32,
    epoch: U64,
    cluster: U128,
    reserved: [u8; 20],
    crc: U32,
}

const _: () = assert!(HEADER_SIZE == 64);
const _: () = assert!(FIRST_SECTOR + 2 * VIEW_SLOT_SECTORS == super::HEAD_SECTORS);

/// The view does not fit into a slot: the label then keeps the last one that did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the cluster view takes {size} bytes, a label holds {size_max}")]
pub struct ViewTooLarge {
    /// Bytes of the view.
    pub size: usize,
    /// Bytes that fit.
    pub size_max: usize,
}

/// What the two slots hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewSlots {
    /// The newest whole view.
    pub newest: Option<ClusterView>,
    /// Slot that the next view is to be written to.
    pub next_slot: usize,
}

impl ViewSlots {
    /// First sector of the slot to write next.
    pub fn next_sector(&self) -> u64 {
        FIRST_SECTOR + self.next_slot as u64 * VIEW_SLOT_SECTORS
    }
}

/// The bytes of `view` for a slot: whole sectors.
///
/// # Errors
/// `ViewTooLarge` when it does not fit.
pub fn encode_view(view: &ClusterView) -> Result<Vec<u8>, ViewTooLarge> {
    let body = view.to_bytes();
    let size_max = SLOT_SIZE - HEADER_SIZE;
    if body.len() > size_max {
        return Err(ViewTooLarge {
            size: body.len(),
            size_max,
        });
    }
    let header = RawHeader {
        magic: MAGIC,
        version: VERSION.into(),
        body_size: u32::try_from(body.len()).expect("below a slot").into(),
        epoch: view.epoch.0.into(),
        cluster: view.cluster.0.into(),
        reserved: [0; 20],
        crc: 0.into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(&body);
    let crc = slot_crc(&bytes);
    bytes[HEADER_SIZE - 4..HEADER_SIZE].copy_from_slice(&crc.to_le_bytes());
    let sector = usize::try_from(SECTOR_SIZE).expect("4096");
    bytes.resize(bytes.len().next_multiple_of(sector), 0);
    Ok(bytes)
}

/// Reads both slots from the first `HEAD_SECTORS` sectors of an NSD. A torn, damaged or unknown slot
/// counts as empty: the view is kept on several NSDs and in the config store.
pub fn decode_views(head: &[u8]) -> ViewSlots {
    let slots: [Option<ClusterView>; SLOT_COUNT] = std::array::from_fn(|slot| {
        let first = usize::try_from(FIRST_SECTOR * SECTOR_SIZE).expect("8192");
        let begin = first + slot * SLOT_SIZE;
        decode_slot(head.get(begin..begin + SLOT_SIZE)?)
    });
    let epoch = |slot: &Option<ClusterView>| slot.as_ref().map_or(Epoch(0), |view| view.epoch);
    let [slot0, slot1] = slots;
    let (newest, next_slot) = match epoch(&slot0) >= epoch(&slot1) && slot0.is_some() {
        true => (slot0, 1),
        false => (slot1, 0),
    };
    ViewSlots { newest, next_slot }
}

fn slot_crc(bytes: &[u8]) -> u32 {
    let mut covered = bytes.to_vec();
    covered[HEADER_SIZE - 4..HEADER_SIZE].fill(0);
    crc32c(&covered)
}

fn decode_slot(bytes: &[u8]) -> Option<ClusterView> {
    let (header, rest) = RawHeader::ref_from_prefix(bytes).ok()?;
    if header.magic != MAGIC || header.version.get() != VERSION {
        return None;
    }
    let size = usize::try_from(header.body_size.get()).ok()?;
    let body = rest.get(..size)?;
    if slot_crc(&bytes[..HEADER_SIZE + size]) != header.crc.get() {
        return None;
    }
    let view = ClusterView::from_bytes(body, "cluster view").ok()?;
    let is_consistent =
        view.epoch.0 == header.epoch.get() && view.cluster.0 == header.cluster.get();
    is_consistent.then_some(view)
}
