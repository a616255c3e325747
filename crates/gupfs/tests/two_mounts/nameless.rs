//! Files that lose their names on one node while the other has them open: what was written stays, whoever wrote it,
//! whoever removed the name, and whether the writer has closed it since.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::calls::Mapping;
use crate::fixture::Fixture;
use crate::pingpong::seed;
use crate::{finish, lab};

const SIZE: usize = 40_960;
/// How long the test draws cases.
const TIME: Duration = Duration::from_secs(5);

type Outcome<T = ()> = Result<T, String>;

fn io<T>(what: &str, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// How the bytes come into the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Store,
    Write,
}

/// When the writer closes the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Close {
    BeforeRemoval,
    AfterRemoval,
    AfterReads,
}

#[derive(Debug)]
struct Case {
    /// Makes the file in a directory of its own, and so owns it.
    maker: usize,
    /// The file moves to a directory of the other owner.
    is_moved: bool,
    writer: usize,
    remover: usize,
    way: Way,
    close: Close,
    is_replaced: bool,
    is_mapped_by_reader: bool,
    pause_us: u64,
}

impl Case {
    fn draw(prng: &mut Prng) -> Self {
        let node = |prng: &mut Prng| if prng.chance(1, 2) { 1 } else { 2 };
        Self {
            maker: node(prng),
            is_moved: prng.chance(1, 3),
            writer: node(prng),
            remover: node(prng),
            way: *prng.pick(&[Way::Store, Way::Write]).expect("not empty"),
            close: *prng
                .pick(&[Close::BeforeRemoval, Close::AfterRemoval, Close::AfterReads])
                .expect("not empty"),
            is_replaced: prng.chance(1, 2),
            is_mapped_by_reader: prng.chance(1, 2),
            pause_us: *prng.pick(&[0, 0, 1000, 10_000]).expect("not empty"),
        }
    }

    fn run(&self, fixture: &Fixture, prng: &mut Prng) -> Outcome {
        let made = format!("d{}", self.maker);
        let directory = match self.is_moved {
            true => format!("d{}", 3 - self.maker),
            false => made.clone(),
        };
        let path = |node: usize| fixture.path(node, &directory).join("file");
        let reader_node = 3 - self.writer;
        let mut expected = vec![0; SIZE];
        prng.fill(&mut expected);
        let first = fixture.path(self.maker, &made).join("file");
        io("first write", fs::write(&first, &expected))?;
        if self.is_moved {
            io("move", fs::rename(first, path(self.maker)))?;
        }
        let open = |node: usize, is_writable: bool| {
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(is_writable);
            io("open", opened.open(path(node)))
        };
        let cached = open(reader_node, false)?;
        let direct = open(reader_node, true)?;
        let mapping = match self.is_mapped_by_reader {
            true => Some(io("map", Mapping::new(&cached, SIZE, false))?),
            false => None,
        };
        self.check("before", (&cached, &direct, mapping.as_ref()), &expected)?;
        // The last byte stays: a size that is dirty goes by another way than bytes.
        let offset = usize::try_from(prng.below(SIZE as u64 - 1)).expect("small");
        let length = 1 + usize::try_from(prng.below((SIZE - offset - 1) as u64)).expect("small");
        prng.fill(&mut expected[offset..offset + length]);
        let bytes = &expected[offset..offset + length];
        let file = open(self.writer, true)?;
        let mut stored = None;
        match self.way {
            Way::Write => io("write", file.write_all_at(bytes, offset as u64))?,
            Way::Store => {
                let mapping = io("map", Mapping::new(&file, SIZE, true))?;
                io("store", mapping.store(offset, bytes))?;
                stored = Some(mapping);
            }
        }
        let mut written = Some(file);
        if self.close == Close::BeforeRemoval {
            (written, stored) = (None, None);
        }
        if self.is_replaced {
            let other = fixture.path(self.remover, &directory).join("other");
            io("second file", fs::write(&other, "other"))?;
            io("rename", fs::rename(&other, path(self.remover)))?;
        } else {
            io("unlink", fs::remove_file(path(self.remover)))?;
        }
        if self.close == Close::AfterRemoval {
            (written, stored) = (None, None);
        }
        std::thread::sleep(Duration::from_micros(self.pause_us));
        let all = (&cached, &direct, mapping.as_ref());
        self.check("without a name", all, &expected)?;
        drop((written, stored));
        self.check("when it is closed", all, &expected)?;
        if self.is_replaced {
            io("unlink", fs::remove_file(path(self.remover)))?;
        }
        Ok(())
    }

    fn check(
        &self,
        when: &str,
        (cached, direct, mapping): (&File, &File, Option<&Mapping>),
        expected: &[u8],
    ) -> Outcome {
        let mut seen = vec![0; SIZE];
        let differs = |seen: &[u8], how: &str| {
            let wrong: Vec<usize> = (0..SIZE).filter(|at| seen[*at] != expected[*at]).collect();
            match (wrong.first(), wrong.last()) {
                (Some(first), Some(last)) => Err(format!(
                    "{when}, {how}: {} bytes are wrong, from {first} to {last}",
                    wrong.len()
                )),
                _ => Ok(()),
            }
        };
        if let Some(mapping) = mapping {
            io("load", mapping.load(0, &mut seen))?;
            differs(&seen, "mapping")?;
        }
        io("read", direct.read_exact_at(&mut seen, 0))?;
        differs(&seen, "direct read")?;
        io("read", cached.read_exact_at(&mut seen, 0))?;
        differs(&seen, "cached read")
    }
}

#[test]
fn what_was_written_outlives_the_name() {
    let fixture = lab!();
    let seed = seed();
    let outcome = run(&fixture, seed).map_err(|fault| format!("seed {seed}: {fault}"));
    finish(&fixture, outcome);
}

fn run(fixture: &Fixture, seed: u64) -> Outcome<String> {
    let mut prng = Prng::new(seed);
    for node in [1, 2] {
        let made = fs::create_dir(fixture.path(node, &format!("d{node}")));
        io("mkdir", made)?;
    }
    let slot = fixture.slot();
    let (mut count, begin) = (0, Instant::now());
    while begin.elapsed() < TIME {
        let case = Case::draw(&mut prng);
        count += 1;
        slot.run(&format!("{case:?}"), || case.run(fixture, &mut prng))
            .map_err(|fault| format!("case {count}, {case:?}: {fault}"))?;
    }
    Ok(format!("{count} cases"))
}
