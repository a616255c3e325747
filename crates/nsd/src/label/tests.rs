//! Round trips, every single bit flip, every pair of copy states, foreign disks, layouts of all sizes.

use super::*;
use types::{ClusterView, Epoch, Incarnation, NodeView};

const MIB: u64 = 256;

fn spec() -> Spec {
    Spec {
        cluster: ClusterId(0x1111),
        fs: FsId(0x2222),
        nsd: NsdId(3),
        name: "nsd-3".to_owned(),
        failure_group: 7,
        usage: Usage::Both,
        pool: "system".to_owned(),
        block_size: 1 << 20,
        hash_key: 0x3333,
        created: Timestamp {
            secs: 1_700_000_000,
            nanos: 5,
        },
    }
}

fn label() -> Label {
    Label::layout(&spec(), 2048 * MIB, &[NodeId(1), NodeId(2)]).unwrap()
}

#[test]
fn a_label_comes_back_from_both_copies() {
    let mut label = label();
    for (usage, journals) in [
        (Usage::Both, 2),
        (Usage::Metadata, 1),
        (Usage::Data, 0),
        (Usage::Both, 0),
    ] {
        label.usage = usage;
        label.journals.truncate(journals);
        let decoded = Label::decode(&label.encode_head()).unwrap();
        assert_eq!(decoded.label, label);
        assert!(decoded.copies_to_repair.is_empty());
    }
}

#[test]
fn the_documented_fields_fill_the_sector_without_holes() {
    let mut offset = 0;
    for field in FIELDS {
        assert_eq!(field.offset, offset, "{}", field.name);
        offset += field.size;
    }
    assert_eq!(offset, LABEL_SIZE);
}

#[test]
fn the_bytes_do_not_change_between_versions() {
    let bytes = label().encode(0);
    assert_eq!(&bytes[..16], b"GUPFSNSD\x01\0\0\0\0\x03\x03\0");
    assert_eq!(bytes[32], 0x11);
    assert_eq!(bytes[48], 0x22);
    assert_eq!(&bytes[136..141], b"nsd-3");
    assert_eq!(&bytes[200..206], b"system");
    assert_eq!(types::crc32c(&bytes[..4092]).to_le_bytes(), bytes[4092..]);
}

#[test]
fn every_single_bit_flip_of_a_copy_is_found_and_the_other_copy_used() {
    let label = label();
    let good = label.encode_head()[..2 * LABEL_SIZE].to_vec();
    let mut head = good.clone();
    for copy in 0..COPY_COUNT {
        for bit in 0..LABEL_SIZE * 8 {
            let at = copy * LABEL_SIZE + bit / 8;
            head[at] ^= 1 << (bit % 8);
            let decoded = Label::decode(&head).expect("the other copy is good");
            assert_eq!(decoded.label, label, "copy {copy}, bit {bit}");
            assert_eq!(decoded.copies_to_repair, [copy], "copy {copy}, bit {bit}");
            head[at] ^= 1 << (bit % 8);
        }
    }
    assert_eq!(head, good);
}

#[test]
fn the_newer_of_two_good_copies_counts() {
    let old = label();
    let new = Label {
        revision: 2,
        failure_group: 9,
        ..label()
    };
    let mut head = old.encode_head();
    head[LABEL_SIZE..2 * LABEL_SIZE].copy_from_slice(&new.encode(1)[..]);
    let decoded = Label::decode(&head).unwrap();
    assert_eq!(decoded.label, new);
    assert_eq!(decoded.copies_to_repair, [0]);
    let mut head = new.encode_head();
    head[LABEL_SIZE..2 * LABEL_SIZE].copy_from_slice(&old.encode(1)[..]);
    let decoded = Label::decode(&head).unwrap();
    assert_eq!(decoded.label, new);
    assert_eq!(decoded.copies_to_repair, [1]);
}

