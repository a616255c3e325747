//! `gupfs up` and `gupfs down`: one node, from nothing to a mounted file system and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nsd::label::{LabelError, sector_count_min};
use types::{ClusterView, SECTOR_SIZE, limits};

use crate::failure::{Failure, Result};
use crate::filesystem::{self, NewDisk, NewFileSystem, NewNode};
use crate::fsck::offline;
use crate::mount::{self, Turn};
use crate::service::{self, Below};
use crate::state::{self, Backing, Disk, FORMAT, Place, State, Transport};
use crate::system::mounts::{self, Mount};
use crate::system::{self, loops};
use crate::{create, disks, files, size};

/// NSDs that `gupfs up` and a lab of two make.
pub const NSD_COUNT: u16 = 4;
/// Pagepool of a node unless said otherwise, in bytes.
pub const PAGEPOOL_SIZE_DEFAULT: u64 = 1 << 30;

/// What `gupfs up` was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Mount point; none: where the state directory says.
    pub mount: Option<PathBuf>,
    /// State directory.
    pub state: PathBuf,
    /// Bytes of all disks together, if a file system has to be made.
    pub size: u64,
    /// Where they lie.
    pub backing: Backing,
    /// FUSE transport.
    pub transport: Transport,
    /// Bytes of the pagepool.
    pub pagepool_size: u64,
    /// Files of so many bytes and more are read past the kernel's page cache; none: as before.
    pub direct_from: Option<u64>,
    /// Make the mount point if it is missing.
    pub make_mount_point: bool,
    /// Where disks are missing: say what would be lost without them.
    pub is_degraded: bool,
}

/// Mounts the file system of the state directory, made now if there is none. Returns what was done.
pub fn up(request: &Request) -> Result<Vec<String>> {
    system::require_root("gupfs up")?;
    system::require_fuse()?;
    let place = Place::new(&request.state)?;
    let found = place.load()?;
    if found.is_none() {
        check_fresh(&place)?;
    }
    let mount = match (&request.mount, &found) {
        (Some(mount), _) => system::absolute(mount)?,
        (None, Some(state)) => state.mount.clone(),
        (None, None) => {
            return Err(Failure::new(format!(
                "{} has no file system yet, and no mount point was named",
                place.root().display()
            ))
            .help("say where to mount a new one: --mount DIR"));
        }
    };
    let disks = found.as_ref().map_or(&[][..], |state| &state.disks);
    service::check_hides_nothing(&place, disks, &mount)?;
    let mut done = Vec::new();
    let mut lock = None;
    if let Some(state) = &found {
        if request.is_degraded && service::settle(&place)?.is_none() {
            offline::loss(&place)?.map_or(Ok(()), Err)?;
        }
        // One that starts or ends is left to that: it may replay a long journal, or write back what it holds.
        match mount::turn(&place)? {
            Turn::Mounted { mounts } => {
                check_direct_from(state, request.direct_from)?;
                return already_mounted(&place, &mounts, &mount);
            }
            Turn::Ours(ours) => lock = Some(ours),
        }
        // What it has left elsewhere is brought back by the next one.
    }
    service::tell_lost(&place)?;
    if request.make_mount_point && mounts::at(&mount)?.is_none() {
        std::fs::create_dir_all(&mount).map_err(|e| Failure::io("make mount point", &mount, &e))?;
    }
    let below = match &found {
        Some(state) if state.mount == mount => Below::Any,
        _ => Below::Nothing,
    };
    done.extend(service::ready_point(&mount, below)?);
    match found {
        Some(state) => {
            done.push(format!(
                "found the file system {} in {}",
                state.fs,
                place.root().display()
            ));
            let wanted = State {
                mount: mount.clone(),
                direct_from: request.direct_from.or(state.direct_from),
                ..state.clone()
            };
            // A full disk below keeps nobody from mounting what is there.
            if wanted != state {
                place.store(&wanted)?;
            }
        }
        None => done.extend(create(&place, &mount, request)?),
    }
    drop(lock);
    let status = service::start(&place, &[])?.wait()?;
    tracing::debug!(%status, "mounted");
    done.push(format!(
        "mounted it on {} (log: {})",
        mount.display(),
        place.log().display()
    ));
    Ok(done)
}

