//! `gupfs bench`: how fast a directory is, by plain system calls that any user may make.
//!
//! Life cycle: a new directory is made in each that is measured -> rows, each in one directory and then in the other -> the
//! directories are removed, whatever happened: also after SIGINT and SIGTERM, which end the row that runs.
//!
//! Invariants
//! - Time is bounded by `seconds` for each row and directory, space by `size`: both are checked before each operation.
//! - What is read is what was written: a byte that differs fails the command.
//!
//! What this deliberately does not do: measure what a page of the documentation should claim (crates/bench does, with its own
//! file systems and comparators). Caches are as they are: what was just written may be read from memory.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use os::interrupt;
use serde_json::{Value, json};
use stdx::prng::Prng;

use crate::failure::{Failure, Result};
use crate::{inspect, size};

/// Bytes of a sequential request.
const LARGE: usize = 1 << 20;
/// Bytes of a random request and of one before an fsync.
const SMALL: usize = 4096;
/// Files that are made, looked at and removed.
const FILE_COUNT_MAX: u64 = 10_000;
/// Kept free beside what is written.
const ROOM: u64 = 64 << 20;

/// Arguments of `gupfs bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A directory on the mount that is to be measured.
    directory: PathBuf,
    /// Another one, on the file system to compare with: each row is measured in both, by turns.
    #[arg(long, value_name = "DIR2")]
    against: Option<PathBuf>,
    /// Bytes of the file that is written and read.
    #[arg(long, default_value = "256M", value_parser = size::parse_argument)]
    size: u64,
    /// Seconds of a row at most.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

impl BenchArgs {
    /// The directories that are measured.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        let all = [Some(&self.directory), self.against.as_ref()];
        all.into_iter().flatten().map(PathBuf::as_path)
    }
}

/// What a row counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// MiB in a second.
    Bytes,
    /// Operations in a second.
    Operations,
    /// Microseconds of an operation.
    Time,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "MiB/s",
            Self::Operations => "per second",
            Self::Time => "us",
        }
    }
}

/// A figure of a row in one directory; none where nothing ended in time.
type Figure = Option<f64>;
/// Measures a row.
type Measure = fn(&Bench, &Place) -> std::result::Result<Vec<Figure>, Stop>;

/// What is measured together: the figures that it gives, and how.
struct Step {
    figures: &'static [(&'static str, Unit)],
    measure: Measure,
}

const STEPS: [Step; 5] = [
    Step {
        figures: &[("sequential write, 1 MiB, then fsync", Unit::Bytes)],
        measure: Bench::write,
    },
    Step {
        figures: &[("sequential read, 1 MiB", Unit::Bytes)],
        measure: Bench::read,
    },
    Step {
        figures: &[("random read, 4 KiB", Unit::Operations)],
        measure: Bench::read_random,
    },
    Step {
        figures: &[
            ("create", Unit::Operations),
            ("stat", Unit::Operations),
            ("unlink", Unit::Operations),
        ],
        measure: Bench::files,
    },
    Step {
        figures: &[
            ("4 KiB write and fsync, median", Unit::Time),
            ("4 KiB write and fsync, 99 of 100", Unit::Time),
        ],
        measure: Bench::fsync,
    },
];

/// Why a row was not measured to its end.
#[derive(Debug)]
enum Stop {
    /// Somebody wants the command to end.
    Interrupted,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The directory that everything is made in, removed with it.
#[derive(Debug)]
struct Place {
    root: PathBuf,
    is_removed: bool,
}

impl Place {
    fn make(directory: &Path, size: u64) -> Result<Self> {
        let found = fs::metadata(directory).map_err(|e| Failure::io("look at", directory, &e))?;
        if !found.is_dir() {
            return Err(
                Failure::new(format!("{} is no directory", directory.display()))
                    .help("name a directory on the mount that is to be measured"),
            );
        }
        let room = rustix::fs::statvfs(directory)
            .map_err(|e| Failure::io("look at", directory, &e.into()))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if free < size.saturating_add(ROOM) {
            return Err(Failure::new(format!(
                "{} has {} free, and {} are written",
                directory.display(),
                size::show(free),
                size::show(size)
            ))
            .help("give a smaller --size, or another directory"));
        }
        let root = directory.join(format!("gupfs-bench.{}", std::process::id()));
        fs::create_dir(&root).map_err(|e| {
            let failure = Failure::io("make", &root, &e);
            match e.kind() {
                ErrorKind::AlreadyExists => failure.help("an old run has left it: remove it"),
                _ => failure.help("name a directory that you may write to"),
            }
        })?;
        Ok(Self {
            root,
            is_removed: false,
        })
    }

