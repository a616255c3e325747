//! `gupfs lab`: a cluster of daemons on one machine, each in a network name space of its own.
//!
//! Directory: `lab.toml`; `lock` (held by a command while it changes the lab); `nsd/` or `ram/` with the
//! disks; `nK/` = state directory of node K; `nK/mnt` = its mount, visible from outside; `source/` and
//! `compare/` belong to a demo that runs in the lab.
//!
//! Life cycle: `lab.toml` is written with `complete = false` before anything is made and with `true` when all
//! is there. A lab that is not complete is what a crash left: the next `up` removes it first.
//!
//! Invariant: `down` goes by what is found on the machine (processes, mounts, loop devices, name spaces whose
//! names or directories are the lab's), not by what was written down, so it works from any state.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::{ClusterView, limits};

use crate::failure::{Failure, Result};
use crate::filesystem::{self, NewDisk, NewFileSystem, NewNode};
use crate::service::{self, Liveness};
use crate::state::{self, Backing, Peer, Place, State, Transport};
use crate::system::{self, mounts, netns, process};
use crate::{files, size, up};

/// Port that every daemon of a lab listens on, each on its own address.
const PORT: u16 = 7077;
/// Most nodes of a lab.
pub const NODE_COUNT_MAX: u16 = 16;
const FORMAT: u32 = 1;

/// What a lab is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    format: u32,
    /// All of it was made.
    complete: bool,
    /// Nodes 1 to this.
    pub node_count: u16,
    /// Where the disks lie.
    pub backing: Backing,
    /// Bytes of all disks together.
    pub size: u64,
    /// FUSE transport of every node.
    pub transport: Transport,
    /// Bytes of each node's pagepool.
    pub pagepool_size: u64,
    /// As `State::direct_from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_from: Option<u64>,
    /// Milliseconds of a node's lease.
    #[serde(default = "lease_ms_default")]
    pub lease_ms: u64,
}

impl Plan {
    /// Whether both make the same disks and nodes.
    fn is_as(&self, other: &Self) -> bool {
        let disks = |plan: &Self| (plan.node_count, plan.size, plan.backing);
        disks(self) == disks(other)
    }
}

const fn lease_ms_default() -> u64 {
    limits::LEASE_MS
}

impl Plan {
    /// A lab to be made.
    pub fn new(node_count: u16, backing: Backing, size: u64) -> Self {
        Self {
            format: FORMAT,
            complete: false,
            node_count,
            backing,
            size,
            transport: Transport::Device,
            pagepool_size: up::PAGEPOOL_SIZE_DEFAULT,
            direct_from: None,
            lease_ms: lease_ms_default(),
        }
    }

    /// With leases of another length.
    #[must_use]
    pub fn with_lease(self, lease_ms: u64) -> Self {
        Self { lease_ms, ..self }
    }

    /// With another size from which on files are read directly.
    #[must_use]
    pub fn with_direct_from(self, direct_from: Option<u64>) -> Self {
        Self {
            direct_from,
            ..self
        }
    }

    /// With another FUSE transport and pagepool size.
    #[must_use]
    pub fn with(self, transport: Transport, pagepool_size: u64) -> Self {
        Self {
            transport,
            pagepool_size,
            ..self
        }
    }

    /// NSDs: two of each node, at least four.
    fn nsd_count(&self) -> u16 {
        up::NSD_COUNT.max(2 * self.node_count)
    }

    /// The node that sees NSD `nsd`: the first nodes get what does not divide evenly.
    fn server(&self, nsd: u16) -> u16 {
        let (node_count, nsd_count) = (u32::from(self.node_count), u32::from(self.nsd_count()));
        let server = u32::from(nsd - 1) * node_count / nsd_count + 1;
        u16::try_from(server).expect("not more than the number of nodes")
    }
}

/// A lab's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lab {
    root: PathBuf,
}

impl Lab {
    /// The lab in `directory`.
    pub fn new(directory: &Path) -> Result<Self> {
        let root = system::absolute(directory)?;
        Ok(Self { root })
    }

    /// State directory of `node`.
    pub fn place(&self, node: u16) -> Result<Place> {
        Place::new(&self.root.join(format!("n{node}")))
    }

    /// Mount of `node`.
    pub fn mount(&self, node: u16) -> PathBuf {
        self.root.join(format!("n{node}/mnt"))
    }

    /// Prefix of the lab's name spaces: the directory's name in 32 bits, so that labs do not meet.
    fn prefix(&self) -> String {
        let name = self.root.as_os_str().as_encoded_bytes();
        format!("gupfs-{:08x}-", types::crc32c(name))
    }

