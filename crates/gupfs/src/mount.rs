//! `gupfs mount`, `gupfs umount`, and what mount(8) and umount(8) call: `mount.fuse.gupfs`, `umount.fuse.gupfs`.
//!
//! A line of fstab names the state directory and the mount point:
//! `/var/lib/gupfs/home /home fuse.gupfs _netdev,nofail,noatime 0 0`.
//!
//! Invariants:
//! - Nothing is made here: what has no file system is not mounted.
//! - What is mounted already, there, is success: mount(8) may come twice. Elsewhere it is mounted a second time, by the same daemon.
//! - The source that the kernel shows is the one that was named: whoever looks a mount up by it (`mount -a`, findmnt, xfstests)
//!   finds it.
//! - umount(8) refuses what is in use, and returns when all is written back. It calls a helper for a subtype of FUSE only where
//!   its own table has a line of the mount, so each mount gets one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::control::{self, Answer};
use crate::failure::{Failure, Result};
use crate::service::{self, Below, Claim};
use crate::state::{Place, State};
use crate::system::mounts::{self, Mount};
use crate::{settings, source, system};

/// Names under which mount(8) and umount(8) call this program.
const MOUNT_NAMES: [&str; 2] = ["mount.fuse.gupfs", "mount.gupfs"];
const UMOUNT_NAMES: [&str; 2] = ["umount.fuse.gupfs", "umount.gupfs"];
/// Exit codes of mount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Options of fstab that say nothing to a file system: they are for mount(8), systemd or people.
const IGNORED: [&str; 20] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "group",
    "owner",
    "user",
    "users",
    "rw",
    "async",
    "atime",
    "dev",
    "suid",
    "exec",
    "diratime",
    "norelatime",
    // What every mount of ours has.
    "allow_other",
    "default_permissions",
];
/// Those that change how the kernel mounts.
const KERNEL: [(&str, libc::c_ulong); 10] = [
    ("ro", libc::MS_RDONLY),
    ("nosuid", libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV),
    ("noexec", libc::MS_NOEXEC),
    ("noatime", libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME),
    ("relatime", libc::MS_RELATIME),
    ("strictatime", libc::MS_STRICTATIME),
    ("lazytime", libc::MS_LAZYTIME),
    ("nosymfollow", NO_SYMBOLIC_LINKS),
];
/// MS_NOSYMFOLLOW, which libc does not name.
const NO_SYMBOLIC_LINKS: libc::c_ulong = 256;

/// What umount(8) must find in its table, or it does not call the helper. systemd, too, wants to know that a mount needs the network.
const NETWORK: &str = "_netdev";

/// The flag of mount(2) that an option stands for.
fn flag(option: &str) -> Option<libc::c_ulong> {
    let found = KERNEL.iter().find(|(name, _)| *name == option);
    found.map(|(_, flag)| *flag)
}

/// Flags of mount(2) for what `gupfs daemon --mount-options` was given.
pub fn flags(list: &str) -> Result<libc::c_ulong> {
    let mut flags = 0;
    for option in list.split(',').filter(|option| !option.is_empty()) {
        flags |= flag(option).ok_or_else(|| unknown(option))?;
    }
    Ok(flags)
}

/// Those that take one of `KERNEL` back.
const KERNEL_NOT: [&str; 4] = ["rw", "suid", "dev", "exec"];

/// Options of a remount. mount(8) names all that fstab or the mount has, and then the new ones: the last word counts. What
/// is not the kernel's stays as it is.
fn remount_options(lists: &[String]) -> String {
    let words = lists.iter().flat_map(|list| list.split(','));
    let kept = words.filter(|word| flag(word).is_some() || KERNEL_NOT.contains(word));
    let all: Vec<&str> = std::iter::once("remount").chain(kept).collect();
    all.join(",")
}

/// Changes how the kernel has `point` mounted (`mount -o remount,ro POINT`).
fn remount(point: &Path, options: &[String]) -> Result<Vec<String>> {
    system::require_root("mount -o remount")?;
    let point = system::absolute(point)?;
    match mounts::at(&point)? {
        Some(found) if found.is_gupfs() => {}
        _ => {
            return Err(Failure::new(format!(
                "no GUPFS is mounted on {}",
                point.display()
            )));
        }
    }
    mounts::remount(&point, &remount_options(options))?;
    Ok(vec![format!("remounted {}", point.display())])
}

