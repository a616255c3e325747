//! A regular file at a node: which request needs what, and what the gate's effects mean for the page store.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use client::request::Ticket;
use client::revoke::{
    AttributesGo, Effect, FlushOutcome, Gate, GateRequest, NotifyId, RequestKind, RevokeId, Scope,
    Verdict,
};
use token::{Activity, Adopted, Finish, Holder, Message as TokenMessage, Plan};
use types::{ByteRange, InodeMode, Pattern, RangeMode, RangeSet, Want};

use super::{Asked, Output, Purpose, Setting, Shared};
use crate::model::{
    Answer, Ask, Attributes, CELL_COUNT, FuseRequest, PAGE_CELLS, PAGE_COUNT, TIMEOUT_TICKS, Value,
    bytes, cells, page_cells,
};
use crate::owner::{Call, Reply, file_ino};

/// Ranges of a plan are taken apart into so many at most.
const PIECE_COUNT_MAX: usize = 64;

/// What waits for the owner to be free for this file.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Job {
    /// A revoke's flush.
    Flush(RevokeId, RangeSet),
    /// A truncate of a request.
    Truncate(u64, usize),
}

/// A file of a daemon.
#[derive(Debug)]
pub struct File {
    index: usize,
    has_mappings: bool,
    /// Its tokens.
    pub holder: Holder,
    /// Unanswered token requests.
    pub asked: Asked,
    gate: Gate,
    activity: Activity,
    /// Contents known under the range tokens.
    cells: [Option<Value>; CELL_COUNT],
    is_dirty: [bool; CELL_COUNT],
    /// Size and mtime known under the inode token.
    attributes: Option<(usize, u64)>,
    /// End of what was written here and not committed.
    grown: usize,
    /// The least that a fetched size can be: what a Commit answered, which may overtake a fetch.
    floor: usize,
    /// How often the inode token has been lost: a Commit's answer says nothing of the size any more if it was since.
    losses: u64,
    change_count: u64,
    requests: BTreeMap<u64, FuseRequest>,
    leaving: BTreeMap<RevokeId, Plan>,
    /// Appends that are answered when the kernel has dropped their pages: request and cells.
    dropping: BTreeMap<RevokeId, (u64, Range<usize>)>,
    /// Cells of them that the kernel has not READ since: what it writes back there is older.
    is_unshown: [bool; CELL_COUNT],
    next_revoke: u64,
    jobs: VecDeque<Job>,
    /// The job under way; a commit in the background is `Some(None)`.
    busy: Option<Option<Job>>,
}

impl File {
    /// Knows and holds nothing.
    pub fn new(index: usize, setting: &Setting) -> Self {
        let mut activity = Activity::default();
        activity.is_open = true;
        Self {
            index,
            has_mappings: setting.has_mappings,
            holder: Holder::new(),
            asked: Asked::default(),
            gate: Gate::new(setting.rules, setting.has_mappings),
            activity,
            cells: [None; CELL_COUNT],
            is_dirty: [false; CELL_COUNT],
            attributes: None,
            grown: 0,
            floor: 0,
            losses: 0,
            change_count: 0,
            requests: BTreeMap::new(),
            leaving: BTreeMap::new(),
            dropping: BTreeMap::new(),
            is_unshown: [false; CELL_COUNT],
            next_revoke: 0,
            jobs: VecDeque::new(),
            busy: None,
        }
    }

    /// Which file.
    pub const fn index(&self) -> usize {
        self.index
    }

    /// End of what was written here and is not committed.
    pub const fn grown(&self) -> usize {
        self.grown
    }

    /// Decides on a request, new or to be tried again.
    pub(super) fn present(&mut self, shared: &mut Shared, request: FuseRequest) {
        let id = request.id;
        let (kind, range) = self.classify(&request.ask);
        let wants = self.wants(shared, &request);
        let has_token = wants.iter().all(|want| self.holder.held().covers(want));
        self.requests.insert(id, request);
        let gated = GateRequest {
            ticket: Ticket(id),
            kind,
            range,
            has_token,
        };
        let mut out = Vec::new();
        match self.gate.on_request(gated, &mut out) {
            Verdict::Serve => self.serve(shared, id),
            Verdict::Park if !has_token => {
                self.asked
                    .ask(shared, id, file_ino(self.index), &self.holder, wants);
            }
            Verdict::Park => {}
            Verdict::Fail(why) => {
                self.fail(shared, id, why == client::revoke::Failure::Interrupted)
            }
        }
        self.perform(shared, out);
    }

