//! What fsck looks at: state directories and their disks, held while it works, and each owner's journal and trees read.
//!
//! Invariant: `Held::take` waits for nobody and lets nobody in; `Held::look` takes no lock, and opens disks for reading only.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use data::space::Geometry;
use fsck::{Findings, Image, Kind, Loading, Owner, Setup, head};
use node::meta::HashKey;
use node::store::format::{Area, HEADER_SECTORS};
use node::store::recovery::{Recovered, Recovery};
use node::store::tree::{Fetch, Unreadable};
use nsd::label::{Expected, HEAD_SECTORS, Label};
use nsd::mark::{Marks, Older};
use os::disk::{Disk, DiskError, marks};
use types::{ClusterId, ClusterView, FsId, Location, NodeId, NsdId, SECTOR_SIZE};

use crate::disks;
use crate::failure::{Failure, Result};
use crate::service::{self, Liveness};
use crate::state::{Place, State, from_hex};
use crate::system;

/// State directories and their disks, as long as this lives. Nobody else uses them, unless `is_shared` says that it was only
/// looked at.
#[derive(Debug)]
pub(super) struct Held {
    /// The state directories.
    pub(super) places: Vec<Place>,
    /// The newest cluster view that they have.
    pub(super) view: ClusterView,
    /// Daemons may be using them.
    is_shared: bool,
    /// A daemon of the root directory's owner was started once.
    was_started: bool,
    /// A disk that takes no writes.
    read_only: Option<PathBuf>,
    disks: BTreeMap<NsdId, Disk>,
    labels: BTreeMap<NsdId, (Label, Vec<usize>)>,
    marks: Marks,
    _locks: Vec<File>,
}

/// An owner's journal as it was read.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) node: NodeId,
    pub(super) area: Area,
    pub(super) recovered: Recovered,
}

/// A state directory as it is, or those of the lab in the directory.
fn places_of(path: &Path) -> Result<Vec<Place>> {
    let place = Place::new(path)?;
    if place.load()?.is_some() {
        return Ok(vec![place]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Failure::io("read", path, &e))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("gupfs.toml").is_file())
        .collect();
    found.sort();
    if found.is_empty() {
        return Err(Failure::new(format!(
            "{} is neither a state directory nor a lab",
            path.display()
        ))
        .help("name the directory that was given to `gupfs up --state`, or those of all nodes"));
    }
    found.iter().map(|path| Place::new(path)).collect()
}

/// Fails where a daemon serves the file system.
fn check_unused(place: &Place, state: &State) -> Result<()> {
    let root = place.root().display();
    let point = state.mount.display();
    let what = match service::look(place)? {
        Liveness::Mounted(_) => format!("the file system of {root} is mounted at {point}"),
        Liveness::Busy => format!("a daemon runs on {root}"),
        // A mount that a dead daemon has left reaches no disk.
        Liveness::Absent => return Ok(()),
    };
    Err(Failure::new(format!("{what}: nothing was checked"))
        .help(format!("gupfs down --state {root}, or gupfs fsck --online")))
}

/// Opens a disk, and says whether it takes no writes: such a one can be looked at.
fn open(disk: &crate::state::Disk, is_shared: bool) -> Result<(Disk, bool)> {
    // A loop device over the file knows more of it than the file, and is what a daemon would hold.
    let device = match disk.is_loop {
        true => system::loops::over(&disk.path)?.into_iter().next(),
        false => None,
    };
    let path = device.as_ref().unwrap_or(&disk.path);
    if !is_shared {
        disks::check_other_way(path)?;
    }
    let opened = match Disk::open(path, !is_shared) {
        // Nobody writes to it, so there is nobody to be kept out.
        Err(DiskError::ReadOnly { .. }) => Disk::open(path, false).map(|disk| (disk, true)),
        opened => opened.map(|disk| (disk, false)),
    };
    opened.map_err(|e| {
        Failure::new(e.to_string()).help("stop the program that uses it, or bring the disk back")
    })
}

