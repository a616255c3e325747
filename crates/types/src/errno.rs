//! Error numbers as Linux applications see them.

/// An error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The constant's name, or `None` for a number not listed here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted.";
    ENOENT = 2, "No such file or directory.";
    EINTR = 4, "Interrupted by a signal.";
    EIO = 5, "Input/output error.";
    ENXIO = 6, "No such device or address.";
    EBADF = 9, "Bad file descriptor.";
    EAGAIN = 11, "Try again.";
    ENOMEM = 12, "Out of memory.";
    EACCES = 13, "Permission denied.";
    EFAULT = 14, "Bad address.";
    EBUSY = 16, "Busy.";
    EEXIST = 17, "File exists.";
    EXDEV = 18, "Cross-device link.";
    ENODEV = 19, "No such device.";
    ENOTDIR = 20, "Not a directory.";
    EISDIR = 21, "Is a directory.";
    EINVAL = 22, "Invalid argument.";
    ENFILE = 23, "Too many open files in the system.";
    EMFILE = 24, "Too many open files.";
    ENOTTY = 25, "No such ioctl.";
    ETXTBSY = 26, "Program is being executed.";
    EFBIG = 27, "File too large.";
    ENOSPC = 28, "No space left.";
    EROFS = 30, "Read-only file system.";
    EMLINK = 31, "Too many links.";
    ERANGE = 34, "Result does not fit.";
    EDEADLK = 35, "Waiting for the lock would never end.";
    ENAMETOOLONG = 36, "File name too long.";
    ENOLCK = 37, "No more locks.";
    ENOSYS = 38, "Not implemented.";
    ENOTEMPTY = 39, "Directory not empty.";
    ELOOP = 40, "Too many symbolic links.";
    ENODATA = 61, "No such attribute.";
    EPROTO = 71, "Protocol error.";
    EOVERFLOW = 75, "Value too large.";
    EOPNOTSUPP = 95, "Operation not supported.";
    ENOTCONN = 107, "Not connected.";
    ETIMEDOUT = 110, "Timed out.";
    ESTALE = 116, "Stale file handle.";
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl crate::codec::Encode for Errno {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl crate::codec::Decode for Errno {
    fn decode(reader: &mut crate::codec::Reader<'_>) -> Result<Self, crate::codec::DecodeError> {
        Ok(Self(crate::codec::Decode::decode(reader)?))
    }
}