    fn file(&self) -> PathBuf {
        self.root.join("file")
    }

    fn remove(mut self) -> Result<()> {
        self.is_removed = true;
        fs::remove_dir_all(&self.root).map_err(|e| Failure::io("remove", &self.root, &e))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_removed {
            // The failure that led here is the one to tell.
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// How long and how much.
#[derive(Debug, Clone, Copy)]
struct Bench {
    limit: Duration,
    size: u64,
}

/// Counts operations until the time is over.
struct Clock {
    begin: Instant,
    limit: Duration,
    count: u64,
}

impl Clock {
    fn start(limit: Duration) -> Self {
        Self {
            begin: Instant::now(),
            limit,
            count: 0,
        }
    }

    /// Whether one more may begin.
    fn goes_on(&self) -> std::result::Result<bool, Stop> {
        if interrupt::is_asked() {
            return Err(Stop::Interrupted);
        }
        Ok(self.begin.elapsed() < self.limit)
    }

    #[allow(clippy::cast_precision_loss, reason = "rates for people")]
    fn per_second(&self, weight: f64) -> Figure {
        let seconds = self.begin.elapsed().as_secs_f64();
        (self.count > 0).then(|| self.count as f64 * weight / seconds.max(1e-9))
    }
}

/// The bytes of the file's `index`th large piece: none is like another, and none is compressible.
fn fill(index: u64, bytes: &mut [u8]) {
    Prng::new(index + 1).fill(bytes);
}

impl Bench {
    fn pieces(self) -> u64 {
        self.size / LARGE as u64
    }

    fn write(&self, place: &Place) -> std::result::Result<Vec<Figure>, Stop> {
        let path = place.file();
        let failed = |e| Failure::io("write", &path, &e);
        let mut bytes = vec![0; LARGE];
        let file = File::create(&path).map_err(failed)?;
        let mut clock = Clock::start(self.limit);
        let mut spent = Duration::ZERO;
        while clock.count < self.pieces() && clock.goes_on()? {
            let begin = Instant::now();
            fill(clock.count, &mut bytes);
            spent += begin.elapsed();
            let at = clock.count * LARGE as u64;
            file.write_all_at(&bytes, at).map_err(failed)?;
            clock.count += 1;
        }
        file.sync_all().map_err(failed)?;
        // Making the bytes is not what is measured.
        clock.begin += spent;
        Ok(vec![clock.per_second(1.0)])
    }

    /// Pieces that were written: fewer than `pieces` where the time was over.
    fn written(place: &Place) -> std::result::Result<(File, u64), Stop> {
        let path = place.file();
        let file = File::open(&path).map_err(|e| Failure::io("open", &path, &e))?;
        let metadata = file.metadata();
        let size = metadata
            .map_err(|e| Failure::io("look at", &path, &e))?
            .len();
        // What the kernel has of it is to come from the file system, if it will.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        Ok((file, size / LARGE as u64))
    }

    fn read(&self, place: &Place) -> std::result::Result<Vec<Figure>, Stop> {
        let (file, pieces) = Self::written(place)?;
        let path = place.file();
        let (mut bytes, mut wanted) = (vec![0; LARGE], vec![0; LARGE]);
        let mut clock = Clock::start(self.limit);
        let mut spent = Duration::ZERO;
        while clock.count < pieces && clock.goes_on()? {
            let at = clock.count * LARGE as u64;
            let read = file.read_exact_at(&mut bytes, at);
            read.map_err(|e| Failure::io("read", &path, &e))?;
            let begin = Instant::now();
            fill(clock.count, &mut wanted);
            differs(&path, at, &bytes, &wanted)?;
            spent += begin.elapsed();
            clock.count += 1;
        }
        clock.begin += spent;
        Ok(vec![clock.per_second(1.0)])
    }

    fn read_random(&self, place: &Place) -> std::result::Result<Vec<Figure>, Stop> {
        let (file, pieces) = Self::written(place)?;
        let path = place.file();
        let mut bytes = [0; SMALL];
        let mut random = Prng::new(7);
        let mut clock = Clock::start(self.limit);
        while pieces > 0 && clock.goes_on()? {
            let at = random.below(pieces) * LARGE as u64 + random.below(256) * SMALL as u64;
            let read = file.read_exact_at(&mut bytes, at);
            read.map_err(|e| Failure::io("read", &path, &e))?;
            clock.count += 1;
        }
        Ok(vec![clock.per_second(1.0)])
    }

    fn files(&self, place: &Place) -> std::result::Result<Vec<Figure>, Stop> {
        let directory = place.root.join("files");
        fs::create_dir(&directory).map_err(|e| Failure::io("make", &directory, &e))?;
        let name = |index: u64| directory.join(index.to_string());
        // A third of the row's time each.
        let mut made = Clock::start(self.limit / 3);
        while made.count < FILE_COUNT_MAX && made.goes_on()? {
            let path = name(made.count);
            File::create_new(&path).map_err(|e| Failure::io("make", &path, &e))?;
            made.count += 1;
        }
        let figures = vec![made.per_second(1.0)];
        let each = |act: fn(&Path) -> std::io::Result<()>| {
            let mut clock = Clock::start(self.limit / 3);
            while clock.count < made.count && clock.goes_on()? {
                let path = name(clock.count);
                act(&path).map_err(|e| Failure::io("look at or remove", &path, &e))?;
                clock.count += 1;
            }
            Ok::<Figure, Stop>(clock.per_second(1.0))
        };
        let seen = each(|path| fs::symlink_metadata(path).map(drop))?;
        let removed = each(|path| fs::remove_file(path))?;
        Ok([figures, vec![seen, removed]].concat())
    }

    fn fsync(&self, place: &Place) -> std::result::Result<Vec<Figure>, Stop> {
        let path = place.root.join("synced");
        let failed = |e| Failure::io("write or fsync", &path, &e);
        let mut bytes = [0; SMALL];
        let file = File::create(&path).map_err(failed)?;
        let mut clock = Clock::start(self.limit);
        let mut times = Vec::new();
        while clock.count < FILE_COUNT_MAX && clock.goes_on()? {
            fill(clock.count, &mut bytes);
            let begin = Instant::now();
            file.write_all_at(&bytes, clock.count % 256 * SMALL as u64)
                .and_then(|()| file.sync_all())
                .map_err(failed)?;
            times.push(begin.elapsed());
            clock.count += 1;
        }
        times.sort_unstable();
        Ok([50, 99].map(|part| part_of(&times, part)).to_vec())
    }
}

/// The time that `part` of 100 do not exceed, in microseconds.
fn part_of(sorted: &[Duration], part: usize) -> Figure {
    let at = (sorted.len() * part).div_ceil(100).checked_sub(1)?;
    sorted.get(at).map(|time| time.as_secs_f64() * 1e6)
}

fn differs(path: &Path, at: u64, found: &[u8], wanted: &[u8]) -> Result<()> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(index) => Err(Failure::new(format!(
            "{}: byte {} is not the one that was written",
            path.display(),
            at + index as u64
        ))
        .help("stop using this file system, and report it with its log")),
    }
}

/// Measures.
///
/// # Errors
/// A directory that cannot be used, an operation that fails, or an interruption: everything made is removed in any case.
pub fn run(args: &BenchArgs) -> Result<Value> {
    if args.size < LARGE as u64 {
        return Err(Failure::new("less than 1 MiB cannot be measured").help("give a larger --size"));
    }
    interrupt::watch().map_err(|e| Failure::new(format!("cannot watch for signals: {e}")))?;
    let bench = Bench {
        limit: Duration::from_secs(args.seconds),
        size: args.size,
    };
    let mut places = Vec::new();
    for directory in args.directories() {
        places.push(Place::make(directory, args.size)?);
    }
    let spinner = ProgressBar::new_spinner();
    let mut rows = Vec::new();
    for step in &STEPS {
        let mut figures = Vec::new();
        for place in &places {
            spinner.set_message(format!("{}: {}", place.root.display(), step.figures[0].0));
            spinner.tick();
            let measured = (step.measure)(&bench, place);
            figures.push(measured.map_err(|stop| match stop {
                Stop::Interrupted => Failure::new("interrupted: what was made is removed"),
                Stop::Failed(failure) => failure,
            })?);
        }
        for (at, (name, unit)) in step.figures.iter().enumerate() {
            let against = figures.get(1).and_then(|of| of[at]);
            rows.push(row(name, *unit, figures[0][at], against));
        }
    }
    spinner.finish_and_clear();
    for place in places {
        place.remove()?;
    }
    Ok(json!({
        "directory": args.directory.to_string_lossy(),
        "against": args.against.as_ref().map(|path| path.to_string_lossy()),
        "size": args.size, "seconds": args.seconds, "rows": rows,
    }))
}

fn row(name: &str, unit: Unit, value: Figure, against: Figure) -> Value {
    let ratio = value.zip(against).map(|(value, other)| match unit {
        Unit::Bytes | Unit::Operations => value / other,
        // Less is faster.
        Unit::Time => other / value,
    });
    let digits = |figure: Figure, by: f64| figure.map(|f| (f * by).round() / by);
    json!({
        "name": name, "unit": unit.name(), "value": digits(value, 10.0), "against": digits(against, 10.0),
        "ratio": digits(ratio, 100.0),
    })
}

/// The answer as a table.
pub fn to_text(value: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    let figure = |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |f| f.to_string());
    let has_other = !value["against"].is_null();
    let mut rows = vec![[
        "MEASURED".to_owned(),
        "UNIT".to_owned(),
        text(&value["directory"]),
        if has_other {
            text(&value["against"])
        } else {
            String::new()
        },
        if has_other {
            "SPEED".to_owned()
        } else {
            String::new()
        },
    ]];
    for row in value["rows"].as_array().into_iter().flatten() {
        let other = |v: &Value| if has_other { figure(v) } else { String::new() };
        rows.push([
            text(&row["name"]),
            text(&row["unit"]),
            figure(&row["value"]),
            other(&row["against"]),
            other(&row["ratio"]),
        ]);
    }
    inspect::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_is_more_whatever_is_counted() {
        assert_eq!(row("w", Unit::Bytes, Some(50.0), Some(100.0))["ratio"], 0.5);
        assert_eq!(row("t", Unit::Time, Some(50.0), Some(100.0))["ratio"], 2.0);
        assert!(row("w", Unit::Bytes, Some(50.0), None)["ratio"].is_null());
    }

    #[test]
    fn parts_are_of_what_was_timed() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(part_of(&times, 50).map(f64::round), Some(100.0));
        assert_eq!(part_of(&times, 99).map(f64::round), Some(198.0));
        assert_eq!(part_of(&times[..1], 99).map(f64::round), Some(1.0));
        assert_eq!(part_of(&[], 50), None);
    }

    #[test]
    fn a_byte_that_differs_is_named() {
        let failure = differs(Path::new("/f"), 4096, b"abc", b"abd").expect_err("differs");
        assert!(failure.what().contains("byte 4098"), "{failure}");
    }

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let args = BenchArgs {
            directory: one.path().to_owned(),
            against: Some(two.path().to_owned()),
            size: 4 << 20,
            seconds: 1,
        };
        let value = run(&args).expect("measured");
        let rows = value["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 8);
        for row in rows {
            assert!(
                row["value"].as_f64() > Some(0.0) && row["ratio"].is_f64(),
                "{row}"
            );
        }
        assert!(to_text(&value).contains("SPEED"));
        let too_much = BenchArgs {
            size: 1 << 60,
            ..args
        };
        let failure = run(&too_much).expect_err("no room");
        assert!(failure.to_string().contains("--size"), "{failure}");
        for directory in [one, two] {
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
