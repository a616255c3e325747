//! The first sectors of a disk: labels with their copies, the cluster views behind them, and the file that holds a view.
//!
//! The first byte says which of the copies are good ones with some other bytes, and which of them get a magic and a checksum that
//! fit, so that what lies behind these is reached.
#![no_main]

use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use nsd::Label;
use nsd::label::{COPY_COUNT, HEAD_SECTORS, LABEL_SIZE, MAGIC, decode_views};
use nsd::label::{JournalArea, RESERVED_SECTORS, Usage};
use types::{ClusterId, FsId, NodeId, NsdId, SECTOR_SIZE, Timestamp, crc32c, view_file};

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let sealed = input.byte();
    let mut head = vec![0; (HEAD_SECTORS * SECTOR_SIZE) as usize];
    for copy in 0..COPY_COUNT {
        let size = usize::from(input.short()) % (LABEL_SIZE + 1);
        let place = &mut head[copy * LABEL_SIZE..][..LABEL_SIZE];
        if sealed >> (2 + copy) & 1 == 1 {
            place.copy_from_slice(&good().encode(copy)[..]);
            for _ in 0..input.byte() % 8 {
                let at = usize::from(input.short()) % LABEL_SIZE;
                place[at] = input.byte();
            }
        } else {
            let given = input.take(size);
            place[..given.len()].copy_from_slice(given);
        }
        if sealed >> copy & 1 == 1 {
            place[..MAGIC.len()].copy_from_slice(&MAGIC);
            let crc = crc32c(&place[..LABEL_SIZE - 4]);
            place[LABEL_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let views = input.rest();
    let size = views.len().min(head.len() - COPY_COUNT * LABEL_SIZE);
    head[COPY_COUNT * LABEL_SIZE..][..size].copy_from_slice(&views[..size]);
    if let Ok(decoded) = Label::decode(&head) {
        let again = Label::decode(&decoded.label.encode_head())
            .expect("a label that was read can be written and read");
        assert_eq!(again.label, decoded.label);
    }
    decode_views(&head);
    if let Ok(view) = view_file::decode(views) {
        assert_eq!(view_file::decode(&view_file::encode(&view)), Ok(view));
    }
});

fn good() -> Label {
    let journal = JournalArea {
        owner: NodeId(1),
        first_sector: RESERVED_SECTORS,
        sector_count: 4096,
    };
    Label {
        cluster: ClusterId(1),
        fs: FsId(2),
        nsd: NsdId(3),
        name: "one".to_owned(),
        revision: 1,
        failure_group: 1,
        usage: Usage::Both,
        pool: "system".to_owned(),
        sector_count: 1 << 20,
        journals: vec![journal],
        data_begin: 1 << 14,
        region_sectors: 1 << 14,
        block_size: 1 << 20,
        hash_key: 4,
        shard_count: 64,
        created: Timestamp { secs: 1, nanos: 0 },
        features_incompatible: 0,
        features_compatible: 0,
    }
}
