//! A mounted file system: handshake, serving threads, answers, end.

use super::apart::{self, Apart};
use super::device::Device;
use super::memory::Memory;
use super::mount::{self, Connection, MountError};
use super::notifier::Notifier;
use super::ring::{self, Ring};
use super::room::Room;
use client::request::{Request, Response, Ticket, TicketPart};
use fuse::{Decoded, Encoded, InitError, Route};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::{Errno, InodeId};

/// What a front end does with the requests of a mount.
///
/// Methods are called on the transport's threads and must not block: whatever has to wait is parked and
/// answered later, from any thread.
pub trait Handler: Send + Sync + 'static {
    /// A request of the kernel. `replier.reply(request.ticket, ..)` answers it, once, now or later.
    /// Forgets come here too, with `fuse::NO_REPLY`.
    ///
    /// A WRITE's payload lies in pagepool frames of which the transport holds a reference until this
    /// method returns; who needs them longer retains each frame. Keeping frames of a /dev/fuse session
    /// costs the transport the whole slab, so keep only large payloads and copy small ones.
    fn on_request(&self, replier: &Replier, request: Request);

    /// The caller of the request with such a ticket got a signal. May be asked about tickets that do not
    /// exist.
    fn on_interrupt(&self, replier: &Replier, part: TicketPart) -> InterruptOutcome;

    /// Bytes are to be copied; answered with `Response::Written`. With EOPNOTSUPP the kernel does it by itself this time.
    fn on_copy(&self, replier: &Replier, copy: fuse::CopyRange) {
        replier.reply(copy.ticket, &Response::Error(Errno::ENOSYS));
    }

    /// The mount shall answer no more. `Replier::reply_ioctl` says done, an error as its answer that it was refused.
    fn on_shut_down(&self, replier: &Replier, asked: fuse::ShutDown) {
        replier.reply(asked.ticket, &Response::Error(Errno::ENOTTY));
    }

    /// Bytes of the kernel's cache, asked for by a RETRIEVE notification.
    fn on_retrieved(&self, _notify_unique: u64, _offset: u64, _bytes: &[u8]) {}

    /// The file system was unmounted or aborted; nothing will be asked any more. Called once.
    fn on_destroy(&self) {}
}

/// What became of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptOutcome {
    /// The request is known: it was or will be answered soon, with EINTR where that makes sense.
    Taken,
    /// No such request (yet): the kernel is told to ask again, or it has been answered.
    Unknown,
}

/// How requests travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransportKind {
    /// read(2) and write(2) of /dev/fuse.
    #[default]
    Device,
    /// fuse-over-io_uring.
    Ring,
}

/// How a session is mounted.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// First column of mount(8)'s listing.
    pub source: String,
    /// An existing directory.
    pub mount_point: PathBuf,
    /// A mount at `mount_point` that a dead daemon has left: this one takes its place.
    pub replaces: Option<crate::mountinfo::Mount>,
    /// MS_* of mount(2).
    pub mount_flags: u64,
    /// How requests travel.
    pub transport: TransportKind,
    /// Threads that serve /dev/fuse. The ring has one for each possible CPU instead.
    pub thread_count: usize,
    /// Threads that write notifications; several, as one can be stuck behind a page lock.
    pub notify_thread_count: usize,
    /// Bytes that the kernel reads ahead of a sequential reader.
    pub readahead_size: u32,
    /// Asynchronous direct reads and writes go on beside one another. Over the ring they never do.
    pub async_direct_io: bool,
    /// Requests that one CPU's queue of the ring can hold at first; it grows when they are parked.
    pub ring_depth: u16,
}

impl SessionConfig {
    /// A session at `mount_point` with the defaults: /dev/fuse, one thread for each CPU.
    pub fn new(mount_point: &Path) -> Self {
        let cpu_count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            source: "gupfs".to_owned(),
            mount_point: mount_point.to_owned(),
            replaces: None,
            mount_flags: 0,
            transport: TransportKind::Device,
            thread_count: cpu_count.max(2),
            notify_thread_count: 4,
            readahead_size: 1 << 20,
            async_direct_io: false,
            ring_depth: 8,
        }
    }
}

