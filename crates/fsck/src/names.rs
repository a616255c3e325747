//! Names against inodes: every name leads somewhere, every inode is named as often as it says, directories form one tree.
//!
//! Invariant: where a shard is not whole, nothing is concluded from what it lacks.

use rustc_hash::FxHashMap;
use types::{FileKind, InodeId, limits};

use node::meta::Shard;
use node::meta::name_hash::TIE_BITS;
use node::meta::shard::inspect::Seen;

use crate::Image;
use crate::finding::{Findings, Kind};

/// What leads to an inode.
#[derive(Clone, Copy, Debug)]
struct Named {
    /// Names.
    count: u32,
    /// One of them: its directory, the part of it that holds the name, or the directory itself, and its cookie.
    directory: InodeId,
    holder: InodeId,
    cookie: u64,
}

/// A name for each inode, to say paths.
#[derive(Debug, Default)]
pub struct Paths {
    named: FxHashMap<InodeId, Named>,
}

impl Paths {
    /// A path of the inode from the root; `None`: no name leads to it from there.
    pub fn of(&self, image: &Image, ino: InodeId) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != InodeId::ROOT {
            let named = self.named.get(&at)?;
            let entry = image.entry_at(named.holder, named.cookie)?;
            parts.push(String::from_utf8_lossy(entry.name.bytes()).into_owned());
            if parts.len() > limits::DEPTH_MAX {
                return None;
            }
            at = named.directory;
        }
        parts.push(String::new());
        parts.reverse();
        match parts.len() {
            1 => Some("/".to_owned()),
            _ => Some(parts.join("/")),
        }
    }

    /// Names that lead to the inode.
    pub(crate) fn count(&self, ino: InodeId) -> u32 {
        self.named.get(&ino).map_or(0, |named| named.count)
    }

    /// The holder and cookie of a name that leads to the inode.
    pub(crate) fn place(&self, ino: InodeId) -> Option<(InodeId, u64)> {
        let named = self.named.get(&ino)?;
        Some((named.holder, named.cookie))
    }

    /// The directory that names this inode, if one does.
    pub(crate) fn directory(&self, ino: InodeId) -> Option<InodeId> {
        self.named.get(&ino).map(|named| named.directory)
    }
}

/// See the module.
pub fn check(image: &Image, findings: &mut Findings) -> Paths {
    let mut paths = Paths::default();
    let mut names_of_directories: FxHashMap<InodeId, u32> = FxHashMap::default();
    for shard in image.shards() {
        for seen in shard.inspect().filter(|seen| seen.entries.is_some()) {
            let subdirectories = check_entries(image, shard, &seen, &mut paths, findings);
            names_of_directories.insert(seen.attr.ino, subdirectories);
        }
    }
    for shard in image.shards() {
        for seen in shard.inspect() {
            check_links(image, &seen, &paths, &names_of_directories, findings);
        }
    }
    check_cycles(image, &paths, findings);
    paths
}

/// The names of a directory; how many are subdirectories'.
fn check_entries(
    image: &Image,
    shard: &Shard,
    seen: &Seen<'_>,
    paths: &mut Paths,
    findings: &mut Findings,
) -> u32 {
    let directory = seen.attr.ino;
    let mut subdirectories = 0;
    let holders = image.holders(seen);
    if seen.attr.nlink == 0 && holders.iter().any(|(_, names)| !names.is_empty()) {
        findings.of(
            Kind::OrphanEntries,
            directory,
            format!("directory {directory}"),
        );
    }
    let all = holders
        .iter()
        .flat_map(|(holder, names)| names.iter().map(move |(at, e)| (*holder, *names, at, e)));
    for (holder, names, cookie, entry) in all {
        let name = String::from_utf8_lossy(entry.name.bytes());
        let at = format!("{name:?} in directory {directory}");
        if !shard.is_cookie_of(&entry.name, *cookie) {
            findings.of(Kind::NameCookie, directory, format!("{at}: {cookie:x}"));
        }
        // Names of one hash lie side by side.
        let first = *cookie >> TIE_BITS << TIE_BITS;
        let mut ties = names.range(first..*cookie);
        if ties.any(|(_, tie)| tie.name == entry.name) {
            findings.of(Kind::NameTwice, directory, at.clone());
        }
        if entry.ino == InodeId::ROOT {
            findings.of(Kind::NameOfRoot, directory, at);
            continue;
        }
        let Some(target) = image.seen(entry.ino) else {
            let is_outside = usize::from(entry.ino.shard().0) >= image.setup.owners.len();
            if is_outside || image.is_whole(entry.ino.shard()) {
                let text = format!("{at}: inode {}", entry.ino);
                findings.of_name(Kind::NameDangling, (directory, entry.ino), text);
            }
            subdirectories += u32::from(entry.kind == FileKind::Directory);
            continue;
        };
        if target.attr.kind != entry.kind {
            let text = format!(
                "{at}: {:?}, inode {} is a {:?}",
                entry.kind, entry.ino, target.attr.kind
            );
            findings.of_name(Kind::NameKind, (directory, entry.ino), text);
        }
        subdirectories += u32::from(target.attr.kind == FileKind::Directory);
        let named = Named {
            count: 0,
            directory,
            holder,
            cookie: *cookie,
        };
        paths.named.entry(entry.ino).or_insert(named).count += 1;
    }
    subdirectories
}

