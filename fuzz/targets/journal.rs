//! A journal on disk: two halves with headers, records whose numbers, chains and checksums fit or do not, and what a record holds.
//!
//! The input is a list of what lies there. Checksums are made to fit unless it says otherwise: else nothing behind them is reached.
#![no_main]

use data::space::{Geometry, Levels, Space};
use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use meta::Mutation;
use node::log::replay_space;
use store::format::{
    Area, HEADER_SECTORS, RECORD_ALIGN, RECORD_HEADER_SIZE, RecordHeader, RecordKind, SECTOR,
    SegmentHeader,
};
use store::format::{PartKey, encode_part};
use store::testing::{Disk, recover};
use types::{
    Decode, Epoch, FsId, Incarnation, Location, Lsn, NodeId, NsdId, Reader, ShardId, crc32c,
};

const FS: FsId = FsId(7);
const OWNER: NodeId = NodeId(1);
const AREA: Area = Area {
    nsd: NsdId(0),
    begin: 64,
    count: 32,
};

const DISK: Geometry = Geometry {
    nsd: NsdId(0),
    data_begin: 128,
    sector_count: 1 << 20,
    region_sectors: 1 << 14,
};
const LEVELS: Levels = Levels {
    reserve: 64,
    low: 256,
};

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut disk = Disk::new();
    for half in 0..2 {
        let image = image_of(&mut input);
        put(&mut disk, AREA.at(half, 0), &image);
    }
    let mut space = Space::new(&[DISK], LEVELS);
    let mut table = None;
    let recovered = recover(&disk, AREA, FS, OWNER, &mut |part| match part.key {
        PartKey::Shard(_) => {
            let mut reader = Reader::new(part.bytes);
            while reader.remaining() > 0 {
                Mutation::decode(&mut reader)?;
            }
            Ok(())
        }
        PartKey::Space | PartKey::RegionTable => replay_space(part.bytes, &mut space, &mut table),
    });
    if let Ok(recovered) = recovered {
        assert!(recovered.next_half < 2);
    }
});

fn put(disk: &mut Disk, at: Location, bytes: &[u8]) {
    let id = disk.submit(at, bytes);
    disk.complete_flushed(id);
}

/// A half: its headers, then its records.
fn image_of(input: &mut Input<'_>) -> Vec<u8> {
    let size = usize::try_from(AREA.half_sectors()).expect("few") * SECTOR;
    let mut image = vec![0; size];
    let mut header = None;
    for index in 0..HEADER_SECTORS as usize {
        let place = &mut image[index * SECTOR..][..SECTOR];
        match input.byte() % 4 {
            0 => {}
            1 => {
                let given = input.take(64);
                place[..given.len()].copy_from_slice(given);
            }
            how => {
                let made = SegmentHeader {
                    is_retired: how == 3,
                    fs: FS,
                    owner: OWNER,
                    incarnation: Incarnation(input.byte().into()),
                    sequence: input.byte().into(),
                    base: Lsn(input.byte().into()),
                    previous: input.byte().into(),
                    replayed_to: Lsn(input.byte().into()),
                    area: AREA,
                };
                let mut sector = Vec::new();
                made.encode_to(&mut sector);
                place.copy_from_slice(&sector);
                header = Some(made);
            }
        }
    }
    if let Some(header) = header {
        records(&header, &mut image, input);
    }
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.short()) % size;
        image[at] ^= input.byte();
    }
    image
}

fn records(segment: &SegmentHeader, image: &mut [u8], input: &mut Input<'_>) {
    let mut at = HEADER_SECTORS as usize * SECTOR;
    let (mut lsn, mut chain) = (segment.base.0, segment.chain());
    for _ in 0..input.byte() % 16 {
        let faults = input.byte();
        let kind = match input.byte() % 3 {
            0 => RecordKind::Operation,
            1 => RecordKind::Snapshot,
            _ => RecordKind::End,
        };
        let mut record = vec![0; RECORD_HEADER_SIZE];
        let part_count = input.byte() % 4;
        for _ in 0..part_count {
            let key = match input.byte() % 4 {
                0 => PartKey::Space,
                1 => PartKey::RegionTable,
                _ => PartKey::Shard(ShardId(input.byte().into())),
            };
            let size = usize::from(input.short()) % 512;
            encode_part(key, Epoch(1), input.take(size), &mut record);
        }
        if faults & 1 != 0 {
            record.extend_from_slice(input.take(40));
        }
        if at + record.len() > image.len() {
            return;
        }
        lsn += u64::from(kind == RecordKind::Operation);
        let mut header = RecordHeader {
            length: record.len(),
            lsn: Lsn(lsn),
            tag: segment.tag(),
            durable: Lsn(lsn.min(input.byte().into())),
            kind,
            part_count: part_count.into(),
            previous: chain,
            body_crc: crc32c(&record[RECORD_HEADER_SIZE..]),
            crc: 0,
        };
        match faults >> 1 {
            1 => header.length = usize::from(input.short()),
            2 => header.lsn = Lsn(input.long()),
            3 => header.part_count = input.short(),
            4 => header.durable = Lsn(input.long()),
            5 => header.tag ^= 1,
            6 => header.previous ^= 1,
            7 => header.body_crc ^= 1,
            8 => at = at.next_multiple_of(SECTOR),
            _ => {}
        }
        if at + record.len() > image.len() {
            return;
        }
        chain = header.encode_over(&mut record);
        image[at..at + record.len()].copy_from_slice(&record);
        at += record.len().next_multiple_of(RECORD_ALIGN);
        if input.byte() & 1 == 0 {
            at = at.next_multiple_of(SECTOR);
        }
    }
}
