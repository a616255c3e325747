//! The driver of what is loaded and listed before it is opened (the twin of a part of `os::daemon::work`), and guesses at random.

use client::siblings::Order;
use client::slice::{Input, Slice, slice_of};
use client::{Coming, Filled};
use types::{InodeId, Span};

use super::{Canary, Item, Node};

/// A slice that guesses, or is broken on purpose.
pub(super) fn prepare(slice: &mut Slice, loads_written_files: bool, canary: Canary) {
    slice.fill_kernel();
    if loads_written_files {
        slice.load_written_files();
    }
    if canary.shows_old_names {
        slice.show_old_names();
    }
    if canary.overtakes_fills {
        slice.overtake_fills();
    }
}

impl Node {
    /// The kernel has returned from `Out::Fill`.
    pub fn filled(&mut self, ino: InodeId, spans: &[Span], filled: Filled) {
        spans.iter().for_each(|span| self.release(*span));
        self.filling_count -= 1;
        self.input(slice_of(ino), Input::Filled(ino, filled));
    }

    /// Files will be opened soon, on a loop of the daemon: a run of its own.
    pub(super) fn load_files(&mut self, files: Vec<InodeId>) {
        let load = |ino| Item::Client(slice_of(ino), Input::LoadFile(ino));
        self.runs.push(files.into_iter().map(load).collect());
    }

    /// A directory will be opened soon: likewise.
    pub fn list_soon(&mut self, coming: Coming) {
        let item = Item::Client(slice_of(coming.ino), Input::ListComing(coming));
        self.runs.push(vec![item].into());
    }

    /// Takes a file or a directory that it knows for such.
    pub(super) fn load_known_files(&mut self) {
        if self.load_ticks == 0 || !self.tick_count.is_multiple_of(self.load_ticks) {
            return;
        }
        let mut all: Vec<_> = self.slices.iter().flat_map(Slice::known).collect();
        all.sort_unstable();
        if !all.is_empty() {
            let ino = *self.prng.pick(&all).expect("there are some");
            if self.slices[slice_of(ino)].knows_directory(ino) {
                let (size, order) = (4096, *self.prng.pick(&Order::ALL).expect("three"));
                return self.list_soon(Coming { ino, size, order });
            }
            self.load_files(vec![ino]);
        }
    }

    /// Directories that were listed before they were opened.
    pub fn listed_directory_count(&self) -> u64 {
        let slices = self.slices.iter();
        let counts = slices.map(|slice| slice.gauges().listed_directory_count);
        counts.sum()
    }

    /// Files that were loaded before they were opened.
    pub fn loaded_file_count(&self) -> u64 {
        let counts = self
            .slices
            .iter()
            .map(|slice| slice.gauges().loaded_file_count);
        counts.sum()
    }
}
