//! Between a node's kernel and its client half: what `fuse` and `os::fuse` are in the daemon.
//!
//! A cell of the kernel model is 1 KiB whose 128 words all hold the cell's number. A cell with differing words is torn
//! and a violation.

use std::collections::BTreeMap;

use client::Pool as _;
use client::request::{
    Caller, Handle, OpenFlags, Operation, RenameFlags, Request, Response, Ticket,
};
use types::frame::FRAME_BYTES;
use types::{Attr, Errno, InodeId, Name, SetAttr, Span};

use super::memory::Memory;
use crate::model::{
    Answer, Ask, Attributes, CELL_COUNT, CELL_SIZE, FuseRequest, NAME_COUNT, PAGE_CELLS, Value,
};

/// Tickets of requests that no task of the kernel model makes.
pub const OWN_TICKET: u64 = 1 << 40;
/// Bytes of a cell.
pub const CELL_BYTES: usize = 1024;

/// A file that the node has open.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its inode.
    pub ino: InodeId,
    /// A descriptor for cached reads.
    pub reader: Handle,
    /// A descriptor for writes and direct reads.
    pub writer: Handle,
}

/// See the module.
#[derive(Debug)]
pub struct Front {
    /// Files that stay open.
    pub files: Vec<File>,
    /// The directory of the files and names.
    pub directory: InodeId,
    /// The directory of the last name, where it is in one of its own.
    pub second: Option<InodeId>,
    /// Lookups that the kernel has not forgotten.
    pub lookups: BTreeMap<InodeId, u64>,
    /// Handles to be closed.
    pub to_close: Vec<(InodeId, Handle)>,
    /// Why the last request failed.
    pub last_error: Option<(Ask, Errno)>,
    next_ticket: u64,
}

/// The name number `index`.
pub fn name(index: usize) -> Name {
    Name::new(format!("n{index}").as_bytes()).expect("a name")
}

/// The bytes of cells.
pub fn bytes_of(cells: &[Value]) -> Vec<u8> {
    let cell = |value: &Value| value.to_le_bytes().repeat(CELL_BYTES / 8);
    cells.iter().flat_map(cell).collect()
}

/// The cells in bytes, and zeros up to `count`.
///
/// # Errors
/// A torn cell.
pub fn cells_of(bytes: &[u8], count: usize) -> Result<Vec<Value>, String> {
    let mut cells = Vec::with_capacity(count);
    for cell in bytes.chunks(CELL_BYTES) {
        if cell.len() < CELL_BYTES {
            return Err(format!("{} bytes are no whole cells", bytes.len()));
        }
        let mut words = cell
            .chunks(8)
            .map(|w| u64::from_le_bytes(w.try_into().expect("eight")));
        let first = words.next().expect("a cell has words");
        if words.any(|word| word != first) {
            return Err(format!("cell {} is torn", cells.len()));
        }
        cells.push(first);
    }
    if cells.len() > count {
        return Err(format!(
            "{} cells where {count} were asked for",
            cells.len()
        ));
    }
    cells.resize(count, 0);
    Ok(cells)
}

/// The attributes as the kernel model sees them.
fn attributes_of(attr: &Attr, timeout_ns: u64) -> Attributes {
    let size = usize::try_from(attr.size.div_ceil(CELL_SIZE)).expect("a small file");
    let secs = u64::try_from(attr.mtime.secs).expect("after 1970");
    Attributes {
        size: size.min(CELL_COUNT),
        mtime: secs * 1_000_000_000 + u64::from(attr.mtime.nanos),
        timeout: timeout_ns / 1_000_000,
    }
}

impl Front {
    /// Nothing is open.
    pub fn new() -> Self {
        Self {
            files: Vec::new(),
            directory: InodeId::ROOT,
            second: None,
            lookups: BTreeMap::new(),
            to_close: Vec::new(),
            last_error: None,
            next_ticket: OWN_TICKET,
        }
    }

    /// Goes on with tickets where another front end ended.
    pub fn skip_tickets(&mut self, former: &Self) {
        self.next_ticket = former.next_ticket;
    }

