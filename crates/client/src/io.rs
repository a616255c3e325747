//! Open, read, write, setattr, close: the paths of file data through the pagepool.
//!
//! Each request is first *admitted* (its tokens are held, and no revoke stands against it), then *served*.
//! A read that waits for sectors stays in service, so that a revoke waits for it (rule R4); everything else
//! that waits holds nothing (rule R9).

use data::SetAside;
use meta::Op;
use types::frame::{FRAME_SIZE, FRAMES_PER_SLAB};
use types::{
    ByteRange, Errno, InodeId, InodeMode, Pattern, RangeMode, RangeSet, Span, Want, limits,
};

use crate::appends::NoRoom;
use crate::belief;
use crate::env::{Env, LoadPiece};
use crate::errors::Hears;
use crate::inode::{Load, sectors_around};
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::pages::{Found, PAGE_SIZE, Pages};
use crate::pool::frames_for;
use crate::request::{Handle, Notice, Operation, Request, Response, Ticket, new_size};
use crate::revoke::{RequestKind, round_out};
use crate::slice::{Effect, IoFailure, IoId, Slice, Waiting};
use crate::tokens::Admission;

/// What is loaded at once: a slab, and a stripe unit of the default layout.
pub(crate) const BLOCK_SIZE: u64 = FRAMES_PER_SLAB as u64 * PAGE_SIZE;
/// Bytes of map asked for at once.
const MAP_SIZE: u64 = 64 << 20;
/// Extents and pieces in one answer.
const MAP_COUNT_MAX: u32 = 512;

impl Slice {
    /// open(2). With O_TRUNC the file is cut first.
    pub(crate) fn open(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Open { ino, flags } = request.operation else {
            unreachable!("only open comes here");
        };
        let inode = self.inode(ino);
        if !inode.may_be_opened() {
            // The kernel had looked the name up before: it looks again.
            return self.fail(request.ticket, Errno::ESTALE);
        }
        if inode.closing_count > 0 {
            return self.park(env, ino, request, Waiting::Closed);
        }
        let inode = self.inode(ino);
        if flags.truncate && !flags.write && inode.exec_count > 0 {
            // The kernel looks itself, but when this has cut it; who may write it has asked before.
            return self.fail(request.ticket, Errno::ETXTBSY);
        }
        if flags.truncate {
            // An empty file, too, has new times then: `: >stamp` is how they are made.
            return self.resize(env, ino, request);
        }
        let inode = self.inode(ino);
        let has_token = inode.inode_mode().is_some() && !inode.is_name_unsure;
        if !has_token || inode.is_revoking() {
            // The owner must know of the open, or an unlink elsewhere would free the file under it: it
            // hears of it with the release of a token that was held while the file was open.
            let kind = RequestKind::Attributes;
            match self.admit(env, ino, &request, kind, ByteRange::default(), has_token) {
                Admission::Served => self.served(env, ino, request.ticket),
                Admission::NeedsToken => {
                    let wants = vec![Want::Inode {
                        mode: InodeMode::Read,
                    }];
                    return self.acquire(env, ino, wants);
                }
                Admission::Refused => return,
            }
        }
        let mut opened = self.open_handle_for(env.readers, ino, request.caller, flags);
        opened.keep_cache &= flags.no_atime || !self.wants_read(env, ino);
        if !self.fill(env, ino, request.ticket, opened) {
            self.answer_open(env, ino, request.ticket, Response::Opened(opened));
        }
    }

    /// Answers an open whose handle is made. The first writable one waits until the kernel has dropped the pages that
    /// it got under read tokens: through a mapping they could be dirtied without the right to write.
    pub(crate) fn answer_open(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        ticket: Ticket,
        response: Response,
    ) {
        let inode = self.inode(ino);
        if let Some(state) = inode.gate.as_mut().filter(|state| state.is_filling()) {
            return state.fill_then((ticket, belief::told_once(response)));
        }
        if inode.writer_count == 0 {
            return self.reply_opened(ticket, response, ino);
        }
        self.reply_without_read_pages(env, ino, ticket, response);
    }

    /// Answers an open or a create; what tells the kernel of an inode is waited for by notifications.
    pub(crate) fn reply_opened(&mut self, ticket: Ticket, response: Response, ino: InodeId) {
        match response {
            Response::Created(..) => self.reply_pinned(ticket, response, ino),
            _ => self.reply(ticket, response),
        }
    }

