//! Where a node's readers and writers of a file are, what that says about what they need next, and what
//! they can do without.
//!
//! Each open file description is a stream; its requests form *runs* of adjacent bytes. Two equal distances
//! between the begins of three runs, with the first two equally long, make a stride. Three jumps that make
//! none make a random stream.

use types::{ByteRange, Duration, Instant, Pattern};

use crate::pattern::{Rounding, Shape};
use crate::set::PatternSet;

/// Streams that are remembered per inode; the one idle for longest makes room.
pub const STREAM_COUNT_MAX: usize = 8;
/// A stream without a request for so long has no claims.
pub const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Jumps without a stride after which a stream counts as random.
const WANDERING_MIN: u8 = 3;
/// What a random stream asks for is rounded to this.
const RANDOM_SIZE: u64 = 4096;

/// What the local users of a file have been doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The file is open on this node.
    pub is_open: bool,
    streams: Vec<Stream>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stream {
    id: u64,
    at: Instant,
    /// The last request.
    last: ByteRange,
    /// The bytes of the current run.
    run: ByteRange,
    /// From the first to the last byte touched since the stream was sequential.
    used: ByteRange,
    /// Distance to the current run from the one before, and that one's length.
    jump: Option<(u64, u64)>,
    /// Distance and length of the pieces, once they repeat.
    stride: Option<(u64, u64)>,
    wandering: u8,
    is_backward: bool,
}

impl Activity {
    /// Notes a request of a stream (an open file description). To be called before the token is asked for,
    /// so that what is asked for fits the request too.
    pub fn note(&mut self, now: Instant, id: u64, range: ByteRange) {
        if let Some(stream) = self.streams.iter_mut().find(|s| s.id == id) {
            stream.note(now, range);
            return;
        }
        if self.streams.len() == STREAM_COUNT_MAX {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, s)| s.at);
            let (index, _) = oldest.expect("there are STREAM_COUNT_MAX streams");
            self.streams.remove(index);
        }
        self.streams.push(Stream {
            id,
            at: now,
            last: range,
            run: range,
            used: range,
            jump: None,
            stride: None,
            wandering: 0,
            is_backward: false,
        });
    }

    /// Forgets a stream (its descriptor is closed).
    pub fn close(&mut self, id: u64) {
        self.streams.retain(|s| s.id != id);
    }

    /// What to desire with `required`, a request that was noted: what the stream will need from here on.
    pub fn desired(&self, id: u64, required: ByteRange) -> Pattern {
        let from_here = Pattern::plain(ByteRange::new(required.begin, u64::MAX));
        let Some(stream) = self.streams.iter().find(|s| s.id == id) else {
            return from_here;
        };
        if let Some((stride, length)) = stream.stride {
            let begin = stream.run.begin;
            if begin <= required.begin && required.end - begin <= length {
                return Pattern {
                    offset: begin,
                    length,
                    stride,
                    count: u64::MAX,
                };
            }
        } else if stream.is_random() {
            return Pattern::plain(rounded(required));
        } else if stream.is_backward {
            return Pattern::plain(ByteRange::new(0, required.end));
        }
        from_here
    }

    /// The part of `held` that the local streams can do without when another node requires `required` and
    /// desires `desired`: returned is what is *kept*. None of `required` is.
    ///
    /// - closed, or open without a request of late: nothing is kept;
    /// - a sequential stream keeps what it has used and what lies on its other side;
    /// - a striding stream keeps its stride, before and behind;
    /// - a random stream keeps all but what is desired.
    pub fn kept(
        &self,
        now: Instant,
        held: &PatternSet,
        required: &Shape,
        desired: &Shape,
    ) -> PatternSet {
        let is_active = |s: &&Stream| self.is_open && now < s.at + IDLE_AFTER;
        let mut active = self.streams.iter().filter(is_active).peekable();
        if active.peek().is_none() {
            return PatternSet::new();
        }
        let mut given = ByteRange::ALL;
        let mut own = Vec::new();
        for stream in active {
            match stream.stride() {
                Some(stride) => own.push(stride),
                None => {
                    let side = stream.side_of(required.hull(), desired.hull());
                    // Every side holds the required bytes, so there is an intersection.
                    given = given.intersection(&side).unwrap_or(required.hull());
                }
            }
        }
        let mut kept = held.clone();
        kept.remove(&Shape::Plain(given), Rounding::Down);
        if matches!(desired, Shape::Strided(_)) {
            kept.remove(desired, Rounding::Down);
        }
        for stride in own {
            kept.add_set(&held.intersection(&stride));
        }
        kept.remove(required, Rounding::Down);
        kept
    }
}

