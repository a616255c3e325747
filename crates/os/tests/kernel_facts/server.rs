//! A scriptable FUSE server: keeps files in memory, logs what the kernel asks, holds back what a test names.
//!
//! The fixture cleans up whatever happens: it unmounts when dropped, and aborts the connection when a test
//! has not ended after ten seconds, so that no test hangs the suite.

use client::request::{
    Entry, Handle, Listed, Notice, Opened, Operation, Request, Response, Space, Ticket, TicketPart,
};
use os::fuse::{
    Connection, Handler, InterruptOutcome, Memory, Replier, Session, SessionConfig, Slabs,
    TransportKind,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use types::frame::FRAMES_PER_SLAB;
use types::{Attr, Errno, FileKind, FrameRef, InodeId, Name, SmallBytes, Span, Timestamp};

/// Longest run of one test.
const TEST_SECONDS_MAX: u64 = 60;
/// What must not happen is given so long to happen.
pub(crate) const QUIET: Duration = Duration::from_millis(100);
/// What must happen is given so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// A time-out that no test outlives.
pub(crate) const LONG_NS: u64 = 3600 * 1_000_000_000;

/// Tells which requests are held back.
type Matcher = Box<dyn Fn(&Operation) -> bool + Send>;

/// A request that was held back, with the bytes of a WRITE.
struct Held {
    request: Request,
    bytes: Vec<u8>,
}

/// A file or directory of the server.
struct Node {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, InodeId>,
}

/// What the server knows.
pub(crate) struct State {
    nodes: BTreeMap<InodeId, Node>,
    next: u64,
    holds: Vec<Matcher>,
    /// Requests that are refused, each once.
    refusals: Vec<(Matcher, Errno)>,
    held: Vec<Held>,
    /// Everything asked so far, forgets excepted.
    pub(crate) log: Vec<Operation>,
    /// Interrupts of held requests, which were answered with EINTR.
    pub(crate) interrupted_count: usize,
    /// Time-out of names.
    pub(crate) entry_timeout_ns: u64,
    /// Time-out of attributes.
    pub(crate) attr_timeout_ns: u64,
    /// Frames of payloads that are kept, and what was in them when they came.
    pub(crate) kept: Vec<(Span, Vec<u8>)>,
    /// Answers to RETRIEVE: its number, the offset, the bytes.
    pub(crate) retrieved: Vec<(u64, u64, Vec<u8>)>,
    /// Keep the payloads of WRITEs.
    pub(crate) keeps_payloads: bool,
}

/// The handler.
pub(crate) struct Server {
    state: Mutex<State>,
    changed: Condvar,
    memory: Arc<Slabs>,
    replier: Mutex<Option<Arc<Replier>>>,
}

/// A mounted server with its directory and its watchdog.
pub(crate) struct Fixture {
    server: Arc<Server>,
    session: Option<Session>,
    directory: tempfile::TempDir,
    _watchdog: Sender<()>,
}

/// Says why tests of the kernel cannot run here, if so.
pub(crate) fn reason_to_skip() -> Option<&'static str> {
    // SAFETY: no arguments, no effects.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        return Some("not root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("no /dev/fuse")
}