    /// SETATTR. A change of size first waits until nothing of what is cut is on its way to disk.
    pub(crate) fn set_attr(&mut self, env: &Env<'_>, request: Request) {
        let Operation::SetAttr { ino, set, .. } = request.operation else {
            unreachable!("only setattr comes here");
        };
        if set.size.is_some_and(|size| size > limits::FILE_SIZE_MAX) {
            return self.fail(request.ticket, Errno::EFBIG);
        }
        if set.size.is_none() {
            // The owner takes the tokens that it needs from others. It may wait for them there, and they for
            // us: so it does not count as in service here (rule R9).
            let kind = RequestKind::Attributes;
            let range = ByteRange::default();
            if self.admit(env, ino, &request, kind, range, true) == Admission::Served {
                self.served(env, ino, request.ticket);
                self.serve_set_attr(env, ino, request);
            }
            return;
        }
        self.resize(env, ino, request);
    }

    /// Changes the size: a SETATTR, or an open or create that truncates. The kernel writes no mapped page back while
    /// a SETATTR is unanswered (NOWRITE): it must not wait at the owner for others who wait for such a page. So its
    /// tokens are taken first; meanwhile the gate may give it up (rule R12). From then on it is in service until the
    /// owner has answered, which waits for nobody.
    pub(crate) fn resize(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let size = new_size(&request.operation).expect("only changes of size come here");
        let inode = self.inode(ino);
        let range = ByteRange::new(size.min(inode.size), u64::MAX);
        let has_inode = inode.inode_mode() == Some(InodeMode::Exclusive) && inode.is_attr_current();
        let has_range = inode.covers(RangeMode::Write, &range);
        let has_token = has_inode && has_range;
        match self.admit(env, ino, &request, resize_kind(&request), range, has_token) {
            Admission::Served => {
                let ticket = request.ticket;
                self.inode(ino).resizes.push((ticket, range));
                self.serve_set_attr(env, ino, request);
            }
            Admission::NeedsToken => {
                let mut wants = vec![Want::Inode {
                    mode: InodeMode::Exclusive,
                }];
                if !has_range {
                    let required = Pattern::plain(range);
                    let mode = RangeMode::Write;
                    wants.push(Want::Range {
                        mode,
                        required,
                        desired: required,
                    });
                }
                self.acquire(env, ino, wants);
            }
            Admission::Refused => {}
        }
    }

    /// A setattr that may go on.
    fn serve_set_attr(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let set = match &request.operation {
            Operation::SetAttr { set, .. } => *set,
            // Whoever is not root takes the set-id bits by it, as by a write.
            other => types::SetAttr {
                size: new_size(other),
                kill_set_id: (request.caller.uid != 0).then_some(request.caller.gid),
                ..Default::default()
            },
        };
        let standing = request.caller.standing();
        self.send_set_attr(
            env,
            ino,
            (set, standing),
            Continuation::SetAttr(ino, request, None),
        );
    }

    fn send_set_attr(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        (set, standing): (types::SetAttr, Option<types::Standing>),
        then: Continuation,
    ) {
        // What was written before a change of size goes to the owner before it: else a later Commit would bring
        // back what is cut. So does what a Commit under way carries before any change, or it would stamp over
        // the times set now. And a write that takes the set-id bits takes those that were there, not those that are set now.
        let inode = self.inode(ino);
        let takes_bits = inode.kill_set_id.is_some() && set.permissions.is_some();
        if inode.is_dirty() && (set.size.is_some() || inode.is_committing || takes_bits) {
            let op = Op::SetAttr { ino, set, standing };
            self.flush_before(env, ino, op, then);
            return;
        }
        self.ask_change(ino, Op::SetAttr { ino, set, standing }, then);
    }