    fn plan_path(&self) -> PathBuf {
        self.root.join("lab.toml")
    }

    fn load(&self) -> Result<Option<Plan>> {
        let path = self.plan_path();
        let Some(text) = files::read_text(&path)? else {
            return Ok(None);
        };
        let plan: Plan = toml::from_str(&text).map_err(|e| {
            Failure::new(format!("{} is damaged: {}", path.display(), e.message()))
                .help(format!("gupfs lab down --dir {}", self.root.display()))
        })?;
        if plan.format != FORMAT {
            return Err(Failure::new(format!(
                "{} has format {}; this gupfs knows {FORMAT}",
                path.display(),
                plan.format
            ))
            .help("use the gupfs version that made it, or remove it with `gupfs lab down`"));
        }
        Ok(Some(plan))
    }

    fn store(&self, plan: &Plan) -> Result<()> {
        let text = toml::to_string(plan).expect("plain values have a TOML form");
        files::replace(&self.plan_path(), text.as_bytes())
    }

    /// The plan of a complete lab.
    pub fn require(&self) -> Result<Plan> {
        match self.load()? {
            Some(plan) if plan.complete => Ok(plan),
            Some(_) => Err(Failure::new(format!(
                "the lab in {} was not finished",
                self.root.display()
            ))
            .help("`gupfs lab up` removes what is left and makes it anew")),
            None => Err(Failure::new(format!(
                "{} is no lab: it has no lab.toml",
                self.root.display()
            ))
            .help("make one with `gupfs lab up --dir DIR`")),
        }
    }

    fn lock(&self) -> Result<std::fs::File> {
        let path = self.root.join("lock");
        let file = files::open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => Err(Failure::new(format!(
                "another gupfs command works on the lab in {}",
                self.root.display()
            ))
            .help("wait for it to end")),
            Err(std::fs::TryLockError::Error(e)) => Err(Failure::io("lock", &path, &e)),
        }
    }

    fn check_node(&self, plan: &Plan, node: u16) -> Result<()> {
        if (1..=plan.node_count).contains(&node) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the lab in {} has no node n{node}",
            self.root.display()
        ))
        .help(format!("its nodes are n1 to n{}", plan.node_count)))
    }
}

/// Makes the lab, or brings what is missing of it up again. Returns what was done.
pub fn up(lab: &Lab, wanted: &Plan) -> Result<Vec<String>> {
    system::require_root("gupfs lab")?;
    system::require_fuse()?;
    if !(1..=NODE_COUNT_MAX).contains(&wanted.node_count) {
        return Err(Failure::new(format!(
            "a lab of {} nodes cannot be made",
            wanted.node_count
        ))
        .help(format!("give --nodes 1 to {NODE_COUNT_MAX}")));
    }
    up::check_size(wanted.size, wanted.nsd_count())?;
    check_fresh(lab)?;
    files::make_directory(&lab.root)?;
    let _lock = lab.lock()?;
    let mut done = Vec::new();
    let plan = match lab.load()? {
        Some(plan) if plan.complete => {
            done.push(format!(
                "found the lab of {} nodes in {}",
                plan.node_count,
                lab.root.display()
            ));
            if !plan.is_as(wanted) {
                done.push(format!(
                    "it stays as it was made ({} nodes, {} in all, backing {}): another one needs another directory, or `gupfs lab down` first",
                    plan.node_count,
                    size::show(plan.size),
                    plan.backing,
                ));
            }
            check_whole(lab, &plan)?;
            plan
        }
        _ => {
            done.extend(
                clean(lab)?
                    .into_iter()
                    .map(|d| format!("left by a crash: {d}")),
            );
            let made = make(lab, wanted);
            if made.is_err() {
                clean(lab)?;
            }
            done.push(made?);
            Plan {
                complete: true,
                ..wanted.clone()
            }
        }
    };
    let prefix = lab.prefix();
    if (1..=plan.node_count).any(|node| !netns::exists(&netns::name(&prefix, node))) {
        // After a reboot, or half removed: daemons inside cannot reach each other any more.
        for node in 1..=plan.node_count {
            let ended = service::stop(&lab.place(node)?, Some(&lab.mount(node)))?;
            done.extend(ended.loss.map(|loss| loss.what().to_owned()));
        }
        netns::remove(&prefix)?;
        netns::create(&prefix, plan.node_count)?;
        done.push(format!(
            "made the network name spaces {prefix}n1 to n{}",
            plan.node_count
        ));
    }
    done.extend(start_all(lab, plan.node_count)?);
    Ok(done)
}