    fn classify(&self, ask: &Ask) -> (RequestKind, ByteRange) {
        match ask {
            Ask::Read(pages) => (RequestKind::Read, bytes(&page_cells(pages))),
            Ask::DirectRead(cells) => (RequestKind::DirectRead, bytes(cells)),
            Ask::Write { append: true, .. } => {
                let at = self.append_at();
                (
                    RequestKind::Write,
                    ByteRange::new(bytes(&(at..at)).begin, u64::MAX),
                )
            }
            Ask::Write { cells, .. } => (RequestKind::Write, bytes(cells)),
            Ask::WriteBack { page, .. } => (
                RequestKind::WriteBack,
                bytes(&page_cells(&(*page..*page + 1))),
            ),
            Ask::SetSize(size) => (
                RequestKind::SetSize,
                ByteRange::new(bytes(&(*size..*size)).begin, u64::MAX),
            ),
            Ask::GetAttr => (RequestKind::Attributes, ByteRange::default()),
            Ask::Lookup(_)
            | Ask::Bind(..)
            | Ask::Fsync
            | Ask::Create(_)
            | Ask::Remove(_)
            | Ask::Move(..) => unreachable!("not in this world"),
        }
    }

    fn append_at(&self) -> usize {
        self.attributes.map_or(0, |(size, _)| size)
    }

    fn wants(&mut self, shared: &Shared, request: &FuseRequest) -> Vec<Want> {
        let (kind, range) = self.classify(&request.ask);
        let mode = match &request.ask {
            Ask::Write { append: true, .. } | Ask::SetSize(_) => Some(InodeMode::Exclusive),
            Ask::Write { .. } | Ask::WriteBack { .. } => Some(InodeMode::SharedWrite),
            Ask::GetAttr => Some(InodeMode::Read),
            _ => None,
        };
        let mut wants: Vec<Want> = mode.map(|mode| Want::Inode { mode }).into_iter().collect();
        let mode = match kind {
            RequestKind::Read if shared.setting.has_mappings => RangeMode::Write,
            RequestKind::Read | RequestKind::DirectRead => RangeMode::Read,
            RequestKind::Write | RequestKind::WriteBack | RequestKind::SetSize => RangeMode::Write,
            RequestKind::Attributes | RequestKind::Other => return wants,
        };
        if range.end < u64::MAX {
            self.activity.note(
                shared.instant(),
                u64::from(kind == RequestKind::Write),
                range,
            );
        }
        let required = Pattern::plain(range);
        let stream = u64::from(kind == RequestKind::Write);
        let desired = if range.end == u64::MAX {
            required
        } else {
            self.activity.desired(stream, range)
        };
        wants.push(Want::Range {
            mode,
            required,
            desired,
        });
        wants
    }

    /// Serves a request that is in service as far as its data are here.
    fn serve(&mut self, shared: &mut Shared, id: u64) {
        let request = self.requests[&id].clone();
        match request.ask {
            Ask::Read(pages) => self.serve_read(shared, id, page_cells(&pages)),
            Ask::DirectRead(cells) => self.serve_read(shared, id, cells),
            Ask::Write {
                append: true,
                cells,
                value,
            } => {
                self.serve_append(shared, id, cells.len(), value);
            }
            Ask::Write { cells, value, .. } => {
                let start = cells.start;
                self.write(cells, value);
                self.answer(shared, id, Answer::Written(start));
            }
            Ask::WriteBack { page, data, count } => {
                for (offset, value) in data.into_iter().enumerate().take(count) {
                    let cell = page * PAGE_CELLS + offset;
                    if self.is_unshown[cell] {
                        continue;
                    }
                    if !self.may_write(cell) {
                        let text = format!("write-back of {}:{cell} without token", self.index);
                        shared.out.push(Output::Violation(text));
                        continue;
                    }
                    self.cells[cell] = Some(value);
                    self.is_dirty[cell] = true;
                }
                self.change_count += 1;
                self.answer(shared, id, Answer::Written(0));
            }
            Ask::SetSize(size) => {
                self.jobs.push_back(Job::Truncate(id, size));
                self.start_job(shared);
            }
            Ask::GetAttr => match self.attributes {
                None => shared.call(
                    Purpose::Request(self.index, id),
                    Call::FetchAttributes(self.index),
                ),
                Some(_) => {
                    let attributes = self.answer_attributes();
                    self.answer(shared, id, Answer::Attributes(attributes));
                }
            },
            Ask::Lookup(_)
            | Ask::Bind(..)
            | Ask::Fsync
            | Ask::Create(_)
            | Ask::Remove(_)
            | Ask::Move(..) => unreachable!("not in this world"),
        }
    }