impl Fixture {
    /// A mount with one empty root directory.
    pub(crate) fn new(transport: TransportKind) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let memory = Arc::new(Slabs::new(256).expect("address space"));
        let mut config = SessionConfig::new(directory.path());
        config.transport = transport;
        config.thread_count = 3;
        "kernel-facts".clone_into(&mut config.source);
        let mut session = Session::mount(config, memory.clone()).expect("mount");
        let server = Arc::new(Server {
            state: Mutex::new(State::new()),
            changed: Condvar::new(),
            memory,
            replier: Mutex::new(Some(session.replier().clone())),
        });
        session.start(server.clone()).expect("start");
        let watchdog = watch(session.connection().clone());
        Self {
            server,
            session: Some(session),
            directory,
            _watchdog: watchdog,
        }
    }

    /// A path on the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a file at the server, without the kernel.
    pub(crate) fn file(&self, name: &str, data: &[u8]) -> InodeId {
        let mut state = self.state();
        let ino = state.make(FileKind::File, 0o644);
        state.set_data(ino, data);
        let root = state.nodes.get_mut(&InodeId::ROOT).expect("the root");
        root.names.insert(name.as_bytes().to_vec(), ino);
        ino
    }

    /// Replaces a file's contents at the server, as another node would; size and mtime change.
    pub(crate) fn change(&self, ino: InodeId, data: &[u8]) {
        self.state().set_data(ino, data);
    }

    /// A file's contents at the server.
    pub(crate) fn data(&self, ino: InodeId) -> Vec<u8> {
        self.state().nodes[&ino].data.clone()
    }

    /// The server's state; do not hold it over a call into the mount.
    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.server.state.lock().expect("no holder panics")
    }

    /// Holds back requests that match, from now on.
    pub(crate) fn hold(&self, matcher: impl Fn(&Operation) -> bool + Send + 'static) {
        self.state().holds.push(Box::new(matcher));
    }

    /// The next request that matches is refused.
    pub(crate) fn refuse(
        &self,
        matcher: impl Fn(&Operation) -> bool + Send + 'static,
        errno: Errno,
    ) {
        self.state().refusals.push((Box::new(matcher), errno));
    }

    /// Another node renames a file of the root, without the kernel; what was there under the new name goes.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let mut state = self.state();
        let root = state.nodes.get_mut(&InodeId::ROOT).expect("the root");
        let moved = root.names.remove(from.as_bytes()).expect("it is there");
        root.names.insert(to.as_bytes().to_vec(), moved);
    }

    /// Waits until exactly `count` requests are held.
    pub(crate) fn wait_held(&self, count: usize) {
        let state = self.state();
        let (state, outcome) = self
            .server
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.held.len() < count)
            .expect("no holder panics");
        assert!(!outcome.timed_out(), "held: {}", state.held.len());
        assert_eq!(state.held.len(), count);
    }

    /// What the kernel has cached of a range: the bytes up to the first page that it has not.
    pub(crate) fn cached(&self, ino: InodeId, offset: u64, size: u32) -> Vec<u8> {
        let number = self.state().retrieved.len() as u64 + 1;
        let sent = self.notify_bytes(fuse::notify::retrieve(number, ino, offset, size));
        assert_eq!(arrives(&sent), Ok(()));
        let state = self.state();
        let (state, outcome) = self
            .server
            .changed
            .wait_timeout_while(state, PATIENCE, |state| {
                (state.retrieved.len() as u64) < number
            })
            .expect("no holder panics");
        assert!(!outcome.timed_out(), "no answer to RETRIEVE");
        let (found, at, bytes) = state.retrieved.last().expect("just came");
        assert_eq!((*found, *at), (number, offset));
        bytes.clone()
    }

    /// No further request is held for a while.
    pub(crate) fn assert_held(&self, count: usize) {
        let state = self.state();
        let (state, outcome) = self
            .server
            .changed
            .wait_timeout_while(state, QUIET, |state| state.held.len() == count)
            .expect("no holder panics");
        assert!(outcome.timed_out(), "held: {}", state.held.len());
    }

    /// Tickets of what is held.
    pub(crate) fn held_tickets(&self) -> Vec<Ticket> {
        let state = self.state();
        state.held.iter().map(|held| held.request.ticket).collect()
    }

    /// Holds nothing any more; what was held has been answered otherwise.
    pub(crate) fn forget_held(&self) {
        let mut state = self.state();
        state.holds.clear();
        state.held.clear();
    }

    /// Holds nothing any more and answers all that was held.
    pub(crate) fn release(&self) {
        let replier = self.server.replier();
        let held = {
            let mut state = self.state();
            state.holds.clear();
            std::mem::take(&mut state.held)
        };
        for one in held {
            self.server.answer(&replier, &one.request, &one.bytes);
        }
    }

    /// Requests so far that match.
    pub(crate) fn count(&self, matcher: impl Fn(&Operation) -> bool) -> usize {
        self.state().log.iter().filter(|one| matcher(one)).count()
    }

    /// Sends a notification; its outcome comes through the receiver.
    pub(crate) fn notify(&self, notice: &Notice) -> Receiver<Result<(), Errno>> {
        self.notify_bytes(fuse::notify::encode_notice(notice))
    }

    /// As `notify`, encoded.
    pub(crate) fn notify_bytes(&self, bytes: Vec<u8>) -> Receiver<Result<(), Errno>> {
        let (sender, receiver) = channel();
        let done = Box::new(move |outcome| {
            let _ = sender.send(outcome);
        });
        let notifier = self.session().notifier();
        notifier.notify_bytes(bytes, done).expect("room for one");
        receiver
    }

    /// The session.
    pub(crate) fn session(&self) -> &Session {
        self.session.as_ref().expect("until dropped")
    }

    /// Frames of the pagepool.
    pub(crate) fn memory(&self) -> &Arc<Slabs> {
        &self.server.memory
    }

    /// Ends the session; waits for its threads.
    pub(crate) fn end(&mut self) {
        self.server.replier.lock().expect("no holder panics").take();
        self.session.take();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(session) = &self.session
        {
            // Whoever waits for a held request must not keep the unwinding test from ending.
            let _ = session.connection().abort();
        }
        self.end();
    }
}