/// Every node of a complete lab has its state directory: one that somebody removed is named before anything starts.
fn check_whole(lab: &Lab, plan: &Plan) -> Result<()> {
    for node in 1..=plan.node_count {
        let place = lab.place(node)?;
        if place.load()?.is_none() {
            return Err(Failure::new(format!(
                "the lab in {} lacks its node n{node}: {} is missing",
                lab.root.display(),
                place.config().display()
            ))
            .help(format!(
                "bring it back, or remove the lab with `gupfs lab down --dir {}` and make it anew",
                lab.root.display()
            )));
        }
    }
    Ok(())
}

fn start_all(lab: &Lab, node_count: u16) -> Result<Vec<String>> {
    let (mut done, mut starting) = (Vec::new(), Vec::new());
    for node in 1..=node_count {
        let place = lab.place(node)?;
        if !matches!(service::look(&place)?, Liveness::Mounted(_)) {
            let ended = service::end(&place)?;
            done.extend(ended.loss.map(|loss| loss.what().to_owned()));
            starting.push((node, service::start(&place, &[])?));
        }
    }
    // All are started before the first is waited for: one may need another to come up.
    for (node, started) in starting {
        started.wait()?;
        done.push(format!(
            "node n{node} is up, mounted on {}",
            lab.mount(node).display()
        ));
    }
    Ok(done)
}

fn make(lab: &Lab, plan: &Plan) -> Result<String> {
    lab.store(plan)?;
    let paths = up::make_disks(&lab.root, plan.backing, plan.size, plan.nsd_count())?;
    let opened = up::attach_all(&paths, plan.backing)?;
    let address = |node: u16| SocketAddr::new(IpAddr::V4(netns::address(node)), PORT);
    let is_alone = plan.node_count == 1;
    let view = filesystem::create(&NewFileSystem {
        nodes: (1..=plan.node_count)
            .map(|id| NewNode {
                id,
                address: (!is_alone).then(|| address(id)),
            })
            .collect(),
        disks: (1..)
            .zip(opened)
            .map(|(nsd, path)| NewDisk {
                path,
                server: plan.server(nsd),
            })
            .collect(),
        block_size: limits::BLOCK_SIZE_DEFAULT,
        force: false,
    })?;
    for node in 1..=plan.node_count {
        let place = lab.place(node)?;
        files::make_directory(place.root())?;
        files::make_directory(&lab.mount(node))?;
        place.store_view(&view)?;
        place.store(&node_state(lab, plan, &view, &paths, node))?;
    }
    lab.store(&Plan {
        complete: true,
        ..plan.clone()
    })?;
    Ok(format!(
        "made the file system {:032x} over {} NSDs, {} of each node",
        view.fs.0,
        plan.nsd_count(),
        plan.nsd_count() / plan.node_count
    ))
}

fn node_state(lab: &Lab, plan: &Plan, view: &ClusterView, paths: &[PathBuf], node: u16) -> State {
    let address = |node: u16| SocketAddr::new(IpAddr::V4(netns::address(node)), PORT);
    let own = (1..)
        .zip(paths)
        .filter(|(nsd, _)| plan.server(*nsd) == node);
    let peers = (1..=plan.node_count).filter(|peer| *peer != node);
    State {
        node,
        listen: (plan.node_count > 1).then(|| address(node)),
        netns: Some(netns::name(&lab.prefix(), node)),
        backing: Some(plan.backing),
        size: plan.size,
        transport: plan.transport,
        pagepool_size: plan.pagepool_size,
        direct_from: plan.direct_from,
        lease_ms: plan.lease_ms,
        metrics: state::Metrics::default(),
        inode_count_max: state::INODE_COUNT_MAX_DEFAULT,
        metadata_bytes_max: state::METADATA_BYTES_MAX_DEFAULT,
        slow_ms: state::SLOW_MS_DEFAULT,
        log_level: state::LogLevel::default(),
        log_format: state::LogFormat::default(),
        disks: own
            .map(|(nsd, path)| up::disk(nsd, path, plan.backing))
            .collect(),
        peers: peers
            .map(|node| Peer {
                node,
                address: address(node),
            })
            .collect(),
        ..up::single(view, &lab.mount(node))
    }
}

