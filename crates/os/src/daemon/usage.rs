//! What directories and all below them use, for `gupfs du`: listed at their owners by messages, without the kernel.
//!
//! A request lists a page of each of a few directories, and asks for the attributes that the owner of a listing does not
//! have. What is left to be listed is kept by who asks: nothing stays here between two requests, and each is bounded.
//!
//! What is asked is what the owners have committed: no token is taken, and nobody who writes is asked to give any up.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use client::message::{Answer, Ask, Body};
use node::LOOK_CALL;
use node::meta::{Listed, Op, Reply};
use types::{Attr, Errno, FileKind, InodeId, SECTOR_SIZE};

use super::control::quoted;
use super::{Daemon, lock};

/// Directories of one request.
const DIRECTORY_COUNT_MAX: usize = 64;
/// Bytes of one page of a listing.
const PAGE_SIZE: u32 = 64 << 10;
/// Attributes that are asked for at a time.
const ATTR_COUNT_MAX: usize = 256;
/// Questions without an answer, those included that nobody waits for any more.
const QUESTION_COUNT_MAX: usize = 4096;
/// Requests that are worked on at a time.
const REQUEST_COUNT_MAX: usize = 4;
/// How long the owners have for the answers to one round of questions. A request begins no more rounds after that time, its
/// first of each kind excepted: it takes twice as long at the most, which is less than the command waits.
const PATIENCE: Duration = Duration::from_secs(8);

/// Who waits for an answer, and as which of its answers.
type Asker = (mpsc::Sender<(usize, Body)>, usize);

/// Questions to owners under way: to whom each answer goes, and as which of its answers.
#[derive(Debug, Default)]
pub(super) struct Usage {
    questions: Mutex<BTreeMap<u64, Asker>>,
    request_count: AtomicUsize,
}

/// A page of a directory: which, and behind which cookie it begins.
type Place = (InodeId, u64);