impl Held {
    /// Takes the state directories that `paths` name, and opens their disks.
    pub(super) fn take(paths: &[PathBuf], findings: &mut Findings) -> Result<Self> {
        Self::open(paths, false, findings)
    }

    /// Opens the disks of the state directories that `paths` name for reading, beside daemons that use them.
    pub(super) fn look(paths: &[PathBuf], findings: &mut Findings) -> Result<Self> {
        Self::open(paths, true, findings)
    }

    fn open(paths: &[PathBuf], is_shared: bool, findings: &mut Findings) -> Result<Self> {
        system::require_root("gupfs fsck")?;
        let mut places = Vec::new();
        for path in paths {
            places.extend(places_of(path)?);
        }
        let (mut locks, mut states, mut view) = (Vec::new(), Vec::new(), None::<ClusterView>);
        for place in &places {
            let state = place.require()?;
            if !is_shared {
                check_unused(place, &state)?;
                locks.push(place.lock_soon()?);
            }
            let own = place.load_view()?;
            if view.as_ref().is_some_and(|view| view.fs != own.fs) {
                return Err(Failure::new(format!(
                    "{} is of another file system than {}",
                    place.root().display(),
                    places[0].root().display()
                ))
                .help("check one file system at a time"));
            }
            if view.as_ref().is_none_or(|view| view.epoch < own.epoch) {
                view = Some(own);
            }
            states.push(state);
        }
        let view = view.ok_or_else(|| Failure::new("no state directory was named"))?;
        let mut held = Self {
            places,
            marks: Marks::new(view.fs),
            view,
            is_shared,
            was_started: false,
            read_only: None,
            disks: BTreeMap::new(),
            labels: BTreeMap::new(),
            _locks: locks,
        };
        for (place, state) in held.places.iter().zip(&states) {
            let owns_root = held.view.owners.first() == Some(&NodeId(state.node));
            held.was_started |= owns_root && place.lives().exists();
        }
        for state in &states {
            held.open_disks(state, findings)?;
        }
        // A daemon that has started has compared them, and one that starts now is writing them.
        if !is_shared {
            // What cannot be read is none, which a repair writes again.
            (held.marks, _) = marks::read(held.view.fs, marks::by_nsd(&held.disks));
            held.check_marks(findings);
        }
        let named = |nsd: &types::NsdView| {
            let mut own = states.iter().flat_map(|state| &state.disks);
            own.any(|disk| disk.nsd == nsd.id.0)
        };
        if let Some(nsd) = held.view.nsds.iter().find(|nsd| !named(nsd)) {
            let nodes: Vec<String> = nsd.servers.iter().map(NodeId::to_string).collect();
            return Err(Failure::new(format!(
                "no state directory that was named has {}, which node {} serves",
                nsd.id,
                nodes.join(", ")
            ))
            .help("name the state directories of all nodes, or the directory of the lab"));
        }
        let labels: Vec<Label> = held
            .labels
            .values()
            .map(|(label, _)| label.clone())
            .collect();
        head::check_labels(&labels, &held.view, findings);
        Ok(held)
    }

    /// Fails if a disk takes no writes.
    pub(super) fn require_writable(&self) -> Result<()> {
        let read_only = self.read_only.as_deref();
        read_only.map_or(Ok(()), |path| Err(disks::read_only(path)))
    }

    fn open_disks(&mut self, state: &State, findings: &mut Findings) -> Result<()> {
        for entry in &state.disks {
            let nsd = NsdId(entry.nsd);
            if self.disks.contains_key(&nsd) {
                continue;
            }
            if !entry.path.exists() {
                let text = format!("{nsd}: {} is missing", entry.path.display());
                findings.add(Kind::NsdMissing, None, text);
                continue;
            }
            let (disk, is_read_only) = open(entry, self.is_shared)?;
            if is_read_only {
                self.read_only = Some(disk.path().to_owned());
            }
            let size = usize::try_from(HEAD_SECTORS * SECTOR_SIZE).expect("256 KiB");
            let mut head = vec![0; size];
            let name = format!("{nsd} ({})", disk.path().display());
            if let Err(error) = disk.read_sectors(0, &mut head) {
                findings.add(Kind::LabelLost, None, error.to_string());
                continue;
            }
            let expected = Expected {
                cluster: Some(ClusterId(from_hex(&state.cluster, "cluster id")?)),
                fs: Some(FsId(from_hex(&state.fs, "file system id")?)),
                nsd: Some(nsd),
            };
            let count = disk.sector_count();
            if let Some(label) = head::check_head(&name, &head, &expected, count, findings) {
                self.labels.insert(nsd, label);
                self.disks.insert(nsd, disk);
            }
        }
        Ok(())
    }

