//! Making a file system over disks, and finding again what is there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nsd::label::{DIRECTORY_PARTS, Expected, Label, LabelError, Spec, Usage};
use types::{
    ClusterId, ClusterView, Epoch, FsId, Incarnation, NodeId, NodeView, NsdId, NsdView, Timestamp,
    limits,
};

use crate::disks::{self, Disk};
use crate::failure::{Failure, Result};
use crate::state::{self, State, from_hex};
use crate::system::{self, loops};

/// A node of the new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Its id.
    pub id: u16,
    /// Where its daemon will listen; `None` in a cluster of one.
    pub address: Option<SocketAddr>,
}

/// A disk of the new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// Block device or file.
    pub path: PathBuf,
    /// The node that sees it, and serves it to the others.
    pub server: u16,
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFileSystem {
    /// Nodes, ascending by id; the first is the cluster manager.
    pub nodes: Vec<NewNode>,
    /// Disks; the index + 1 is the NSD id.
    pub disks: Vec<NewDisk>,
    /// Stripe unit in bytes.
    pub block_size: u32,
    /// Overwrite what the disks hold.
    pub force: bool,
}

/// A file system that can be made: its disks are held.
#[derive(Debug)]
pub struct Plan {
    disks: Vec<Disk>,
    labels: Vec<Label>,
    view: ClusterView,
}

impl Plan {
    /// The cluster's first view.
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// Labels all disks.
    pub fn write(&self) -> Result<()> {
        let life = Incarnation(system::random_u128()?);
        let mut all = self.disks.iter().zip(&self.labels);
        all.try_for_each(|(disk, label)| disk.write_label(label, &self.view, life))
    }

    /// Makes all disks blank.
    pub fn clear(&self) -> Result<()> {
        self.disks.iter().try_for_each(Disk::clear)
    }
}

/// Labels all disks of `new` and returns the cluster's first view.
///
/// Nothing is written unless all disks can be used.
pub fn create(new: &NewFileSystem) -> Result<ClusterView> {
    let plan = plan(new, None)?;
    plan.write()?;
    Ok(plan.view)
}

/// Opens and checks all disks of `new`. Disks of `unfinished`, a file system that was not made to its end, count as blank.
/// Nothing is written.
pub fn plan(new: &NewFileSystem, unfinished: Option<u128>) -> Result<Plan> {
    assert!(!new.nodes.is_empty(), "the commands always name one node");
    let mut opened = Vec::with_capacity(new.disks.len());
    for disk in &new.disks {
        opened.push(
            Disk::open_alone(&disk.path)
                .map_err(|failure| explain_busy(&opened, &disk.path, failure))?,
        );
    }
    check_named_once(&opened)?;
    for disk in &opened {
        check_blank(disk, new.force, unfinished)?;
    }
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let ids = (
        ClusterId(system::random_u128()?),
        FsId(system::random_u128()?),
        system::random_u128()?,
    );
    let mut labels = Vec::with_capacity(opened.len());
    for (index, (disk, opened)) in new.disks.iter().zip(&opened).enumerate() {
        let nsd = u16::try_from(index + 1)
            .map_err(|_| Failure::new("more than 65535 disks were named"))?;
        let spec = Spec {
            cluster: ids.0,
            fs: ids.1,
            nsd: NsdId(nsd),
            name: format!("nsd{nsd}"),
            failure_group: disk.server,
            usage: Usage::Both,
            pool: "system".to_owned(),
            block_size: new.block_size,
            hash_key: ids.2,
            created: Timestamp {
                secs: i64::try_from(created.as_secs()).unwrap_or(i64::MAX),
                nanos: created.subsec_nanos(),
            },
        };
        let owners = journals_on(new, index);
        let mut label = Label::layout(&spec, opened.sector_count, &owners).map_err(|e| {
            Failure::new(format!("disk {}: {e}", disk.path.display()))
                .help("give a larger --size, or a larger disk")
        })?;
        label.features_incompatible |= DIRECTORY_PARTS;
        labels.push(label);
    }
    let view = first_view(new, &opened, &labels);
    Ok(Plan {
        disks: opened,
        labels,
        view,
    })
}

/// The nodes whose journal lies on the disk with `index`: each node's is on the first disk that it sees,
/// and of a node that sees none on the first disk of all.
fn journals_on(new: &NewFileSystem, index: usize) -> Vec<NodeId> {
    let home = |node: &NewNode| {
        new.disks
            .iter()
            .position(|d| d.server == node.id)
            .unwrap_or(0)
    };
    new.nodes
        .iter()
        .filter(|n| home(n) == index)
        .map(|n| NodeId(n.id))
        .collect()
}

