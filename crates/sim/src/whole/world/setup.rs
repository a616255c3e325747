//! The beginning of a run: nodes start, the directory and the files are made, every node opens every file.

use std::collections::BTreeMap;

use client::request::{Handle, NewKind, OpenFlags, Operation, Response};
use client::rewrite::{RewriteCounts, Rules};
use stdx::Prng;
use types::id::NodeLife;
use types::{
    ClusterId, ClusterView, Duration, Epoch, FsId, Incarnation, InodeId, Name, NodeId, NodeView,
    NsdId, NsdView, Span,
};

use super::super::boot;
use super::super::disk::Disk;
use super::super::front::File;
use super::super::node::{Node, Rations, Setting};
use super::{
    Directory, Front, History, Kernel, Machine, Network, OWN_TICKET, Options, Thread, World,
};

fn number(index: usize) -> u16 {
    u16::try_from(index + 1).expect("few nodes")
}

fn view(options: &Options) -> ClusterView {
    let nodes = 0..options.node_count;
    let ids: Vec<NodeId> = nodes.clone().map(|i| NodeId(number(i))).collect();
    ClusterView {
        cluster: ClusterId(5),
        fs: FsId(6),
        epoch: Epoch(1),
        manager: ids[0],
        nodes: ids
            .iter()
            .map(|id| NodeView {
                id: *id,
                address: String::new(),
                incarnation: Incarnation(0),
            })
            .collect(),
        nsds: nodes
            .map(|i| NsdView {
                id: NsdId(number(i)),
                servers: vec![ids[i]],
                sector_count: 64 + options.journal_sectors + options.data_sectors,
                data_begin: 64 + options.journal_sectors,
                failure_group: number(i),
                has_volatile_cache: options.has_volatile_cache,
            })
            .collect(),
        owners: (0..options.shard_count)
            .map(|s| ids[s % ids.len()])
            .collect(),
        block_size: 1 << 20,
    }
}

impl World {
    /// The world of a seed. `options` may differ from what the seed draws (canaries).
    pub fn new(seed: u64, options: Options, keeps_log: bool) -> Self {
        let prng = Prng::new(seed ^ 0x3EA1_C0DE);
        let view = view(&options);
        let disk = |n: &NsdView| (n.id, Disk::new(n.has_volatile_cache));
        let mut world = Self {
            seed,
            disks: view.nsds.iter().map(disk).collect(),
            options,
            prng,
            now: 1,
            nanos: 0,
            step_count: 0,
            machines: Vec::new(),
            network: Network::default(),
            due: BTreeMap::new(),
            due_count: 0,
            history: History::default(),
            directory: Directory::of(options.home),
            appends: Vec::new(),
            seen: BTreeMap::new(),
            syncs: Vec::new(),
            crashes_due: Vec::new(),
            crashes: Vec::new(),
            stopping: None,
            sweeps: BTreeMap::new(),
            sweep_count: 0,
            late_stop_count: 0,
            dead: std::collections::BTreeSet::new(),
            holds: Vec::new(),
            lockers: super::locks::Lockers::default(),
            next_value: 0,
            next_incarnation: 100,
            last_finished: 0,
            no_space_count: 0,
            checkpoint_counts: [0; 4],
            rewrites: RewriteCounts::default(),
            refused_count: 0,
            key_counts: [0; 3],
            loaded_file_count: 0,
            fill_count: 0,
            part_count: 0,
            page_faults: super::pages::PageFaults::default(),
            was_full_at: 0,
            may_begin: false,
            breaks_links: false,
            trace: seed,
            log: keeps_log.then(Vec::new),
            violation: None,
        };
        for index in 0..options.node_count {
            let setting = world.setting(index, &view);
            boot::format(&setting, &mut world.disks);
            match world.start_node(index, &view) {
                Ok(node) => world.machines.push(Machine {
                    id: node.me.node,
                    kernel: Kernel::new(options.file_count),
                    front: Front::new(),
                    node,
                    threads: (0..options.thread_count)
                        .map(|_| Thread::default())
                        .collect(),
                    unwritten: Vec::new(),
                    notifications: Vec::new(),
                    notifying: Vec::new(),
                    fillings: Vec::new(),
                    last_direct_read: 0,
                    doors: vec![super::doors::Door::default(); options.file_count],
                    own_answers: BTreeMap::new(),
                    power: super::Power::On,
                }),
                Err(text) => world.fail(text),
            }
        }
        world
    }

    /// Starts a node in a new life.
    pub(super) fn start_node(&mut self, index: usize, view: &ClusterView) -> Result<Node, String> {
        let setting = self.setting(index, view);
        let mut node = boot::start(setting, &mut self.disks, &mut self.prng)?;
        if self.options.refuses_pieces {
            node.ration(Some(Rations::of_pieces()));
        }
        Ok(node)
    }

    fn setting(&mut self, index: usize, view: &ClusterView) -> Setting {
        self.next_incarnation += 1;
        let options = &self.options;
        Setting {
            me: NodeLife {
                node: NodeId(number(index)),
                incarnation: Incarnation(self.next_incarnation << 64 | u128::from(number(index))),
            },
            view: view.clone(),
            area: boot::area(NsdId(number(index)), options.journal_sectors),
            frame_count: options.frame_count,
            inode_count_max: options.inode_count_max,
            has_prune: options.has_prune,
            region_sectors: options.region_sectors,
            space_reserve: options.space_reserve,
            ask_sectors: options.data_sectors.min(16 << 10),
            round_ticks: options.round_ticks,
            evacuates: options.evacuates,
            evict_ticks: options.evict_ticks,
            load_ticks: options.load_ticks,
            // A read that changes one always comes as a READ.
            access_times: match options.has_doors {
                true => client::AccessTimes::Never,
                false => client::AccessTimes::Strict,
            },
            rewrites: (options.rewrite_ms > 0).then(|| Rules {
                parts_max: 1,
                rest: Duration::from_millis(options.rewrite_ms),
                looks_again: !options.canary.stale_rewrites,
                ..Rules::new(view.block_size)
            }),
            part_bounds: options.part_bounds,
            canary: options.canary,
        }
    }

