//! Access times: which reads change them, when the owner hears of it, and what undoes it.

use super::*;
use crate::AccessTimes;
use crate::request::Response;

const PATIENCE: Duration = Duration::from_millis(5000);
const DAY: i64 = 24 * 3600;

fn seconds(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

/// What an owner is told of reads.
fn told(effects: &[Effect]) -> Option<(CallId, Timestamp, u64)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op:
                    meta::Op::Accessed {
                        ino: INO,
                        at,
                        change,
                    },
                ..
            },
        ) => Some((*call, *at, *change)),
        _ => None,
    })
}

impl Story {
    /// An open file of which all tokens are here.
    fn accessed(kept: AccessTimes) -> (Self, Handle) {
        let mut s = Self::new(4096);
        s.slice.keep_access_times(kept, true, PATIENCE);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let handle = s.open_to_read(false);
        (s, handle)
    }

    fn open_to_read(&mut self, no_atime: bool) -> Handle {
        let flags = OpenFlags {
            read: true,
            no_atime,
            ..OpenFlags::default()
        };
        let effects = self.ask(Operation::Open { ino: INO, flags });
        let opened = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
            _ => None,
        });
        opened.expect("opened at once")
    }

    fn read_at(&mut self, secs: i64, handle: Handle) {
        self.timestamp = seconds(secs);
        self.ask(Operation::Read {
            ino: INO,
            handle,
            offset: 0,
            length: 1,
            fills_page_cache: true,
        });
    }

    fn shown_atime(&mut self) -> i64 {
        let effects = self.ask(Operation::GetAttr {
            ino: INO,
            handle: None,
        });
        let shown = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Attr(attr, _), _) => Some(attr.atime.secs),
            _ => None,
        });
        shown.expect("answered at once")
    }

    /// A tick when what was read before is told.
    fn late_tick(&mut self) -> Vec<Effect> {
        self.now = self.now + PATIENCE;
        self.input(Input::Tick)
    }
}

/// The first read after a change counts, shows at once, and is told once; another counts a day later.
#[test]
fn relatime_counts_one_read_a_change_and_a_day() {
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.read_at(100, handle);
    s.read_at(200, handle);
    assert_eq!(s.shown_atime(), 100);
    assert_eq!(told(&s.input(Input::Tick)), None, "not at once");
    let effects = s.late_tick();
    let (call, at, change) = told(&effects).expect("told");
    assert_eq!((at, change), (seconds(100), 1));
    s.attr.atime = at;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.shown_atime(), 100);

    s.read_at(99 + DAY, handle);
    assert_eq!(told(&s.late_tick()), None, "not a day yet");
    s.read_at(100 + DAY, handle);
    assert_eq!(s.shown_atime(), 100 + DAY);
    let (_, at, _) = told(&s.late_tick()).expect("told");
    assert_eq!(at, seconds(100 + DAY));
}

/// All reads count with strictatime, and those of `PATIENCE` are told together; none does with noatime or O_NOATIME.
#[test]
fn strictatime_counts_all_reads_and_noatime_none() {
    let (mut s, handle) = Story::accessed(AccessTimes::Strict);
    s.read_at(100, handle);
    s.read_at(200, handle);
    assert_eq!(s.shown_atime(), 200);
    let (call, at, _) = told(&s.late_tick()).expect("told");
    assert_eq!(at, seconds(200));
    // One that comes while the owner is being told is told next.
    s.read_at(300, handle);
    s.attr.atime = at;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.shown_atime(), 300);
    assert_eq!(told(&s.late_tick()).map(|t| t.1), Some(seconds(300)));

    let (mut s, handle) = Story::accessed(AccessTimes::Never);
    s.read_at(100, handle);
    assert_eq!(s.shown_atime(), 0);
    assert_eq!(told(&s.late_tick()), None);

    let (mut s, _) = Story::accessed(AccessTimes::Strict);
    let handle = s.open_to_read(true);
    s.read_at(100, handle);
    assert_eq!(s.shown_atime(), 0);
    assert_eq!(told(&s.late_tick()), None);
}

/// A time that was set after the read stays, be it the one of before; and so does one that another node has set.
#[test]
fn a_time_that_is_set_stays() {
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.read_at(100, handle);
    let set = types::SetAttr {
        atime: Some(Some(seconds(0))),
        ..types::SetAttr::default()
    };
    let effects = s.ask(Operation::SetAttr {
        ino: INO,
        handle: None,
        set,
    });
    let call = set_attr_of(&effects).expect("the owner is asked");
    s.attr.change += 1;
    s.attr.ctime = seconds(100);
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.shown_atime(), 0);
    assert_eq!(told(&s.late_tick()), None);

    // The owner has taken another's time before it heard of this read.
    s.read_at(200, handle);
    let (call, ..) = told(&s.late_tick()).expect("told");
    let other = Attr {
        change: s.attr.change + 1,
        atime: seconds(7),
        ..s.attr
    };
    s.answer(call, meta::Reply::Attr(other));
    assert_eq!(told(&s.late_tick()), None, "told once");
}