    fn check_marks(&self, findings: &mut Findings) {
        for older in self.marks.older() {
            let Older {
                nsd,
                generation,
                seen,
                by,
            } = older;
            let path = self.disks[&nsd].path().display();
            let own = match generation {
                0 => "has no mark".to_owned(),
                own => format!("is of generation {own}"),
            };
            let text = format!("{nsd} ({path}) {own}, and {by} has seen it in generation {seen}");
            findings.add(Kind::NsdOlder, None, text);
        }
    }

    /// Begins a new generation of marks.
    pub(super) fn mark(&self) -> std::result::Result<(), DiskError> {
        let mut failures = marks::begin(&self.marks, marks::by_nsd(&self.disks));
        failures.pop().map_or(Ok(()), Err)
    }

    /// The disk of an NSD, if it can be used.
    pub(super) fn disk(&self, nsd: NsdId) -> Option<&Disk> {
        self.disks.get(&nsd)
    }

    /// All disks that can be used.
    pub(super) fn disks(&self) -> impl Iterator<Item = &Disk> {
        self.disks.values()
    }

    /// Their labels, and the copies that are to be written again.
    pub(super) fn labels(&self) -> impl Iterator<Item = (NsdId, &Label, &[usize])> {
        let labels = self.labels.iter();
        labels.map(|(nsd, (label, copies))| (*nsd, label, &copies[..]))
    }

    /// Where the journal of `node` lies, as a good label says.
    pub(super) fn area_of(&self, node: NodeId) -> Option<Area> {
        self.labels.iter().find_map(|(nsd, (label, _))| {
            let journal = label.journal(node)?;
            Some(Area {
                nsd: *nsd,
                begin: journal.first_sector,
                count: journal.sector_count,
            })
        })
    }

    /// So many sectors from `at` on.
    pub(super) fn read(&self, at: Location, sectors: u64) -> Result<Vec<u8>> {
        let disk = self.disk(at.nsd).ok_or_else(|| {
            Failure::new(format!("{} cannot be read: its disk is not there", at.nsd))
                .help("bring it back, or name an NSD of the file system")
        })?;
        let end = at.sector.checked_add(sectors);
        if end.is_none_or(|end| end > disk.sector_count()) {
            return Err(Failure::new(format!(
                "{} has {} sectors: there is no sector {}",
                at.nsd,
                disk.sector_count(),
                at.sector
            ))
            .help("name one that it has"));
        }
        let size = usize::try_from(sectors * SECTOR_SIZE).expect("one read is small");
        let mut bytes = vec![0; size];
        let read = disk.read_sectors(at.sector, &mut bytes);
        read.map_err(|e| Failure::new(e.to_string()).help("see the kernel's log"))?;
        Ok(bytes)
    }

    fn setup(&self) -> Option<Setup> {
        let (label, _) = self.labels.values().next()?;
        let geometry = |nsd: &types::NsdView| Geometry {
            nsd: nsd.id,
            data_begin: nsd.data_begin,
            sector_count: nsd.sector_count,
            region_sectors: Geometry::default_region_sectors(nsd.sector_count),
        };
        Some(Setup {
            fs: self.view.fs,
            key: HashKey(label.hash_key),
            owners: self.view.owners.clone(),
            geometry: self.view.nsds.iter().map(geometry).collect(),
        })
    }