/// Why a session did not come up.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The mount failed; the system is as it was.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// This kernel cannot be served.
    #[error(transparent)]
    Init(#[from] InitError),
    /// fuse-over-io_uring is switched off and could not be switched on: use the other transport.
    #[error("fuse-over-io_uring is off: set /sys/module/fuse/parameters/enable_uring to Y")]
    RingDisabled(#[source] std::io::Error),
    /// A system call failed.
    #[error("{call}: {source}")]
    Io {
        /// Which.
        call: &'static str,
        /// How.
        source: std::io::Error,
    },
}

impl SessionError {
    pub(super) fn last(call: &'static str) -> Self {
        Self::Io {
            call,
            source: std::io::Error::last_os_error(),
        }
    }
}

/// What is to be done when the kernel has an answer.
pub struct Follow(pub Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Follow")
    }
}

/// A way for requests and answers. There are two: `Device` and `Ring`.
pub(super) trait Transport: Send + Sync + std::fmt::Debug {
    /// Sends an answer the way its request came. An answer to a request that is gone is dropped.
    fn send(&self, memory: &dyn Memory, route: Route, unique: u64, answer: &Encoded<'_>);
    /// The kernel has an answer of this route when `send` returns.
    fn is_immediate(&self, route: Route) -> bool;
    /// As `send`; `done` is called when the kernel has the answer, or at once if the request is gone.
    fn send_then(&self, to: (&dyn Memory, Route, u64), answer: &Encoded<'_>, done: Follow);
    /// Starts the serving threads. Each calls `Serving::dispatch` for what it receives.
    fn start(self: Arc<Self>, serving: &Arc<Serving>) -> Result<Vec<JoinHandle<()>>, SessionError>;
}

/// Answers requests, from any thread.
#[derive(Debug)]
pub struct Replier {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) memory: Arc<dyn Memory>,
    /// Writes the answers that may wait for locks; none over a transport where no read is asynchronous.
    pub(super) apart: Option<Arc<Apart>>,
    /// WRITEs for whose bytes no slab is free.
    pub(super) room: Room,
}

/// Sends an answer the way its request came.
pub(super) fn send(
    transport: &dyn Transport,
    memory: &dyn Memory,
    ticket: Ticket,
    response: &Response,
) {
    let unique = fuse::ticket::unique(ticket);
    if unique != 0 {
        let route = fuse::ticket::route(ticket);
        let answer = fuse::encode_reply(ticket, response);
        transport.send(memory, route, unique, &answer);
    }
}

impl Replier {
    /// Answers the request of `ticket`, once. The references of the frames of `Response::Data` are
    /// released, also when the connection has ended meanwhile.
    pub fn reply(&self, ticket: Ticket, response: &Response) {
        // An error ends a read, too.
        let is_end_of_read = matches!(response, Response::Data(_) | Response::Error(_));
        if let Some(apart) = &self.apart
            && is_end_of_read
            && fuse::ticket::is_apart(ticket)
        {
            return apart.send(&*self.memory, ticket, response.clone());
        }
        send(&*self.transport, &*self.memory, ticket, response);
        apart::release(&*self.memory, response);
    }

    /// Answers an IOCTL that is done and brings nothing.
    pub fn reply_ioctl(&self, ticket: Ticket) {
        let (unique, route) = (fuse::ticket::unique(ticket), fuse::ticket::route(ticket));
        let answer = fuse::encode_ioctl_done(unique);
        self.transport.send(&*self.memory, route, unique, &answer);
    }

    /// The kernel has the answer of this ticket when `reply` returns. Otherwise a notification sent then could
    /// overtake it: `reply_then` says when.
    pub fn is_immediate(&self, ticket: Ticket) -> bool {
        fuse::ticket::unique(ticket) == 0
            || self.transport.is_immediate(fuse::ticket::route(ticket))
    }

    /// As `reply` for an answer without data; `done` is called on some thread when the kernel has the answer; not
    /// at all when the connection ends before.
    pub fn reply_then(&self, ticket: Ticket, response: &Response, done: Follow) {
        let unique = fuse::ticket::unique(ticket);
        if unique == 0 || matches!(response, Response::Data(_)) {
            self.reply(ticket, response);
            return (done.0)();
        }
        let route = fuse::ticket::route(ticket);
        let answer = fuse::encode_reply(ticket, response);
        let to = (&*self.memory, route, unique);
        self.transport.send_then(to, &answer, done);
    }