impl Stream {
    fn note(&mut self, now: Instant, range: ByteRange) {
        self.at = now;
        self.last = range;
        if range.begin == self.run.end && !range.is_empty() {
            self.run.end = range.end;
            self.is_backward = false;
            if self
                .stride
                .is_some_and(|(_, length)| self.run.length() > length)
            {
                self.stride = None;
            }
        } else if range.end == self.run.begin {
            self.run.begin = range.begin;
            self.is_backward = true;
            self.stride = None;
        } else if !self.run.contains(&range) {
            self.jump(range);
        }
        self.used.begin = self.used.begin.min(range.begin);
        self.used.end = self.used.end.max(range.end);
    }

    fn jump(&mut self, range: ByteRange) {
        let length = self.run.length();
        let jump = range.begin.checked_sub(self.run.begin).map(|d| (d, length));
        let jump = jump.filter(|(distance, length)| distance > length);
        let is_known = |(distance, length): (u64, u64)| {
            let skips =
                |(stride, piece): (u64, u64)| length == piece && distance.is_multiple_of(stride);
            self.stride.is_some_and(skips)
        };
        if jump.is_some_and(is_known) {
            // Records were left out; the stride is the same.
        } else if jump.is_some() && jump == self.jump {
            self.stride = jump;
        } else {
            self.stride = None;
        }
        self.wandering = match self.stride {
            Some(_) => 0,
            None => self.wandering.saturating_add(1),
        };
        self.jump = jump;
        self.run = range;
        self.is_backward = false;
    }

    fn is_random(&self) -> bool {
        self.wandering >= WANDERING_MIN
    }

    /// The stride as a pattern over the whole file, before the current piece too.
    fn stride(&self) -> Option<Shape> {
        let (stride, length) = self.stride?;
        Shape::of(&Pattern {
            offset: self.run.begin % stride,
            length,
            stride,
            count: u64::MAX,
        })
    }

    /// What a stream without a stride gives up: a range with all of `required`.
    fn side_of(&self, required: ByteRange, desired: ByteRange) -> ByteRange {
        if self.is_random() {
            return desired;
        }
        let (used, last) = (self.used, self.last);
        if required.begin >= used.end {
            let begin = if self.is_backward {
                used.end
            } else {
                required.begin
            };
            ByteRange::new(begin, u64::MAX)
        } else if required.end <= used.begin {
            let end = if self.is_backward {
                required.end
            } else {
                used.begin
            };
            ByteRange::new(0, end)
        } else if required.begin >= last.end {
            ByteRange::new(last.end, u64::MAX)
        } else if required.end <= last.begin {
            ByteRange::new(0, last.begin)
        } else {
            required
        }
    }
}

/// Rounded outward to whole sectors.
fn rounded(range: ByteRange) -> ByteRange {
    let begin = range.begin / RANDOM_SIZE * RANDOM_SIZE;
    let end = range.end.checked_next_multiple_of(RANDOM_SIZE);
    ByteRange::new(begin, end.unwrap_or(u64::MAX))
}

/// For logs and transcripts.
impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for stream in &self.streams {
            write!(f, "[{}..{}", stream.run.begin, stream.run.end)?;
            if let Some((stride, length)) = stream.stride {
                write!(f, " {length} of {stride}")?;
            }
            write!(f, "]")?;
        }
        Ok(())
    }
}
