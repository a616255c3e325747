//! The system calls of a TCP connection: nothing here waits.

use std::io::Error;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Seconds of silence after which the kernel asks whether the other side is there.
const KEEP_ALIVE_SECS: i32 = 5;
/// Seconds between such questions, and how many stay unanswered.
const KEEP_ALIVE_INTERVAL_SECS: i32 = 2;
const KEEP_ALIVE_COUNT: i32 = 3;
/// Milliseconds that sent bytes may stay unacknowledged.
const USER_TIMEOUT_MS: i32 = 10_000;

fn set(fd: RawFd, level: i32, name: i32, value: i32) -> Result<(), Error> {
    let size = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the value is an i32 of the size given.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Small messages leave at once; a dead peer is noticed.
pub(super) fn tune(stream: &TcpStream) -> Result<(), Error> {
    let fd = stream.as_raw_fd();
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEP_ALIVE_SECS)?;
    set(
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_KEEPINTVL,
        KEEP_ALIVE_INTERVAL_SECS,
    )?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEP_ALIVE_COUNT)?;
    set(
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        USER_TIMEOUT_MS,
    )
}

/// An address as the kernel takes it.
fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let size = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).expect("small"),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than, and aligned for, every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).expect("small"),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, libc::socklen_t::try_from(size).expect("below 128"))
}

/// Begins to connect to `target`, from `source` when given; POLLOUT tells the end.
pub(super) fn connect(target: SocketAddr, source: Option<IpAddr>) -> Result<TcpStream, Error> {
    let family = if target.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    tune(&stream)?;
    if let Some(source) = source.filter(|s| s.is_ipv4() == target.is_ipv4() && !s.is_unspecified())
    {
        set(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        let (raw, size) = raw_address(SocketAddr::new(source, 0));
        // SAFETY: an address of the size given.
        if unsafe { libc::bind(fd, (&raw const raw).cast(), size) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    let (raw, size) = raw_address(target);
    // SAFETY: an address of the size given.
    if unsafe { libc::connect(fd, (&raw const raw).cast(), size) } != 0 {
        let error = Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
    }
    Ok(stream)
}

/// What a transfer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing: the socket is full, or empty.
    Blocked,
    /// The other side has ended its stream (receiving only).
    End,
}

/// # Safety
/// The pieces are memory that may be read (`is_send`) or written until the call returns.
unsafe fn transfer(fd: RawFd, pieces: &mut [libc::iovec], is_send: bool) -> Result<Moved, Error> {
    // SAFETY: all zeros is a valid message: no address, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    loop {
        // SAFETY: the list of pieces is valid, and so are they by the caller's promise.
        let moved = unsafe {
            if is_send {
                libc::sendmsg(
                    fd,
                    &raw const message,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            } else {
                libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT)
            }
        };
        if let Ok(moved) = usize::try_from(moved) {
            return Ok(if moved == 0 {
                Moved::End
            } else {
                Moved::Bytes(moved)
            });
        }
        let error = Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => return Ok(Moved::Blocked),
            _ => return Err(error),
        }
    }
}

/// Sends what the socket takes of `pieces` (not empty).
///
/// # Safety
/// The pieces are readable memory until the call returns.
pub(super) unsafe fn send(stream: &TcpStream, pieces: &mut [libc::iovec]) -> Result<Moved, Error> {
    // SAFETY: the caller's promise.
    unsafe { transfer(stream.as_raw_fd(), pieces, true) }
}

/// Receives what has come into `pieces` (not empty).
///
/// # Safety
/// The pieces are writable memory that nobody else uses until the call returns.
pub(super) unsafe fn receive(
    stream: &TcpStream,
    pieces: &mut [libc::iovec],
) -> Result<Moved, Error> {
    // SAFETY: the caller's promise.
    unsafe { transfer(stream.as_raw_fd(), pieces, false) }
}