/// An inode's counts against the names that there are.
fn check_links(
    image: &Image,
    seen: &Seen<'_>,
    paths: &Paths,
    subdirectories: &FxHashMap<InodeId, u32>,
    findings: &mut Findings,
) {
    let attr = seen.attr;
    let ino = attr.ino;
    let named = paths.named.get(&ino);
    let count = named.map_or(0, |named| named.count);
    let shard = image.shard(ino.shard()).expect("it was seen there");
    if attr.nlink == 0 {
        if count > 0 {
            findings.of(
                Kind::OrphanNamed,
                ino,
                format!("inode {ino}: {count} names"),
            );
        } else if !shard.is_open(ino) {
            findings.of(Kind::OrphanClosed, ino, format!("inode {ino}"));
        }
        return;
    }
    let is_root = ino == InodeId::ROOT;
    if count == 0 && !is_root && !image.is_partial {
        let text = format!("inode {ino}, a {:?} of {} bytes", attr.kind, attr.size);
        findings.of(Kind::Nameless, ino, text);
    }
    if attr.kind != FileKind::Directory {
        if count > 0 && count != attr.nlink && !image.is_partial {
            let text = format!("inode {ino}: {} instead of {count}", attr.nlink);
            findings.of(Kind::LinkCount, ino, text);
        }
        return;
    }
    let expected = 2 + subdirectories.get(&ino).copied().unwrap_or(0);
    if attr.nlink != expected && image.is_whole(ino.shard()) {
        let text = format!("directory {ino}: {} instead of {expected}", attr.nlink);
        findings.of(Kind::DirectoryLinks, ino, text);
    }
    if count > 1 {
        findings.of(
            Kind::DirectoryNames,
            ino,
            format!("directory {ino}: {count} names"),
        );
    }
    if let Some(named) = named
        && count == 1
        && seen.parent != Some(named.directory)
    {
        let text = format!(
            "directory {ino}: {} instead of {}",
            seen.parent.unwrap_or_default(),
            named.directory
        );
        findings.of(Kind::DirectoryParent, ino, text);
    }
}

/// Directories from which no chain of names leads to the root, though each has a name: one finding for each cycle.
fn check_cycles(image: &Image, paths: &Paths, findings: &mut Findings) {
    // The walk that a directory was first met on.
    let mut met: FxHashMap<InodeId, u64> = FxHashMap::default();
    let mut walk = 0;
    for shard in image.shards() {
        for seen in shard.inspect().filter(|seen| seen.entries.is_some()) {
            walk += 1;
            let mut at = seen.attr.ino;
            loop {
                if at == InodeId::ROOT {
                    break;
                }
                if let Some(before) = met.insert(at, walk) {
                    if before == walk {
                        findings.of(Kind::DirectoryCycle, at, format!("directory {at}"));
                    }
                    break;
                }
                match paths.directory(at) {
                    Some(directory) => at = directory,
                    None => break,
                }
            }
        }
    }
}
