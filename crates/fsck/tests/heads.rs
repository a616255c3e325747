//! Damage planted in labels, headers of journals and the bytes of files.
#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use data::checksum::SECTOR;
use fsck::{Findings, Kind, data as scrub, head};
use node::store::format::Area;
use node::store::journal::{Config, Journal};
use node::store::recovery::Recovery;
use nsd::label::{Expected, HEAD_SECTORS, LABEL_SIZE, Label, Spec, Usage, encode_view};
use types::{ClusterId, ClusterView, Epoch, FsId, Incarnation, NodeId, NsdId, NsdView, Timestamp};
use world::World;

const SECTORS: u64 = 1 << 15;

fn label() -> Label {
    let spec = Spec {
        cluster: ClusterId(1),
        fs: FsId(2),
        nsd: NsdId(1),
        name: "nsd1".to_owned(),
        failure_group: 1,
        usage: Usage::Both,
        pool: "system".to_owned(),
        block_size: 1 << 20,
        hash_key: 7,
        created: Timestamp::default(),
    };
    Label::layout(&spec, SECTORS, &[NodeId(1)]).unwrap()
}

fn view(label: &Label) -> ClusterView {
    ClusterView {
        cluster: label.cluster,
        fs: label.fs,
        epoch: Epoch(1),
        manager: NodeId(1),
        nodes: Vec::new(),
        nsds: vec![label.nsd_view(vec![NodeId(1)], false)],
        owners: vec![NodeId(1)],
        block_size: label.block_size,
    }
}

/// What is found in the head of a disk of so many sectors that should be this NSD.
fn found(nsd: u16, sectors: u64, change: fn(&mut [u8])) -> Vec<Kind> {
    let label = label();
    let mut head = label.encode_head();
    let slot = encode_view(&view(&label)).unwrap();
    head[2 * LABEL_SIZE..][..slot.len()].copy_from_slice(&slot);
    assert_eq!(head.len() as u64, HEAD_SECTORS * 4096);
    change(&mut head);
    let expected = Expected {
        cluster: Some(ClusterId(1)),
        fs: Some(FsId(2)),
        nsd: Some(NsdId(nsd)),
    };
    let mut findings = Findings::default();
    head::check_head("disk", &head, &expected, sectors, &mut findings);
    findings.counts().keys().copied().collect()
}

#[test]
fn labels() {
    assert_eq!(found(1, SECTORS, |_| {}), []);
    assert_eq!(found(1, SECTORS, |head| head[40] ^= 1), [Kind::LabelCopy]);
    assert_eq!(
        found(1, SECTORS, |head| head[LABEL_SIZE + 40] ^= 1),
        [Kind::LabelCopy]
    );
    assert_eq!(
        found(1, SECTORS, |head| head[..2 * LABEL_SIZE].fill(0)),
        [Kind::LabelLost]
    );
    assert_eq!(found(2, SECTORS, |_| {}), [Kind::LabelForeign]);
    assert_eq!(found(1, SECTORS - 1, |_| {}), [Kind::LabelSize]);
    assert_eq!(
        found(1, SECTORS, |head| head[2 * LABEL_SIZE + 70] ^= 1),
        [Kind::ViewCopy]
    );
}

#[test]
fn labels_that_differ() {
    let look = |change: fn(&mut Label, &mut NsdView)| {
        let (first, mut second) = (label(), label());
        let mut view = view(&first);
        change(&mut second, &mut view.nsds[0]);
        let mut findings = Findings::default();
        head::check_labels(&[first, second], &view, &mut findings);
        findings.counts().keys().copied().collect::<Vec<_>>()
    };
    assert_eq!(look(|_, _| {}), []);
    assert_eq!(look(|label, _| label.hash_key = 8), [Kind::LabelDiffers]);
    assert_eq!(
        look(|label, _| label.block_size = 64 << 10),
        [Kind::LabelDiffers]
    );
    assert_eq!(look(|_, nsd| nsd.data_begin += 1), [Kind::LabelDiffers]);
}