fn unknown(option: &str) -> Failure {
    let kernel = KERNEL.map(|(name, _)| name).join(", ");
    let settings = settings::keys_for_run().join(", ");
    Failure::new(format!("{option:?} is no mount option")).help(format!(
        "there are: {kernel}, settings as KEY=VALUE ({settings}), and what mount(8) and systemd take for themselves"
    ))
}

/// What a list of mount options says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// For the kernel, in order; words of `KERNEL`.
    kernel: Vec<String>,
    /// Settings for this run, `KEY=VALUE`.
    settings: Vec<String>,
    /// What mount(8) and systemd take for themselves and look for in mount(8)'s table.
    others: Vec<String>,
}

impl Options {
    /// Reads `a,b=c,...` as fstab and mount(8) write it. `is_sloppy`: what is not known is passed over.
    pub fn parse(lists: &[String], is_sloppy: bool) -> Result<Self> {
        let mut options = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')) {
            let key = word.split('=').next().unwrap_or_default();
            let is_for_others = word.is_empty()
                || IGNORED.contains(&word)
                || key.starts_with("x-")
                || key.starts_with("X-")
                || key == "comment"
                || (key == "subtype" || key == "fstype");
            if is_for_others {
                if word == NETWORK || key.starts_with("x-") {
                    options.others.push(word.to_owned());
                }
                continue;
            }
            if flag(word).is_some() {
                options.kernel.push(word.to_owned());
            } else if word.contains('=') && settings::is_for_run(key) {
                options.settings.push(word.to_owned());
            } else if !is_sloppy {
                return Err(unknown(word));
            }
        }
        Ok(options)
    }

    /// The options of the line in mount(8)'s table.
    fn table(&self) -> String {
        let others = self.others.iter().map(String::as_str);
        let others = others.filter(|word| *word != NETWORK);
        let all: Vec<&str> = std::iter::once(NETWORK).chain(others).collect();
        all.join(",")
    }

    /// Arguments of `gupfs daemon`.
    fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for setting in &self.settings {
            all.extend(["--set".to_owned(), setting.clone()]);
        }
        if !self.kernel.is_empty() {
            all.extend(["--mount-options".to_owned(), self.kernel.join(",")]);
        }
        all
    }
}

/// Mounts the file system that `source` names, at `point` or where it was mounted last. Returns what was done.
pub fn mount(source: &Path, point: Option<&Path>, options: &Options) -> Result<Vec<String>> {
    system::require_root("gupfs mount")?;
    system::require_fuse()?;
    let place = Place::new(&source::state_of(source))?;
    let found = place.require()?;
    let point = point.map_or_else(|| Ok(found.mount.clone()), system::absolute)?;
    service::check_hides_nothing(&place, &found.disks, &point)?;
    let shown = &source::shown(source)?;
    let lock = match turn(&place)? {
        Turn::Ours(lock) => lock,
        Turn::Mounted { mounts } => {
            let done = mount_again(&place, &mounts, &point, options)?;
            return Ok(match done {
                None => vec![format!("already mounted on {}", point.display())],
                Some(done) => done_with_table(done, shown, &point, options),
            });
        }
    };
    // Said before anything is touched.
    settings::for_daemon(&place, found.clone(), &options.settings)?;
    service::tell_lost(&place)?;
    let mut done = Vec::new();
    let below = match found.mount == point {
        true => Below::Any,
        false => Below::Nothing,
    };
    done.extend(service::ready_point(&point, below)?);
    if found.mount != point {
        place.store(&State {
            mount: point.clone(),
            ..found
        })?;
    }
    drop(lock);
    let mut arguments = options.arguments();
    arguments.extend(["--source".to_owned(), shown.display().to_string()]);
    let status = service::start(&place, &arguments)?.wait()?;
    done.push(format!(
        "mounted {} on {}",
        place.root().display(),
        point.display()
    ));
    // Another one that was started at the same time may have it elsewhere.
    let mounts = mounts_here(&status)?;
    done.extend(mount_again(&place, &mounts, &point, options)?.unwrap_or_default());
    Ok(done_with_table(done, shown, &point, options))
}