fn check_direct_from(state: &State, direct_from: Option<u64>) -> Result<()> {
    if direct_from.is_none() || direct_from == state.direct_from {
        return Ok(());
    }
    Err(Failure::new(
        "the file system is mounted, and a running daemon does not change --direct-from",
    )
    .help("run `gupfs down` first"))
}

/// What is said where a daemon serves `mounts`: it is on `point`, as was asked for, or it is elsewhere.
fn already_mounted(place: &Place, mounts: &[Mount], point: &Path) -> Result<Vec<String>> {
    let there = mounts::at(&mounts::follow(point)?)?;
    if there.is_some_and(|there| mounts.contains(&there)) {
        return Ok(vec![format!("already mounted on {}", point.display())]);
    }
    let root = place.root().display();
    if mounts.is_empty() {
        return Err(mount::nowhere(place));
    }
    let points = mounts.iter().map(|mount| mount.point.display().to_string());
    let points: Vec<String> = points.collect();
    Err(Failure::new(format!(
        "the file system is mounted on {}, not on {}",
        points.join(" and "),
        point.display()
    ))
    .help(format!(
        "`gupfs mount {root} {0}` mounts it on {0}, too; or run `gupfs down --state {root}` first",
        point.display()
    )))
}

fn create(place: &Place, mount: &Path, request: &Request) -> Result<Vec<String>> {
    check_size(request.size, NSD_COUNT)?;
    let had_directory = place.root().exists();
    files::make_directory(place.root())?;
    let lock = place.try_lock()?;
    // Another one may have been faster.
    create::check_unused(place)?;
    let mut done = remove_backing(place.root())?;
    // What failed halfway would only be in the way of the next try, which removes what cannot be removed now.
    let made =
        create_locked(place, mount, request).map_err(|failure| match undo(place, had_directory) {
            Ok(()) => failure,
            Err(other) => failure.help(format!(
                "what was made could not be removed ({}); run it again when that is mended",
                other.what()
            )),
        });
    drop(lock);
    done.extend(made?);
    Ok(done)
}

/// Removes what a creation that has failed has left of a file system over our own disks.
fn undo(place: &Place, had_directory: bool) -> Result<()> {
    remove_backing(place.root())?;
    place.undo(had_directory)
}

fn create_locked(place: &Place, mount: &Path, request: &Request) -> Result<Vec<String>> {
    let paths = make_disks(place.root(), request.backing, request.size, NSD_COUNT)?;
    let opened = attach_all(&paths, request.backing)?;
    let new = NewFileSystem {
        nodes: vec![NewNode {
            id: 1,
            address: None,
        }],
        disks: opened
            .into_iter()
            .map(|path| NewDisk { path, server: 1 })
            .collect(),
        block_size: limits::BLOCK_SIZE_DEFAULT,
        force: false,
    };
    let plan = filesystem::plan(&new, None)?;
    let view = plan.view();
    let disks = (1..)
        .zip(&paths)
        .map(|(nsd, path)| disk(nsd, path, request.backing));
    place.note_unfinished(view)?;
    place.store_view(view)?;
    plan.write()?;
    place.store(&State {
        backing: Some(request.backing),
        size: request.size,
        transport: request.transport,
        pagepool_size: request.pagepool_size,
        direct_from: request.direct_from,
        disks: disks.collect(),
        ..single(view, mount)
    })?;
    files::remove(&place.creating())?;
    let mut done = vec![format!(
        "made {NSD_COUNT} NSDs of {} in {}",
        size::show(request.size / u64::from(NSD_COUNT)),
        place.root().display()
    )];
    done.extend(warn_of_thin(&paths)?);
    done.push(format!(
        "made the file system {} over them, with the built-in config store",
        state::to_hex(view.fs.0)
    ));
    Ok(done)
}