/// Changes a field of an encoded copy and makes its checksum right again.
fn forge(copy: usize, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = label().encode(copy).to_vec();
    change(&mut bytes);
    let crc = types::crc32c(&bytes[..4092]);
    bytes[4092..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn every_pair_of_copy_states_has_its_answer() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum State {
        Good,
        Damaged,
        Empty,
        NoMagic,
        Xfs,
        Newer,
        Features,
    }
    use State::*;
    let all = [Good, Damaged, Empty, NoMagic, Xfs, Newer, Features];
    let sector = |state, copy| match state {
        Good => label().encode(copy).to_vec(),
        Damaged => {
            let mut bytes = label().encode(copy).to_vec();
            bytes[100] ^= 1;
            bytes
        }
        Empty => vec![0; LABEL_SIZE],
        NoMagic => vec![0xa5; LABEL_SIZE],
        Xfs => [b"XFSB".to_vec(), vec![1; LABEL_SIZE - 4]].concat(),
        Newer => forge(copy, |bytes| bytes[8] = 2),
        Features => forge(copy, |bytes| bytes[16] = 4),
    };
    for state0 in all {
        for state1 in all {
            let head = [sector(state0, 0), sector(state1, 1)].concat();
            let found = match Label::decode(&head) {
                Ok(decoded) if decoded.copies_to_repair.is_empty() => "both",
                Ok(decoded) if decoded.copies_to_repair == [1] => "copy 0",
                Ok(_) => "copy 1",
                Err(LabelError::NewerVersion { found: 2, known: 1 }) => "newer",
                Err(LabelError::UnknownFeatures { unknown: 4 }) => "features",
                Err(LabelError::Overwritten { .. }) => "overwritten",
                Err(LabelError::Damaged { .. }) => "damaged",
                Err(LabelError::Foreign {
                    found: Foreign::Xfs,
                }) => "xfs",
                Err(LabelError::Foreign { .. }) => "unknown",
                Err(LabelError::Blank) => "blank",
                Err(other) => panic!("{other}"),
            };
            let is = |state| state0 == state || state1 == state;
            let expected = if is(Newer) {
                "newer"
            } else if is(Features) {
                "features"
            } else {
                match (state0, state1) {
                    (Good, Good) => "both",
                    (Good, _) => "copy 0",
                    (Xfs, Good) => "overwritten",
                    (_, Good) => "copy 1",
                    (Damaged, _) | (_, Damaged) => "damaged",
                    (Empty, Empty) => "blank",
                    (Xfs, _) => "xfs",
                    (_, _) => "unknown",
                }
            };
            assert_eq!(found, expected, "{state0:?} {state1:?}");
        }
    }
}

#[test]
fn swapped_copies_and_impossible_fields_are_damage() {
    let cases: [(&str, usize, &[u8]); 8] = [
        ("copy", 12, &[1]),
        ("usage", 13, &[4]),
        ("revision", 80, &[0; 8]),
        ("journal count", 134, &[17]),
        ("name", 132, &[65]),
        ("data begin", 96, &[0, 0, 0, 0]),
        ("region sectors", 104, &[0; 8]),
        ("journal owner", 616, &[0, 0]),
    ];
    for (field, offset, value) in cases {
        let bad = forge(0, |bytes| {
            bytes[offset..offset + value.len()].copy_from_slice(value);
        });
        match raw::decode_copy(&bad, 0) {
            CopyState::Damaged(Damage::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
        let head = [bad, vec![0; LABEL_SIZE]].concat();
        let text = Label::decode(&head).unwrap_err().to_string();
        assert!(text.contains(field), "{text}");
    }
}

#[test]
fn foreign_disks_are_told_apart() {
    let size = usize::try_from(HEAD_SECTORS * SECTOR_SIZE).unwrap();
    let cases: [(Foreign, usize, &[u8]); 8] = [
        (Foreign::Ext, 1080, b"\x53\xef"),
        (Foreign::Xfs, 0, b"XFSB"),
        (Foreign::Btrfs, 65_600, b"_BHRfS_M"),
        (Foreign::Gpt, 512, b"EFI PART"),
        (Foreign::Mbr, 510, b"\x55\xaa"),
        (Foreign::Lvm, 512, b"LABELONE"),
        (Foreign::Swap, 4086, b"SWAPSPACE2"),
        (Foreign::Luks, 0, b"LUKS\xba\xbe"),
    ];
    for (kind, offset, magic) in cases {
        let mut head = vec![0; size];
        head[offset..offset + magic.len()].copy_from_slice(magic);
        assert_eq!(
            Label::decode(&head),
            Err(LabelError::Foreign { found: kind })
        );
    }
    let mut head = vec![0; size];
    assert_eq!(Label::decode(&head), Err(LabelError::Blank));
    head[size - 1] = 1;
    let found = Foreign::Unknown;
    assert_eq!(Label::decode(&head), Err(LabelError::Foreign { found }));
    assert!(matches!(
        Label::decode(&head[..8191]),
        Err(LabelError::Short { .. })
    ));
}

#[test]
fn a_label_that_belongs_elsewhere_names_the_field() {
    let label = label();
    let own = Expected {
        cluster: Some(ClusterId(0x1111)),
        fs: Some(FsId(0x2222)),
        nsd: Some(NsdId(3)),
    };
    assert_eq!(label.check(&own, label.sector_count), Ok(()));
    assert_eq!(label.check(&Expected::default(), u64::MAX), Ok(()));
    let wrong = |expected: Expected| match label.check(&expected, label.sector_count) {
        Err(LabelError::Mismatch { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let cluster = Some(ClusterId(1));
    assert_eq!(wrong(Expected { cluster, ..own }), "cluster id");
    let fs = Some(FsId(1));
    assert_eq!(wrong(Expected { fs, ..own }), "file system id");
    let nsd = Some(NsdId(1));
    assert_eq!(wrong(Expected { nsd, ..own }), "NSD id");
    let shrunk = label.check(&own, label.sector_count - 1);
    assert!(matches!(shrunk, Err(LabelError::Shrunk { .. })));
}

#[test]
fn layouts_of_all_sizes_are_valid_and_half_empty() {
    for owner_count in 0..=JOURNAL_COUNT_MAX {
        let owners: Vec<NodeId> = (1..=owner_count)
            .map(|id| NodeId(u16::try_from(id).unwrap()))
            .collect();
        let least = sector_count_min(owner_count);
        assert!(matches!(
            Label::layout(&spec(), least - 1, &owners),
            Err(LayoutError::TooSmall { .. })
        ));
        for sector_count in [least, least + 1, 2048 * MIB, 8192 * MIB, 1 << 40] {
            let label = Label::layout(&spec(), sector_count, &owners).unwrap();
            assert_eq!(label.validate(), Ok(()));
            assert_eq!(label.journals.len(), owner_count);
            for area in &label.journals {
                assert!((16 * MIB..=1024 * MIB).contains(&area.sector_count));
                assert_eq!(area.first_sector % MIB, 0);
                assert_eq!(area.sector_count % MIB, 0);
            }
            assert_eq!(label.data_begin % MIB, 0);
            assert!(label.data_sector_count() >= 16 * MIB);
            assert!((64 * MIB..=1024 * MIB).contains(&label.region_sectors));
            assert!(label.region_count() * label.region_sectors >= label.data_sector_count());
            let decoded = Label::decode(&label.encode_head()).unwrap();
            assert_eq!(decoded.label, label);
        }
    }
    let label = label();
    assert_eq!(label.journal(NodeId(1)).unwrap().sector_count, 256 * MIB);
    assert_eq!(label.journal(NodeId(2)).unwrap().first_sector, 257 * MIB);
    assert_eq!(label.data_begin, 513 * MIB);
    assert_eq!(label.region_sectors, 64 * MIB);
    let view = label.nsd_view(vec![NodeId(2)], true);
    assert_eq!((view.id, view.data_begin), (NsdId(3), 513 * MIB));
}

#[test]
fn requests_that_cannot_be_laid_out_are_refused_by_name() {
    let size = 2048 * MIB;
    let error = |spec: &Spec, owners: &[NodeId]| Label::layout(spec, size, owners).unwrap_err();
    let bad = Spec {
        name: "a b".to_owned(),
        ..spec()
    };
    assert!(error(&bad, &[]).to_string().contains("'a b'"));
    let bad = Spec {
        pool: String::new(),
        ..spec()
    };
    assert!(matches!(
        error(&bad, &[]),
        LayoutError::BadName { what: "pool", .. }
    ));
    let bad = Spec {
        block_size: 100_000,
        ..spec()
    };
    assert!(matches!(
        error(&bad, &[]),
        LayoutError::BadBlockSize { bytes: 100_000 }
    ));
    let bad = Spec {
        usage: Usage::Data,
        ..spec()
    };
    assert!(matches!(
        error(&bad, &[NodeId(1)]),
        LayoutError::DataOnly { .. }
    ));
    let twice = [NodeId(1), NodeId(1)];
    assert!(matches!(
        error(&spec(), &twice),
        LayoutError::BadOwner { .. }
    ));
    let none = [NodeId(0)];
    assert!(matches!(
        error(&spec(), &none),
        LayoutError::BadOwner { .. }
    ));
    let many: Vec<NodeId> = (1..=17).map(NodeId).collect();
    assert!(matches!(
        error(&spec(), &many),
        LayoutError::TooManyJournals { count: 17, .. }
    ));
    let small = Label::layout(&spec(), 63 * MIB, &[NodeId(1)]).unwrap_err();
    let text = "NSD 'nsd-3' is too small: 63 MiB, at least 64 MiB are needed with 1 journals on it";
    assert_eq!(small.to_string(), text);
}

fn view(epoch: u64) -> ClusterView {
    ClusterView {
        cluster: ClusterId(1),
        fs: FsId(2),
        epoch: Epoch(epoch),
        manager: NodeId(1),
        nodes: vec![NodeView {
            id: NodeId(1),
            address: "10.0.0.1:9000".to_owned(),
            incarnation: Incarnation(5),
        }],
        nsds: Vec::new(),
        owners: vec![NodeId(1); 64],
        block_size: 1 << 20,
    }
}

#[test]
fn views_are_written_in_turn_and_a_torn_write_costs_only_the_older() {
    let mut head = label().encode_head();
    assert_eq!(decode_views(&head).newest, None);
    for epoch in 1..6 {
        let slots = decode_views(&head);
        assert_eq!(slots.newest.map_or(0, |view| view.epoch.0), epoch - 1);
        let slot = ViewSlots {
            newest: None,
            ..slots
        };
        let at = usize::try_from(slot.next_sector() * SECTOR_SIZE).unwrap();
        let bytes = encode_view(&view(epoch)).unwrap();
        assert_eq!(bytes.len() % 4096, 0);
        for cut in [1, 40, 64, 200, 280] {
            let mut torn = head.clone();
            torn[at..at + cut].copy_from_slice(&bytes[..cut]);
            torn[at + cut..at + 4096].fill(0xee);
            let newest = decode_views(&torn).newest;
            assert_eq!(newest.map_or(0, |view| view.epoch.0), epoch - 1);
        }
        head[at..at + bytes.len()].copy_from_slice(&bytes);
        assert_eq!(decode_views(&head).newest, Some(view(epoch)));
    }
    assert!(Label::decode(&head).is_ok());
}

#[test]
fn every_bit_flip_of_a_view_slot_is_found() {
    let mut head = label().encode_head();
    let bytes = encode_view(&view(9)).unwrap();
    let covered = 64 + view(9).to_bytes_length();
    head[8192..8192 + bytes.len()].copy_from_slice(&bytes);
    for bit in 0..covered * 8 {
        head[8192 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode_views(&head).newest, None, "bit {bit}");
        head[8192 + bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_view_that_does_not_fit_is_refused() {
    let mut large = view(1);
    large.nodes = vec![large.nodes[0].clone(); 5000];
    assert!(encode_view(&large).is_err());
}

trait Length {
    fn to_bytes_length(&self) -> usize;
}

impl Length for ClusterView {
    fn to_bytes_length(&self) -> usize {
        types::Encode::to_bytes(self).len()
    }
}