/// A modification time ahead of the clock says nothing of when a read was, and an access time ahead of it goes back.
#[test]
fn times_that_were_set_ahead_are_not_taken_over() {
    let ahead = 10 * DAY;
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.attr.mtime = seconds(ahead);
    s.slice.inode(INO).attr = Some(s.attr);
    s.read_at(100, handle);
    assert_eq!(s.shown_atime(), 100);
    let (_, at, _) = told(&s.late_tick()).expect("told");
    assert_eq!(at, seconds(100));

    let (mut s, handle) = Story::accessed(AccessTimes::Strict);
    s.attr.atime = seconds(ahead);
    s.slice.inode(INO).attr = Some(s.attr);
    s.read_at(100, handle);
    assert_eq!(s.shown_atime(), 100);
    // Another clock, a little ahead: no way back and forth.
    s.read_at(99, handle);
    assert_eq!(s.shown_atime(), 100);
    let (_, at, _) = told(&s.late_tick()).expect("told");
    assert_eq!(at, seconds(100));
}

/// What another node has read before this node does not undo this node's read; a later one does, and a time that was set.
#[test]
fn a_newer_read_outlives_an_older_one_of_another_node() {
    for (atime, change, shown) in [(50, 1, 100), (120, 1, 120), (7, 2, 7)] {
        let (mut s, handle) = Story::accessed(AccessTimes::Relative);
        s.read_at(100, handle);
        let new = Attr {
            atime: seconds(atime),
            change,
            ..s.attr
        };
        s.slice.inode(INO).learn_attr(&new);
        assert_eq!(s.shown_atime(), shown);
        assert_eq!(told(&s.late_tick()).is_some(), shown == 100);
    }
}

/// An owner that executed this node's Commit before it heard of the read is told again, of the file as it is now; a change
/// after the read ends it.
#[test]
fn a_read_after_a_change_is_told_again() {
    for (changed, is_told_again) in [(90, true), (110, false)] {
        let (mut s, handle) = Story::accessed(AccessTimes::Relative);
        s.read_at(100, handle);
        let (call, _, change) = told(&s.late_tick()).expect("told");
        s.attr.change = change + 1;
        s.attr.mtime = seconds(changed);
        s.attr.ctime = seconds(changed);
        let effects = s.answer(call, meta::Reply::Attr(s.attr));
        let again = told(&effects).map(|(_, at, change)| (at, change));
        assert_eq!(again, is_told_again.then_some((seconds(100), change + 1)));
    }
    // Not for ever.
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.read_at(100, handle);
    let mut effects = s.late_tick();
    let mut count = 0;
    while let Some((call, ..)) = told(&effects) {
        count += 1;
        s.attr.change += 1;
        effects = s.answer(call, meta::Reply::Attr(s.attr));
    }
    assert_eq!(count, 3);
}

/// Few are on their way at once, also of a daemon that stops: each answer brings the next.
#[test]
fn few_times_are_told_at_once() {
    let all = |effects: &[Effect]| -> Vec<(CallId, InodeId)> {
        let asked = effects.iter().filter_map(|effect| match effect {
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::Accessed { ino, .. },
                    ..
                },
            ) => Some((*call, *ino)),
            _ => None,
        });
        asked.collect()
    };
    for stops in [false, true] {
        let (mut s, _) = Story::accessed(AccessTimes::Relative);
        s.timestamp = seconds(100);
        for number in 0..20 {
            let ino = InodeId::new(INO.shard(), 1000 + number);
            s.slice.inode(ino).attr = Some(Attr { ino, ..s.attr });
            s.ask(Operation::ReadLink { ino });
        }
        let mut waiting = match stops {
            true => all(&s.input(Input::WriteBack)),
            false => all(&s.late_tick()),
        };
        assert_eq!(waiting.len(), 8);
        let mut seen = BTreeSet::new();
        while let Some((call, ino)) = waiting.pop() {
            assert!(seen.insert(ino), "each once");
            let attr = Attr {
                ino,
                atime: seconds(100),
                ..s.attr
            };
            let next = all(&s.answer(call, meta::Reply::Attr(attr)));
            waiting.extend(next);
            assert!(waiting.len() <= 8);
        }
        assert_eq!(seen.len(), 20);
        assert!(!s.slice.is_telling());
    }
}

/// A daemon that stops tells of all reads, and what has a read to tell is not forgotten before.
#[test]
fn reads_are_told_before_the_end() {
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.read_at(100, handle);
    assert!(s.slice.inode(INO).accessed.is_untold());
    let effects = s.input(Input::WriteBack);
    let (call, at, _) = told(&effects).expect("told");
    assert_eq!(at, seconds(100));
    s.attr.atime = at;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert!(!s.slice.inode(INO).accessed.is_untold());
}

/// What must be forgotten tells of its reads at once, and goes when the owner has heard.
#[test]
fn a_read_is_told_before_its_inode_is_forgotten() {
    let (mut s, handle) = Story::accessed(AccessTimes::Relative);
    s.read_at(100, handle);
    let all: Vec<Handle> = s.slice.handles.keys().copied().collect();
    for handle in all {
        s.ask(Operation::Release { ino: INO, handle });
    }
    s.slice.inode(INO).loads.clear();
    s.slice.inode(INO).is_map_asked = false;
    s.slice.inode(INO).parked.clear();
    s.slice.calls.clear();
    s.slice.limit_inodes(0);
    let effects = s.input(Input::Tick);
    let (call, at, _) = told(&effects).expect("told");
    assert_eq!(at, seconds(100));
    s.attr.atime = at;
    s.answer(call, meta::Reply::Attr(s.attr));
    for _ in 0..2 {
        let effects = s.input(Input::Tick);
        assert_eq!(told(&effects), None, "once");
    }
    assert!(s.slice.inode(INO).holder.held().is_empty() || !s.slice.inodes.contains_key(&INO));
}