/// Aborts a connection when the returned sender was not dropped in time.
fn watch(connection: Arc<Connection>) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    std::thread::spawn(move || {
        let limit = Duration::from_secs(TEST_SECONDS_MAX);
        if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!(
                "a test takes too long: connection {} is aborted",
                connection.number()
            );
            let _ = connection.abort();
        }
    });
    sender
}

/// It came in time.
pub(crate) fn arrives<T>(receiver: &Receiver<T>) -> T {
    receiver
        .recv_timeout(PATIENCE)
        .expect("it should have come by now")
}

/// It does not come for a while.
pub(crate) fn is_blocked<T>(receiver: &Receiver<T>) -> bool {
    matches!(receiver.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout))
}

/// Runs `work` on a thread of its own; its result comes through the receiver.
pub(crate) fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(work()).is_ok());
    receiver
}

impl State {
    fn new() -> Self {
        let mut made = Self {
            nodes: BTreeMap::new(),
            next: 1,
            holds: Vec::new(),
            held: Vec::new(),
            log: Vec::new(),
            interrupted_count: 0,
            refusals: Vec::new(),
            entry_timeout_ns: LONG_NS,
            attr_timeout_ns: LONG_NS,
            kept: Vec::new(),
            retrieved: Vec::new(),
            keeps_payloads: false,
        };
        made.make(FileKind::Directory, 0o755);
        made
    }

    fn make(&mut self, kind: FileKind, permissions: u32) -> InodeId {
        let ino = InodeId::from_raw(self.next);
        self.next += 1;
        let time = Timestamp {
            secs: 1000,
            nanos: 0,
        };
        let attr = Attr {
            ino,
            generation: 1,
            kind,
            permissions,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            sector_count: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            change: 0,
            size_generation: 0,
            layout: types::Layout::default(),
        };
        let (data, names) = (Vec::new(), BTreeMap::new());
        self.nodes.insert(ino, Node { attr, data, names });
        ino
    }

    fn set_data(&mut self, ino: InodeId, data: &[u8]) {
        let node = self.nodes.get_mut(&ino).expect("a known file");
        node.data = data.to_vec();
        node.attr.size = data.len() as u64;
        node.attr.mtime.secs += 1;
    }