/// The state of the only node of `view`, without disks.
pub fn single(view: &ClusterView, mount: &Path) -> State {
    State {
        format: FORMAT,
        cluster: state::to_hex(view.cluster.0),
        fs: state::to_hex(view.fs.0),
        node: view.manager.0,
        manager: view.manager.0,
        mount: mount.to_owned(),
        listen: None,
        netns: None,
        backing: None,
        size: view.nsds.iter().map(|n| n.sector_count * SECTOR_SIZE).sum(),
        transport: Transport::Device,
        lease_ms: limits::LEASE_MS,
        metrics: state::Metrics::default(),
        inode_count_max: state::INODE_COUNT_MAX_DEFAULT,
        metadata_bytes_max: state::METADATA_BYTES_MAX_DEFAULT,
        rewrite_rate: state::REWRITE_RATE_DEFAULT,
        async_direct_io: false,
        slow_ms: state::SLOW_MS_DEFAULT,
        log_level: state::LogLevel::default(),
        log_format: state::LogFormat::default(),
        pagepool_size: PAGEPOOL_SIZE_DEFAULT,
        direct_from: None,
        disks: Vec::new(),
        peers: Vec::new(),
    }
}

/// A directory that holds anything of somebody else is refused, and one that had a file system which may be whole.
pub(crate) fn check_fresh(place: &Place) -> Result<()> {
    check_own(place)?;
    if place.lives().exists() {
        // Its disks hold data: making a file system over them is the last thing that is wanted.
        return Err(Failure::new(format!(
            "{} is missing, and a daemon has run from there",
            place.config().display()
        ))
        .help(format!(
            "restore it from a backup of the state directory; the data on the disks is untouched. {}",
            how_to_destroy(place)
        )));
    }
    check_disks(place)
}

fn how_to_destroy(place: &Place) -> String {
    format!(
        "`gupfs down --destroy --state {}` removes what is left there, disks that `gupfs up` made included",
        place.root().display()
    )
}

/// Fails where a disk that `gupfs up` made has a label, unless it is of a file system that was not made to its end.
fn check_disks(place: &Place) -> Result<()> {
    let unfinished = place.unfinished()?;
    let mut found = Vec::new();
    for name in state::DISK_DIRECTORIES {
        for entry in std::fs::read_dir(place.root().join(name))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if !path.is_file() {
                continue;
            }
            found.extend(match disks::Disk::open(&path)?.label()? {
                Err(LabelError::Blank | LabelError::Short { .. }) => None,
                Ok(label) if Some(label.label.fs.0) == unfinished => None,
                Ok(label) => Some(format!(
                    "{} (NSD '{}' of file system {})",
                    path.display(),
                    label.label.name,
                    state::to_hex(label.label.fs.0)
                )),
                Err(error) => Some(format!("{} ({error})", path.display())),
            });
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    found.sort();
    Err(Failure::new(format!(
        "{} is missing, and disks of a file system are there: {}",
        place.config().display(),
        found.join(", ")
    ))
    .help(format!(
        "restore gupfs.toml and cluster.view from a backup of the state directory; the data on the disks is untouched. {}",
        how_to_destroy(place)
    )))
}

/// A directory that holds anything of somebody else is refused.
fn check_own(place: &Place) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(place.root()) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if !state::is_own_name(&entry.file_name()) {
            return Err(Failure::new(format!(
                "{} is no state directory: it holds {}",
                place.root().display(),
                entry.file_name().display()
            ))
            .help("name an empty directory, or one that does not exist yet"));
        }
    }
    Ok(())
}

/// Fails if `size` split over `count` NSDs makes them too small.
pub fn check_size(size: u64, count: u16) -> Result<()> {
    let minimum = sector_count_min(1) * SECTOR_SIZE;
    if size / u64::from(count) >= minimum {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the NSDs are too small: --size {} makes {count} of {}, and each needs {}",
        size::show(size),
        size::show(size / u64::from(count)),
        size::show(minimum)
    ))
    .help(format!(
        "give --size {}M or more",
        (minimum * u64::from(count)) >> 20
    )))
}

