//! What can be said of one inode by itself.

use node::meta::acl::{self, Acl};
use node::meta::map::{FileMap, check_extents};
use node::meta::shard::inspect::Seen;
use types::attr::{HAS_ACL, HAS_PROMISE};
use types::{FileKind, InodeId, SECTOR_SIZE, ShardId, limits};

use crate::finding::{Findings, Kind};
use crate::{Image, Setup};

/// Bytes of the longest name of an extended attribute (the kernel's XATTR_NAME_MAX).
const XATTR_NAME_SIZE_MAX: usize = 255;

/// See the module.
pub fn check(image: &Image, findings: &mut Findings) {
    check_root(image, findings);
    for shard in image.shards() {
        for seen in shard.inspect() {
            let ino = seen.attr.ino;
            if ino.index() >= shard.next_index() || ino.index() == 0 {
                let text = format!("inode {ino}; the next is {:x}", shard.next_index());
                findings.of(Kind::NextIndex, ino, text);
            }
            check_attr(&image.setup, &seen, findings);
            check_xattrs(&seen, findings);
            if let Some(map) = seen.map {
                check_map(&image.setup, &seen, map, findings);
            }
        }
    }
}

fn check_root(image: &Image, findings: &mut Findings) {
    let ino = InodeId::ROOT;
    if !image.is_whole(ShardId(0)) || image.is_new() {
        return;
    }
    let Some(root) = image.seen(ino) else {
        return findings.of(Kind::RootInode, ino, "there is no root directory");
    };
    if root.attr.kind != FileKind::Directory || root.parent != Some(ino) || root.attr.nlink == 0 {
        let (kind, nlink) = (root.attr.kind, root.attr.nlink);
        let text = format!(
            "it is a {kind:?} of {nlink} links, its parent is {:?}",
            root.parent
        );
        findings.of(Kind::RootInode, ino, text);
    }
}

fn check_attr(setup: &Setup, seen: &Seen<'_>, findings: &mut Findings) {
    let attr = seen.attr;
    let ino = attr.ino;
    let of_files = match attr.kind {
        FileKind::File => HAS_PROMISE,
        _ => 0,
    };
    if attr.permissions & !(0o7777 | HAS_ACL | of_files) != 0 {
        let text = format!("inode {ino}: permissions {:o}", attr.permissions);
        findings.of(Kind::InodeMode, ino, text);
    }
    if attr.size > limits::FILE_SIZE_MAX {
        findings.of(
            Kind::InodeSize,
            ino,
            format!("inode {ino}: {} bytes", attr.size),
        );
    }
    let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
    if let Some(time) = times.iter().find(|time| time.nanos >= 1_000_000_000) {
        findings.of(
            Kind::InodeTime,
            ino,
            format!("inode {ino}: {} ns", time.nanos),
        );
    }
    let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
    if attr.rdev != 0 && !is_device {
        findings.of(
            Kind::InodeDevice,
            ino,
            format!("inode {ino}: {:x}", attr.rdev),
        );
    }
    let is_known = |nsd: &types::NsdId| setup.nsd(*nsd).is_some();
    if let Some(nsd) = attr.layout.nsds().iter().find(|nsd| !is_known(nsd)) {
        findings.of(Kind::InodeLayout, ino, format!("inode {ino}: {nsd}"));
    }
    if let Some(target) = seen.target {
        let is_good = !target.is_empty()
            && target.len() <= limits::SYMLINK_SIZE_MAX
            && !target.contains(&0)
            && target.len() as u64 == attr.size;
        if !is_good {
            let text = format!("inode {ino}: {} bytes, size {}", target.len(), attr.size);
            findings.of(Kind::SymlinkTarget, ino, text);
        }
    }
    let counted = seen.map.map_or(0, FileMap::sector_count);
    if attr.sector_count != counted {
        let text = format!("inode {ino}: {} instead of {counted}", attr.sector_count);
        findings.of(Kind::SectorCount, ino, text);
    }
}

fn check_xattrs(seen: &Seen<'_>, findings: &mut Findings) {
    let attr = seen.attr;
    let ino = attr.ino;
    for (name, value) in seen.xattrs {
        let is_name = (1..=XATTR_NAME_SIZE_MAX).contains(&name.len()) && !name.contains(&0);
        if !is_name || value.len() > limits::SMALL_BYTES_MAX {
            let text = format!("inode {ino}: {:?}", String::from_utf8_lossy(name));
            findings.of(Kind::XattrName, ino, text);
        }
        if !acl::is_acl(name) {
            continue;
        }
        let Ok(list) = Acl::parse(value) else {
            let text = format!("inode {ino}: {}", String::from_utf8_lossy(name));
            findings.of(Kind::AclValue, ino, text);
            continue;
        };
        if name[..] == *acl::ACCESS && list.mode() != attr.permissions & 0o777 {
            let text = format!(
                "inode {ino}: {:o} instead of {:o}",
                attr.permissions & 0o777,
                list.mode()
            );
            findings.of(Kind::AclMode, ino, text);
        }
    }
    let is_listed = seen.xattrs.keys().any(|name| acl::is_acl(name));
    if is_listed != attr.has_acl() {
        findings.of(
            Kind::AclFlag,
            ino,
            format!("inode {ino}: marked {}", attr.has_acl()),
        );
    }
}

fn check_map(setup: &Setup, seen: &Seen<'_>, map: &FileMap, findings: &mut Findings) {
    let ino = seen.attr.ino;
    let end = seen.attr.size.div_ceil(SECTOR_SIZE);
    let last_extent = map
        .extents()
        .last()
        .map_or(0, |extent| extent.file_sector_end());
    let last_piece = map
        .pieces()
        .last()
        .map_or(0, |piece| piece.end().div_ceil(SECTOR_SIZE));
    if last_extent.max(last_piece) > end {
        let text = format!(
            "inode {ino}: size {}, and something up to byte {}",
            seen.attr.size,
            last_extent.max(last_piece) * SECTOR_SIZE
        );
        findings.of(Kind::MapBehindEnd, ino, text);
    }
    for extent in map.extents() {
        let at = format!("inode {ino}, byte {}", extent.file_sector * SECTOR_SIZE);
        let nsds: Vec<_> = extent.locations.iter().map(|at| at.nsd).collect();
        if (1..nsds.len()).any(|index| nsds[..index].contains(&nsds[index])) {
            findings.of(Kind::ExtentCopies, ino, format!("{at}: copies on {nsds:?}"));
        }
        let is_right = check_extents(std::slice::from_ref(extent)).is_ok();
        for location in &extent.locations {
            let run = extent.run(*location);
            let is_in = setup.nsd(location.nsd).is_some_and(|nsd| {
                let end = run.at.sector.checked_add(u64::from(run.count));
                run.at.sector >= nsd.data_begin && end.is_some_and(|end| end <= nsd.sector_count)
            });
            if !is_in || !is_right {
                let text = format!("{at}: {} sector {}", location.nsd, location.sector);
                findings.of(Kind::ExtentPlace, ino, text);
            }
        }
    }
}