/// What was done, and the line in mount(8)'s table.
fn done_with_table(
    mut done: Vec<String>,
    shown: &Path,
    point: &Path,
    options: &Options,
) -> Vec<String> {
    let table = mounts::forget(point);
    let table = table.and_then(|()| mounts::enter(shown, point, &options.table()));
    if let Err(failure) = table {
        done.push(format!(
            "umount(8) will not wait until all is written back: {failure}"
        ));
    }
    done
}

/// How long a daemon whose mount is gone may take to end before it is taken for one that has it mounted elsewhere.
const ENDING_LIMIT: Duration = Duration::from_secs(10);

/// How long umount(8) may take before the daemon is asked, and between.
const UNMOUNT_STEP: Duration = Duration::from_secs(5);
/// How long it may take while the daemon answers: the kernel holds what programs wrote, and a slow disk takes it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(600);

/// What the daemon that said `status` has mounted, in this mount name space. Not by the source that the kernel shows: the state directory
/// may have more than one path.
fn mounts_here(status: &serde_json::Value) -> Result<Vec<Mount>> {
    let number = status.get("connection").and_then(serde_json::Value::as_u64);
    number.map_or_else(|| Ok(Vec::new()), mounts::of_connection)
}

/// Whose turn it is to mount a file system.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The caller's, while it keeps this lock of the state directory.
    Ours(File),
    /// Nobody's: its daemon serves these mounts here.
    Mounted {
        /// None: it is mounted in another mount name space.
        mounts: Vec<Mount>,
    },
}

/// As `service::claim`, and a daemon whose last mount has gone, which writes back what it holds, is waited for.
pub(crate) fn turn(place: &Place) -> Result<Turn> {
    loop {
        let status = match service::claim(place)? {
            Claim::Ours(lock) => return Ok(Turn::Ours(lock)),
            Claim::Mounted(status) => status,
        };
        let mounts = mounts_here(&status)?;
        if mounts.is_empty() && service::wait_ended(place, ENDING_LIMIT)? {
            continue;
        }
        return Ok(Turn::Mounted { mounts });
    }
}

/// What is said where the daemon of `place` has it mounted, and not here.
pub(crate) fn nowhere(place: &Place) -> Failure {
    let root = place.root().display();
    Failure::new(format!(
        "the daemon of {root} has it mounted in another mount name space"
    ))
    .help(format!("gupfs down --state {root}"))
}

/// Mounts at `point` what the daemon of `place`, which serves the mounts `ours`, has mounted already: as on any file system both are the same
/// one. `None`: it is there.
fn mount_again(
    place: &Place,
    ours: &[Mount],
    point: &Path,
    options: &Options,
) -> Result<Option<Vec<String>>> {
    let there = mounts::at(point)?;
    if there.is_some_and(|there| ours.contains(&there)) {
        return Ok(None);
    }
    let mut done = service::clear_point(point, Below::Nothing)?.done;
    let first = bind(ours, point)?.ok_or_else(|| nowhere(place))?;
    if !options.kernel.is_empty() {
        let words = format!("bind,remount,{}", options.kernel.join(","));
        if let Err(failure) = mounts::remount(point, &words) {
            // Without what was asked for it would allow more.
            mounts::umount(point)?;
            return Err(failure);
        }
    }
    done.push(format!(
        "mounted what is on {} on {}, too",
        first.point.display(),
        point.display()
    ));
    Ok(Some(done))
}

/// Mounts at `point` what one of `ours` has mounted; which one, if any can be reached: another file system may be mounted over it.
fn bind<'a>(ours: &'a [Mount], point: &Path) -> Result<Option<&'a Mount>> {
    for first in ours {
        mounts::bind(&first.point, point)?;
        let there = mounts::at(point)?;
        let is_it = |there: &Mount| {
            there.is_whole() && (there.major, there.minor) == (first.major, first.minor)
        };
        if there.as_ref().is_some_and(is_it) {
            return Ok(Some(first));
        }
        mounts::umount(point)?;
    }
    Ok(None)
}