    fn list(&self, ino: InodeId, cookie: u64, plus: bool) -> Response {
        let skip = usize::try_from(cookie).expect("64 bit");
        let names = self.nodes[&ino].names.iter().enumerate().skip(skip);
        let listed = names.map(|(at, (name, ino))| Listed {
            name: SmallBytes::new(name),
            ino: *ino,
            mode: self.nodes[ino].attr.mode(),
            cookie: at as u64 + 1,
            entry: plus.then(|| self.entry(*ino)),
        });
        Response::Listing(listed.collect())
    }

    fn entry(&self, ino: InodeId) -> Entry {
        Entry {
            attr: self.nodes[&ino].attr,
            entry_timeout_ns: self.entry_timeout_ns,
            attr_timeout_ns: self.attr_timeout_ns,
        }
    }
}

impl Server {
    fn replier(&self) -> Arc<Replier> {
        let replier = self.replier.lock().expect("no holder panics");
        replier.clone().expect("the session lives")
    }

    fn answer(&self, replier: &Replier, request: &Request, bytes: &[u8]) {
        let mut state = self.state.lock().expect("no holder panics");
        let response = self
            .execute(&mut state, &request.operation, bytes)
            .unwrap_or_else(Response::Error);
        drop(state);
        replier.reply(request.ticket, &response);
    }

    fn execute(
        &self,
        state: &mut State,
        operation: &Operation,
        bytes: &[u8],
    ) -> Result<Response, Errno> {
        let mut refusals = state.refusals.iter();
        if let Some(at) = refusals.position(|(matches, _)| matches(operation)) {
            return Err(state.refusals.remove(at).1);
        }
        let attr_timeout_ns = state.attr_timeout_ns;
        let node = |state: &mut State, ino: InodeId| -> Result<Attr, Errno> {
            state
                .nodes
                .get(&ino)
                .map(|node| node.attr)
                .ok_or(Errno::ESTALE)
        };
        Ok(match operation {
            Operation::Lookup { parent, name } => {
                let names = &state.nodes[parent].names;
                let ino = *names.get(name.bytes()).ok_or(Errno::ENOENT)?;
                Response::Entry(Some(state.entry(ino)), 0)
            }
            Operation::GetAttr { ino, .. } => Response::Attr(node(state, *ino)?, attr_timeout_ns),
            Operation::SetAttr { ino, set, .. } => {
                if let Some(size) = set.size {
                    let mut data = state.nodes[ino].data.clone();
                    data.resize(usize::try_from(size).expect("64 bit"), 0);
                    state.set_data(*ino, &data);
                }
                Response::Attr(node(state, *ino)?, attr_timeout_ns)
            }
            Operation::Create {
                parent,
                name,
                permissions,
                flags,
            } => {
                let ino = state.make(FileKind::File, *permissions);
                let parent = state.nodes.get_mut(parent).ok_or(Errno::ESTALE)?;
                parent.names.insert(name.bytes().to_vec(), ino);
                Response::Created(state.entry(ino), opened(flags.write))
            }
            Operation::Unlink { parent, name } => {
                let parent = state.nodes.get_mut(parent).ok_or(Errno::ESTALE)?;
                parent.names.remove(name.bytes()).ok_or(Errno::ENOENT)?;
                Response::Done
            }
            Operation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                ..
            } => {
                let from = state.nodes.get_mut(parent).ok_or(Errno::ESTALE)?;
                let ino = from.names.remove(name.bytes()).ok_or(Errno::ENOENT)?;
                let to = state.nodes.get_mut(new_parent).ok_or(Errno::ESTALE)?;
                to.names.insert(new_name.bytes().to_vec(), ino);
                Response::Done
            }
            Operation::Open { flags, .. } => Response::Opened(opened(flags.write)),
            Operation::OpenDir { .. } => Response::Opened(opened(false)),
            Operation::Read {
                ino,
                offset,
                length,
                ..
            } => {
                let data = &state.nodes[ino].data;
                let start = usize::try_from(*offset).expect("64 bit").min(data.len());
                let end = (start + *length as usize).min(data.len());
                self.data(&data[start..end])?
            }
            Operation::Write {
                ino,
                offset,
                append,
                ..
            } => {
                let mut data = state.nodes[ino].data.clone();
                let start = usize::try_from(*offset).expect("64 bit");
                let start = if *append { data.len() } else { start };
                data.resize(data.len().max(start + bytes.len()), 0);
                data[start..start + bytes.len()].copy_from_slice(bytes);
                state.set_data(*ino, &data);
                Response::Written(u32::try_from(bytes.len()).expect("at most 1 MiB"))
            }
            Operation::ReadDir {
                ino, cookie, plus, ..
            } => state.list(*ino, *cookie, *plus),
            Operation::GetXattr { name, size, .. } => match (&**name, *size) {
                (b"user.a", 0) => Response::Size(5),
                (b"user.a", _) => Response::Bytes(SmallBytes::new(b"value")),
                _ => return Err(Errno::ENODATA),
            },
            Operation::StatFs => Response::Space(Space {
                sector_count: 100,
                sector_free_count: 50,
                sector_available_count: 50,
                inode_count: 1,
            }),
            Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDir { .. } => Response::Done,
            _ => return Err(Errno::ENOSYS),
        })
    }

    /// `bytes` in the pagepool; the transport releases the frames they touch.
    fn data(&self, bytes: &[u8]) -> Result<Response, Errno> {
        let slab = self.memory.alloc_slab().ok_or(Errno::ENOMEM)?;
        // SAFETY: fresh frames of which only we hold a reference; a READ is at most 1 MiB.
        unsafe {
            let target = self.memory.address(slab);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        let span = Span {
            frame: slab,
            offset: 0,
            length: u32::try_from(bytes.len()).expect("at most 1 MiB"),
        };
        for index in span.length.div_ceil(4096)..FRAMES_PER_SLAB {
            self.memory.release(FrameRef(slab.0 + index));
        }
        Ok(Response::Data(vec![span]))
    }
}

