//! A server of pages for programs on this machine: one thread, everything bounded.
//!
//! Invariants
//! - At most `CONNECTION_COUNT_MAX` connections; a new one ends the oldest, so that those who connect and say nothing
//!   keep nobody out.
//! - A connection brings one request, of `HEAD_SIZE_MAX` bytes at the most, and lives for `PATIENCE` at the most,
//!   whatever the other side does.
//!
//! What this deliberately does not do: bodies of requests, several requests on a connection, TLS, other machines.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at once.
const CONNECTION_COUNT_MAX: usize = 16;
/// Bytes of a request's head.
const HEAD_SIZE_MAX: usize = 8192;
/// Lines of a request's head.
const HEADER_COUNT_MAX: usize = 64;
/// From a connection's begin to its end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Others go first: that of the thread, as nice(1) counts.
const NICENESS: libc::c_int = 10;

/// Makes the page at a path; `None`: there is none.
pub(crate) type Pages = Box<dyn Fn(&str) -> Option<Page> + Send>;

/// What is sent.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) content_type: &'static str,
    pub(crate) text: String,
}

/// A server that runs. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `pages` at `address`, where something must be free to listen.
    pub(crate) fn start(address: SocketAddr, pages: Pages) -> std::io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(address)?);
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (heard, accepting) = (Arc::clone(&stop), Arc::clone(&listener));
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || serve(&accepting, &heard, &pages))?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // SAFETY: the call takes a descriptor that `listener` keeps open, and touches no memory.
        let result = unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        debug_assert_eq!(result, 0, "a listening socket can be shut down");
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves metrics panicked");
        }
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool, pages: &Pages) {
    // SAFETY: no pointers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    let mut connections: Vec<Connection> = Vec::new();
    let mut accepts_after = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let ready = wait(listener, &connections, accepts_after);
        let now = Instant::now();
        let mut ready = ready.into_iter();
        let has_new = ready.next().unwrap_or(false);
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            now < connection.until && (!is_ready || connection.go_on(pages))
        });
        if has_new && now >= accepts_after {
            match listener.accept() {
                Ok((stream, _)) => {
                    if connections.len() == CONNECTION_COUNT_MAX {
                        connections.remove(0);
                    }
                    connections.extend(Connection::new(stream, now + PATIENCE));
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    // No descriptors, say: it would be told the same at once.
                    tracing::debug!(%error, "a connection for metrics was not accepted");
                    accepts_after = now + Duration::from_millis(100);
                }
            }
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    )
}

/// Waits until something can be done; of the listener and each connection, whether it is that.
fn wait(listener: &TcpListener, connections: &[Connection], accepts_after: Instant) -> Vec<bool> {
    let now = Instant::now();
    let is_accepting = now >= accepts_after;
    let watch = |fd, events| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let own = if is_accepting {
        listener.as_raw_fd()
    } else {
        // Passed over.
        -1
    };
    let mut fds = vec![watch(own, libc::POLLIN)];
    fds.extend(connections.iter().map(|c| {
        let events = match c.phase {
            Phase::Reading | Phase::Draining => libc::POLLIN,
            Phase::Writing => libc::POLLOUT,
        };
        watch(c.stream.as_raw_fd(), events)
    }));
    let ends = connections.iter().map(|c| c.until);
    let next = ends.chain((!is_accepting).then_some(accepts_after)).min();
    let timeout = next.map_or(-1, |at| {
        let left = at.saturating_duration_since(now).as_millis() + 1;
        libc::c_int::try_from(left).unwrap_or(libc::c_int::MAX)
    });
    let count = libc::nfds_t::try_from(fds.len()).expect("few connections");
    // SAFETY: the array lives during the call, which writes to its elements only.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), count, timeout) };
    fds.iter().map(|fd| result > 0 && fd.revents != 0).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Reading,
    Writing,
    /// The answer is with the kernel; what the other side still says is read, or the kernel would drop the answer.
    Draining,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    until: Instant,
    phase: Phase,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

impl Connection {
    fn new(stream: TcpStream, until: Instant) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            until,
            phase: Phase::Reading,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        })
    }

    /// Does what can be done now; false: it has ended.
    fn go_on(&mut self, pages: &Pages) -> bool {
        let mut bytes = [0; 2048];
        loop {
            let step = match self.phase {
                Phase::Reading | Phase::Draining => self.stream.read(&mut bytes),
                Phase::Writing => self.stream.write(&self.output[self.sent..]),
            };
            let count = match step {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            };
            match self.phase {
                Phase::Reading => {
                    self.input.extend_from_slice(&bytes[..count]);
                    if let Some(answer) = answer(&self.input, pages) {
                        self.output = answer;
                        self.input = Vec::new();
                        self.phase = Phase::Writing;
                    }
                }
                Phase::Writing => {
                    self.sent += count;
                    if self.sent == self.output.len() {
                        if self.stream.shutdown(std::net::Shutdown::Write).is_err() {
                            return false;
                        }
                        self.output = Vec::new();
                        self.phase = Phase::Draining;
                    }
                }
                // Somebody who does not stop talking is not listened to until the end of his patience.
                Phase::Draining => return true,
            }
        }
    }
}

/// The answer to a request; `None`: it is not all there.
fn answer(input: &[u8], pages: &Pages) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let said = |status, text: &str| {
        let page = Page {
            content_type: "text/plain; charset=utf-8",
            text: format!("{text}\n"),
        };
        Some(response(status, &page, true))
    };
    match request.parse(&input[..input.len().min(HEAD_SIZE_MAX)]) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if input.len() < HEAD_SIZE_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return said(
                "431 Request Header Fields Too Large",
                "the request is too long",
            );
        }
        Err(error) => return said("400 Bad Request", &format!("not HTTP: {error}")),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match request.method {
        Some("GET" | "HEAD") => {}
        _ => return said("405 Method Not Allowed\r\nAllow: GET, HEAD", "use GET"),
    }
    match pages(path) {
        Some(page) => Some(response("200 OK", &page, request.method == Some("GET"))),
        None => said("404 Not Found", "there is only /metrics"),
    }
}

fn response(status: &str, page: &Page, has_body: bool) -> Vec<u8> {
    let Page { content_type, text } = page;
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if has_body { text.as_str() } else { "" };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