    fn serve_read(&mut self, shared: &mut Shared, id: u64, cells: Range<usize>) {
        let known: Option<Vec<Value>> = self.cells[cells.clone()].iter().copied().collect();
        match known {
            Some(data) => {
                if matches!(self.requests[&id].ask, Ask::Read(_)) {
                    self.is_unshown[cells].fill(false);
                }
                self.answer(shared, id, Answer::Data(data));
            }
            None => shared.call(Purpose::Request(self.index, id), Call::Fetch(self.index)),
        }
    }

    fn serve_append(&mut self, shared: &mut Shared, id: u64, count: usize, value: Value) {
        let Some((at, _)) = self.attributes else {
            let call = Call::FetchAttributes(self.index);
            return shared.call(Purpose::Request(self.index, id), call);
        };
        if at + count > CELL_COUNT {
            return self.answer(shared, id, Answer::Interrupted);
        }
        if (at..at + count).all(|cell| self.may_write(cell)) {
            self.write(at..at + count, value);
            // Where the kernel thinks it goes, the kernel drops its pages itself.
            let is_placed =
                matches!(&self.requests[&id].ask, Ask::Write { cells, .. } if cells.start == at);
            let pages = self.pages(&RangeSet::of(bytes(&(at..at + count))));
            if is_placed || pages.is_empty() {
                return self.answer(shared, id, Answer::Written(at));
            }
            self.next_revoke += 1;
            let drop = RevokeId(self.next_revoke);
            self.dropping.insert(drop, (id, at..at + count));
            self.is_unshown[at..at + count].fill(true);
            let mut out = Vec::new();
            self.gate.begin_drop(drop, pages, &mut out);
            self.perform(shared, out);
        } else {
            // The end lies before what was asked for: once more, with the right range.
            let request = self.requests.remove(&id).expect("in service");
            self.served(shared, id);
            self.present(shared, request);
        }
    }

    fn may_write(&self, cell: usize) -> bool {
        self.holder
            .held()
            .covers_range(RangeMode::Write, &bytes(&(cell..cell + 1)))
    }

    fn write(&mut self, cells: Range<usize>, value: Value) {
        for cell in cells.clone() {
            self.cells[cell] = Some(value);
            self.is_dirty[cell] = true;
        }
        self.grown = self.grown.max(cells.end);
        if let Some((size, _)) = &mut self.attributes {
            *size = (*size).max(cells.end);
        }
        self.change_count += 1;
    }

    fn answer_attributes(&self) -> Attributes {
        let (size, mtime) = self.attributes.expect("only asked when known");
        let timeout = if self.gate.may_cache_attributes() {
            TIMEOUT_TICKS
        } else {
            0
        };
        Attributes {
            size: size.max(self.grown),
            mtime: mtime << 32 | self.change_count,
            timeout,
        }
    }

    fn answer(&mut self, shared: &mut Shared, id: u64, answer: Answer) {
        self.requests.remove(&id).expect("in service");
        shared.out.push(Output::Answer(id, answer));
        self.served(shared, id);
    }

    fn served(&mut self, shared: &mut Shared, id: u64) {
        let mut out = Vec::new();
        self.gate.on_served(Ticket(id), &mut out);
        self.perform(shared, out);
    }