    /// Has a request of no task answered.
    pub(super) fn own_request(&mut self, index: usize, operation: Operation) -> Option<Response> {
        let machine = &mut self.machines[index];
        let request = machine.front.own(operation);
        let ticket = request.ticket;
        assert!(ticket.0 >= OWN_TICKET);
        self.last_finished = self.now;
        machine.node.request(request);
        while self.violation.is_none() {
            if let Some(response) = self.machines[index].own_answers.remove(&ticket) {
                return Some(response);
            }
            self.step();
        }
        None
    }

    /// Has requests of no task answered that are made at once: as many answers, unless the run fails.
    pub(super) fn own_requests(&mut self, all: Vec<(usize, Operation)>) -> Vec<Response> {
        self.last_finished = self.now;
        let made: Vec<(usize, super::Ticket)> = all
            .into_iter()
            .map(|(index, operation)| {
                let machine = &mut self.machines[index];
                let request = machine.front.own(operation);
                let ticket = request.ticket;
                machine.node.request(request);
                (index, ticket)
            })
            .collect();
        let mut answers = Vec::new();
        for (index, ticket) in made {
            while self.violation.is_none() {
                if let Some(response) = self.machines[index].own_answers.remove(&ticket) {
                    self.last_finished = self.now;
                    answers.push(response);
                    break;
                }
                self.step();
            }
        }
        answers
    }

    /// Writes from the beginning of an open file, and syncs it: what is answered to both. The payload is released.
    pub(super) fn write_and_sync(
        &mut self,
        index: usize,
        (ino, handle): (InodeId, Handle),
        payload: Span,
    ) -> [Option<Response>; 2] {
        let write = Operation::Write {
            ino,
            handle,
            offset: 0,
            payload,
            is_write_back: false,
            append: false,
            sync: false,
            kill_set_id: false,
        };
        let written = self.own_request(index, write);
        self.machines[index].node.release_payload(payload);
        let fsync = Operation::Fsync {
            ino,
            handle,
            data_only: false,
        };
        [written, self.own_request(index, fsync)]
    }

    fn entry(&mut self, index: usize, operation: Operation) -> InodeId {
        let text = format!("{operation:?}");
        match self.own_request(index, operation) {
            Some(Response::Entry(Some(entry), _)) => entry.attr.ino,
            response => {
                self.fail(format!("set-up: {response:?} of {text}"));
                InodeId::ROOT
            }
        }
    }

    /// Makes the directory and the files, and opens them everywhere.
    pub(super) fn set_up(&mut self) {
        self.link_all();
        let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
        let home = self.options.home;
        let are_apart = self.options.names.are_apart;
        let mut make = |text: &str| {
            let kind = NewKind::Directory { permissions: 0o755 };
            let operation = Operation::Make {
                parent: InodeId::ROOT,
                name: name(text),
                kind,
            };
            self.entry(home, operation)
        };
        let directory = make("d");
        if are_apart {
            make("e");
        }
        for file in 0..self.options.file_count {
            let kind = NewKind::Node {
                mode: 0o100_644,
                rdev: 0,
            };
            let operation = Operation::Make {
                parent: directory,
                name: name(&format!("f{file}")),
                kind,
            };
            self.entry(home, operation);
        }
        self.open_all();
        self.set_up_holds();
        self.set_up_locks();
    }

    /// Every node is linked to every other.
    pub(super) fn link_all(&mut self) {
        let ids: Vec<NodeId> = self.machines.iter().map(|m| m.id).collect();
        for (at, a) in ids.iter().enumerate() {
            for b in &ids[..at] {
                self.link_up(*a, *b);
            }
        }
        // Nobody holds anything yet.
        for machine in &mut self.machines {
            machine.node.begin_grace(&[]);
        }
    }

    /// Every node looks the files up and opens them.
    pub(super) fn open_all(&mut self) {
        let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
        for index in 0..self.machines.len() {
            let lookup = |parent, text: &str| Operation::Lookup {
                parent,
                name: name(text),
            };
            let directory = self.entry(index, lookup(InodeId::ROOT, "d"));
            self.machines[index].front.directory = directory;
            if self.options.names.are_apart {
                let second = self.entry(index, lookup(InodeId::ROOT, "e"));
                self.machines[index].front.second = Some(second);
            }
            for file in 0..self.options.file_count {
                let ino = self.entry(index, lookup(directory, &format!("f{file}")));
                let reader = self.open(index, ino, false);
                let writer = self.open(index, ino, true);
                let (Some(reader), Some(writer)) = (reader, writer) else {
                    return;
                };
                let file = File {
                    ino,
                    reader,
                    writer,
                };
                self.machines[index].front.files.push(file);
            }
        }
        self.last_finished = self.now;
    }

    /// Opens a file.
    pub(super) fn open(&mut self, index: usize, ino: InodeId, write: bool) -> Option<Handle> {
        let flags = OpenFlags {
            read: true,
            write,
            ..OpenFlags::default()
        };
        match self.own_request(index, Operation::Open { ino, flags }) {
            Some(Response::Opened(opened)) => Some(opened.handle),
            response => {
                self.fail(format!("set-up: {response:?} of open"));
                None
            }
        }
    }
}