/// GUPFS's open modes.
fn opened(writable: bool) -> Opened {
    Opened {
        handle: Handle(1),
        direct: writable,
        keep_cache: true,
        parallel_writes: writable,
    }
}

impl Handler for Server {
    fn on_request(&self, replier: &Replier, request: Request) {
        let mut bytes = Vec::new();
        let mut state = self.state.lock().expect("no holder panics");
        match request.operation {
            Operation::Forget { .. } => return,
            Operation::Write { payload, .. } => {
                // SAFETY: the transport holds the frames during this call.
                bytes = unsafe { self.memory.slice(payload) }.to_vec();
                if state.keeps_payloads {
                    for index in 0..payload.length.div_ceil(4096) {
                        self.memory.retain(FrameRef(payload.frame.0 + index));
                    }
                    state.kept.push((payload, bytes.clone()));
                }
            }
            _ => {}
        }
        state.log.push(request.operation.clone());
        if state
            .holds
            .iter()
            .any(|matches| matches(&request.operation))
        {
            state.held.push(Held { request, bytes });
            drop(state);
            self.changed.notify_all();
            return;
        }
        drop(state);
        self.changed.notify_all();
        self.answer(replier, &request, &bytes);
    }

    fn on_retrieved(&self, notify_unique: u64, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock().expect("no holder panics");
        state
            .retrieved
            .push((notify_unique, offset, bytes.to_vec()));
        drop(state);
        self.changed.notify_all();
    }

    fn on_interrupt(&self, replier: &Replier, part: TicketPart) -> InterruptOutcome {
        let mut state = self.state.lock().expect("no holder panics");
        let found = state
            .held
            .iter()
            .position(|held| part.is_of(held.request.ticket));
        let Some(at) = found else {
            return InterruptOutcome::Unknown;
        };
        let ticket = state.held.remove(at).request.ticket;
        state.interrupted_count += 1;
        drop(state);
        replier.reply(ticket, &Response::Error(Errno::EINTR));
        InterruptOutcome::Taken
    }
}

/// A name.
pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}
