//! What another node has seen outlives the loss of both, fsync or not.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::block;
use crate::model::{Counts, Model};
use crate::rig::Cut;
use crate::writer::made_in;

/// Files that one node makes and another looks at; nothing is synced.
#[derive(Debug)]
pub struct Seen {
    maker: usize,
    observer: usize,
    made: Mutex<Vec<Model>>,
    /// What must be there.
    seen: Mutex<Vec<Model>>,
    fault: Mutex<Option<String>>,
    count: Mutex<u64>,
}

impl Seen {
    /// What node `maker` makes, the next one sees. One node alone sees nothing.
    pub fn new(maker: usize, node_count: u16) -> Self {
        Self {
            maker,
            observer: (maker + 1) % usize::from(node_count),
            made: Mutex::default(),
            seen: Mutex::default(),
            fault: Mutex::default(),
            count: Mutex::default(),
        }
    }

    pub fn maker(&self) -> usize {
        self.maker
    }

    pub fn observer(&self) -> usize {
        self.observer
    }

    fn path(&self, mount: &Path, id: u64) -> PathBuf {
        mount.join(format!("seen-{}/s{}", self.maker, id & 0xffff_ffff))
    }

    /// Makes files until the power is gone.
    pub fn make(&self, mount: &Path, cut: &Cut) {
        if self.maker == self.observer {
            return;
        }
        let directory = mount.join(format!("seen-{}", self.maker));
        if made_in(mount, &directory, cut).is_err() {
            return;
        }
        while !cut.is_over() {
            let mut count = self.count.lock().expect("never poisoned");
            *count += 1;
            let id = (1 << 60) | ((self.maker as u64) << 40) | *count;
            let number = *count;
            drop(count);
            let mut model = Model::new(id);
            let bytes = model.write(0, 1 + number % 5);
            let made =
                File::create_new(self.path(mount, id)).and_then(|mut file| file.write_all(&bytes));
            if made.is_err() {
                return;
            }
            self.made.lock().expect("never poisoned").push(model);
            // The other node is to see all of them.
            while self.made.lock().expect("never poisoned").len() > 20 && !cut.is_over() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Looks at them until the power is gone.
    pub fn look(&self, mount: &Path, cut: &Cut) {
        while self.maker != self.observer && !cut.is_over() {
            let Some(mut model) = self.made.lock().expect("never poisoned").pop() else {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            };
            let path = self.path(mount, model.id);
            let is_read = model.id % 2 == 0;
            match is_read {
                true => {
                    let Ok(bytes) = fs::read(&path) else { return };
                    let expected = usize::try_from(model.size()).expect("small") * block::SIZE;
                    let wrong = (0..)
                        .zip(bytes.chunks(block::SIZE))
                        .find_map(|(index, bytes)| {
                            match bytes.len() == block::SIZE
                                && block::read(bytes, model.id, index) == Ok(1)
                            {
                                true => None,
                                false => Some(index),
                            }
                        });
                    if bytes.len() != expected || wrong.is_some() {
                        if cut.acknowledged().is_err() {
                            // Nobody had seen it yet when its maker lost it.
                            return;
                        }
                        let what = format!(
                            "{}: {} bytes, block {wrong:?} is not what was written",
                            path.display(),
                            bytes.len()
                        );
                        *self.fault.lock().expect("never poisoned") = Some(what);
                        return;
                    }
                    model.synced();
                }
                // The name alone is seen.
                false => {
                    if fs::symlink_metadata(&path).is_err() {
                        return;
                    }
                }
            }
            if cut.acknowledged().is_err() {
                return;
            }
            self.seen.lock().expect("never poisoned").push(model);
        }
    }

    /// All that was seen is there; then all goes.
    pub fn check(&mut self, mount: &Path, counts: &mut Counts) -> Result<(), String> {
        if let Some(fault) = self.fault.get_mut().expect("never poisoned").take() {
            return Err(fault);
        }
        let seen = std::mem::take(self.seen.get_mut().expect("never poisoned"));
        self.made.get_mut().expect("never poisoned").clear();
        for mut model in seen {
            let path = self.path(mount, model.id);
            model
                .check(&path, counts)
                .map_err(|fault| format!("the other node saw it: {fault}"))?;
            counts.kept += 1;
        }
        let directory = mount.join(format!("seen-{}", self.maker));
        match fs::remove_dir_all(&directory) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{}: {e}", directory.display()))
            }
            _ => Ok(()),
        }
    }
}