fn first_view(new: &NewFileSystem, opened: &[Disk], labels: &[Label]) -> ClusterView {
    let nsd_view = |((disk, label), new): ((&Disk, &Label), &NewDisk)| NsdView {
        id: label.nsd,
        servers: vec![NodeId(new.server)],
        sector_count: label.sector_count,
        data_begin: label.data_begin,
        failure_group: label.failure_group,
        has_volatile_cache: disk.has_volatile_cache,
    };
    let node_view = |node: &NewNode| NodeView {
        id: NodeId(node.id),
        address: node.address.map(|a| a.to_string()).unwrap_or_default(),
        incarnation: Incarnation(0),
    };
    let owner = |shard: u16| NodeId(new.nodes[usize::from(shard) % new.nodes.len()].id);
    let (first_label, first_node) = (&labels[0], &new.nodes[0]);
    ClusterView {
        cluster: first_label.cluster,
        fs: first_label.fs,
        epoch: Epoch(1),
        manager: NodeId(first_node.id),
        nodes: new.nodes.iter().map(node_view).collect(),
        nsds: opened
            .iter()
            .zip(labels)
            .zip(&new.disks)
            .map(nsd_view)
            .collect(),
        owners: (0..limits::SHARD_COUNT).map(owner).collect(),
        block_size: new.block_size,
    }
}

/// A disk that we have opened ourselves a moment ago is not 'in use' but named twice.
fn explain_busy(opened: &[Disk], path: &Path, failure: Failure) -> Failure {
    let twice = Disk::open(path).ok().and_then(|disk| {
        let other = opened.iter().find(|o| o.identity == disk.identity)?;
        Some(named_twice(other.path(), path))
    });
    twice.unwrap_or(failure)
}

fn check_named_once(disks: &[Disk]) -> Result<()> {
    for (index, disk) in disks.iter().enumerate() {
        if let Some(other) = disks[..index].iter().find(|o| o.identity == disk.identity) {
            return Err(named_twice(other.path(), disk.path()));
        }
    }
    Ok(())
}

fn named_twice(first: &Path, second: &Path) -> Failure {
    Failure::new(format!(
        "one disk is named twice: {} and {}",
        first.display(),
        second.display()
    ))
    .help("name each disk once")
}

fn check_blank(disk: &Disk, force: bool, unfinished: Option<u128>) -> Result<()> {
    match disk.label()? {
        Err(LabelError::Blank) => Ok(()),
        _ if force => Ok(()),
        Err(error) => Err(disks::explain(disk.path(), &error)),
        Ok(found) if Some(found.label.fs.0) == unfinished => Ok(()),
        Ok(found) => Err(Failure::new(format!(
            "disk {} belongs to another GUPFS file system: NSD '{}' of file system {:032x}",
            disk.path().display(),
            found.label.name,
            found.label.fs.0
        ))
        .help("name another disk; if that file system may be destroyed, give --force")),
    }
}

/// A disk of a state directory, ready to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyDisk {
    /// The NSD.
    pub nsd: NsdId,
    /// What to open: the file, or the device over it.
    pub path: PathBuf,
    /// What was not flushed is lost with the daemon.
    pub is_volatile: bool,
}

/// What the labels of a node's disks say of their file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// Key of the name hash.
    pub hash_key: u128,
    /// Directories may be in parts.
    pub has_parts: bool,
}

/// Attaches what must be attached and compares every disk's label with the state directory; returns the
/// disks and what their labels say.
pub fn prepare(state: &State) -> Result<(Vec<ReadyDisk>, Labelled)> {
    let expected = Expected {
        cluster: Some(ClusterId(from_hex(&state.cluster, "cluster id")?)),
        fs: Some(FsId(from_hex(&state.fs, "file system id")?)),
        nsd: None,
    };
    let (mut ready, mut opened, mut key) = (Vec::new(), Vec::new(), None);
    let mut has_parts = true;
    for disk in &state.disks {
        if ready.iter().any(|r: &ReadyDisk| r.nsd.0 == disk.nsd) {
            return Err(
                Failure::new(format!("nsd{} is named twice in gupfs.toml", disk.nsd))
                    .help("name each NSD of the node once"),
            );
        }
        if !disk.path.exists() {
            return Err(missing(disk.nsd, &disk.path, state));
        }
        let path = way_to(disk)?;
        let found = Disk::open(&path)?;
        if found.is_read_only {
            return Err(disks::read_only(&path));
        }
        let decoded = found.label()?.map_err(|e| disks::explain_own(&path, &e))?;
        let expected = Expected {
            nsd: Some(NsdId(disk.nsd)),
            ..expected
        };
        decoded
            .label
            .check(&expected, found.sector_count)
            .map_err(|e| disks::explain(&path, &e))?;
        for copy in decoded.copies_to_repair {
            tracing::warn!(disk = %path.display(), copy, "a copy of the label is damaged; the other one is used");
        }
        key = key.or(Some(decoded.label.hash_key));
        // One that was made before directories could be in parts has none.
        has_parts &= decoded.label.features_incompatible & DIRECTORY_PARTS != 0;
        opened.push(found);
        ready.push(ReadyDisk {
            nsd: NsdId(disk.nsd),
            path,
            is_volatile: disk.is_volatile,
        });
    }
    check_named_once(&opened)?;
    let hash_key = key.ok_or_else(|| {
        Failure::new(
            "the state directory names no disk: a node needs one of its own in this version",
        )
    })?;
    let labelled = Labelled {
        hash_key,
        has_parts,
    };
    Ok((ready, labelled))
}