    fn fail(&mut self, shared: &mut Shared, id: u64, is_interrupted: bool) {
        self.requests.remove(&id);
        let answer = if is_interrupted {
            Answer::Interrupted
        } else {
            Answer::Failed
        };
        shared.out.push(Output::Answer(id, answer));
    }

    /// The owner's contents have come for a request in service, whose token is still held.
    pub(super) fn on_fetched(&mut self, shared: &mut Shared, id: u64, reply: Reply) {
        match reply {
            Reply::Cells(contents) => {
                for (cell, value) in contents.into_iter().enumerate() {
                    let range = bytes(&(cell..cell + 1));
                    let is_held = self.holder.held().covers_range(RangeMode::Read, &range);
                    let needed = |r: &FuseRequest| match &r.ask {
                        Ask::Read(pages) => page_cells(pages).contains(&cell),
                        Ask::DirectRead(cells) => cells.contains(&cell),
                        _ => false,
                    };
                    // Only what the request in service protects: the rest may have left and come back meanwhile.
                    if is_held && self.cells[cell].is_none() && needed(&self.requests[&id]) {
                        self.cells[cell] = Some(value);
                    }
                }
            }
            Reply::Attributes(size, mtime) => {
                // What was asked for beside a truncate of ours may be of after it, and reads still show what was before: it
                // is asked for again.
                let is_cutting = matches!(self.busy, Some(Some(Job::Truncate(..))));
                if self.attributes.is_none() && !is_cutting {
                    self.attributes = Some((size.max(self.grown).max(self.floor), mtime));
                }
            }
            _ => unreachable!("replies answer their calls"),
        }
        self.serve(shared, id);
    }

    pub(super) fn on_token(&mut self, shared: &mut Shared, message: TokenMessage) {
        match message {
            TokenMessage::Granted(granted) => {
                let is_asked = self.asked.answer(granted.ticket);
                if let Adopted::Unasked(released) = self.holder.on_granted(&granted, is_asked) {
                    shared
                        .out
                        .push(Output::Token(TokenMessage::Released(released)));
                }
                let mut out = Vec::new();
                self.gate.on_token_granted(&mut out);
                self.perform(shared, out);
            }
            TokenMessage::Revoke(revoke) => {
                let now = shared.instant();
                if let Some(plan) = self.holder.on_revoke(now, &revoke, &self.activity) {
                    self.begin(shared, plan);
                }
            }
            _ => unreachable!("not said to a holder"),
        }
    }

    fn begin(&mut self, shared: &mut Shared, plan: Plan) {
        if plan.is_empty() {
            return self.finish(shared, &plan);
        }
        let lost = plan
            .invalidate
            .ranges_within(&ByteRange::ALL, PIECE_COUNT_MAX);
        let mut demoted = plan.flush.ranges_within(&ByteRange::ALL, PIECE_COUNT_MAX);
        for range in lost.ranges() {
            demoted.remove(*range);
        }
        let attributes = match plan.inode {
            None => AttributesGo::Stay,
            Some(change) => match change.to {
                Some(InodeMode::Read | InodeMode::Exclusive) => AttributesGo::Demoted,
                Some(InodeMode::SharedWrite) | None => AttributesGo::Lost,
            },
        };
        let scope = Scope {
            is_attr_unknown: false,
            lost_pages: self.pages(&lost),
            lost,
            demoted_pages: self.pages(&demoted),
            demoted,
            attributes,
        };
        self.next_revoke += 1;
        let revoke = RevokeId(self.next_revoke);
        self.leaving.insert(revoke, plan);
        let mut out = Vec::new();
        self.gate.begin_revoke(revoke, scope, &mut out);
        self.perform(shared, out);
    }

    /// Pages that share a byte with the ranges and were covered by the tokens that a READ into the page cache takes.
    fn pages(&self, ranges: &RangeSet) -> RangeSet {
        let mode = if self.has_mappings {
            RangeMode::Write
        } else {
            RangeMode::Read
        };
        let mut pages = RangeSet::new();
        for page in 0..PAGE_COUNT {
            let range = bytes(&page_cells(&(page..page + 1)));
            let is_covered = self.holder.held().covers_range(mode, &range);
            if is_covered && ranges.overlaps(&range) {
                pages.insert(range);
            }
        }
        pages
    }