    /// A request of no task.
    pub fn own(&mut self, operation: Operation) -> Request {
        self.next_ticket += 1;
        Request {
            ticket: Ticket(self.next_ticket),
            caller: Caller::default(),
            operation,
        }
    }

    /// The directory of the name number `index`.
    pub fn parent_of(&self, index: usize) -> InodeId {
        match self.second {
            Some(second) if index + 1 == NAME_COUNT => second,
            _ => self.directory,
        }
    }

    /// All directories.
    pub fn directories(&self) -> impl Iterator<Item = InodeId> + use<> {
        [self.directory].into_iter().chain(self.second)
    }

    /// The file with this inode.
    pub fn file_of(&self, ino: InodeId) -> Option<usize> {
        self.files.iter().position(|f| f.ino == ino)
    }

    /// The kernel's request as the client half takes it; `None`: there are no frames for its payload now.
    pub fn request(&self, request: &FuseRequest, memory: &Memory) -> Option<Request> {
        let File {
            ino,
            reader,
            writer,
        } = self.files[request.file];
        let at = |cell: usize| cell as u64 * CELL_SIZE;
        let length = |cells: usize| u32::try_from(at(cells)).expect("small");
        let write = |first: usize, cells: &[Value], is_write_back: bool, append: bool| {
            let payload = payload(memory, &bytes_of(cells))?;
            Some(Operation::Write {
                ino,
                handle: writer,
                offset: at(first),
                payload,
                is_write_back,
                append,
                sync: false,
                kill_set_id: false,
            })
        };
        let operation = match &request.ask {
            Ask::Read(pages) => Operation::Read {
                ino,
                handle: reader,
                offset: at(pages.start * PAGE_CELLS),
                length: length(pages.len() * PAGE_CELLS),
                fills_page_cache: true,
            },
            Ask::DirectRead(cells) => Operation::Read {
                ino,
                handle: writer,
                offset: at(cells.start),
                length: length(cells.len()),
                fills_page_cache: false,
            },
            Ask::Write {
                cells,
                value,
                append,
            } => write(cells.start, &vec![*value; cells.len()], false, *append)?,
            Ask::WriteBack { page, data, count } => {
                write(page * PAGE_CELLS, &data[..*count], true, false)?
            }
            Ask::SetSize(size) => Operation::SetAttr {
                ino,
                // By its name, where nobody has it open.
                handle: (writer != Handle(0)).then_some(writer),
                set: SetAttr {
                    size: Some(at(*size)),
                    ..no_change()
                },
            },
            Ask::GetAttr => Operation::GetAttr { ino, handle: None },
            Ask::Fsync => Operation::Fsync {
                ino,
                handle: writer,
                data_only: false,
            },
            Ask::Lookup(index) => Operation::Lookup {
                parent: self.parent_of(*index),
                name: name(*index),
            },
            Ask::Create(index) => Operation::Create {
                parent: self.parent_of(*index),
                name: name(*index),
                permissions: 0o644,
                flags: OpenFlags {
                    read: true,
                    write: true,
                    exclusive: true,
                    ..OpenFlags::default()
                },
            },
            Ask::Remove(index) => Operation::Unlink {
                parent: self.parent_of(*index),
                name: name(*index),
            },
            Ask::Move(from, to) => Operation::Rename {
                parent: self.parent_of(*from),
                name: name(*from),
                new_parent: self.parent_of(*to),
                new_name: name(*to),
                flags: RenameFlags::default(),
            },
            Ask::Bind(..) => unreachable!("not in this world"),
        };
        Some(Request {
            ticket: Ticket(request.id),
            caller: Caller::default(),
            operation,
        })
    }