/// What each node is doing.
pub fn status(lab: &Lab) -> Result<Value> {
    let plan = lab.require()?;
    let mut nodes = Vec::new();
    for node in 1..=plan.node_count {
        let place = lab.place(node)?;
        let (state, status) = match service::look(&place)? {
            Liveness::Mounted(status) => ("mounted", status),
            Liveness::Busy => ("busy", Value::Null),
            Liveness::Absent => ("down", Value::Null),
        };
        nodes.push(json!({
            "node": format!("n{node}"),
            "state": state,
            "pid": process::daemons_of(place.root())?.first(),
            "mount": lab.mount(node),
            "netns": netns::name(&lab.prefix(), node),
            "status": status,
        }));
    }
    Ok(json!({ "directory": lab.root, "backing": plan.backing, "size": plan.size, "nodes": nodes }))
}

/// Kills node `node` as a crash would: SIGKILL. Its mount stays, as after a real crash.
pub fn kill(lab: &Lab, node: u16) -> Result<Vec<String>> {
    system::require_root("gupfs lab kill")?;
    lab.check_node(&lab.require()?, node)?;
    let pid = service::crash(&lab.place(node)?)?;
    Ok(vec![format!("killed node n{node} (pid {pid}, SIGKILL)")])
}

/// Starts node `node` again.
pub fn start(lab: &Lab, nodes: &[u16]) -> Result<Vec<String>> {
    system::require_root("gupfs lab start")?;
    let plan = lab.require()?;
    let _lock = lab.lock()?;
    check_whole(lab, &plan)?;
    let (mut done, mut starting) = (Vec::new(), Vec::new());
    for node in nodes.iter().copied() {
        lab.check_node(&plan, node)?;
        let place = lab.place(node)?;
        if matches!(service::look(&place)?, Liveness::Mounted(_)) {
            continue;
        }
        let ended = service::end(&place)?;
        done.extend(ended.loss.map(|loss| loss.what().to_owned()));
        starting.push((node, service::start(&place, &[])?));
    }
    if starting.is_empty() {
        return Ok(vec!["already running".to_owned()]);
    }
    for (node, started) in starting {
        started.wait()?;
        done.push(format!(
            "node n{node} is up, mounted on {}",
            lab.mount(node).display()
        ));
    }
    Ok(done)
}

/// Removes the lab with all its data. Returns what was done.
pub fn down(lab: &Lab) -> Result<Vec<String>> {
    system::require_root("gupfs lab down")?;
    if !lab.root.is_dir() {
        let removed = netns::remove(&lab.prefix())?;
        return Ok(match removed.is_empty() {
            true => vec![format!("there is no lab in {}", lab.root.display())],
            false => removed
                .into_iter()
                .map(|n| format!("removed the name space {n}"))
                .collect(),
        });
    }
    check_fresh(lab)?;
    let lock = lab.lock()?;
    let done = clean(lab)?;
    drop(lock);
    files::remove(&lab.root.join("lock"))?;
    // Only if nothing of the user's is in it.
    let _ = std::fs::remove_dir(&lab.root);
    Ok(match done.is_empty() {
        true => vec!["there was nothing to remove".to_owned()],
        false => done,
    })
}

/// Names in a lab's directory that are the lab's.
fn is_ours(name: &str) -> bool {
    let is_node = || {
        name.strip_prefix('n')
            .is_some_and(|n| n.parse::<u16>().is_ok())
    };
    matches!(
        name,
        "lab.toml" | "lab.toml.new" | "lock" | "nsd" | "ram" | "source" | "compare"
    ) || is_node()
}

/// A directory that holds anything of somebody else is refused.
fn check_fresh(lab: &Lab) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(&lab.root) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(is_ours) {
            return Err(Failure::new(format!(
                "{} is no lab directory: it holds {}",
                lab.root.display(),
                name.display()
            ))
            .help("name an empty directory, or one that does not exist yet"));
        }
    }
    Ok(())
}

