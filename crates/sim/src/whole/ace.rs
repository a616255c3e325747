//! Short workloads on one node, and a loss of power after every single event of its disks.
//!
//! 1. *A run*: a file system with a few files is mounted, the calls of a sequence are made, each followed by what makes it
//!    durable or by nothing, and time passes until all is written back. All that its disks are told is on a `tape`.
//! 2. *Cuts*: after each event of the tape power is lost; what may then be on the disks are some `tape::Image`s.
//! 3. *Recovery*: fsck looks at each image, bytes of files included, then the real code starts from it, and all there is is
//!    read through requests.
//! 4. *Judgement*: `judge` compares that with a naive model, `posix`. Of some images the recovery is cut, too.
//!
//! The same machine serves four further checks: `scarce` (room for one sector more each time), `refused` (each question for
//! room is refused), `promised` (no room but what was promised) and `rot` (sectors that change at rest). docs/testing.md says what is covered.

pub mod calls;
pub mod judge;
mod listed;
pub mod look;
pub mod machine;
pub mod ops;
pub mod posix;
mod promised;
mod refused;
mod rot;
mod runner;
mod scarce;
pub mod tape;

use std::collections::BTreeMap;
use std::rc::Rc;

use stdx::Prng;
use stdx::prng::splitmix64;

use calls::{Calls, Failed};
use judge::{Bounds, History};
use machine::{Machine, Shape};
use ops::Sequence;
use posix::Fs;
pub use promised::PROMISES;
pub use refused::{ROOMS, RefusalCounts};
pub use rot::RotCounts;
use runner::Runner;
pub use scarce::WORKLOAD;
use tape::{Event, Image, Player, Tape};

/// Of so many images that no other was equal to one has its recovery cut as well.
const RECOVERY_CUTS: u64 = 64;
/// What was seen of images that are kept.
const SEEN_MAX: usize = 200_000;

/// Ways to break what is run on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Canary {
    /// A rename first removes what it replaces.
    pub renames_in_two: bool,
    /// A bit of each write is lost before the node has it.
    pub rots_in_memory: bool,
    /// A call that finds no room says that it is done.
    pub hides_refusals: bool,
}

/// Switches a canary on by its name; false if there is none of that name.
pub fn set_canary(shape: &mut Shape, canary: &mut Canary, name: &str) -> bool {
    let switch = match name {
        "renames-in-two" => &mut canary.renames_in_two,
        "rots-in-memory" => &mut canary.rots_in_memory,
        "hides-refusals" => &mut canary.hides_refusals,
        "ignores-fua" => &mut shape.disks.is_fua_ignored,
        "ignores-flushes" => &mut shape.disks.is_flush_ignored,
        "ignores-page-flushes" => &mut shape.disks.is_page_flush_ignored,
        name => return shape.node.set(name),
    };
    *switch = true;
    true
}

/// What runs showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sequences.
    pub runs: u64,
    /// Events of disks after which power was lost.
    pub cuts: u64,
    /// Images that were judged.
    pub images: u64,
    /// Images that no other was equal to, so that a node was started from them.
    pub recoveries: u64,
    /// Of these, images of a recovery that was cut itself.
    pub second_recoveries: u64,
    /// Blocks rewritten in the runs.
    pub rewrites: u64,
}

/// What a start from an image showed, whatever was to be there.
type Seen = Rc<Result<Fs, String>>;

/// Runs sequences on file systems that begin alike.
#[derive(Debug)]
pub struct Bench {
    shape: Shape,
    /// How the runs are broken.
    pub canary: Canary,
    begin: Fs,
    image: Image,
    seen: BTreeMap<u64, Seen>,
    /// What was run.
    pub counts: Counts,
}

/// What the files and directories are that every run begins with.
const SET_UP: [&str; 7] = [
    "create a",
    "write a 0 8292",
    "setxattr a",
    "mkdir d",
    "create d/b",
    "write d/b 0 700",
    "mkdir e",
];

/// What was run: what happened to the disks, and what is known at each mark.
#[derive(Clone, Debug)]
struct Run {
    events: Vec<Event>,
    marks: Vec<Bounds>,
    history: History,
}

/// What a run draws from.
fn seed_of(sequence: &Sequence) -> u64 {
    let text = sequence.to_string();
    text.bytes()
        .fold(0, |hash, byte| splitmix64(hash ^ u64::from(byte)))
}

impl Bench {
    /// Makes the file system that every run begins with.
    ///
    /// # Errors
    /// That does not work.
    pub fn new(shape: Shape) -> Result<Self, String> {
        Self::with(shape, &SET_UP)
    }

    /// Every run begins with what these calls make of an empty file system.
    fn with(shape: Shape, set_up: &[&str]) -> Result<Self, String> {
        let begun = |disks| Machine::start(&shape, disks, 2, 1, &Tape::default());
        let mut calls = Calls::new(begun(Machine::format(&shape))?);
        let mut begin = Fs::default();
        for (text, tag) in set_up.iter().zip(100..) {
            let Sequence(parsed) = format!("{text} +none").parse()?;
            for step in parsed[0].0.steps(&begin, tag) {
                let failed = |failed| format!("set-up: {text}: {failed:?}");
                begin
                    .apply(&step)
                    .map_err(|errno| failed(Failed::Refused(errno)))?;
                calls.step(&step).map_err(failed)?;
            }
        }
        calls.machine.rest()?;
        for disk in calls.machine.disks.values_mut() {
            disk.flush();
        }
        Ok(Self {
            shape,
            canary: Canary::default(),
            begin,
            image: Image::of(&calls.machine.disks),
            seen: BTreeMap::new(),
            counts: Counts::default(),
        })
    }