    /// Has the owner change attributes or bytes (SetAttr, Punch, Allocate, rights of a program); what is dirty and must be there before is with it
    /// already. While a size or bytes are being changed nothing is stored or committed.
    pub(crate) fn ask_change(&mut self, ino: InodeId, op: Op, mut then: Continuation) {
        let inode = self.inode(ino);
        let (cuts, sets_mtime) = match &op {
            Op::SetAttr { set, .. } => (set.size.is_some(), set.mtime.is_some()),
            Op::Punch { .. } | Op::Allocate { .. } => (true, false),
            Op::SetXattr { .. } => (false, false),
            _ => unreachable!("other operations do not wait for data"),
        };
        inode.resize_count += u32::from(cuts);
        if sets_mtime {
            // The time set now is the last one: a later Commit does not bring an older one.
            let changed_at = inode.modified.take();
            inode.drops_rights |= changed_at.is_some();
            if let Continuation::SetAttr(.., taken) = &mut then {
                *taken = changed_at;
            }
        }
        self.call(ino.shard(), Ask::Op { op, durable: false }, then);
    }

    /// The owner changed attributes.
    pub(crate) fn on_set_attr(
        &mut self,
        env: &Env<'_>,
        (ino, taken): (InodeId, Option<types::Timestamp>),
        request: Request,
        answer: Answer,
    ) {
        let (ticket, resizes) = (request.ticket, new_size(&request.operation).is_some());
        if resizes {
            let inode = self.inode(ino);
            inode.resize_count = inode.resize_count.saturating_sub(1);
        }
        self.take_set_attr(env, (ino, taken), request, answer);
        if resizes {
            self.inode(ino).resizes.retain(|(t, _)| *t != ticket);
            self.tell_closed(env, ino);
            self.served(env, ino, ticket);
            self.pump(env, ino);
        }
    }