/// Ends and removes everything of the lab that is found on the machine; the directory itself stays.
fn clean(lab: &Lab) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for (_, root) in process::daemons_below(&lab.root)? {
        let place = Place::new(&root)?;
        // All of it is removed: nothing needs to be written back, and nodes that wait for one another
        // would only take their time.
        let steps = service::stop_hard(&place, Some(&root.join("mnt")))?;
        done.extend(
            steps
                .into_iter()
                .map(|s| format!("{}: {s}", root.display())),
        );
    }
    let compare = lab.root.join("compare");
    for mount in mounts::below(&lab.root)? {
        // The memory under a loop device goes when the loop device is gone, in `remove_backing`.
        let is_memory = mount.kind == "tmpfs";
        if is_memory || !(mount.is_gupfs() || mount.point.starts_with(&compare)) {
            continue;
        }
        mounts::remove(&mount)?;
        done.push(format!("unmounted {}", mount.point.display()));
    }
    for name in netns::remove(&lab.prefix())? {
        done.push(format!("removed the name space {name}"));
    }
    for root in [&compare, &lab.root] {
        done.extend(up::remove_backing(root)?);
    }
    if let Some(mount) = mounts::below(&lab.root)?.first() {
        // Removing the directory would remove what is mounted there.
        return Err(Failure::new(format!(
            "{} is still mounted on {}",
            mount.kind,
            mount.point.display()
        ))
        .help(format!("umount {}", mount.point.display())));
    }
    let entries = std::fs::read_dir(&lab.root).map_err(|e| Failure::io("read", &lab.root, &e))?;
    for entry in entries.flatten() {
        let is_lock = entry.file_name() == "lock";
        if !is_lock && entry.file_name().to_str().is_some_and(is_ours) {
            files::remove(&entry.path())?;
            done.push(format!("removed {}", entry.path().display()));
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nsds_are_shared_out_evenly_and_in_order() {
        for node_count in 1..=NODE_COUNT_MAX {
            let plan = Plan::new(node_count, Backing::File, 8 << 30);
            let servers: Vec<u16> = (1..=plan.nsd_count()).map(|nsd| plan.server(nsd)).collect();
            assert!(servers.is_sorted(), "{servers:?}");
            for node in 1..=node_count {
                let count = servers.iter().filter(|s| **s == node).count();
                let fair = usize::from(plan.nsd_count() / node_count);
                assert!(
                    count == fair || count == fair + 1,
                    "node {node} of {node_count}: {count}"
                );
            }
        }
        let two = Plan::new(2, Backing::File, 8 << 30);
        assert_eq!([1, 2, 3, 4].map(|nsd| two.server(nsd)), [1, 1, 2, 2]);
    }

    #[test]
    fn each_node_has_its_own_disks_and_its_peers() {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = Lab::new(directory.path()).expect("a lab");
        let plan = Plan::new(2, Backing::File, 512 << 20);
        lab.store(&plan).expect("stored");
        make(&lab, &plan).expect("made");
        let first = lab.place(1).expect("a place").require().expect("a state");
        let second = lab.place(2).expect("a place").require().expect("a state");
        assert_eq!(
            first.disks.iter().map(|d| d.nsd).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(
            second.disks.iter().map(|d| d.nsd).collect::<Vec<_>>(),
            [3, 4]
        );
        assert_eq!((first.manager, second.manager), (1, 1));
        assert_eq!(first.peers[0].address, second.listen.expect("it listens"));
        assert_eq!(second.mount, directory.path().join("n2/mnt"));
        let prepared = filesystem::prepare(&second).expect("labels and states agree");
        assert_eq!(prepared.0.len(), 2);
        assert!(prepared.1.has_parts, "it is new");
        assert!(lab.require().expect("complete").complete);
        let view = lab.place(2).expect("a place").load_view().expect("a view");
        assert_eq!(view.nsds[3].servers, [types::NodeId(2)]);
        // Only where all disks say so are directories in parts.
        let known = nsd::label::DIRECTORY_PARTS;
        for (index, features, has_parts) in [
            (0, 0, false),
            (1, 0, false),
            (0, known, false),
            (1, known, true),
        ] {
            let disk = crate::disks::Disk::open_alone(&prepared.0[index].path).expect("opened");
            let mut label = disk.label().expect("read").expect("a label").label;
            label.features_incompatible = features;
            let written = disk.write_label(&label, &view, types::Incarnation(1));
            written.expect("written");
            drop(disk);
            let now = filesystem::prepare(&second).expect("labels and states agree");
            assert_eq!(now.1.has_parts, has_parts);
        }
    }

    #[test]
    fn only_names_of_a_lab_are_the_labs() {
        for name in ["lab.toml", "nsd", "ram", "n1", "n12", "lock"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["n", "nx", "home", "n1.txt", "n70000"] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn labs_in_different_directories_do_not_meet() {
        let (a, b) = (Lab::new(Path::new("/tmp/a")), Lab::new(Path::new("/tmp/b")));
        assert_ne!(a.expect("a").prefix(), b.expect("b").prefix());
    }
}