/// What is mounted at `path`, or of the state directory `path`: where it was mounted last, or the newest.
fn mounted(path: &Path) -> Result<Mount> {
    // First: what is mounted there may not answer.
    if let Some(found) = mounts::at(path)? {
        return match found.is_gupfs() {
            true => Ok(found),
            false => Err(Failure::new(format!(
                "{} is no GUPFS mount: {} is mounted there",
                path.display(),
                found.kind
            ))),
        };
    }
    let nothing = |point: &Path| Failure::new(format!("nothing is mounted on {}", point.display()));
    if !path.join("gupfs.toml").is_file() {
        return Err(nothing(path));
    }
    let place = Place::new(path)?;
    let point = place.require()?.mount;
    let mut all = service::mounts_of(&place)?;
    all.retain(Mount::is_whole);
    let last = all.iter().rposition(|mount| mount.point == point);
    let last = last.or(all.len().checked_sub(1));
    last.map(|at| all.swap_remove(at))
        .ok_or_else(|| nothing(&point))
}

/// Unmounts what is mounted at `point`, or of the state directory `point`, and waits until all is written back. Refuses what
/// is in use. Returns what was done.
pub fn umount(point: &Path) -> Result<Vec<String>> {
    system::require_root("gupfs umount")?;
    let found = mounted(&system::absolute(point)?)?;
    let point = &found.point;
    // Before: afterwards it says of no mount that it serves it.
    let place = service::server_of(&found)?;
    let connection = mounts::connection(&found);
    unmount(point, place.as_ref())?;
    let mut done = vec![format!("unmounted {}", point.display())];
    if mounts::is_alive(&found, connection)? {
        done.push("it is mounted elsewhere, too: the daemon goes on".to_owned());
        return Ok(done);
    }
    if let Some(place) = place {
        if !service::wait_ended(&place, service::STOP_LIMIT)? {
            return Err(Failure::new(format!(
                "unmounted {}, but the daemon did not end within {} s: it may still write back",
                point.display(),
                service::STOP_LIMIT.as_secs()
            ))
            .help(format!(
                "gupfs waiters --state {0}; gupfs down --state {0} ends it in any case",
                place.root().display()
            )));
        }
        if let Some(lost) = service::take_lost(&place)? {
            return Err(lost);
        }
        if service::has_died(&place)? {
            return Err(service::unsynced(&place, "died"));
        }
        done.push("the daemon wrote back what it held and ended".to_owned());
    }
    Ok(done)
}

/// Has umount(8) unmount `point`, which waits for the daemon of `place`: until all is written back that the kernel holds, or until the daemon
/// does not answer.
fn unmount(point: &Path, place: Option<&Place>) -> Result<()> {
    let begin = Instant::now();
    let mut is_silent = false;
    let mut is_waited_for = || {
        let Some(place) = place else {
            return Ok(begin.elapsed() < service::STOP_LIMIT);
        };
        let answer = control::ask(&place.control(), "status", control::PATIENCE);
        is_silent = matches!(answer, Ok(Answer::Silent));
        Ok(!is_silent && begin.elapsed() < UNMOUNT_LIMIT)
    };
    let unmounted = mounts::umount_while(point, UNMOUNT_STEP, &mut is_waited_for);
    let is_done = unmounted.map_err(|failure| {
        failure.help(format!(
            "`fuser -vm {0}` names who uses it; `gupfs down` ends it in any case",
            point.display()
        ))
    })?;
    if is_done {
        return Ok(());
    }
    let root = place.map_or(Path::new("DIR"), Place::root).display();
    let why = match is_silent {
        true => "its daemon does not answer",
        false => "it may still be written back",
    };
    Err(Failure::new(format!(
        "{} is not unmounted after {} s: {why}",
        point.display(),
        begin.elapsed().as_secs()
    ))
    .help(format!(
        "gupfs waiters --state {root}; gupfs down --state {root} ends it in any case"
    )))
}

/// What mount(8) or umount(8) asks for.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Mount {
        source: PathBuf,
        point: PathBuf,
        options: Vec<String>,
        is_sloppy: bool,
        is_fake: bool,
        is_verbose: bool,
    },
    Umount {
        point: PathBuf,
        is_verbose: bool,
    },
}