    /// The state that every run begins with.
    pub const fn begin(&self) -> &Fs {
        &self.begin
    }

    /// Runs a sequence, loses power everywhere, and judges.
    ///
    /// # Errors
    /// What is wrong, with the place of the cut.
    pub fn run(&mut self, sequence: &Sequence) -> Result<(), String> {
        let seed = seed_of(sequence);
        let run = self.perform(sequence, seed)?;
        self.cut_everywhere(&run, seed)
    }

    fn cut_everywhere(&mut self, run: &Run, seed: u64) -> Result<(), String> {
        self.counts.runs += 1;
        let mut player = Player::new(&self.image);
        let mut bounds = Bounds::default();
        let mut is_cut = true;
        for (index, event) in run.events.iter().enumerate() {
            // What was answered until the next event of a disk is known of the state between.
            match event {
                Event::Mark(mark) => bounds = run.marks[*mark].clone(),
                _ if is_cut => {
                    self.cut(run, (&player, index), &bounds, seed)?;
                    is_cut = false;
                }
                _ => {}
            }
            is_cut |= player.play(event);
        }
        self.cut(run, (&player, run.events.len()), &bounds, seed)
    }

    /// Power is lost once, when everything is written.
    fn cut_at_end(&mut self, run: &Run, seed: u64) -> Result<(), String> {
        self.counts.runs += 1;
        let mut player = Player::new(&self.image);
        for event in &run.events {
            player.play(event);
        }
        let bounds = run.marks.last().cloned().unwrap_or_default();
        self.cut(run, (&player, run.events.len()), &bounds, seed)
    }

    fn cut(
        &mut self,
        run: &Run,
        (player, index): (&Player, usize),
        bounds: &Bounds,
        seed: u64,
    ) -> Result<(), String> {
        self.counts.cuts += 1;
        let mut prng = Prng::new(seed ^ index as u64);
        for (variant, image) in player.images(&mut prng).iter().enumerate() {
            self.counts.images += 1;
            let place = || format!("power lost before event {index}, variant {variant}");
            let hash = image.hash();
            let is_new = !self.seen.contains_key(&hash);
            let judged = self.judge(run, bounds, image, hash);
            judged.map_err(|text| format!("{}, {bounds:?}: {text}", place()))?;
            if is_new && splitmix64(hash).is_multiple_of(RECOVERY_CUTS) {
                let again = self.cut_recovery(run, bounds, image, &mut prng);
                again.map_err(|text| format!("{}, {bounds:?}, {text}", place()))?;
            }
        }
        Ok(())
    }

    /// Power is lost again while the node starts.
    fn cut_recovery(
        &mut self,
        run: &Run,
        bounds: &Bounds,
        image: &Image,
        prng: &mut Prng,
    ) -> Result<(), String> {
        let tape = Tape::default();
        let disks = image.disks(&self.shape.nsds(), self.shape.has_volatile_cache);
        Machine::start(&self.shape, disks, 50, image.hash(), &tape)?;
        let mut player = Player::new(image);
        for (index, event) in tape.take().iter().enumerate() {
            player.play(event);
            for image in player.images(prng) {
                self.counts.second_recoveries += 1;
                let judged = self.judge(run, bounds, &image, image.hash());
                judged.map_err(|text| format!("and again after event {index}: {text}"))?;
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        run: &Run,
        bounds: &Bounds,
        image: &Image,
        hash: u64,
    ) -> Result<(), String> {
        let seen = match self.seen.get(&hash) {
            Some(seen) => seen.clone(),
            None => {
                self.counts.recoveries += 1;
                let seen = Rc::new(look::look(&self.shape, image, hash));
                if self.seen.len() >= SEEN_MAX {
                    self.seen.clear();
                }
                self.seen.insert(hash, seen.clone());
                seen
            }
        };
        let found = seen.as_ref().as_ref().map_err(Clone::clone)?;
        run.history.judge(found, bounds)
    }

    /// Makes the calls; everything about the disks is written down.
    fn perform(&mut self, sequence: &Sequence, seed: u64) -> Result<Run, String> {
        let mut runner = self.runner(false)?;
        runner.make_calls(sequence, seed)?;
        runner.end()?;
        self.counts.rewrites += runner.calls.machine.node.rewrite_counts().blocks;
        Ok(runner.run())
    }

    /// A node that has just started, for calls.
    fn runner(&self, may_be_full: bool) -> Result<Runner, String> {
        let tape = Tape::default();
        let disks = self
            .image
            .disks(&self.shape.nsds(), self.shape.has_volatile_cache);
        let machine = Machine::start(&self.shape, disks, 3, 1, &tape)?;
        let mut calls = Calls::new(machine);
        calls.renames_in_two = self.canary.renames_in_two;
        calls.rots_in_memory = self.canary.rots_in_memory;
        calls.hides_refusals = self.canary.hides_refusals;
        Ok(Runner::new(calls, tape, self.begin.clone(), may_be_full))
    }
}