/// One more request is worked on, as long as this lives.
#[derive(Debug)]
pub(super) struct Turn(Arc<Daemon>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.usage.request_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Usage {
    /// Room for the answers to all of `calls`, each as one of `told`'s; or for none of them.
    fn begin(&self, calls: &[u64], told: &mpsc::Sender<(usize, Body)>) -> Result<(), String> {
        let mut questions = lock(&self.questions);
        if questions.len() + calls.len() > QUESTION_COUNT_MAX {
            return Err("too many questions wait for owners that do not answer".to_owned());
        }
        let asked = calls.iter().enumerate();
        questions.extend(asked.map(|(at, call)| (*call, (told.clone(), at))));
        Ok(())
    }
}

/// A JSON object that says what went wrong.
fn error(what: &str) -> String {
    format!("{{\"error\":{}}}", quoted(what))
}

/// Reads `[names] INODE:COOKIE...`: whether names are wanted, and where to list.
fn parse(words: &str) -> Option<(bool, Vec<Place>)> {
    let mut words = words.split_whitespace().peekable();
    let wants_names = words.next_if_eq(&"names").is_some();
    let place = |word: &str| {
        let (ino, cookie) = word.split_once(':')?;
        Some((InodeId::from_raw(ino.parse().ok()?), cookie.parse().ok()?))
    };
    let places: Vec<Place> = words.map(place).collect::<Option<_>>()?;
    let is_fit = !places.is_empty() && places.len() <= DIRECTORY_COUNT_MAX;
    is_fit.then_some((wants_names, places))
}

impl Daemon {
    /// Room for one more request, or none.
    pub(super) fn take_usage_turn(self: &Arc<Self>) -> Option<Turn> {
        let count = &self.usage.request_count;
        let before = count.fetch_add(1, Ordering::Relaxed);
        let turn = Turn(Arc::clone(self));
        (before < REQUEST_COUNT_MAX).then_some(turn)
    }

    /// Answers `usage WORDS` with a page of each directory that is named, as JSON. Waits for owners, twice `PATIENCE` at the
    /// most.
    pub(super) fn usage_json(self: &Arc<Self>, words: &str) -> String {
        let Some((wants_names, places)) = parse(words) else {
            return error("usage is asked as [names] INODE:COOKIE..., at most 64 of them");
        };
        match self.list(&places) {
            Ok(pages) => {
                let rows = places.iter().zip(&pages);
                let rows: Vec<String> = rows
                    .map(|(place, page)| page_json(*place, page, wants_names))
                    .collect();
                format!("{{\"pages\":[{}]}}", rows.join(","))
            }
            Err(what) => error(&what),
        }
    }

    /// A page of each of `places`, attributes filled in but those of what is gone meanwhile.
    fn list(self: &Arc<Self>, places: &[Place]) -> Result<Vec<Page>, String> {
        let until = Instant::now() + PATIENCE;
        let ops = places.iter().map(|(ino, cookie)| Op::ReadDir {
            ino: *ino,
            cookie: *cookie,
            size: PAGE_SIZE,
            plus: true,
        });
        let mut pages = Vec::new();
        for reply in self.ask_owners(ops.collect())? {
            pages.push(match reply {
                Reply::Listing {
                    entries, is_end, ..
                } => Page::Listed(entries, is_end, Vec::new()),
                Reply::Error(Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE) => Page::Gone,
                Reply::Error(Errno::EIO) => Page::Unreadable,
                other => return Err(format!("an owner refused a listing: {other:?}")),
            });
        }
        let has_time = || Instant::now() < until;
        fill(&mut pages, has_time, |ops| self.ask_owners(ops))?;
        Ok(pages)
    }

    /// Asks each operation's owner, all at once, and waits for the answers, `PATIENCE` at the most.
    fn ask_owners(self: &Arc<Self>, ops: Vec<Op>) -> Result<Vec<Reply>, String> {
        let until = Instant::now() + PATIENCE;
        let (told, answers) = mpsc::channel();
        let mut replies: Vec<Option<Reply>> = ops.iter().map(|_| None).collect();
        let owners: Vec<u16> = ops.iter().map(|op| self.owner(op.home()).0).collect();
        let calls: Vec<u64> = ops.iter().map(|_| self.draw_call() | LOOK_CALL).collect();
        self.usage.begin(&calls, &told)?;
        drop(told);
        let mut items = VecDeque::new();
        for (call, op) in calls.into_iter().zip(ops) {
            let shard = op.home();
            let ask = Ask::Op { op, durable: false };
            self.call_owner(call, shard, ask, &mut items);
        }
        self.run(items);
        for _ in 0..replies.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((at, body)) = answers.recv_timeout(left) else {
                break;
            };
            match body {
                Body::Op(reply) => replies[at] = Some(reply),
                Body::Refused(errno) => replies[at] = Some(Reply::Error(errno)),
                other => return Err(format!("an owner answered {other:?}")),
            }
        }
        let silent = replies.iter().position(Option::is_none);
        match silent {
            None => Ok(replies.into_iter().flatten().collect()),
            Some(at) => Err(format!(
                "node {}, an owner, did not answer within {} s",
                owners[at],
                PATIENCE.as_secs()
            )),
        }
    }

    /// An owner has answered.
    pub(super) fn on_usage_answer(&self, call: u64, answer: Answer) {
        let asker = lock(&self.usage.questions).remove(&call);
        if let Some((told, at)) = asker {
            // It may have stopped waiting.
            drop(told.send((at, answer.body)));
        }
    }
}

/// What an owner listed.
#[derive(Debug)]
enum Page {
    /// Entries, whether they are the last, and which of them lead to what cannot be read.
    Listed(Vec<Listed>, bool, Vec<usize>),
    /// The directory is not there any more.
    Gone,
    /// It, or the part of it that is wanted, cannot be read.
    Unreadable,
}

impl Page {
    fn entries(&mut self) -> &mut [Listed] {
        match self {
            Self::Listed(entries, ..) => entries,
            Self::Gone | Self::Unreadable => &mut [],
        }
    }

    fn note_unreadable(&mut self, entry: usize) {
        if let Self::Listed(_, _, unreadable) = self {
            unreadable.push(entry);
        }
    }

    /// Ends it before an entry; who asks goes on from there.
    fn end_before(&mut self, entry: usize) {
        if let Self::Listed(entries, is_end, _) = self
            && entry < entries.len()
        {
            entries.truncate(entry);
            *is_end = false;
        }
    }
}

