//! As whose owner a caller may act beside his own: what the kernel makes of capabilities and user namespaces, which it does not say of requests.
//!
//! The kernel has asked already, by the owner that it knows of. Where the owner node knows of another one (another node has changed him meanwhile) it
//! is asked here once more; that is rare, and costs some files of /proc then.

use std::path::Path;

use client::request::{Operation, Request, Response};
use client::slice::{Effect, Input, home_slice};
use smallvec::SmallVec;
use types::{Errno, SetAttr};

use super::Daemon;
use super::work::Item;

/// To give files away, as bit of the sets in /proc/PID/status.
const CAP_CHOWN: u64 = 1 << 0;
/// To act as the owner of any file.
const CAP_FOWNER: u64 = 1 << 3;

/// The effective set of a process.
pub(super) fn effective_capabilities(process: &Path) -> Option<u64> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    // A thread of the kernel has all, and has put them down where it asks for a user (knfsd).
    if status
        .lines()
        .any(|line| line.starts_with("Kthread:") && line.ends_with('1'))
    {
        return Some(0);
    }
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// A line of /proc/PID/uid_map: its users from `inside` on are those from `outside` on here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    inside: u32,
    outside: u32,
    count: u32,
}

impl Mapping {
    /// All lines that can be read.
    fn all(text: &str) -> impl Iterator<Item = Self> {
        text.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some(Self {
                inside: next()?,
                outside: next()?,
                count: next()?,
            })
        })
    }

    /// The users here: the first and the last.
    const fn range(self) -> (u32, u32) {
        (
            self.outside,
            self.outside.saturating_add(self.count.saturating_sub(1)),
        )
    }

    fn has(self, uid: u32) -> bool {
        let (first, last) = self.range();
        self.count > 0 && first <= uid && uid <= last
    }
}

/// What he needs for it who is not the owner.
fn needed(operation: &Operation) -> u64 {
    match operation {
        Operation::SetAttr { set, .. } if set.uid.is_some() || set.gid.is_some() => {
            let others = SetAttr {
                uid: None,
                gid: None,
                ..*set
            };
            CAP_CHOWN | if others.is_owners() { CAP_FOWNER } else { 0 }
        }
        _ => CAP_FOWNER,
    }
}

/// The users whose files are as good as his own to `caller`, of process `process`, those of `uid` among them. `None`: `uid`'s are not. He has what is
/// `needed` in a user namespace that knows `uid`, or is its root (who may act by another one's leave, as overlayfs lets processes).
fn covered(process: &Path, (caller, needed): (u32, u64), uid: u32) -> Option<(u32, u32)> {
    let map = std::fs::read_to_string(process.join("uid_map")).ok()?;
    let of_uid = Mapping::all(&map).find(|mapping| mapping.has(uid))?;
    let is_root =
        || Mapping::all(&map).any(|m| m.count > 0 && m.inside == 0 && m.outside == caller);
    let acts_for_all = || effective_capabilities(process).is_some_and(|all| all & needed == needed);
    (is_root() || acts_for_all()).then(|| of_uid.range())
}

impl Daemon {
    /// What follows from a request about what is `uid`'s and not its caller's.
    pub(super) fn ask_standing(&self, mut request: Request, uid: u32) -> Item {
        // 0: who has asked is the kernel itself, or a process that is not of our process namespace.
        let process = Path::new("/proc").join(request.caller.pid.to_string());
        let covered = (request.caller.pid != 0)
            .then(|| {
                let by = (request.caller.uid, needed(&request.operation));
                covered(&process, by, uid)
            })
            .flatten();
        match covered {
            Some((first, last)) => {
                (request.caller.first, request.caller.last) = (first, last);
                Item::Client(home_slice(&request.operation), Input::Request(request))
            }
            None => {
                let refused = Response::Error(Errno::EPERM);
                Item::Effect(Effect::Reply(request.ticket, refused, SmallVec::new()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of this map and set.
    fn process(map: &str, capabilities: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a directory");
        let put = |name, text| std::fs::write(folder.path().join(name), text).expect("written");
        put("uid_map", map.to_owned());
        put(
            "status",
            format!(
                "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t{capabilities:016x}\nCapBnd:\tff\n"
            ),
        );
        folder
    }

    #[test]
    fn who_may_act_as_an_owner_is_who_the_kernel_says() {
        let all = "         0          0 4294967295\n";
        let container = "0 100000 65536\n";
        let own = "0 1000 1\n1 200000 1000\n";
        for (map, capabilities, caller, uid, expected) in [
            (all, 0, 1000, 0, None),
            (all, !CAP_FOWNER, 1000, 0, None),
            (all, CAP_FOWNER, 1000, 0, Some((0, u32::MAX - 1))),
            (container, 0, 100_033, 100_000, None),
            (container, 0, 100_000, 100_033, Some((100_000, 165_535))),
            (
                container,
                CAP_FOWNER,
                100_033,
                100_000,
                Some((100_000, 165_535)),
            ),
            // What its namespace does not know is nobody's there.
            (container, !0, 100_000, 0, None),
            (own, !0, 1000, 0, None),
            (own, !0, 1000, 1001, None),
            (own, 0, 1000, 200_999, Some((200_000, 200_999))),
            ("", !0, 1000, 1000, None),
            ("0 0 0\nx\n", !0, 0, 0, None),
        ] {
            let folder = process(map, capabilities);
            assert_eq!(
                covered(folder.path(), (caller, CAP_FOWNER), uid),
                expected,
                "{map:?} {capabilities:x} {caller} {uid}"
            );
        }
        let gone = process(all, !0);
        let by = (1000, CAP_FOWNER);
        assert_eq!(covered(&gone.path().join("gone"), by, 0), None);
        let path = gone.path().join("status");
        let status = std::fs::read_to_string(&path).expect("read");
        std::fs::write(path, status + "Kthread:\t1\n").expect("written");
        assert_eq!(covered(gone.path(), by, 0), None);
    }

    #[test]
    fn who_gives_files_away_needs_another_right() {
        let set = |permissions, uid| Operation::SetAttr {
            ino: types::InodeId::ROOT,
            handle: None,
            set: SetAttr {
                permissions,
                uid,
                ..SetAttr::default()
            },
        };
        assert_eq!(needed(&set(Some(0o600), None)), CAP_FOWNER);
        assert_eq!(needed(&set(None, Some(7))), CAP_CHOWN);
        assert_eq!(needed(&set(Some(0o600), Some(7))), CAP_CHOWN | CAP_FOWNER);
    }
}