/// Makes `count` sparse files of together `size` bytes below `root`; for [`Backing::Ram`] on a tmpfs.
pub fn make_disks(root: &Path, backing: Backing, size: u64, count: u16) -> Result<Vec<PathBuf>> {
    let directory = match backing {
        Backing::File | Backing::Loop | Backing::Volatile => root.join("nsd"),
        Backing::Ram => {
            let ram = root.join("ram");
            files::make_directory(&ram)?;
            mounts::tmpfs(&ram, size + (size >> 6) + (1 << 20))?;
            ram
        }
    };
    files::make_directory(&directory)?;
    let each = size / u64::from(count) / (1 << 20) * (1 << 20);
    let make = |nsd: u16| {
        let path = directory.join(format!("{nsd}.img"));
        make_file(&path, each)?;
        Ok(path)
    };
    (1..=count).map(make).collect()
}

/// Makes the sparse file `path` of `size` bytes; it must not exist. Where that fails there is none.
pub fn make_file(path: &Path, size: u64) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|file| {
            let made = file.set_len(size).and_then(|()| file.sync_all());
            made.inspect_err(|_| drop(std::fs::remove_file(path)))
        })
        .map_err(|e| {
            let failure = Failure::io("make", path, &e);
            match e.kind() {
                std::io::ErrorKind::FileTooLarge => failure.help(format!(
                    "the file system below takes no file of {}: choose a smaller size, or another directory",
                    size::show(size)
                )),
                _ => failure,
            }
        })
}

/// What is said where the files at `paths`, which are sparse, may outgrow the file systems that they lie in: what is written there fails then,
/// and whoever reads `df` of ours does not see it coming.
pub fn warn_of_thin(paths: &[PathBuf]) -> Result<Vec<String>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut wanted: BTreeMap<u64, (u64, &Path)> = BTreeMap::new();
    for path in paths {
        let found = std::fs::metadata(path).map_err(|e| Failure::io("look at", path, &e))?;
        let missing = found.len().saturating_sub(found.blocks() * 512);
        wanted.entry(found.dev()).or_insert((0, path)).0 += missing;
    }
    let mut warnings = Vec::new();
    for (wanted, path) in wanted.into_values() {
        let room =
            rustix::fs::statvfs(path).map_err(|e| Failure::io("look at", path, &e.into()))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if free < wanted {
            warnings.push(format!(
                "warning: the disk below {} has {} left, and NSDs that may grow by {}: writes fail once it is full, whatever df says \
                 of this file system; make room there, or choose a smaller size",
                path.display(),
                size::show(free),
                size::show(wanted)
            ));
        }
    }
    Ok(warnings)
}

/// The devices over `paths`, or the paths themselves.
pub fn attach_all(paths: &[PathBuf], backing: Backing) -> Result<Vec<PathBuf>> {
    match backing {
        Backing::File | Backing::Volatile => Ok(paths.to_vec()),
        Backing::Loop | Backing::Ram => paths.iter().map(|p| loops::attach(p)).collect(),
    }
}

/// The disk of `nsd` as a state directory has it.
pub fn disk(nsd: u16, path: &Path, backing: Backing) -> Disk {
    Disk {
        nsd,
        path: path.to_owned(),
        is_loop: matches!(backing, Backing::Loop | Backing::Ram),
        is_volatile: backing == Backing::Volatile,
    }
}

/// Detaches and unmounts what [`make_disks`] and [`attach_all`] made below `root`, and removes it.
pub fn remove_backing(root: &Path) -> Result<Vec<String>> {
    let mut done = detach(root)?;
    let ram = root.join("ram");
    for mount in mounts::below(&ram)? {
        mounts::remove(&mount)?;
        done.push(format!("unmounted {}", mount.point.display()));
    }
    if let Some(mount) = mounts::below(&ram)?.first() {
        return Err(Failure::new(format!(
            "{} is still mounted on {}",
            mount.kind,
            mount.point.display()
        )));
    }
    for name in state::DISK_DIRECTORIES {
        files::remove(&root.join(name))?;
    }
    Ok(done)
}