/// Asks for the attributes that the pages lack, some at a time. While there is time, and once in any case: pages end before
/// what was not asked for.
fn fill(
    pages: &mut [Page],
    has_time: impl Fn() -> bool,
    mut ask: impl FnMut(Vec<Op>) -> Result<Vec<Reply>, String>,
) -> Result<(), String> {
    let mut missing = Vec::new();
    for (page, of) in pages.iter_mut().enumerate() {
        let entries = of.entries().iter().enumerate();
        let without = entries.filter(|(_, entry)| entry.attr.is_none());
        missing.extend(without.map(|(entry, _)| (page, entry)));
    }
    for (round, some) in missing.chunks(ATTR_COUNT_MAX).enumerate() {
        if round > 0 && !has_time() {
            for (page, entry) in &missing[round * ATTR_COUNT_MAX..] {
                pages[*page].end_before(*entry);
            }
            return Ok(());
        }
        let mut ops = Vec::new();
        for (page, entry) in some {
            let ino = pages[*page].entries()[*entry].ino;
            ops.push(Op::GetAttr { ino });
        }
        for ((page, entry), reply) in some.iter().zip(ask(ops)?) {
            pages[*page].entries()[*entry].attr = match reply {
                Reply::Attr(attr) => Some(attr),
                Reply::Error(Errno::ENOENT | Errno::ESTALE) => None,
                Reply::Error(Errno::EIO) => {
                    pages[*page].note_unreadable(*entry);
                    None
                }
                other => return Err(format!("an owner refused attributes: {other:?}")),
            };
        }
    }
    Ok(())
}

fn page_json((ino, cookie): Place, page: &Page, wants_names: bool) -> String {
    let (entries, is_end, unreadable) = match page {
        Page::Listed(entries, is_end, unreadable) => (entries, is_end, unreadable),
        Page::Gone => return format!("{{\"directory\":{},\"gone\":true}}", ino.raw()),
        Page::Unreadable => {
            return format!("{{\"directory\":{},\"unreadable\":true}}", ino.raw());
        }
    };
    let next = match entries.last() {
        _ if *is_end => "null".to_owned(),
        Some(last) => last.cookie.to_string(),
        None => cookie.to_string(),
    };
    let unreadable = unreadable.iter().map(|at| {
        let entry = &entries[*at];
        format!("[{},\"{}\"]", entry.ino.raw(), hex(entry.name.bytes()))
    });
    let unreadable: Vec<String> = unreadable.collect();
    let (mut count, mut size, mut allocated) = (0_u64, 0_u64, 0_u64);
    let (mut links, mut directories) = (Vec::new(), Vec::new());
    for entry in entries {
        let Some(attr) = &entry.attr else { continue };
        let bytes = attr.sector_count.saturating_mul(SECTOR_SIZE);
        if attr.kind == FileKind::Directory {
            let name = wants_names.then(|| hex(entry.name.bytes()));
            directories.push(row(attr, bytes, name));
        } else if attr.nlink > 1 {
            links.push(row(attr, bytes, None));
        } else {
            count += 1;
            size = size.saturating_add(attr.size);
            allocated = allocated.saturating_add(bytes);
        }
    }
    format!(
        "{{\"directory\":{},\"next\":{next},\"inodes\":{count},\"size\":{size},\"allocated\":{allocated},\
         \"links\":[{}],\"directories\":[{}],\"unreadable\":[{}]}}",
        ino.raw(),
        links.join(","),
        directories.join(","),
        unreadable.join(","),
    )
}

fn row(attr: &Attr, allocated: u64, name: Option<String>) -> String {
    let name = name.map_or_else(String::new, |name| format!(",\"{name}\""));
    format!("[{},{},{allocated}{name}]", attr.ino.raw(), attr.size)
}