    /// What the cluster view and the labels say, and the owners.
    pub(super) fn setup_and_owners(&self) -> Result<(Setup, Vec<NodeId>)> {
        let setup = self.setup().ok_or_else(|| {
            Failure::new("no NSD has a good label: nothing more can be checked")
                .help("bring the disks back, or copies of them")
        })?;
        let mut nodes = self.view.owners.clone();
        nodes.sort_unstable();
        nodes.dedup();
        Ok((setup, nodes))
    }

    /// Loads every owner that can be. `step` hears of each as it begins.
    pub(super) fn load(
        &self,
        findings: &mut Findings,
        step: &mut dyn FnMut(NodeId),
    ) -> Result<(Image, Vec<Journal>)> {
        let (setup, nodes) = self.setup_and_owners()?;
        let (mut owners, mut journals) = (Vec::new(), Vec::new());
        for node in &nodes {
            step(*node);
            if let Some((owner, journal)) = self.load_owner(&setup, *node, findings) {
                owners.push(owner);
                journals.push(journal);
            }
        }
        Ok((self.image(setup, owners, &nodes), journals))
    }

    /// These of the `nodes` that are owners could be loaded.
    pub(super) fn image(&self, setup: Setup, owners: Vec<Owner>, nodes: &[NodeId]) -> Image {
        let is_partial = owners.len() < nodes.len();
        let mut image = Image::new(setup, owners, is_partial);
        image.was_started = self.was_started;
        image
    }

    /// Where the journal of `node` lies; its headers are checked. `None`: it cannot be read, which is a finding.
    pub(super) fn journal_of(
        &self,
        fs: FsId,
        node: NodeId,
        findings: &mut Findings,
    ) -> Option<(Area, &Disk)> {
        let Some(area) = self.area_of(node) else {
            let text = format!("no label names a journal of node {node}");
            findings.add(Kind::JournalLost, None, text);
            return None;
        };
        let disk = self.disk(area.nsd)?;
        for half in 0..2 {
            let mut bytes = vec![0; usize::try_from(HEADER_SECTORS * SECTOR_SIZE).expect("small")];
            if let Err(error) = disk.read_sectors(area.at(half, 0).sector, &mut bytes) {
                findings.add(Kind::JournalUnreadable, None, error.to_string());
                return None;
            }
            head::check_header((fs, node), (area, half), &bytes, findings);
        }
        Some((area, disk))
    }

    fn load_owner(
        &self,
        setup: &Setup,
        node: NodeId,
        findings: &mut Findings,
    ) -> Option<(Owner, Journal)> {
        let (area, disk) = self.journal_of(setup.fs, node, findings)?;
        let read = &mut |fetch: &Fetch| self.read_page(fetch);
        let mut loading = Loading::new(setup, node);
        let mut recovery = Recovery::new(area, setup.fs, node);
        while let Some(next) = recovery.next_read() {
            let size = usize::try_from(next.count * SECTOR_SIZE).expect("one read is small");
            let mut bytes = vec![0; size];
            if let Err(error) = disk.read_sectors(next.at.sector, &mut bytes) {
                findings.add(Kind::JournalUnreadable, None, error.to_string());
                return None;
            }
            let applied = recovery.on_read(&bytes, &mut |part| {
                loading.apply(part.key, part.bytes, read);
                Ok(())
            });
            if let Err(error) = applied {
                // What was applied goes, too: there may be an older record that was to come first.
                head::note_recovery(&error, findings);
                return None;
            }
        }
        let recovered = recovery.finish();
        let (owner, found) = loading.finish(read);
        findings.extend(found);
        let journal = Journal {
            node,
            area,
            recovered,
        };
        Some((owner, journal))
    }

    pub(super) fn read_page(&self, fetch: &Fetch) -> std::result::Result<Box<[u8]>, Unreadable> {
        let size = usize::from(fetch.sectors) * usize::try_from(SECTOR_SIZE).expect("small");
        let mut bytes = vec![0; size];
        let disk = self.disk(fetch.at.nsd).ok_or(Unreadable)?;
        let read = disk.read_sectors(fetch.at.sector, &mut bytes);
        read.map_err(|_| Unreadable)?;
        Ok(bytes.into())
    }
}