    /// The answer as the kernel model takes it.
    ///
    /// # Errors
    /// It is none for this request, or its bytes are not what was ever written.
    pub fn answer(
        &mut self,
        ask: &Ask,
        response: &Response,
        memory: &Memory,
    ) -> Result<Answer, String> {
        let wrong = || format!("{response:?} answers {ask:?}");
        let answer = match (ask, response) {
            (Ask::Read(pages), Response::Data(spans)) => {
                let cells = cells_of(&gather(spans, memory), pages.len() * PAGE_CELLS);
                Answer::Data(cells.map_err(|e| format!("{ask:?}: {e}"))?)
            }
            (Ask::DirectRead(range), Response::Data(spans)) => {
                let cells = cells_of(&gather(spans, memory), range.len());
                Answer::Data(cells.map_err(|e| format!("{ask:?}: {e}"))?)
            }
            (Ask::Write { cells, .. }, Response::Written(count)) => {
                if u64::from(*count) != cells.len() as u64 * CELL_SIZE {
                    return Err(wrong());
                }
                Answer::Written(cells.start)
            }
            (Ask::WriteBack { page, .. }, Response::Written(_)) => {
                Answer::Written(page * PAGE_CELLS)
            }
            (Ask::WriteBack { .. }, Response::Error(_)) => return Err(wrong()),
            (Ask::SetSize(_) | Ask::GetAttr, Response::Attr(attr, timeout_ns)) => {
                Answer::Attributes(attributes_of(attr, *timeout_ns))
            }
            (Ask::Lookup(_), Response::Entry(Some(entry), _)) => {
                self.entry(entry.attr.ino, entry.entry_timeout_ns)
            }
            (Ask::Lookup(_), Response::Entry(None, absent_ns)) => Answer::Entry {
                value: 0,
                timeout: absent_ns / 1_000_000,
                attributes: None,
            },
            (Ask::Lookup(_), Response::Error(Errno::ENOENT)) => Answer::Entry {
                value: 0,
                timeout: 0,
                attributes: None,
            },
            (Ask::Create(_), Response::Created(entry, opened)) => {
                self.to_close.push((entry.attr.ino, opened.handle));
                self.entry(entry.attr.ino, entry.entry_timeout_ns)
            }
            (
                Ask::Create(_) | Ask::Remove(_) | Ask::Move(..),
                Response::Error(errno @ (Errno::ENOENT | Errno::EEXIST)),
            ) => Answer::Refused(*errno),
            // What it made has been removed since: a kernel tries again.
            (Ask::Create(_), Response::Error(Errno::ESTALE)) => Answer::Refused(Errno::ESTALE),
            (Ask::Fsync | Ask::Remove(_) | Ask::Move(..), Response::Done) => Answer::Done,
            (Ask::Write { .. }, Response::Error(Errno::ENOSPC)) => Answer::Refused(Errno::ENOSPC),
            (_, Response::Error(Errno::EINTR)) => Answer::Interrupted,
            (_, Response::Error(errno)) => {
                self.last_error = Some((ask.clone(), *errno));
                Answer::Failed
            }
            _ => return Err(wrong()),
        };
        Ok(answer)
    }

    fn entry(&mut self, ino: InodeId, timeout_ns: u64) -> Answer {
        *self.lookups.entry(ino).or_default() += 1;
        Answer::Entry {
            value: ino.raw(),
            timeout: timeout_ns / 1_000_000,
            attributes: None,
        }
    }
}

/// The kernel believes names of this answer for much longer than it was told.
pub fn keep_names(response: &mut Response) {
    let timeout = match response {
        Response::Entry(Some(entry), _) | Response::Created(entry, _) => {
            &mut entry.entry_timeout_ns
        }
        Response::Entry(None, timeout) => timeout,
        _ => return,
    };
    *timeout *= 100;
}

impl Default for Front {
    fn default() -> Self {
        Self::new()
    }
}

/// No change of attributes.
pub fn no_change() -> SetAttr {
    SetAttr {
        permissions: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        kill_set_id: None,
    }
}

/// The bytes of an answer.
pub fn gather(spans: &[Span], memory: &Memory) -> Vec<u8> {
    spans.iter().flat_map(|span| memory.read(*span)).collect()
}

/// A payload in adjacent frames, as readv leaves it; the caller has a reference of each. `None`: there are none now.
pub fn payload(memory: &Memory, bytes: &[u8]) -> Option<Span> {
    let length = u32::try_from(bytes.len()).expect("small");
    let frame = memory.alloc_request(length.div_ceil(FRAME_BYTES).max(1))?;
    let span = Span {
        frame,
        offset: 0,
        length,
    };
    memory.store(span, bytes);
    Some(span)
}
