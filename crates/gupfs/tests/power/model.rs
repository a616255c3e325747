//! What may be found of a file after a loss of power.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::block;

/// What was done with a file last, as many steps as a message shows.
const STEP_COUNT: usize = 60;

/// What was checked, over all cycles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Files that had to be there, and were.
    pub kept: u64,
    /// Blocks that an fsync had acknowledged.
    pub blocks: u64,
    /// Files, names or blocks whose newest state was not synced, and is gone.
    pub lost: u64,
    /// Those that are there all the same.
    pub gained: u64,
    /// Blocks stored through a mapping that are there in part.
    pub torn: u64,
}

/// The time of day, as logs have it.
pub fn time() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock that is set");
    let (seconds, micros) = (now.as_secs() % 86_400, now.subsec_micros());
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// What a block may hold.
#[derive(Clone, Debug)]
struct Block {
    /// Passes (0: zeros, or behind the end); the newest is the last.
    passes: Vec<u32>,
    /// Some of them were stored through a mapping since the last sync: whoever writes the page back takes what is there at that
    /// moment, so that each byte may be of another one.
    may_be_torn: bool,
}

impl Block {
    const fn of(pass: Vec<u32>) -> Self {
        Self {
            passes: pass,
            may_be_torn: false,
        }
    }

    fn synced(&mut self) {
        self.passes.drain(..self.passes.len() - 1);
        self.may_be_torn = false;
    }

    /// Block `index` of file `id` may hold these bytes, whole or in part.
    fn check(&self, bytes: &[u8], id: u64, index: u64) -> Result<Found, String> {
        match block::read(bytes, id, index) {
            Ok(pass) if self.passes.contains(&pass) => Ok(Found::Whole(pass)),
            Ok(pass) => Err(format!("holds pass {pass}, may hold {:?}", self.passes)),
            Err(_) if self.may_be_torn && block::is_mix(bytes, id, index, &self.passes) => {
                Ok(Found::Torn)
            }
            Err(what) => Err(what),
        }
    }
}

/// A file that is read past the kernel's cache.
struct Direct(File);

impl Direct {
    fn open(path: &Path) -> Result<Self, std::io::Error> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        options.open(path).map(Self)
    }

    /// Reads a block.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), std::io::Error> {
        let mut aligned = vec![0; 2 * block::SIZE];
        let skip = aligned.as_ptr().align_offset(block::SIZE);
        let place = &mut aligned[skip..skip + block::SIZE];
        self.0.read_exact_at(place, at)?;
        bytes.copy_from_slice(place);
        Ok(())
    }
}

/// What a block was found to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Whole(u32),
    Torn,
}

/// A file of blocks.
#[derive(Clone, Debug)]
pub struct Model {
    pub id: u64,
    blocks: Vec<Block>,
    /// Sizes that it may have, in blocks.
    sizes: Vec<u64>,
    pass: u32,
    /// What was done with it, for the message of a fault.
    steps: VecDeque<String>,
}