    fn take_set_attr(
        &mut self,
        env: &Env<'_>,
        (ino, taken): (InodeId, Option<types::Timestamp>),
        request: Request,
        answer: Answer,
    ) {
        let Body::Op(meta::Reply::Attr(attr)) = answer.body else {
            self.take_all(env, answer.grants);
            // What was written before keeps its time.
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.modified = inode.modified.max(taken);
            }
            return match answer.body {
                Body::Op(meta::Reply::NotOwner { uid }) => self.ask_standing(request, uid),
                Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => {
                    self.fail(request.ticket, errno);
                }
                _ => self.fail(request.ticket, Errno::EPROTO),
            };
        };
        let inode = self.inode(ino);
        inode.learn_attr(&attr);
        if matches!(&request.operation, Operation::SetAttr { set, .. } if set.atime.is_some()) {
            inode.accessed.forget();
        }
        if let Some(size) = new_size(&request.operation) {
            let count = inode.pages.truncate(size, env.pool);
            // What was loaded from behind the new end must not come back.
            inode.loads.iter_mut().for_each(|load| load.is_stale = true);
            let tail = ByteRange::new(size / PAGE_SIZE * PAGE_SIZE, u64::MAX);
            inode.forget_map(&tail);
            let cut = ByteRange::new(size.next_multiple_of(PAGE_SIZE), u64::MAX);
            self.hasty_count -= inode.forget_hasty(&cut);
            self.give_back(env, ino, count);
            self.cut_batches(env, ino);
        }
        // Last, for grants let other requests go on at once.
        for granted in answer.grants {
            self.take_grant(env, &granted);
        }
        match &request.operation {
            Operation::SetAttr { .. } => {
                // The kernel takes this answer's attributes whatever happened meanwhile, so it must not
                // believe them for long.
                let response = match self.show(ino, request.caller.pid, 0) {
                    Some(entry) => Response::Attr(entry.attr, 0),
                    None => Response::Error(Errno::ESTALE),
                };
                self.reply(request.ticket, response);
            }
            Operation::Open { flags, .. } => {
                let opened = self.open_handle(ino, *flags);
                self.answer_open(env, ino, request.ticket, Response::Opened(opened));
            }
            Operation::Create { flags, .. } => {
                let flags = *flags;
                let Some(entry) = self.show(ino, request.caller.pid, 0) else {
                    return self.fail(request.ticket, Errno::ESTALE);
                };
                let opened = self.open_handle(ino, flags);
                self.inode(ino).lookup_count += 1;
                let response = Response::Created(entry, opened);
                self.answer_open(env, ino, request.ticket, response);
            }
            _ => {}
        }
    }

    /// READ.
    pub(crate) fn read(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Read {
            ino,
            handle,
            offset,
            length,
            fills_page_cache,
        } = request.operation
        else {
            unreachable!("only reads come here");
        };
        let range = ByteRange::at(offset, length.into());
        let inode = self.inode(ino);
        inode.may_have_pages |= fills_page_cache;
        // Pages that a writable mapping may dirty need the right to write (rule R5): the kernel does not ask
        // when it dirties them.
        let may_dirty = fills_page_cache && inode.writer_count > 0;
        let (mode, range) = if may_dirty && !range.is_empty() {
            (RangeMode::Write, sectors_around(&range))
        } else {
            (RangeMode::Read, range)
        };
        let has_range = range.is_empty() || inode.covers(mode, &range);
        // Nobody else moves the end of the file to before what our range tokens cover. And nobody else writes into the
        // pages that are covered whole: behind the end that we know they are zero, wherever the end is now.
        let is_size_known = inode.is_attr_current() || range.end <= inode.size || fills_page_cache;
        let kind = if fills_page_cache {
            RequestKind::Read
        } else {
            RequestKind::DirectRead
        };
        match self.admit(env, ino, &request, kind, range, has_range && is_size_known) {
            Admission::Served => {
                // From now on, for a first writable open may come while the sectors are loaded.
                self.inode(ino).has_read_pages |= fills_page_cache && !may_dirty;
                self.serve_read(env, request);
            }
            Admission::NeedsToken => {
                let mut wants = Vec::with_capacity(2);
                if !is_size_known {
                    let mode = match self.inode(ino).inode_mode() {
                        Some(InodeMode::SharedWrite) => InodeMode::Exclusive,
                        _ => InodeMode::Read,
                    };
                    wants.push(Want::Inode { mode });
                }
                if !has_range {
                    wants.push(self.range_want(ino, handle, mode, range));
                }
                self.acquire(env, ino, wants);
            }
            Admission::Refused => {}
        }
    }

    fn range_want(
        &mut self,
        ino: InodeId,
        handle: Handle,
        mode: RangeMode,
        range: ByteRange,
    ) -> Want {
        let desired = self.inode(ino).activity.desired(handle.0, range);
        Want::Range {
            mode,
            required: Pattern::plain(range),
            desired,
        }
    }

    /// Notes where a reader or writer is, before tokens are asked for: once for each request.
    pub(crate) fn note_activity(&mut self, env: &Env<'_>, operation: &Operation) {
        let (ino, handle, range) = match operation {
            Operation::Read {
                ino,
                handle,
                offset,
                length,
                fills_page_cache,
            } => {
                let mut file = self.handles.get_mut(handle);
                let is_direct = file.as_ref().is_some_and(|f| f.is_direct_reader());
                let noted = file
                    .as_mut()
                    .and_then(|f| f.note_read(env.readers, *length, *fills_page_cache));
                let range = ByteRange::at(*offset, u64::from(*length));
                if let Some(file) = file {
                    file.reading.note(env.now, range);
                }
                if is_direct && !fills_page_cache {
                    self.inode(*ino).direct_bytes += u64::from(*length);
                }
                if let Some(habit) = noted {
                    self.inode(*ino).habit.update(habit);
                }
                (*ino, *handle, range)
            }
            Operation::Write {
                ino,
                handle,
                offset,
                payload,
                append,
                ..
            } => {
                let inode = self.inode(*ino);
                inode.direct_bytes = 0;
                let begin = if *append { inode.size } else { *offset };
                (*ino, *handle, ByteRange::at(begin, payload.length.into()))
            }
            _ => return,
        };
        env.pace.note_use(env.now);
        self.inode(ino).activity.note(env.now, handle.0, range);
    }

    /// A read whose tokens are held: from the pages, or from the disks first.
    pub(crate) fn serve_read(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Read {
            ino,
            handle,
            offset,
            length,
            fills_page_cache,
        } = request.operation
        else {
            unreachable!("only reads come here");
        };
        let ticket = request.ticket;
        let inode = self.inode(ino);
        let end = inode.read_end(offset, length, fills_page_cache);
        if offset >= end {
            self.reply(ticket, Response::Data(Vec::new()));
            return self.served(env, ino, ticket);
        }
        let range = ByteRange::new(offset, end);
        match inode.pages.read(&range, env.pool) {
            Found::All(spans) => {
                if fills_page_cache && !inode.unshown.is_empty() {
                    inode.unshown.remove(round_out(&range));
                }
                self.reply(ticket, Response::Data(spans));
                if let Some(file) = self.handles.get_mut(&handle) {
                    file.reading.answered(env.now);
                }
                self.prefetch(env, ino, handle);
                self.served(env, ino, ticket);
            }
            Found::Missing(missing) => {
                let missing = missing.ranges().to_vec();
                self.park_serving(env, ino, request, Waiting::Load);
                for range in missing {
                    self.load(env, ino, range, true);
                }
                self.prefetch(env, ino, handle);
            }
        }
    }

    /// Loads the pages of `range` (page aligned) that are neither cached nor on their way.
    pub(crate) fn load(&mut self, env: &Env<'_>, ino: InodeId, range: ByteRange, is_wanted: bool) {
        self.learn_map(ino, &range);
        // What is known is loaded meanwhile; a large range is learnt in parts.
        let inode = self.inodes.get_mut(&ino).expect("its request is here");
        let mut wanted = inode.map.known.intersection(&range);
        for load in inode.loads.iter_mut().filter(|l| !l.is_stale) {
            let bytes = load.range();
            if wanted.overlaps(&bytes) {
                load.is_wanted |= is_wanted;
                wanted.remove(bytes);
            }
        }
        // Block by block: the first one is of use before the last one is here, and each block is verified
        // by the loop that got it.
        for part in wanted.ranges() {
            let mut begin = part.begin;
            while begin < part.end {
                let end = part.end.min((begin / BLOCK_SIZE + 1) * BLOCK_SIZE);
                self.load_part(env, ino, ByteRange::new(begin, end), is_wanted);
                begin = end;
            }
        }
    }

    /// Asks where the bytes of `range` lie of which that is not known, if nothing is being asked yet.
    pub(crate) fn learn_map(&mut self, ino: InodeId, range: &ByteRange) {
        let inode = self.inode(ino);
        let unknown = inode.map.known.missing(range);
        if let Some(first) = unknown.ranges().first().copied()
            && !inode.is_map_asked
        {
            inode.is_map_asked = true;
            inode.changed_since = RangeSet::new();
            let wide = self.map_range(ino, first);
            let inode = self.inode(ino);
            inode.is_partial_map_asked = !inode.covers(RangeMode::Read, &wide);
            let op = Op::GetMap {
                ino,
                begin: wide.begin,
                end: wide.end,
                count_max: MAP_COUNT_MAX,
            };
            let then = Continuation::Map(ino, wide, first);
            self.call(ino.shard(), Ask::Op { op, durable: false }, then);
        }
    }

    /// How much of the map to ask for around `range`: ahead, as far as read tokens are held.
    fn map_range(&self, ino: InodeId, range: ByteRange) -> ByteRange {
        let inode = &self.inodes[&ino];
        let ahead = ByteRange::new(
            range.begin,
            range.begin.saturating_add(MAP_SIZE).max(range.end),
        );
        if inode.covers(RangeMode::Read, &ahead) {
            ahead
        } else {
            range
        }
    }

    fn load_part(&mut self, env: &Env<'_>, ino: InodeId, part: ByteRange, is_wanted: bool) {
        let pages = frames_for(part, env.pool);
        if pages.is_empty() {
            if is_wanted {
                self.starve(ino);
            }
            return;
        }
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let got = ByteRange::new(part.begin, (pages[pages.len() - 1].0 + 1) * PAGE_SIZE);
        let extents = inode.map.extents_in(&got);
        let overlaps = |p: &&types::Piece| ByteRange::new(p.offset, p.end()).overlaps(&got);
        let pieces: Vec<_> = inode.map.pieces.iter().filter(overlaps).cloned().collect();
        let first = pages[0].0;
        let frame_of =
            |sector: u64| pages[usize::try_from(sector - first).expect("within the load")].1;
        let mut covered = vec![false; pages.len()];
        let mut loads = Vec::with_capacity(extents.len());
        for extent in extents {
            let sectors = extent.file_sector..extent.file_sector_end();
            for sector in sectors.clone() {
                covered[usize::try_from(sector - first).expect("within the load")] = true;
            }
            loads.push(LoadPiece {
                frames: sectors.map(frame_of).collect(),
                extent,
            });
        }
        for (index, (_, frame)) in pages.iter().enumerate() {
            if !covered[index] {
                env.pool.zero(Span::whole(*frame));
            }
        }
        self.note_loaded(env, ino, &got, &loads);
        let io = IoId(self.draw_id());
        self.ios.insert(io, ino);
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let is_partial = !inode.covers(RangeMode::Read, &got);
        inode.loads.push(Load {
            io,
            begun: (!loads.is_empty()).then_some(env.now),
            pages,
            pieces,
            is_partial,
            is_stale: false,
            is_wanted,
        });
        if loads.is_empty() {
            self.out.push(Effect::ForSlice(
                ino,
                crate::slice::Input::Loaded(io, Ok(())),
            ));
        } else {
            self.out.push(Effect::Load(io, loads));
        }
    }

    /// The owner told where bytes lie.
    pub(crate) fn on_map(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: ByteRange,
        narrow: ByteRange,
        answer: Answer,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        inode.is_map_asked = false;
        match answer.body {
            Body::Op(meta::Reply::Map {
                extents,
                pieces,
                end,
                ..
            }) => {
                let complete = ByteRange::new(range.begin, end.min(range.end).max(range.begin));
                // Only what tokens still cover may be kept; of the pages that were wanted any part does,
                // for nobody else can change that part.
                if !complete.is_empty() && inode.covers(RangeMode::Read, &complete) {
                    inode.map.learn(complete, extents, pieces);
                } else if let Some(part) = complete.intersection(&narrow) {
                    inode.map.learn(part, extents, pieces);
                    inode.map.partial.insert(part);
                }
                // What was committed, cut or lost meanwhile lies elsewhere, if the owner looked before.
                for range in std::mem::take(&mut inode.changed_since).ranges() {
                    inode.map.forget(range);
                }
            }
            body => {
                let errno = match body {
                    Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => errno,
                    _ => Errno::EPROTO,
                };
                inode.unmapped.clear();
                self.note_unmapped(ino, &narrow, errno);
                self.on_load_failed(env, ino, &narrow);
            }
        }
        // First who waits.
        self.retry(env, ino);
        if self.inodes.contains_key(&ino) {
            self.prefetch_mapped(env, ino);
            self.fill_foreseen(env, ino);
        }
    }

    /// Sectors arrived.
    pub(crate) fn on_loaded(&mut self, env: &Env<'_>, io: IoId, result: Result<(), IoFailure>) {
        let Some(ino) = self.ios.remove(&io) else {
            return;
        };
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let Some(at) = inode.loads.iter().position(|l| l.io == io) else {
            return;
        };
        let load = inode.loads.swap_remove(at);
        let goes_on = self.on_rewrite_loaded(env, io, result.is_ok());
        let inode = self.inodes.get_mut(&ino).expect("just seen");
        if let (Some(begun), Ok(())) = (load.begun, &result) {
            self.load_time.note(env.now.since(begun));
        }
        let is_kept = result.is_ok() && !load.is_stale;
        let is_covered = inode.covers(RangeMode::Read, &load.range());
        for (number, frame) in &load.pages {
            if !is_kept {
                env.pool.release(*frame);
                continue;
            }
            for piece in &load.pieces {
                Pages::overlay(piece, *number, *frame, env.pool);
            }
            let covered = if is_covered {
                None
            } else {
                inode.covered_part(*number)
            };
            inode
                .pages
                .fill(*number, *frame, covered.as_ref(), env.pool);
        }
        match result {
            Ok(()) => {}
            Err(_) if load.is_stale => {}
            Err(failure) => {
                inode.foreseen = crate::fill::Foreseen::No;
                inode.note_failed(&load, env.now);
                self.note_unread(ino, &load, failure);
                self.on_load_failed(env, ino, &load.range());
            }
        }
        self.retry(env, ino);
        if goes_on {
            self.go_on_loading(env, ino);
        }
        self.fill_foreseen(env, ino);
        self.drop_if_gone(env, ino);
    }

    /// WRITE.
    pub(crate) fn write(&mut self, env: &Env<'_>, mut request: Request) {
        let Operation::Write {
            ino,
            handle,
            offset,
            payload,
            append,
            is_write_back,
            ..
        } = &mut request.operation
        else {
            unreachable!("only writes come here");
        };
        let (ino, handle, append, is_write_back, length) = (
            *ino,
            *handle,
            *append,
            *is_write_back,
            u64::from(payload.length),
        );
        let (eviction, cold) = (&mut self.eviction, &mut self.cold);
        let inode = self
            .inodes
            .entry(ino)
            .or_insert_with(|| eviction.revive(ino, cold.remove(&ino)));
        let is_append = append && !is_write_back;
        let mut has_inode = matches!(
            inode.inode_mode(),
            Some(InodeMode::SharedWrite | InodeMode::Exclusive)
        ) && inode.attr.is_some();
        if is_append {
            // The daemon places an append: under the exclusive size.
            has_inode &=
                inode.is_attr_current() && inode.inode_mode() == Some(InodeMode::Exclusive);
            if *offset != inode.size {
                // The kernel drops its pages where it thinks the append goes: we have it drop the others.
                let placed = ByteRange::at(inode.size, length);
                self.misplaced.insert(request.ticket, (ino, placed));
            }
            *offset = inode.size;
        }
        if length == 0 {
            self.reply(request.ticket, Response::Written(0));
            return;
        }
        if *offset >= limits::FILE_SIZE_MAX || limits::FILE_SIZE_MAX - *offset < length {
            return self.refuse(&request, Errno::EFBIG);
        }
        let range = ByteRange::at(*offset, length);
        let has_range = inode.covers(RangeMode::Write, &range);
        if !is_write_back && let Some(errno) = self.tell_error(ino, handle, Hears::Write) {
            return self.fail(request.ticket, errno);
        }
        let kind = if is_write_back {
            RequestKind::WriteBack
        } else {
            RequestKind::Write
        };
        match self.admit(env, ino, &request, kind, range, has_inode && has_range) {
            Admission::Served => {
                self.serve_write(env, request);
                if !has_inode && !self.is_lapsed && !self.is_leaving(ino, &range) {
                    // Write-back, let in because a notification may wait for it (rule R5). It changes times that other
                    // nodes may believe to know, so the token is asked for afterwards.
                    let mode = InodeMode::SharedWrite;
                    self.acquire(env, ino, vec![Want::Inode { mode }]);
                }
            }
            Admission::NeedsToken => {
                let mut wants = Vec::with_capacity(2);
                if !has_inode {
                    let mode = if is_append {
                        InodeMode::Exclusive
                    } else {
                        InodeMode::SharedWrite
                    };
                    wants.push(Want::Inode { mode });
                }
                if !has_range && (has_inode || !is_append) {
                    wants.push(self.range_want(ino, handle, RangeMode::Write, range));
                }
                self.acquire(env, ino, wants);
            }
            Admission::Refused => {}
        }
    }

    /// A write whose tokens are held: into the pages.
    pub(crate) fn serve_write(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Write {
            ino,
            handle,
            offset,
            payload,
            is_write_back,
            kill_set_id,
            sync,
            ..
        } = request.operation
        else {
            unreachable!("only writes come here");
        };
        let ticket = request.ticket;
        // A copy says nothing of it.
        let is_sync_file = || {
            self.handles
                .get(&handle)
                .is_some_and(|file| file.flags.sync)
        };
        let sync = sync || !is_write_back && is_sync_file();
        let inode = self.inodes.get_mut(&ino).expect("admitted");
        let mut range = ByteRange::at(offset, payload.length.into());
        if is_write_back {
            range = inode.content_of(range, &mut self.losses);
            if range.is_empty() {
                self.yield_reply(ticket, Response::Written(payload.length));
                return self.served(env, ino, ticket);
            }
        }
        let length = u32::try_from(range.length()).expect("within the payload");
        let source = payload.part(0, length);
        let stored = match is_write_back && inode.unshown.overlaps(&range) {
            true => self.store_shown(env, ino, range, source),
            false => self.store(env, ino, range, source, is_write_back),
        };
        match stored {
            Ok(()) => {}
            Err(NoRoom::Yet(why))
                if why != Waiting::Space || !self.is_often_short(env.now, ticket) =>
            {
                return self.park_again(env, ino, request, why);
            }
            Err(refused) => {
                let errno = self.errno_of(ticket, refused);
                self.served(env, ino, ticket);
                self.misplaced.remove(&ticket);
                return self.refuse(&request, errno);
            }
        }
        let inode = self.inodes.get_mut(&ino).expect("admitted");
        if let Some((_, placed)) = self.misplaced.get(&ticket) {
            inode.unshown.insert(*placed);
        }
        inode.map.forget(&ByteRange::new(range.begin, range.begin));
        if range.end > inode.size {
            inode.size = range.end;
            inode.is_size_dirty = true;
        }
        inode.note_modified(env.timestamp);
        if kill_set_id {
            inode.take_set_ids(request.caller.gid);
        }
        if self.has_async_writes && std::mem::take(&mut inode.is_shown_to_writers) {
            let notice = Notice::Attributes { ino };
            self.out.push(Effect::Notify(None, notice));
        }
        if sync {
            self.served(env, ino, ticket);
            return self.flush_for(env, ino, request);
        }
        self.served(env, ino, ticket);
        let response = Response::Written(payload.length);
        if self.misplaced.remove(&ticket).is_some() {
            self.drop_placed(env, ino, range, (ticket, response));
        } else if is_write_back {
            self.yield_reply(ticket, response);
        } else {
            self.reply(ticket, response);
        }
        self.write_behind(env, ino, range);
    }

    /// Puts bytes into pages, which have sectors then.
    pub(crate) fn store(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: ByteRange,
        source: Span,
        is_write_back: bool,
    ) -> Result<(), NoRoom> {
        let owner = env.owner(ino.shard());
        let inode = self.inodes.get_mut(&ino).expect("admitted");
        let sectors = inode.sectors_to_reserve(&range);
        let reserved = if is_write_back && self.is_lapsed {
            // The kernel drops the page now or never, and no owner can be asked. Stores through a mapping were never
            // promised sectors: they are asked for when the page is stored.
            match env.grants.reserve(owner, sectors) {
                true => SetAside::plain(sectors),
                false => {
                    self.out.push(Effect::WantSpace(owner));
                    SetAside::default()
                }
            }
        } else {
            self.reserve(env, ino, &range, sectors)?
        };
        let inode = self.inodes.get_mut(&ino).expect("admitted");
        if inode.pages.write(range.begin, source, env.pool).is_err() {
            env.grants.unreserve(owner, reserved);
            self.starve(ino);
            return Err(NoRoom::Yet(Waiting::Frames));
        }
        inode.note_reserved(&range, reserved, sectors);
        // What lies in metadata is not what these pages hold now: a release must not take them for committed.
        self.hasty_count -= inode.forget_hasty(&range);
        Ok(())
    }

    /// Parks a write of which nothing has been done: it runs again from its start, for an append may have
    /// to go elsewhere then.
    fn park_again(&mut self, env: &Env<'_>, ino: InodeId, request: Request, why: Waiting) {
        self.served(env, ino, request.ticket);
        self.park(env, ino, request, why);
    }

    /// close(2) of a descriptor: drops its caller's locks, then tells of write-backs that failed.
    pub(crate) fn close(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Flush { ino, handle, .. } = request.operation else {
            unreachable!("only close comes here");
        };
        if !self.close_locks(env, &request) {
            self.reply_closed(request.ticket, ino, handle);
        }
    }

    pub(crate) fn reply_closed(&mut self, ticket: Ticket, ino: InodeId, handle: Handle) {
        match self.tell_error(ino, handle, Hears::Close) {
            Some(errno) => self.fail(ticket, errno),
            None => self.reply(ticket, Response::Done),
        }
    }

    /// The last descriptor of an open file is gone.
    pub(crate) fn release(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Release { ino, handle } = request.operation else {
            unreachable!("only release comes here");
        };
        self.reply(request.ticket, Response::Done);
        self.release_locks(env, ino, handle);
        let Some(file) = self.handles.remove(&handle) else {
            return;
        };
        let inode = self.inode(ino);
        inode.activity.close(handle.0);
        inode.open_count -= 1;
        inode.writer_count -= u32::from(file.flags.write);
        inode.exec_count -= u32::from(file.flags.exec);
        if inode.open_count == 0 {
            inode.activity.is_open = false;
            self.tell_closed(env, ino);
            self.rest(ino);
        }
        self.drop_if_gone(env, ino);
    }
}

/// How the gate takes a change of size. For a truncate the kernel keeps write-back to itself (NOWRITE); for an open or create
/// that truncates it does so with WRITEBACK_CACHE or DAX only, which are not taken (`fuse_open`): these may wait.
pub(crate) const fn resize_kind(request: &Request) -> RequestKind {
    match request.operation {
        Operation::SetAttr { .. } => RequestKind::SetSize,
        _ => RequestKind::Write,
    }
}

const _: () = assert!(FRAME_SIZE as u64 == types::SECTOR_SIZE);
