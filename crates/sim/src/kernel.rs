//! A node's kernel: page cache with its locks, attribute and dentry caches, the FUSE queue.
//!
//! Modelled after fs/fuse of Linux 6.18 as KERNEL-FACTS describes it: a READ holds its folios locked and not up to date until
//! it is answered; invalidation waits for each folio's lock and for write-back, writes dirty folios back synchronously, and
//! sometimes leaves one behind without a word (-EBUSY); a truncate in flight (NOWRITE) keeps write-back from being
//! sent; a reply with another mtime or size invalidates the whole file in the caller's context. What tasks do with it is
//! in `task`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::{Answer, Ask, FuseRequest, NAME_COUNT, PAGE_CELLS, PAGE_COUNT, Value};

/// A page of the page cache.
#[derive(Clone, Debug, Default)]
pub struct Folio {
    /// Holds data.
    pub is_uptodate: bool,
    /// Was stored to through a mapping since it was last written back.
    pub is_dirty: bool,
    /// Folio lock.
    pub is_locked: bool,
    /// A WRITE of it is not yet answered.
    pub is_writeback: bool,
    /// Invalidation failed once: the next one succeeds, whatever pinned it is gone.
    pub was_busy: bool,
    /// Contents.
    pub data: [Value; PAGE_CELLS],
}

/// A sleeping lock with many readers or one writer; a waiting writer keeps new readers out, as i_rwsem does.
#[derive(Clone, Debug, Default)]
pub struct RwSem {
    readers: usize,
    is_write_locked: bool,
    writers_waiting: usize,
}

impl RwSem {
    /// Takes it shared, if that is possible now.
    pub fn try_read(&mut self) -> bool {
        let free = !self.is_write_locked && self.writers_waiting == 0;
        self.readers += usize::from(free);
        free
    }

    /// Takes it alone, if that is possible now; `is_waiting` remembers that the caller is in the queue.
    pub fn try_write(&mut self, is_waiting: &mut bool) -> bool {
        let free = !self.is_write_locked && self.readers == 0;
        if free {
            self.is_write_locked = true;
            self.writers_waiting -= usize::from(*is_waiting);
            *is_waiting = false;
        } else if !*is_waiting {
            *is_waiting = true;
            self.writers_waiting += 1;
        }
        free
    }

    /// Gives a shared hold back.
    pub fn read_unlock(&mut self) {
        self.readers -= 1;
    }

    /// Gives the only hold back.
    pub fn write_unlock(&mut self) {
        assert!(self.is_write_locked);
        self.is_write_locked = false;
    }
}

/// A regular file in the kernel.
#[derive(Clone, Debug, Default)]
pub struct KernelFile {
    /// i_size in cells.
    pub size: usize,
    /// Last mtime seen.
    pub mtime: u64,
    /// Attributes are believed before this tick.
    pub valid_until: u64,
    /// Grows whenever attributes of answers under way become worthless.
    pub version: u64,
    /// Page cache.
    pub folios: BTreeMap<usize, Folio>,
    /// i_rwsem.
    pub rwsem: RwSem,
    /// Truncates in flight: write-back waits in `queued`.
    pub nowrite: usize,
    /// WRITEs of mapped pages that are sent and not answered.
    pub writeback_count: usize,
    queued: Vec<FuseRequest>,
}

/// A dentry.
#[derive(Clone, Copy, Debug)]
pub struct Dentry {
    /// What the name means.
    pub value: Value,
    /// Believed before this tick.
    pub valid_until: u64,
    /// Epoch at the start of the lookup: an older one is looked up again.
    pub epoch: u64,
}

/// The kernel of one node.
#[derive(Debug)]
pub struct Kernel {
    /// Regular files.
    pub files: Vec<KernelFile>,
    /// Names of the directory.
    pub dentries: [Option<Dentry>; NAME_COUNT],
    /// The directory's i_rwsem.
    pub directory: RwSem,
    /// INC_EPOCH.
    pub epoch: u64,
    /// Requests that the daemon has not read.
    pub queue: VecDeque<FuseRequest>,
    /// Answers that a task waits for.
    pub answers: BTreeMap<u64, Answer>,
    /// Requests that the daemon has not answered.
    pub in_flight: BTreeMap<u64, FuseRequest>,
    /// READs that failed and that nobody has looked at; read-ahead leaves some.
    pub failed_reads: BTreeSet<u64>,
    next_id: u64,
}

impl Kernel {
    /// With `file_count` empty files and nothing cached.
    pub fn new(file_count: usize) -> Self {
        Self {
            files: vec![KernelFile::default(); file_count],
            dentries: [None; NAME_COUNT],
            directory: RwSem::default(),
            epoch: 0,
            queue: VecDeque::new(),
            answers: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            failed_reads: BTreeSet::new(),
            next_id: 1,
        }
    }

    /// Queues a request for the daemon.
    pub fn send(&mut self, file: usize, ask: Ask) -> u64 {
        let request = self.make(file, ask);
        let id = request.id;
        self.queue.push_back(request);
        id
    }