/// What is found in a fresh journal's two halves, and by recovery.
fn journal(change: fn(&mut [Vec<u8>; 2])) -> Vec<Kind> {
    let area = Area {
        nsd: NsdId(1),
        begin: 256,
        count: 128,
    };
    let (fs, owner) = (FsId(2), NodeId(1));
    let mut halves = [vec![0; 64 * SECTOR], vec![0; 64 * SECTOR]];
    let config = Config {
        fs,
        owner,
        incarnation: Incarnation(5),
        area,
        flight_count_max: 1,
    };
    for (at, bytes) in Journal::format(config) {
        let offset = usize::try_from(at.sector - area.begin).unwrap();
        let half = &mut halves[offset / 64];
        half[offset % 64 * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
    }
    change(&mut halves);
    let mut findings = Findings::default();
    for half in 0..2 {
        let bytes = &halves[usize::from(half)][..2 * SECTOR];
        head::check_header((fs, owner), (area, half), bytes, &mut findings);
    }
    let mut recovery = Recovery::new(area, fs, owner);
    while let Some(read) = recovery.next_read() {
        let offset = usize::try_from(read.at.sector - area.begin).unwrap();
        let count = usize::try_from(read.count).unwrap();
        let bytes = &halves[offset / 64][offset % 64 * SECTOR..][..count * SECTOR];
        if let Err(error) = recovery.on_read(bytes, &mut |_| Ok(())) {
            head::note_recovery(&error, &mut findings);
            break;
        }
    }
    findings.counts().keys().copied().collect()
}

/// A header sector with another byte and a right checksum.
fn forge(sector: &mut [u8], offset: usize) {
    sector[offset] ^= 1;
    let crc = types::crc32c(&sector[..508]);
    sector[508..512].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn journals() {
    assert_eq!(journal(|_| {}), []);
    assert_eq!(journal(|halves| halves[0][20] ^= 1), [Kind::JournalHeader]);
    let both = journal(|halves| {
        halves[0][20] ^= 1;
        halves[0][SECTOR + 20] ^= 1;
    });
    assert_eq!(both, [Kind::JournalLost]);
    let blank = journal(|halves| halves.iter_mut().for_each(|half| half.fill(0)));
    assert_eq!(blank, [Kind::JournalLost]);
    let version = journal(|halves| {
        let (first, rest) = halves[0].split_at_mut(SECTOR);
        forge(first, 8);
        forge(&mut rest[..SECTOR], 8);
    });
    assert_eq!(version, [Kind::JournalVersion]);
    let foreign = journal(|halves| {
        let (first, rest) = halves[0].split_at_mut(SECTOR);
        forge(first, 16);
        forge(&mut rest[..SECTOR], 16);
    });
    assert_eq!(foreign, [Kind::JournalForeign]);
}

/// Damages what a job reads: which job, its checksum sectors, its sectors.
type Damage = fn(usize, &mut Option<Vec<u8>>, &mut Vec<Option<Vec<u8>>>);

/// What is found in the bytes of the files of a healthy world, all zeros, after `change` of what each job reads.
fn bytes(change: Damage) -> Vec<Kind> {
    let (mut findings, image, paths) = World::healthy().look();
    let jobs = scrub::jobs(&image);
    assert_eq!(jobs.len(), 2, "a short file and a long one");
    for (index, job) in jobs.iter().enumerate() {
        let count = job.data().count as usize;
        let mut data = vec![Some(vec![0; SECTOR]); count];
        let mut checksums = job.checksums().map(|run| {
            assert_eq!(run.at.sector, job.at.sector + 20);
            let crcs = vec![types::crc32c(&[0; SECTOR]); count];
            data::checksum::checksum_sectors(&crcs).0
        });
        change(index, &mut checksums, &mut data);
        let data: Vec<Option<&[u8]>> = data.iter().map(Option::as_deref).collect();
        job.judge((&image, &paths), checksums.as_deref(), &data, &mut findings);
    }
    for finding in findings.list() {
        let is_named = finding.text.starts_with("/file") || finding.text.starts_with("/link");
        assert!(is_named || finding.text.starts_with("/long"), "{finding:?}");
    }
    findings.counts().keys().copied().collect()
}

#[test]
fn bytes_of_files() {
    assert_eq!(bytes(|_, _, _| {}), []);
    let flipped = bytes(|index, _, data| {
        if index == 0 {
            data[3].as_mut().unwrap()[9] = 1;
        }
    });
    assert_eq!(flipped, [Kind::DataSector]);
    let in_the_long_one = bytes(|index, _, data| {
        if index == 1 {
            data[19].as_mut().unwrap()[9] = 1;
        }
    });
    assert_eq!(in_the_long_one, [Kind::DataSector]);
    let unreadable = bytes(|_, _, data| data[0] = None);
    assert_eq!(unreadable, [Kind::DataUnreadable]);
    let checksums = bytes(|_, checksums, _| {
        if let Some(bytes) = checksums {
            bytes[5] ^= 1;
        }
    });
    assert_eq!(checksums, [Kind::DataChecksums]);
    let no_checksums = bytes(|_, checksums, _| *checksums = None);
    assert_eq!(no_checksums, [Kind::DataUnreadable]);
}