    /// A plan is carried out: what it takes is forgotten and the token goes.
    fn finish(&mut self, shared: &mut Shared, plan: &Plan) {
        match self.holder.finish_release(plan.release, true) {
            Finish::Release(released) => {
                self.forget_uncovered(shared);
                shared
                    .out
                    .push(Output::Token(TokenMessage::Released(released)));
            }
            Finish::More(more) => self.begin(shared, more),
        }
    }

    fn forget_uncovered(&mut self, shared: &mut Shared) {
        for cell in 0..CELL_COUNT {
            let range = bytes(&(cell..cell + 1));
            let held = self.holder.held();
            if self.is_dirty[cell] && !held.covers_range(RangeMode::Write, &range) {
                let text = format!("{}:{cell} is dirty after its token went", self.index);
                shared.out.push(Output::Violation(text));
                self.is_dirty[cell] = false;
            }
            if !held.covers_range(RangeMode::Read, &range) {
                self.cells[cell] = None;
            }
        }
        if !self.holder.held().covers(&Want::Inode {
            mode: InodeMode::Read,
        }) {
            self.attributes = None;
        }
        if self.holder.held().inode.is_none() {
            self.floor = 0;
            self.losses += 1;
        }
    }

    pub(super) fn on_notified(&mut self, shared: &mut Shared, notify: NotifyId) {
        let mut out = Vec::new();
        self.gate.on_notified(notify, &mut out);
        self.perform(shared, out);
    }