    /// WRITEs for whose bytes there is no room in the pagepool: their file, their process, and for how long they wait.
    pub fn waiting_writes(&self) -> Vec<(InodeId, u32, Duration)> {
        self.room.waiting()
    }

    /// The pagepool that payloads and data lie in.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }
}

/// What the serving threads share.
pub(super) struct Serving {
    pub(super) replier: Arc<Replier>,
    pub(super) handler: Arc<dyn Handler>,
    thread_count: AtomicUsize,
    has_ended: AtomicBool,
}

impl Serving {
    /// Does with a decoded request what is to be done. `rest` is the tail of the request.
    pub(super) fn dispatch(
        &self,
        (route, unique): (Route, u64),
        decoded: Decoded<'_>,
        rest: &[u8],
    ) -> Dispatched {
        let refuse = |errno| self.refuse((route, unique), errno);
        match decoded {
            Decoded::Request(request) => self.handler.on_request(&self.replier, request),
            Decoded::Forgets(forgets) => {
                for forget in forgets {
                    self.handler
                        .on_request(&self.replier, forget.into_request());
                }
            }
            Decoded::CopyRange(copy) => self.handler.on_copy(&self.replier, copy),
            Decoded::ShutDown(asked) => self.handler.on_shut_down(&self.replier, asked),
            Decoded::Interrupt { unique: target } => return Dispatched::Interrupt(target),
            Decoded::Retrieved {
                notify_unique,
                offset,
                size,
            } => {
                let bytes = &rest[..rest.len().min(size as usize)];
                self.handler.on_retrieved(notify_unique, offset, bytes);
            }
            Decoded::Destroy => {
                let answer = fuse::encode_done(unique);
                let memory = &*self.replier.memory;
                self.replier.transport.send(memory, route, unique, &answer);
            }
            Decoded::Init(_) => refuse(Errno::EPROTO),
            Decoded::Refuse(errno) => refuse(errno),
            Decoded::Ignore => {}
        }
        Dispatched::Done
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&self, (route, unique): (Route, u64), errno: Errno) {
        let answer = fuse::encode_error(unique, errno);
        let memory = &*self.replier.memory;
        self.replier.transport.send(memory, route, unique, &answer);
    }

    /// Passes an interrupt on.
    pub(super) fn interrupt(&self, unique: u64) -> InterruptOutcome {
        self.handler
            .on_interrupt(&self.replier, fuse::ticket::part(unique))
    }

    /// A serving thread is about to be started.
    pub(super) fn on_thread_start(&self) {
        self.thread_count.fetch_add(1, Ordering::AcqRel);
    }

    /// A serving thread ends as the connection has; the last one says so.
    pub(super) fn on_thread_end(&self) {
        let left = self.thread_count.fetch_sub(1, Ordering::AcqRel) - 1;
        if left <= 1 {
            // The room's own thread is left: nobody waits for what is there.
            self.replier.room.end();
        }
        let is_last = left == 0;
        // A connection that ends while threads are being started has several last threads.
        if is_last && !self.has_ended.swap(true, Ordering::AcqRel) {
            self.handler.on_destroy();
        }
    }
}

/// Tells the kernel that this thread serves a file system: its memory allocations must not wait for
/// write-back to that very file system. Without the right to (CAP_SYS_RESOURCE) it goes on without.
pub(crate) fn serve_without_reclaim() {
    /// From linux/prctl.h; libc lacks it.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: no pointers.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// What `Serving::dispatch` leaves to the transport.
pub(super) enum Dispatched {
    /// Nothing.
    Done,
    /// The request with this unique number is interrupted.
    Interrupt(u64),
}

/// A mounted file system. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    kernel_minor: u32,
    connection: Arc<Connection>,
    replier: Arc<Replier>,
    notifier: Arc<Notifier>,
    threads: Vec<JoinHandle<()>>,
    /// Those of `Apart`.
    answering: Vec<JoinHandle<()>>,
}

impl Session {
    /// Mounts and agrees with the kernel. Requests wait in the kernel until `start`.
    ///
    /// # Errors
    /// Nothing is mounted then.
    pub fn mount(config: SessionConfig, memory: Arc<dyn Memory>) -> Result<Self, SessionError> {
        let over_ring = config.transport == TransportKind::Ring;
        if over_ring {
            ring::enable()?;
        }
        mount::allow_pages(fuse::init::MAX_PAGES);
        let mut device = Device::open()?;
        let connection = mount::mount(&config, device.main())?;
        // From here on dropping `connection` unmounts.
        connection.watch(device.duplicate()?);
        let wishes = fuse::Wishes {
            over_ring,
            readahead_size: config.readahead_size,
            async_direct_io: config.async_direct_io,
        };
        let kernel_minor = device.handshake(wishes)?;
        connection.set_readahead(config.readahead_size)?;
        let notifier = Notifier::start(device.duplicate()?, config.notify_thread_count)?;
        let (transport, apart): (Arc<dyn Transport>, _) = if over_ring {
            let ring = Ring::new(device, config.ring_depth, connection.c_path())?;
            (Arc::new(ring), None)
        } else {
            device.clone_descriptors(config.thread_count.max(1))?;
            let apart = config.async_direct_io.then(Arc::default);
            (Arc::new(device), apart)
        };
        let thread_count = (!over_ring).then_some(config.thread_count);
        Ok(Self {
            config,
            kernel_minor,
            connection: Arc::new(connection),
            replier: Arc::new(Replier {
                transport,
                memory,
                apart,
                room: Room::new(thread_count),
            }),
            notifier: Arc::new(notifier),
            threads: Vec::new(),
            answering: Vec::new(),
        })
    }