/// What to open of a disk of the state directory; it is used in no other way.
fn way_to(disk: &state::Disk) -> Result<PathBuf> {
    if !disk.is_loop {
        disks::check_other_way(&disk.path)?;
        return Ok(disk.path.clone());
    }
    // A loop device that is there is ours, of a daemon that has ended. Without one nobody may have the file open.
    if loops::over(&disk.path)?.is_empty() {
        drop(Disk::open_alone(&disk.path)?);
    }
    let device = loops::attach(&disk.path)?;
    disks::check_other_way(&device)?;
    Ok(device)
}

fn missing(nsd: u16, path: &Path, state: &State) -> Failure {
    let failure = Failure::new(format!("disk {} of nsd{nsd} is missing", path.display()));
    match state.backing {
        Some(state::Backing::Ram) => failure.help(
            "its memory was lost (reboot, or its tmpfs was unmounted): remove the file system with \
             `gupfs down --destroy` and make a new one",
        ),
        _ => failure.help(
            "bring the disk back, or correct its path in gupfs.toml; `gupfs up --degraded` says what would be lost without it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn new(directory: &Path, servers: &[u16]) -> NewFileSystem {
        let disks = servers.iter().enumerate().map(|(index, server)| {
            let path = directory.join(format!("{index}.img"));
            File::create(&path)
                .and_then(|f| f.set_len(96 << 20))
                .expect("a sparse file");
            NewDisk {
                path,
                server: *server,
            }
        });
        let mut ids = servers.to_vec();
        ids.dedup();
        NewFileSystem {
            disks: disks.collect(),
            nodes: ids
                .into_iter()
                .map(|id| NewNode { id, address: None })
                .collect(),
            block_size: limits::BLOCK_SIZE_DEFAULT,
            force: false,
        }
    }

    #[test]
    fn labels_and_view_agree() {
        let directory = tempfile::tempdir().expect("a directory");
        let new = new(directory.path(), &[1, 1, 2, 2]);
        let view = create(&new).expect("made");
        assert_eq!(view.owners.len(), usize::from(limits::SHARD_COUNT));
        assert_eq!(view.owners.iter().filter(|o| o.0 == 1).count(), 32);
        let mut journals = Vec::new();
        for (disk, nsd) in new.disks.iter().zip(&view.nsds) {
            let found = Disk::open(&disk.path)
                .expect("opened")
                .label()
                .expect("read")
                .expect("a label");
            assert!(found.copies_to_repair.is_empty());
            assert_eq!((found.label.fs, found.label.nsd), (view.fs, nsd.id));
            assert_eq!(found.label.data_begin, nsd.data_begin);
            assert_eq!(nsd.servers, [NodeId(disk.server)]);
            journals.extend(found.label.journals.iter().map(|j| (nsd.id.0, j.owner.0)));
        }
        assert_eq!(
            journals,
            [(1, 1), (3, 2)],
            "each node's journal is on its own first disk"
        );
    }

    #[test]
    fn nothing_is_written_when_one_disk_cannot_be_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut bad = new(directory.path(), &[1, 1]);
        File::create(&bad.disks[1].path)
            .and_then(|f| f.set_len(1 << 20))
            .expect("small");
        let failure = create(&bad).expect_err("too small");
        assert!(failure.what().contains("too small"), "{failure}");
        std::fs::write(&bad.disks[1].path, vec![5; 96 << 20]).expect("foreign");
        let failure = create(&bad).expect_err("foreign");
        assert!(failure.to_string().contains("--force"), "{failure}");
        bad.disks[1].path = bad.disks[0].path.clone();
        let failure = create(&bad).expect_err("twice");
        assert!(failure.what().contains("named twice"), "{failure}");
        let first = Disk::open(&bad.disks[0].path).expect("opened");
        assert_eq!(first.label().expect("read"), Err(LabelError::Blank));
    }

    #[test]
    fn a_used_disk_needs_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut new = new(directory.path(), &[1]);
        let old = create(&new).expect("made");
        let failure = create(&new).expect_err("used");
        assert!(
            failure.what().contains("another GUPFS file system"),
            "{failure}"
        );
        new.force = true;
        assert_ne!(create(&new).expect("forced").fs, old.fs);
    }
}