/// Runs the program as a helper of mount(8), if it was called by such a name.
pub fn helper(arguments: &[std::ffi::OsString]) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let words = arguments.get(1..).unwrap_or_default();
    let call = if MOUNT_NAMES.contains(&name) {
        parse_mount(words)
    } else if UMOUNT_NAMES.contains(&name) {
        parse_umount(words)
    } else {
        return None;
    };
    let (code, failure) = match call {
        Err(failure) => (USAGE, failure),
        Ok(call) => match run(&call) {
            Ok(()) => return Some(ExitCode::SUCCESS),
            Err(failure) => (FAILED, failure),
        },
    };
    crate::cli::complain(name, &failure);
    Some(ExitCode::from(code))
}

fn run(call: &Call) -> Result<()> {
    let (done, is_verbose) = match call {
        Call::Mount {
            source,
            point,
            options,
            is_sloppy,
            is_fake,
            is_verbose,
        } => {
            if options
                .iter()
                .flat_map(|list| list.split(','))
                .any(|word| word == "remount")
            {
                let done = match is_fake {
                    true => Vec::new(),
                    false => remount(point, options)?,
                };
                if *is_verbose {
                    done.iter().for_each(|line| say!("{line}"));
                }
                return Ok(());
            }
            let options = Options::parse(options, *is_sloppy)?;
            match is_fake {
                true => (Vec::new(), *is_verbose),
                false => (mount(source, Some(point), &options)?, *is_verbose),
            }
        }
        Call::Umount { point, is_verbose } => (umount(point)?, *is_verbose),
    };
    if is_verbose {
        done.iter().for_each(|line| say!("{line}"));
    }
    Ok(())
}

/// Flags with a value, of which the next word is one if none follows the letter.
fn parse_mount(words: &[std::ffi::OsString]) -> Result<Call> {
    let usage = |what: String| {
        Failure::new(what).help(
            "mount -t fuse.gupfs [-o OPTIONS] STATE MOUNT-POINT; STATE is a state directory, its gupfs.toml, or its name in /var/lib/gupfs",
        )
    };
    let (mut paths, mut options) = (Vec::new(), Vec::new());
    let (mut is_sloppy, mut is_fake, mut is_verbose) = (false, false, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flags) = word.to_str().and_then(|w| w.strip_prefix('-')) else {
            paths.push(PathBuf::from(word));
            continue;
        };
        for (at, flag) in flags.char_indices() {
            match flag {
                's' => is_sloppy = true,
                'f' => is_fake = true,
                'v' => is_verbose = true,
                'n' | 'r' | 'w' => {
                    if flag == 'r' {
                        options.push("ro".to_owned());
                    }
                }
                'o' | 't' => {
                    let rest = &flags[at + 1..];
                    let value = match rest.is_empty() {
                        false => rest.to_owned(),
                        true => {
                            let next = words.next().and_then(|w| w.to_str());
                            next.ok_or_else(|| usage(format!("-{flag} has no value")))?
                                .to_owned()
                        }
                    };
                    if flag == 'o' {
                        options.push(value);
                    }
                    break;
                }
                other => return Err(usage(format!("-{other} is not known"))),
            }
        }
    }
    let [source, point] = <[PathBuf; 2]>::try_from(paths)
        .map_err(|paths| usage(format!("{} paths were given, not two", paths.len())))?;
    Ok(Call::Mount {
        source,
        point,
        options,
        is_sloppy,
        is_fake,
        is_verbose,
    })
}

