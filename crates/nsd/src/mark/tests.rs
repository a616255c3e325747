//! Marks on disks that lose what is not durable, are put back from copies, and fail to take a mark.

use std::collections::BTreeSet;

use super::*;
use stdx::Prng;

const FS: FsId = FsId(7);

/// The two sectors of a disk, as programs see them and as they are after a loss of power.
#[derive(Clone, Default)]
struct Disk {
    written: [Option<Vec<u8>>; 2],
    durable: [Option<Vec<u8>>; 2],
}

impl Disk {
    fn write(&mut self, (sector, bytes): (u64, Box<[u8; MARK_SIZE]>)) {
        let place = MARK_SECTORS.iter().position(|at| *at == sector).unwrap();
        self.written[place] = Some(bytes.to_vec());
    }

    fn flush(&mut self) {
        self.durable.clone_from(&self.written);
    }

    /// Power is lost: each sector that was not flushed is there or not, or torn.
    fn lose(&mut self, random: &mut Prng) {
        for place in 0..2 {
            if self.written[place] != self.durable[place] {
                match random.below(3) {
                    0 => self.durable[place].clone_from(&self.written[place]),
                    1 => self.durable[place] = Some(vec![1; MARK_SIZE]),
                    _ => {}
                }
            }
        }
        self.written.clone_from(&self.durable);
    }
}

type Disks = BTreeMap<NsdId, Disk>;

fn marks(disks: &Disks) -> Marks {
    let mut marks = Marks::new(FS);
    for (nsd, disk) in disks {
        marks.add(*nsd, [0, 1].map(|place| disk.written[place].as_deref()));
    }
    marks
}

/// A start that gets as far as `steps` writes and flushes; whether that was to its end. These disks take no writes.
fn start(disks: &mut Disks, steps: u64, failing: &BTreeSet<NsdId>) -> bool {
    let marks = marks(disks);
    let mut round = marks.begin();
    let mut step = 0;
    let mut goes_on = || {
        step += 1;
        step <= steps
    };
    let mut begun = BTreeSet::new();
    for is_second in [false, true] {
        for nsd in disks.keys().copied().collect::<Vec<_>>() {
            if failing.contains(&nsd) || is_second && !begun.contains(&nsd) {
                continue;
            }
            if !goes_on() {
                return false;
            }
            let mark = round.mark(nsd, is_second);
            disks.get_mut(&nsd).unwrap().write(mark);
            if !goes_on() {
                return false;
            }
            disks.get_mut(&nsd).unwrap().flush();
            begun.insert(nsd);
        }
        round.see(begun.iter().copied());
    }
    true
}

fn disks(count: u16) -> Disks {
    (1..=count)
        .map(|nsd| (NsdId(nsd), Disk::default()))
        .collect()
}

#[test]
fn what_was_put_back_is_told_and_who_says_so() {
    let mut disks = disks(3);
    assert!(start(&mut disks, u64::MAX, &BTreeSet::new()));
    let copy = disks.clone();
    assert_eq!(marks(&disks).older(), []);
    assert!(start(&mut disks, u64::MAX, &BTreeSet::new()));
    disks.insert(NsdId(2), copy[&NsdId(2)].clone());
    let told = marks(&disks).older();
    let (nsd, by) = (NsdId(2), NsdId(1));
    assert_eq!(
        told,
        [Older {
            nsd,
            generation: 1,
            seen: 2,
            by
        }]
    );
    // All together are no older copy: that is how a backup is put back.
    assert_eq!(marks(&copy).older(), []);
    // Two of three: the third says so.
    disks.insert(NsdId(1), copy[&NsdId(1)].clone());
    let told: Vec<_> = marks(&disks)
        .older()
        .iter()
        .map(|older| older.nsd.0)
        .collect();
    assert_eq!(told, [1, 2]);
    // From before there were marks.
    disks.insert(NsdId(1), Disk::default());
    assert_eq!(marks(&disks).older()[0].generation, 0);
}

#[test]
fn a_mark_is_of_one_nsd_of_one_file_system() {
    let mark = Mark {
        generation: 5,
        seen: [(NsdId(1), 5), (NsdId(9), 2)].into(),
    };
    let bytes = mark.encode(FS, NsdId(1));
    assert_eq!(Mark::decode(&bytes[..], FS, NsdId(1)), Some(mark));
    assert_eq!(Mark::decode(&bytes[..], FS, NsdId(2)), None);
    assert_eq!(Mark::decode(&bytes[..], FsId(8), NsdId(1)), None);
    for at in 0..MARK_SIZE {
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert_eq!(Mark::decode(&other[..], FS, NsdId(1)), None, "byte {at}");
    }
    assert_eq!(Mark::decode(&bytes[1..], FS, NsdId(1)), None);
}

#[test]
fn those_in_use_are_named_before_those_that_were() {
    let mut marks = Marks::new(FS);
    let seen = (1000..1251).map(|nsd| (NsdId(nsd), 3)).collect();
    let mark = Mark {
        generation: 3,
        seen,
    };
    marks.add(NsdId(1), [Some(&mark.encode(FS, NsdId(1))[..]), None]);
    let mut round = marks.begin();
    round.see([NsdId(1)]);
    assert_eq!(round.mark.seen.len(), SEEN_MAX);
    assert_eq!(round.mark.seen[&NsdId(1)], 4);
}

/// Starts, ended anywhere by losses of power, on disks some of which take no writes now and then, and copies that are put back.
#[test]
fn only_what_is_older_is_told() {
    let (mut told, mut crashes) = (0, 0);
    for seed in 0..2000 {
        let mut random = Prng::new(seed);
        let mut disks = disks(1 + u16::try_from(random.below(4)).unwrap());
        // A copy, and whether the disk has been in a generation since whose start came to its end.
        let mut copies: BTreeMap<NsdId, (Disk, bool)> = BTreeMap::new();
        for _ in 0..12 {
            match random.below(4) {
                0 => copies.extend(
                    disks
                        .iter()
                        .map(|(nsd, disk)| (*nsd, (disk.clone(), false))),
                ),
                1 => {
                    let failing: BTreeSet<_> = disks
                        .keys()
                        .copied()
                        .filter(|_| random.below(8) == 0)
                        .collect();
                    if start(&mut disks, u64::MAX, &failing) {
                        for (nsd, copy) in &mut copies {
                            // Who else took the mark says so.
                            copy.1 |= !failing.contains(nsd) && disks.len() > failing.len() + 1;
                        }
                    }
                }
                _ => {
                    let is_over = start(&mut disks, random.below(20), &BTreeSet::new());
                    copies.values_mut().for_each(|copy| copy.1 |= is_over);
                    disks.values_mut().for_each(|disk| disk.lose(&mut random));
                    crashes += u64::from(!is_over);
                }
            }
            assert_eq!(marks(&disks).older(), [], "seed {seed}");
        }
        for (nsd, (copy, was_used)) in copies {
            let mut with_copy = disks.clone();
            with_copy.insert(nsd, copy);
            let found = marks(&with_copy).older();
            let must = was_used && disks.len() > 1;
            if must {
                assert!(
                    found.iter().any(|older| older.nsd == nsd),
                    "seed {seed}: {nsd} of {found:?}"
                );
                told += 1;
            }
            assert!(
                found.iter().all(|older| older.nsd == nsd),
                "seed {seed}: {found:?}"
            );
        }
    }
    assert!(told > 1000 && crashes > 1000, "{told} {crashes}");
}