    fn perform(&mut self, shared: &mut Shared, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Serve { ticket } => self.serve(shared, ticket.0),
                Effect::Retry { ticket } => {
                    let request = self.requests.remove(&ticket.0).expect("parked");
                    self.present(shared, request);
                }
                Effect::Fail { ticket, why } => {
                    self.fail(
                        shared,
                        ticket.0,
                        why == client::revoke::Failure::Interrupted,
                    );
                }
                Effect::Notify {
                    notify,
                    pages: None,
                } => {
                    shared
                        .out
                        .push(Output::NotifyAttributes(self.index, notify));
                }
                Effect::Notify {
                    notify,
                    pages: Some(range),
                } => {
                    let cells = cells(&range);
                    let pages = cells.start / PAGE_CELLS..cells.end.div_ceil(PAGE_CELLS);
                    shared
                        .out
                        .push(Output::NotifyPages(self.index, notify, pages));
                }
                Effect::Flush { revoke, ranges } => {
                    self.jobs.push_back(Job::Flush(revoke, ranges));
                    self.start_job(shared);
                }
                Effect::Release { revoke, .. } => match self.dropping.remove(&revoke) {
                    Some((id, cells)) => {
                        self.is_unshown[cells.clone()].fill(false);
                        self.answer(shared, id, Answer::Written(cells.start));
                    }
                    None => {
                        let plan = self.leaving.remove(&revoke).expect("begun");
                        self.finish(shared, &plan);
                    }
                },
                Effect::LapseDone => {}
                Effect::Abort => shared.out.push(Output::Violation("abort".into())),
            }
        }
    }

    fn start_job(&mut self, shared: &mut Shared) {
        while self.busy.is_none()
            && let Some(job) = self.jobs.pop_front()
        {
            match &job {
                Job::Flush(revoke, ranges) => {
                    let dirty = self.dirty(|cell| ranges.overlaps(&bytes(&(cell..cell + 1))));
                    if dirty.is_empty() && self.grown == 0 {
                        let mut out = Vec::new();
                        self.gate
                            .on_flushed(*revoke, FlushOutcome::Committed, &mut out);
                        self.perform(shared, out);
                        continue;
                    }
                    self.commit(shared, dirty);
                }
                Job::Truncate(id, size) => {
                    let purpose = Purpose::Truncate(self.index, *id, *size);
                    shared.call(purpose, Call::Truncate(self.index, *size));
                }
            }
            self.busy = Some(Some(job));
        }
    }

    fn dirty(&self, concerns: impl Fn(usize) -> bool) -> Vec<(usize, Value)> {
        let dirty = (0..CELL_COUNT).filter(|cell| self.is_dirty[*cell] && concerns(*cell));
        dirty
            .map(|cell| (cell, self.cells[cell].expect("dirty cells are known")))
            .collect()
    }

    fn commit(&mut self, shared: &mut Shared, dirty: Vec<(usize, Value)>) {
        let call = Call::Commit(self.index, dirty.clone(), self.grown);
        shared.call(Purpose::Commit(self.index, dirty, self.losses), call);
    }

    pub(super) fn write_behind(&mut self, shared: &mut Shared) {
        let dirty = self.dirty(|_| true);
        if self.busy.is_none() && !dirty.is_empty() {
            self.busy = Some(None);
            self.commit(shared, dirty);
        }
    }

    pub(super) fn on_committed(
        &mut self,
        shared: &mut Shared,
        (sent, losses): (&[(usize, Value)], u64),
        reply: &Reply,
    ) {
        if *reply == Reply::Stale {
            let text = format!("the owner refused a commit of {}: {sent:?}", self.index);
            shared.out.push(Output::Violation(text));
        }
        for (cell, value) in sent {
            if self.cells[*cell] == Some(*value) {
                self.is_dirty[*cell] = false;
            }
        }
        if let Reply::Attributes(size, _) = reply
            && losses == self.losses
        {
            self.floor = self.floor.max(*size);
            if self.grown <= *size {
                self.grown = 0;
            }
        }
        let job = self.busy.take().expect("one at a time");
        if let Some(Job::Flush(revoke, _)) = job {
            let mut out = Vec::new();
            self.gate
                .on_flushed(revoke, FlushOutcome::Committed, &mut out);
            self.perform(shared, out);
        }
        self.start_job(shared);
    }

    pub(super) fn on_truncated(
        &mut self,
        shared: &mut Shared,
        (id, size): (u64, usize),
        reply: &Reply,
    ) {
        self.busy = None;
        if let Reply::Attributes(new, mtime) = reply {
            for cell in size..CELL_COUNT {
                self.cells[cell] = Some(0);
                self.is_dirty[cell] = false;
            }
            self.grown = 0;
            self.floor = *new;
            self.change_count += 1;
            self.attributes = Some((*new, *mtime));
            // The kernel takes the attributes of a SETATTR whatever notification came between, so never for long.
            let attributes = Attributes {
                timeout: 0,
                ..self.answer_attributes()
            };
            self.answer(shared, id, Answer::Attributes(attributes));
        } else {
            let text = format!("the owner refused a truncate of {}", self.index);
            shared.out.push(Output::Violation(text));
            self.answer(shared, id, Answer::Failed);
        }
        self.start_job(shared);
    }

    /// All tokens are gone with the lease: fails what is in service, and forgets.
    pub(super) fn lapse(&mut self, shared: &mut Shared) -> Vec<usize> {
        let lost = (0..CELL_COUNT)
            .filter(|cell| self.is_dirty[*cell])
            .collect();
        self.holder = Holder::new();
        self.asked = Asked::default();
        self.cells = [None; CELL_COUNT];
        self.is_dirty = [false; CELL_COUNT];
        self.attributes = None;
        self.grown = 0;
        self.floor = 0;
        self.change_count += 1 << 16;
        self.leaving.clear();
        self.dropping.clear();
        self.is_unshown.fill(false);
        self.jobs.clear();
        self.busy = None;
        let mut out = Vec::new();
        let parked: Vec<u64> = self.gate.waiters().iter().map(|w| w.ticket.0).collect();
        let serving: Vec<u64> = self
            .requests
            .keys()
            .copied()
            .filter(|id| !parked.contains(id))
            .collect();
        self.gate.begin_lapse(&mut out);
        for id in serving {
            self.fail(shared, id, false);
            self.gate.on_abandoned(Ticket(id), &mut out);
        }
        self.perform(shared, out);
        lost
    }

    pub(super) fn check(&self) {
        self.holder.check();
        self.gate.check();
    }

    pub(super) fn describe(&self) -> String {
        let Self {
            index,
            gate,
            requests,
            jobs,
            busy,
            holder,
            ..
        } = self;
        let held = holder.held().kinds();
        format!(
            "file {index}: {gate:?}\n    requests {requests:?}\n    held {held:?}, jobs {jobs:?} {busy:?}"
        )
    }
}