    /// Starts the serving threads.
    ///
    /// # Errors
    /// A thread or ring could not be made; drop the session.
    pub fn start(&mut self, handler: Arc<dyn Handler>) -> Result<(), SessionError> {
        assert!(self.threads.is_empty(), "a session is started once");
        let serving = Arc::new(Serving {
            replier: self.replier.clone(),
            handler,
            thread_count: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
        });
        let replier = &self.replier;
        if let Some(apart) = &replier.apart {
            self.answering = apart.start(&replier.transport, &replier.memory)?;
        }
        let waiting = Room::start(&serving)?;
        let started = replier.transport.clone().start(&serving);
        if started.is_err() {
            replier.room.end();
        }
        self.threads.push(waiting);
        self.threads.extend(started?);
        Ok(())
    }

    /// The kernel sends direct reads and writes without waiting for their answers.
    pub fn is_async(&self) -> bool {
        self.replier.apart.is_some()
    }

    /// Requests and answers go by io_uring: an answer is written when its thread has done all else.
    pub fn is_over_ring(&self) -> bool {
        self.config.transport == TransportKind::Ring
    }

    /// The kernel takes `Notice::Prune`.
    pub const fn takes_prune(&self) -> bool {
        self.kernel_minor >= fuse::abi::PRUNE_MINOR_VERSION
    }

    /// The kernel may be given bytes of files, and has them before the answer that is written after that.
    pub fn takes_fills(&self) -> bool {
        self.kernel_minor >= fuse::abi::STORE_MINOR_VERSION && !self.is_over_ring()
    }

    /// Answers requests, from any thread.
    pub fn replier(&self) -> &Arc<Replier> {
        &self.replier
    }

    /// Sends notifications.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// The kernel's connection: its number, and how to abort it.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// How the session was mounted.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Waits until the connection has ended (somebody unmounted or aborted it).
    pub fn wait(mut self) {
        self.join(None);
    }

    fn join(&mut self, limit: Option<Duration>) {
        let until = limit.map(|limit| Instant::now() + limit);
        self.threads
            .drain(..)
            .for_each(|thread| join(thread, until));
        // Nothing is asked any more, and what is answered now is dropped.
        if let Some(apart) = &self.replier.apart {
            apart.end();
        }
        self.answering
            .drain(..)
            .for_each(|thread| join(thread, until));
    }
}

/// Waits for the end of a thread, `until` then at the most.
fn join(thread: JoinHandle<()>, until: Option<Instant>) {
    while let Some(until) = until
        && !thread.is_finished()
    {
        if Instant::now() > until {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            tracing::error!(name, "a FUSE thread does not end: it is left behind");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if thread.join().is_err() {
        tracing::error!("a FUSE thread panicked");
    }
}

/// A thread that answers a direct read may be in the lock of a page whose holder does not depend on this connection: how long a stop waits for it.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.unmount();
        self.join(self.replier.apart.as_ref().map(|_| JOIN_LIMIT));
    }
}