    fn make(&mut self, file: usize, ask: Ask) -> FuseRequest {
        let id = self.next_id;
        self.next_id += 1;
        let request = FuseRequest { id, file, ask };
        self.in_flight.insert(id, request.clone());
        request
    }

    /// Starts write-back of a dirty folio (its lock is held or nobody cares): sent now, or when NOWRITE ends.
    pub fn write_back(&mut self, file: usize, page: usize) {
        let size = self.files[file].size;
        let folio = self.files[file]
            .folios
            .get_mut(&page)
            .expect("dirty folios are cached");
        assert!(folio.is_dirty && !folio.is_writeback);
        folio.is_dirty = false;
        folio.is_writeback = true;
        let data = folio.data;
        let count = size.saturating_sub(page * PAGE_CELLS).min(PAGE_CELLS);
        let request = self.make(file, Ask::WriteBack { page, data, count });
        if self.files[file].nowrite > 0 {
            self.files[file].queued.push(request);
        } else {
            self.files[file].writeback_count += 1;
            self.queue.push_back(request);
        }
    }

    /// A truncate is over: what waited for it is sent.
    pub fn release_nowrite(&mut self, file: usize) {
        let inode = &mut self.files[file];
        inode.nowrite -= 1;
        if inode.nowrite == 0 {
            for mut request in std::mem::take(&mut inode.queued) {
                let Ask::WriteBack { page, count, .. } = &mut request.ask else {
                    unreachable!("only write-back waits for NOWRITE");
                };
                // fuse_send_writepage clips to the size of now, and drops what lies behind it.
                *count = inode.size.saturating_sub(*page * PAGE_CELLS).min(*count);
                if *count == 0 {
                    let folio = inode
                        .folios
                        .get_mut(page)
                        .expect("folios under write-back stay");
                    folio.is_writeback = false;
                    self.in_flight.remove(&request.id);
                } else {
                    inode.writeback_count += 1;
                    self.queue.push_back(request);
                }
            }
        }
    }

    /// The daemon's answer, as fuse_dev_write takes it: page-cache READs and write-back end here, the rest wakes its task.
    pub fn on_answer(&mut self, id: u64, answer: Answer) {
        let request = self.in_flight.remove(&id).expect("answered once");
        let inode = &mut self.files[request.file];
        match request.ask {
            Ask::Read(pages) => {
                let Answer::Data(data) = &answer else {
                    for page in pages {
                        let folio = inode.folios.get_mut(&page).expect("locked folios stay");
                        folio.is_locked = false;
                    }
                    self.failed_reads.insert(id);
                    return;
                };
                for (index, page) in pages.enumerate() {
                    let folio = inode.folios.get_mut(&page).expect("locked folios stay");
                    assert!(folio.is_locked && !folio.is_uptodate);
                    folio
                        .data
                        .copy_from_slice(&data[index * PAGE_CELLS..][..PAGE_CELLS]);
                    folio.is_uptodate = true;
                    folio.is_locked = false;
                }
            }
            Ask::WriteBack { page, .. } => {
                let folio = inode
                    .folios
                    .get_mut(&page)
                    .expect("folios under write-back stay");
                folio.is_writeback = false;
                inode.writeback_count -= 1;
            }
            Ask::DirectRead(_)
            | Ask::Write { .. }
            | Ask::SetSize(_)
            | Ask::GetAttr
            | Ask::Lookup(_)
            | Ask::Bind(..)
            | Ask::Fsync
            | Ask::Create(_)
            | Ask::Remove(_)
            | Ask::Move(..) => {
                self.answers.insert(id, answer);
            }
        }
    }

    /// Takes a page of `cells`, a file from its beginning on, as fuse_notify_store does; `false`: it waits for the folio's lock. The last page of
    /// a file that is longer here is not taken for whole.
    pub fn fill_page(&mut self, file: usize, page: usize, cells: &[Value]) -> bool {
        if self.files[file].size < cells.len() {
            self.drop_attributes(file);
            self.files[file].size = cells.len();
        }
        let inode = &mut self.files[file];
        let part = &cells[page * PAGE_CELLS..cells.len().min((page + 1) * PAGE_CELLS)];
        let is_end = part.len() == PAGE_CELLS || inode.size == cells.len();
        let folio = inode.folios.entry(page).or_default();
        if folio.is_locked {
            return false;
        }
        folio.data[..part.len()].copy_from_slice(part);
        if !folio.is_uptodate && is_end {
            folio.data[part.len()..].fill(0);
            folio.is_uptodate = true;
        }
        true
    }

    /// INVAL_INODE's part that needs no lock: attributes, and answers under way that carry some.
    pub fn drop_attributes(&mut self, file: usize) {
        self.files[file].version += 1;
        self.files[file].valid_until = 0;
    }

    /// Asserts what the kernel never breaks.
    pub fn check(&self) {
        for inode in &self.files {
            assert!(inode.folios.keys().all(|page| *page < PAGE_COUNT));
            for folio in inode.folios.values() {
                assert!(!folio.is_dirty || folio.is_uptodate);
            }
        }
    }
}