fn parse_umount(words: &[std::ffi::OsString]) -> Result<Call> {
    let usage = |what: String| Failure::new(what).help("umount MOUNT-POINT");
    let (mut point, mut is_verbose) = (None, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str().and_then(|w| w.strip_prefix('-')) {
            Some("t" | "N") => drop(words.next()),
            Some(flags) if flags.contains(['f', 'l']) => {
                return Err(usage("forced and lazy unmounts are not for a helper".to_owned())
                    .help("umount -i -l POINT, or gupfs down --state DIR, which ends the daemon in any case"));
            }
            Some(flags) => is_verbose |= flags.contains('v'),
            None if point.is_none() => point = Some(PathBuf::from(word)),
            None => return Err(usage("more than one mount point was given".to_owned())),
        }
    }
    let point = point.ok_or_else(|| usage("no mount point was given".to_owned()))?;
    Ok(Call::Umount { point, is_verbose })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options> {
        Options::parse(&[list.to_owned()], false)
    }

    #[test]
    fn options_of_fstab_are_read() {
        for ignored in [
            "defaults",
            "rw,noauto,nofail,user",
            "X-mount.mkdir,allow_other,default_permissions",
            "comment=the home of all",
            ",,",
        ] {
            assert_eq!(parse(ignored), Ok(Options::default()), "{ignored}");
        }
        let words = "nosuid,_netdev,pagepool_size=2G,ro,lease_ms=4000,x-systemd.requires=network-online.target";
        let options = parse(words).expect("known");
        assert_eq!(
            options.table(),
            "_netdev,x-systemd.requires=network-online.target"
        );
        assert_eq!(Options::default().table(), "_netdev");
        assert_eq!(
            options.arguments(),
            [
                "--set",
                "pagepool_size=2G",
                "--set",
                "lease_ms=4000",
                "--mount-options",
                "nosuid,ro"
            ]
        );
        for bad in [
            "nosuit",
            "pagepool_size",
            "pagepol_size=1G",
            "mount=/x",
            "ro=1",
        ] {
            let said = parse(bad).expect_err("unknown").to_string();
            assert!(
                said.contains(bad) && said.contains("pagepool_size"),
                "{said}"
            );
            let sloppy = Options::parse(&[bad.to_owned()], true);
            assert_eq!(sloppy, Ok(Options::default()));
        }
        assert_eq!(flags("nosuid,ro"), Ok(libc::MS_NOSUID | libc::MS_RDONLY));
        assert_eq!(flags(""), Ok(0));
        flags("defaults").expect_err("not for the kernel");
    }

    #[test]
    fn a_remount_is_the_kernels() {
        let options = |list: &str| remount_options(&[list.to_owned()]);
        assert_eq!(
            options("rw,remount,relatime,user_id=0,pagepool_size=1G,ro"),
            "remount,rw,relatime,ro"
        );
        assert_eq!(options("remount"), "remount");
    }

    fn words(line: &str) -> Vec<std::ffi::OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn calls_of_mount_are_read() {
        let call = |options: &[&str], is_sloppy, is_fake, is_verbose| {
            Ok(Call::Mount {
                source: "/state".into(),
                point: "/mnt".into(),
                options: options.iter().map(|o| (*o).to_owned()).collect(),
                is_sloppy,
                is_fake,
                is_verbose,
            })
        };
        for (line, expected) in [
            ("/state /mnt", call(&[], false, false, false)),
            (
                "/state /mnt -o rw,ro",
                call(&["rw,ro"], false, false, false),
            ),
            (
                "/state /mnt -sv -o a -o b",
                call(&["a", "b"], true, false, true),
            ),
            (
                "-t fuse.gupfs -f /state /mnt -n",
                call(&[], false, true, false),
            ),
            (
                "/state -ronosuid /mnt",
                call(&["ro", "nosuid"], false, false, false),
            ),
        ] {
            assert_eq!(parse_mount(&words(line)), expected, "{line}");
        }
        for bad in [
            "/state",
            "/a /b /c",
            "/state /mnt -o",
            "/state /mnt -N 1",
            "/state /mnt -X",
        ] {
            parse_mount(&words(bad)).expect_err(bad);
        }
        let umount = |is_verbose| {
            Ok(Call::Umount {
                point: "/mnt".into(),
                is_verbose,
            })
        };
        assert_eq!(parse_umount(&words("/mnt -v -t fuse.gupfs")), umount(true));
        assert_eq!(parse_umount(&words("-n /mnt")), umount(false));
        for bad in ["-v", "/a /b", "/mnt -l", "/mnt -f"] {
            parse_umount(&words(bad)).expect_err(bad);
        }
    }

    #[test]
    fn only_helpers_names_make_a_helper() {
        assert!(helper(&words("/usr/bin/gupfs /a /b")).is_none());
        assert!(helper(&[]).is_none());
        let code = helper(&words("/sbin/mount.fuse.gupfs /only-one"));
        assert_eq!(code, Some(ExitCode::from(USAGE)));
    }
}