impl Model {
    /// A new, empty file.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            blocks: Vec::new(),
            sizes: vec![0],
            pass: 0,
            steps: VecDeque::new(),
        }
    }

    /// Notes a step that has just been done, or is about to be, with the time that logs have.
    pub fn note(&mut self, step: &str) {
        if self.steps.len() == STEP_COUNT {
            self.steps.pop_front();
        }
        let (pass, size) = (self.pass, self.size());
        self.steps
            .push_back(format!("{} {step} (pass {pass}, size {size})", time()));
    }

    /// What was noted.
    pub fn steps(&self) -> String {
        self.steps
            .iter()
            .map(|step| format!("  {step}\n"))
            .collect()
    }

    /// Size now.
    pub fn size(&self) -> u64 {
        *self.sizes.last().expect("there is always one")
    }

    fn may_be(&mut self, index: u64, pass: u32) {
        let index = usize::try_from(index).expect("small");
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block::of(vec![0]));
        }
        self.blocks[index].passes.push(pass);
    }

    /// Blocks about to be written: their bytes.
    pub fn write(&mut self, first: u64, count: u64) -> Vec<u8> {
        self.pass += 1;
        for index in first..first + count {
            self.may_be(index, self.pass);
        }
        self.sizes.push(self.size().max(first + count));
        self.note(&format!("writes or stores {first} + {count}"));
        (first..first + count)
            .flat_map(|index| block::make(self.id, index, self.pass))
            .collect()
    }

    /// Blocks below the end about to be stored through a mapping: their bytes.
    pub fn store(&mut self, first: u64, count: u64) -> Vec<u8> {
        assert!(first + count <= self.size(), "SIGBUS");
        let bytes = self.write(first, count);
        for block in self.range(first, count) {
            block.may_be_torn = true;
        }
        bytes
    }

    fn range(&mut self, first: u64, count: u64) -> &mut [Block] {
        let at = |index: u64| usize::try_from(index).expect("small");
        &mut self.blocks[at(first)..at(first + count)]
    }

    /// These blocks, and that they are below the end, were acknowledged.
    pub fn part_synced(&mut self, first: u64, count: u64) {
        self.range(first, count).iter_mut().for_each(Block::synced);
        self.sizes.retain(|size| *size >= first + count);
        self.note(&format!("{first} + {count} are synced"));
    }

    /// About to be cut, or made longer.
    pub fn cut(&mut self, size: u64) {
        for index in size..self.blocks.len() as u64 {
            self.may_be(index, 0);
        }
        self.sizes.push(size);
        self.note(&format!("is cut at {size}"));
    }

    /// About to get a hole.
    pub fn punch(&mut self, first: u64, count: u64) {
        for index in first..(first + count).min(self.blocks.len() as u64) {
            self.may_be(index, 0);
        }
        self.note(&format!("gets a hole {first} + {count}"));
    }

    /// All of it was acknowledged.
    pub fn synced(&mut self) {
        self.blocks.iter_mut().for_each(Block::synced);
        self.sizes.drain(..self.sizes.len() - 1);
        self.note("is synced");
    }

    /// What is at `path` is a state that it may have; from now on it has that one.
    pub fn check(&mut self, path: &Path, counts: &mut Counts) -> Result<(), String> {
        let id = self.id;
        let steps = self.steps();
        let fault = |what: String| {
            format!(
                "{}, file {id}: {what}; its last steps:\n{steps}",
                path.display()
            )
        };
        let file = File::open(path).map_err(|e| fault(e.to_string()))?;
        let direct = Direct::open(path).map_err(|e| fault(e.to_string()))?;
        let mut past_kernel = vec![0; block::SIZE];
        let length = file.metadata().map_err(|e| fault(e.to_string()))?.len();
        let size = length / block::SIZE as u64;
        let (least, most) = (
            self.sizes.iter().min().unwrap_or(&0),
            self.sizes.iter().max().unwrap_or(&0),
        );
        if length % block::SIZE as u64 != 0 || !(*least..=*most).contains(&size) {
            return Err(fault(format!(
                "{length} bytes, its size in blocks may be {:?}",
                self.sizes
            )));
        }
        let mut found = Vec::new();
        let mut torn = Vec::new();
        for (index, block) in (0..).zip(&self.blocks) {
            let mut bytes = vec![0; block::SIZE];
            if index < size {
                let read = file.read_exact_at(&mut bytes, index * block::SIZE as u64);
                read.map_err(|e| fault(format!("block {index}: {e}")))?;
                direct
                    .read(index * block::SIZE as u64, &mut past_kernel)
                    .map_err(|e| fault(format!("block {index}, O_DIRECT: {e}")))?;
                // Else a write-back was refused or never came: what is read now is not what will be.
                if bytes != past_kernel {
                    let held = [&bytes, &past_kernel].map(|bytes| block::read(bytes, id, index));
                    let [kernel, daemon] = held;
                    return Err(fault(format!(
                        "block {index}: the kernel has {kernel:?}, the daemon {daemon:?}"
                    )));
                }
            }
            let holds = block
                .check(&bytes, self.id, index)
                .map_err(|what| fault(format!("block {index}: {what}")))?;
            let Found::Whole(pass) = holds else {
                counts.torn += 1;
                torn.push(index);
                found.push(Block::of(vec![0]));
                continue;
            };
            let passes = &block.passes;
            counts.blocks += u64::from(passes.len() == 1);
            if passes.len() > 1 {
                let is_newest = passes.last() == Some(&pass);
                counts.gained += u64::from(is_newest);
                counts.lost += u64::from(!is_newest);
            }
            found.push(Block::of(vec![pass]));
        }
        // What is read after a loss is there for good.
        self.blocks = found;
        self.sizes = vec![size];
        self.note("was checked");
        self.mend(path, &torn).map_err(|e| fault(e.to_string()))
    }

    /// Writes blocks anew that are there in part, as a program that recovers does it.
    fn mend(&mut self, path: &Path, torn: &[u64]) -> Result<(), std::io::Error> {
        if torn.is_empty() {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(path)?;
        for index in torn {
            let bytes = self.write(*index, 1);
            file.write_all_at(&bytes, index * block::SIZE as u64)?;
        }
        file.sync_all()?;
        self.synced();
        Ok(())
    }
}

#[test]
fn a_block_may_be_torn_only_where_it_was_stored_through_a_mapping_and_not_synced() {
    let mut model = Model::new(1);
    model.write(0, 1);
    model.synced();
    let old = block::make(1, 0, 1);
    let check = |model: &Model, bytes: &[u8]| model.blocks[0].check(bytes, 1, 0);
    let mut torn = model.store(0, 1);
    let edge = block::SIZE / 2 + 21;
    torn[edge..].copy_from_slice(&old[edge..]);
    assert_eq!(check(&model, &torn), Ok(Found::Torn));
    assert_eq!(check(&model, &old), Ok(Found::Whole(1)));
    let mut foreign = torn.clone();
    foreign[..64].copy_from_slice(&block::make(1, 0, 3)[..64]);
    check(&model, &foreign).expect_err("pass 3 was never stored");
    model.part_synced(0, 1);
    check(&model, &torn).expect_err("it is synced");
    check(&model, &old).expect_err("it is synced");
    model.write(0, 1);
    torn[..64].copy_from_slice(&block::make(1, 0, 3)[..64]);
    torn[64..].copy_from_slice(&block::make(1, 0, 2)[64..]);
    check(&model, &torn).expect_err("a write is not torn");
}