fn detach(root: &Path) -> Result<Vec<String>> {
    let found = loops::detach_below(root)?;
    Ok(found
        .iter()
        .map(|l| format!("detached {}", l.device.display()))
        .collect())
}

/// Stops and unmounts; with `destroy` the file system is removed too. Returns what was done.
pub fn down(state: &Path, destroy: bool) -> Result<Vec<String>> {
    system::require_root("gupfs down")?;
    let place = Place::new(state)?;
    if !place.root().is_dir() {
        return Err(Failure::new(format!(
            "state directory {} does not exist",
            place.root().display()
        ))
        .help("name the --state that `gupfs up` was given"));
    }
    // Another version's directory: its daemon and mount may be of any form, touch nothing.
    let mount = place.load()?.map(|state| state.mount);
    if mount.is_none() {
        check_own(&place)?;
    }
    let service::Ended { mut done, loss } = service::stop(&place, mount.as_deref())?;
    done.extend(detach(place.root())?);
    if destroy {
        done.extend(remove_backing(place.root())?);
        place.remove()?;
        done.push(format!(
            "removed the file system and {}",
            place.root().display()
        ));
    }
    if done.is_empty() {
        done.push("nothing was running and nothing was mounted".to_owned());
    }
    match loss.filter(|_| !destroy) {
        Some(loss) => Err(loss),
        None => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_are_refused_with_the_size_that_works() {
        let failure = check_size(64 << 20, 4).expect_err("too small");
        let text = failure.to_string();
        let (_, wanted) = text
            .split_once("--size ")
            .and_then(|(_, r)| r.split_once("give --size "))
            .expect("a remedy");
        let wanted = size::parse(wanted.split(' ').next().expect("a word")).expect("a size");
        check_size(wanted, 4).expect("enough");
        check_size(wanted - (4 << 20), 4).expect_err("not enough");
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        check_fresh(&place).expect("empty");
        for name in ["lock", "lives.new", "lost.new", "pid.new"] {
            std::fs::write(place.root().join(name), "").expect("ours");
        }
        check_fresh(&place).expect("only ours");
        std::fs::write(directory.path().join("thesis.tex"), "").expect("not ours");
        let failure = check_fresh(&place).expect_err("not ours");
        assert!(failure.what().contains("thesis.tex"), "{failure}");
    }

    #[test]
    fn what_a_running_daemon_cannot_change_is_refused() {
        let mount = Path::new("/mnt/here");
        let view = ClusterView {
            cluster: types::ClusterId(1),
            fs: types::FsId(1),
            epoch: types::Epoch(1),
            manager: types::NodeId(1),
            nodes: Vec::new(),
            nsds: Vec::new(),
            owners: Vec::new(),
            block_size: 1 << 20,
        };
        let state = State {
            direct_from: Some(4096),
            ..single(&view, mount)
        };
        for given in [None, Some(4096)] {
            check_direct_from(&state, given).expect("as it runs");
        }
        let failure = check_direct_from(&state, Some(8192)).expect_err("another size");
        assert!(failure.what().contains("--direct-from"), "{failure}");
    }

    #[test]
    fn sparse_files_that_may_not_grow_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, size: u64| {
            let path = directory.path().join(name);
            make_file(&path, size).expect("made");
            path
        };
        let small = file("small", 96 << 20);
        assert_eq!(warn_of_thin(std::slice::from_ref(&small)), Ok(Vec::new()));
        let large = file("large", 1 << 43);
        let [said] = &warn_of_thin(&[small, large]).expect("there")[..] else {
            panic!("one for both, they lie in one file system");
        };
        assert!(said.contains("may grow by 8.0 TiB"), "{said}");
    }

    #[test]
    fn files_are_made_once_and_sparse() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let made = make_disks(directory.path(), Backing::File, 8 << 30, 4).expect("made");
        assert_eq!(made.len(), 4);
        let metadata = std::fs::metadata(&made[3]).expect("there");
        assert_eq!(metadata.len(), 2 << 30);
        assert_eq!(metadata.blocks(), 0);
        make_disks(directory.path(), Backing::File, 8 << 30, 4).expect_err("never over an old one");
    }
}
