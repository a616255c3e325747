//! What may be found of a file after a loss of power.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::block;

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
}

/// A file of blocks.
#[derive(Clone, Debug)]
pub struct Model {
    pub id: u64,
    /// Passes that each block may hold (0: zeros, or behind the end); the newest is the last.
    blocks: Vec<Vec<u32>>,
    /// Sizes that it may have, in blocks.
    sizes: Vec<u64>,
    pass: u32,
}

impl Model {
    /// A new, empty file.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            blocks: Vec::new(),
            sizes: vec![0],
            pass: 0,
        }
    }

    /// Size now.
    pub fn size(&self) -> u64 {
        *self.sizes.last().expect("there is always one")
    }

    fn may_be(&mut self, index: u64, pass: u32) {
        let index = usize::try_from(index).expect("small");
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, vec![0]);
        }
        self.blocks[index].push(pass);
    }

    /// Blocks about to be written: their bytes.
    pub fn write(&mut self, first: u64, count: u64) -> Vec<u8> {
        self.pass += 1;
        for index in first..first + count {
            self.may_be(index, self.pass);
        }
        self.sizes.push(self.size().max(first + count));
        (first..first + count)
            .flat_map(|index| block::make(self.id, index, self.pass))
            .collect()
    }

    /// About to be cut, or made longer.
    pub fn cut(&mut self, size: u64) {
        for index in size..self.blocks.len() as u64 {
            self.may_be(index, 0);
        }
        self.sizes.push(size);
    }

    /// About to get a hole.
    pub fn punch(&mut self, first: u64, count: u64) {
        for index in first..(first + count).min(self.blocks.len() as u64) {
            self.may_be(index, 0);
        }
    }

    /// All of it was acknowledged.
    pub fn synced(&mut self) {
        for passes in &mut self.blocks {
            passes.drain(..passes.len() - 1);
        }
        self.sizes.drain(..self.sizes.len() - 1);
    }

    /// What is at `path` is a state that it may have; from now on it has that one.
    pub fn check(&mut self, path: &Path, counts: &mut Counts) -> Result<(), String> {
        let fault = |what: String| format!("{}, file {}: {what}", path.display(), self.id);
        let file = File::open(path).map_err(|e| fault(e.to_string()))?;
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
        for (index, passes) in (0..).zip(&self.blocks) {
            let mut bytes = vec![0; block::SIZE];
            if index < size {
                let read = file.read_exact_at(&mut bytes, index * block::SIZE as u64);
                read.map_err(|e| fault(format!("block {index}: {e}")))?;
            }
            let pass = block::read(&bytes, self.id, index)
                .map_err(|what| fault(format!("block {index}: {what}")))?;
            if !passes.contains(&pass) {
                return Err(fault(format!(
                    "block {index} holds pass {pass}, may hold {passes:?}"
                )));
            }
            counts.blocks += u64::from(passes.len() == 1);
            if passes.len() > 1 {
                let is_newest = passes.last() == Some(&pass);
                counts.gained += u64::from(is_newest);
                counts.lost += u64::from(!is_newest);
            }
            found.push(vec![pass]);
        }
        // What is read after a loss is there for good.
        self.blocks = found;
        self.sizes = vec![size];
        Ok(())
    }
}