/// Names may be any bytes, which JSON has no form for.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Name, ShardId, Timestamp};

    fn listed(index: u64, kind: FileKind, nlink: u32) -> Listed {
        let ino = InodeId::new(ShardId(0), index);
        let attr = Attr {
            nlink,
            size: 10,
            sector_count: 1,
            ..Attr::new(ino, 1, kind, 0o644, Timestamp::default())
        };
        Listed {
            name: Name::new(b"a\xff").expect("a name"),
            ino,
            kind,
            cookie: 100 + index,
            attr: Some(attr),
        }
    }

    #[test]
    fn requests_are_read() {
        let one = |ino, cookie| (InodeId::from_raw(ino), cookie);
        assert_eq!(parse("1:0"), Some((false, vec![one(1, 0)])));
        let two = Some((true, vec![one(1, 7), one(2, 0)]));
        assert_eq!(parse("names 1:7 2:0"), two);
        for bad in ["", "names", "1", "1:x", "x:1", &"1:1 ".repeat(65)] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    /// Two pages of a round and a half each, without attributes.
    fn without_attributes() -> Vec<Page> {
        let count = ATTR_COUNT_MAX as u64 * 3 / 2;
        let page = |first: u64| {
            let entries = (first..first + count).map(|index| {
                let mut entry = listed(index, FileKind::File, 1);
                entry.attr = None;
                entry
            });
            Page::Listed(entries.collect(), true, Vec::new())
        };
        vec![page(0), Page::Gone, page(count)]
    }

    fn answered(ops: Vec<Op>) -> Result<Vec<Reply>, String> {
        assert!(ops.len() <= ATTR_COUNT_MAX);
        let reply = |op: Op| match op {
            // Gone meanwhile.
            Op::GetAttr { ino } if ino.index() % 100 == 1 => Reply::Error(Errno::ENOENT),
            Op::GetAttr { ino } if ino.index() == 7 => Reply::Error(Errno::EIO),
            Op::GetAttr { ino } => Reply::Attr(Attr {
                size: 10,
                sector_count: 1,
                ..Attr::new(ino, 1, FileKind::File, 0o644, Timestamp::default())
            }),
            other => panic!("{other:?}"),
        };
        Ok(ops.into_iter().map(reply).collect())
    }

    #[test]
    fn pages_end_where_the_time_is_over() {
        let place = (InodeId::ROOT, 77);
        let said = |page: &Page| page_json(place, page, false);
        // Slow owners: each round takes all of the time.
        for (rounds, wanted) in [
            (
                0,
                ["\"next\":355,\"inodes\":252", "\"next\":77,\"inodes\":0"],
            ),
            (
                1,
                ["\"next\":355,\"inodes\":252", "\"next\":77,\"inodes\":0"],
            ),
            (
                2,
                [
                    "\"next\":null,\"inodes\":379",
                    "\"next\":611,\"inodes\":126",
                ],
            ),
            (
                9,
                [
                    "\"next\":null,\"inodes\":379",
                    "\"next\":null,\"inodes\":380",
                ],
            ),
        ] {
            let asked = std::cell::Cell::new(0);
            let mut pages = without_attributes();
            let ask = |ops: Vec<Op>| {
                asked.set(asked.get() + 1);
                answered(ops)
            };
            fill(&mut pages, || asked.get() < rounds, ask).expect("answered");
            assert_eq!(asked.get(), rounds.clamp(1, 3), "whoever asks gets on");
            for (page, wanted) in [&pages[0], &pages[2]].into_iter().zip(wanted) {
                let said = said(page);
                let is_first = said.contains(",\"unreadable\":[[7,\"61ff\"]]");
                assert_eq!(is_first, std::ptr::eq(page, &raw const pages[0]), "{said}");
                assert!(said.contains(wanted), "{rounds}: {wanted} is not in {said}");
            }
        }
    }

    #[test]
    fn without_room_for_all_questions_none_is_kept() {
        let usage = Usage::default();
        let (told, _answers) = mpsc::channel();
        let calls: Vec<u64> = (0..QUESTION_COUNT_MAX as u64 - 3).collect();
        usage.begin(&calls, &told).expect("room for all");
        let more: Vec<u64> = (10_000..10_004).collect();
        usage.begin(&more, &told).expect_err("room for three");
        assert_eq!(lock(&usage.questions).len(), calls.len());
        usage.begin(&more[..3], &told).expect("room for three");
        assert_eq!(lock(&usage.questions).len(), QUESTION_COUNT_MAX);
    }

    #[test]
    fn a_page_sums_what_has_one_name_and_lists_the_rest() {
        let mut absent = listed(9, FileKind::File, 1);
        absent.attr = None;
        let entries = vec![
            listed(5, FileKind::File, 1),
            listed(6, FileKind::Symlink, 1),
            listed(7, FileKind::File, 2),
            listed(8, FileKind::Directory, 2),
            absent,
        ];
        let page = Page::Listed(entries, false, vec![4]);
        let said = page_json((InodeId::ROOT, 0), &page, true);
        let parts = [
            "\"next\":109,\"inodes\":2,\"size\":20,\"allocated\":8192",
            "\"links\":[[7,10,4096]]",
            "\"directories\":[[8,10,4096,\"61ff\"]]",
            "\"unreadable\":[[9,\"61ff\"]]",
        ];
        for part in parts {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        let gone = page_json((InodeId::ROOT, 0), &Page::Gone, true);
        assert!(gone.contains("\"gone\":true"), "{gone}");
    }
}
