//! The command line: one definition of all commands, their help and examples, and their dispatch. Families of commands have
//! a file each.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::locate::Errand;
use crate::size::parse_argument;
use crate::state::{self, Place};
use crate::{
    bench, daemon, demo, df, du, fsck, inspect, locate, mount, output, settings, stat, top,
};

mod config;
mod dump;
mod fs;
mod lab;
mod layout;
mod nsd;
mod pages;
mod up;

use config::ConfigCommand;
use dump::Dump;
use fs::FsCommand;
pub use lab::DemoArgs;
use lab::LabCommand;
use layout::LayoutCommand;
use nsd::NsdCommand;
use up::UpArgs;

/// GUPFS: a POSIX parallel file system in user space.
#[derive(Debug, Parser)]
#[command(name = "gupfs", version, arg_required_else_help = true)]
#[command(
    after_help = "Examples:\n  gupfs up --mount /mnt/gupfs --state /var/lib/gupfs --size 8G\n  gupfs status --state /var/lib/gupfs\n  gupfs down --state /var/lib/gupfs\n  gupfs demo --dir /tmp/demo"
)]
pub struct Cli {
    /// Print JSON: one value on one line (docs/commands.md).
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a file system if there is none, start the daemon, mount.
    #[command(
        after_help = "Examples:\n  gupfs up --mount /mnt/gupfs --state /var/lib/gupfs --size 8G\n  gupfs up --mount /mnt/fast --state /tmp/fast --size 4G --backing ram\n\nRun again it mounts what is there, data intact."
    )]
    Up(UpArgs),
    /// Unmount and stop the daemon, whatever state it is in.
    #[command(
        after_help = "Examples:\n  gupfs down --state /var/lib/gupfs\n  gupfs down --state /tmp/fast --destroy    (removes the file system too)"
    )]
    Down {
        /// State directory.
        #[arg(long)]
        state: PathBuf,
        /// Remove the file system with all its data.
        #[arg(long)]
        destroy: bool,
    },
    /// Run the daemon in the foreground.
    #[command(
        after_help = "Examples:\n  gupfs daemon --state /var/lib/gupfs    (log on standard error; GUPFS_LOG=debug for more)\n  gupfs daemon --state /var/lib/gupfs --set pagepool_size=4G"
    )]
    Daemon {
        /// State directory.
        #[arg(long)]
        state: PathBuf,
        /// A setting for this run, before that of the state directory (`gupfs config show` lists them).
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// How to write the log: as --set log_format=...
        #[arg(long, value_enum)]
        log_format: Option<state::LogFormat>,
        /// What to log: as --set log_level=...
        #[arg(long, value_enum)]
        log_level: Option<state::LogLevel>,
        /// How the kernel mounts: a list of ro, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime, lazytime, nosymfollow.
        #[arg(long, value_name = "LIST", default_value = "")]
        mount_options: String,
        /// What the kernel shows as the source of the mount [default: the state directory].
        #[arg(long, value_name = "NAME")]
        source: Option<String>,
    },
    /// Mount a file system that is there: what mount(8) does with a line of fstab.
    #[command(
        after_help = "Examples:\n  gupfs mount /var/lib/gupfs\n  gupfs mount /var/lib/gupfs /mnt/gupfs -o nosuid,nodev,pagepool_size=4G\n  mount -t fuse.gupfs /var/lib/gupfs /mnt/gupfs\n\nIn /etc/fstab (docs/packaging.md):\n  /var/lib/gupfs /mnt/gupfs fuse.gupfs _netdev,nofail 0 0"
    )]
    Mount {
        /// State directory.
        state: PathBuf,
        /// Where to mount; default: where it was mounted last.
        point: Option<PathBuf>,
        /// Options as in fstab.
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Vec<String>,
    },
    /// Unmount what nobody uses, and wait until all is written back.
    #[command(
        after_help = "Examples:\n  gupfs umount /mnt/gupfs\n  gupfs umount /var/lib/gupfs    (its state directory)\n\n`gupfs down` stops the daemon also while the mount is in use, and when it hangs."
    )]
    Umount {
        /// Mount point, or state directory.
        point: PathBuf,
    },
    /// Check a file system: labels, journals, trees, names, inodes, sectors; with --data every byte; with --online while it is used.
    #[command(
        after_help = "Examples:\n  gupfs fsck /var/lib/gupfs\n  gupfs fsck --data /var/lib/gupfs\n  gupfs fsck --data --resume /var/lib/gupfs    (goes on after Ctrl-C, or a crash)\n  gupfs fsck --repair /var/lib/gupfs\n  gupfs fsck --online /var/lib/gupfs           (while daemons serve it)\n\nExit codes: 0 clean, 1 repaired, 4 something is wrong, 8 it could not be checked, 16 usage, 32 interrupted (docs/fsck.md)."
    )]
    Fsck(fsck::FsckArgs),
    /// What the daemon is doing.
    #[command(after_help = "Example:\n  gupfs status --state /var/lib/gupfs --json")]
    Status(AskArgs),
    /// Every operation that waits, and for what.
    #[command(after_help = "Example:\n  gupfs waiters --state /var/lib/gupfs")]
    Waiters(AskArgs),
    /// The room on file systems: capacity, used and free, and where it is, NSD by NSD.
    #[command(
        after_help = "Examples:\n  gupfs df                        (all that daemons of this machine serve)\n  gupfs df /mnt/gupfs/home\n  gupfs df --state /var/lib/gupfs --json\n\nNeeds root: the daemon answers nobody else. df(1) is for all."
    )]
    Df {
        /// State directory.
        #[arg(long, conflicts_with = "path")]
        state: Option<PathBuf>,
        /// Anything on the file system.
        path: Option<PathBuf>,
    },
    /// What trees use, asked of their owners: bytes on disks, apparent bytes, inodes.
    #[command(
        after_help = "Examples:\n  gupfs du -sh /mnt/gupfs/home\n  gupfs du /mnt/gupfs/project          (a line for each directory below)\n  gupfs du -s --json /mnt/gupfs/a /mnt/gupfs/b\n\nWhat is committed counts; an inode with several names counts once. Needs root: the daemon answers nobody else."
    )]
    Du(du::DuArgs),
    /// Where new sectors of files go.
    #[command(
        subcommand,
        after_help = "Examples:\n  gupfs layout get /mnt/gupfs/scratch\n  gupfs layout set /mnt/gupfs/scratch --nsds 3,4\n\nNeeds root: the daemon answers nobody else."
    )]
    Layout(LayoutCommand),
    /// A file: its attributes, its layout, and the NSDs and sectors that its bytes lie on.
    #[command(
        after_help = "Examples:\n  gupfs stat /mnt/gupfs/file\n  gupfs stat --sync /mnt/gupfs/file --json\n\nExtents are what is committed: --sync brings what was written to its place first (fsync). Needs root: the daemon answers nobody else. stat(1) is for all."
    )]
    Stat {
        /// fsync it first.
        #[arg(long)]
        sync: bool,
        /// A file, a directory, or anything else on a GUPFS file system; links are not followed.
        file: PathBuf,
    },
    /// What the daemon is busiest with: operations and their latency, disks, journal, messages.
    #[command(
        after_help = "Examples:\n  gupfs top --state /var/lib/gupfs\n  gupfs top --state /var/lib/gupfs --once --json\n  gupfs top --state /var/lib/gupfs --interval 10 --count 6\n\nOne request in eight is timed. With --json each interval is a line."
    )]
    Top {
        #[command(flatten)]
        ask: AskArgs,
        /// One interval only.
        #[arg(long, conflicts_with = "count")]
        once: bool,
        /// Seconds of an interval.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// So many intervals; default: until it is ended.
        #[arg(long)]
        count: Option<u64>,
    },
    /// How fast a directory is: streams, random reads, files, fsync; any user may run it.
    #[command(
        after_help = "Examples:\n  gupfs bench /mnt/gupfs/home/me\n  gupfs bench /mnt/gupfs/home/me --against /var/tmp\n  gupfs bench /mnt/gupfs/home/me --size 2G --seconds 10 --json\n\nFiles are made in a new directory there and removed, also after Ctrl-C. SPEED is how much faster than the other: 2 is twice."
    )]
    Bench(bench::BenchArgs),
    /// What `df` and `stat` start to look at a path that may not answer.
    #[command(hide = true)]
    LookAt {
        #[arg(long)]
        sync: bool,
        #[arg(long)]
        layout: bool,
        #[arg(long)]
        set_layout: Option<String>,
        path: PathBuf,
    },
    /// Print an inner table of the daemon.
    #[command(
        after_help = "Examples:\n  gupfs dump counters --state /var/lib/gupfs --json\n  gupfs dump inode /mnt/gupfs/file --state /var/lib/gupfs\n\nOf a file system that nobody uses (a lab's directory is a state directory, too):\n  gupfs dump inode /dir/file --offline --state /var/lib/gupfs\n  gupfs dump tree-page --state /var/lib/gupfs\n  gupfs dump tree-page 1:6400 --state /var/lib/gupfs\n  gupfs dump journal-record 1234 --state /var/lib/gupfs"
    )]
    Dump {
        /// What to print.
        what: Dump,
        /// Of `inode`: its number, or a path on a mount (with --offline: from the root of the file system). Of `tree-page`:
        /// NSD:SECTOR. Of `journal-record`: an LSN.
        of: Option<std::ffi::OsString>,
        /// Of `inode`: from the disks of a file system that nobody uses.
        #[arg(long)]
        offline: bool,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// NSDs: the disks of file systems.
    #[command(
        subcommand,
        after_help = "Examples:\n  gupfs nsd create --size 2G /data/1.img /data/2.img\n  gupfs nsd list"
    )]
    Nsd(NsdCommand),
    /// File systems.
    #[command(
        subcommand,
        after_help = "Examples:\n  gupfs fs create --state /var/lib/gupfs --mount /mnt/gupfs /data/1.img /data/2.img\n  gupfs fs list"
    )]
    Fs(FsCommand),
    /// Settings of a state directory: their values, where these come from, whether the daemon runs with them.
    #[command(
        subcommand,
        after_help = "Examples:\n  gupfs config show --state /var/lib/gupfs\n  gupfs config set pagepool_size 4G --state /var/lib/gupfs"
    )]
    Config(ConfigCommand),
    /// A cluster of daemons on this machine, in network name spaces.
    #[command(
        subcommand,
        after_help = "Examples:\n  gupfs lab up --dir /tmp/lab --nodes 2 --backing ram --size 8G\n  gupfs lab down --dir /tmp/lab"
    )]
    Lab(LabCommand),
    /// The main job on real input: two nodes, a real tree, every byte verified through the other node.
    #[command(
        after_help = "Examples:\n  gupfs demo --dir /tmp/demo\n  gupfs demo --dir /tmp/demo --tree /usr/share --backing ram\n  gupfs demo --dir /tmp/demo --seed 7 --files 10000 --bytes 500M\n  gupfs demo --on /mnt/a,/mnt/b    (two directories that are one: no lab, no kill)"
    )]
    Demo(DemoArgs),
    /// Print the completion of a shell.
    #[command(
        after_help = "Examples:\n  gupfs completion bash > /etc/bash_completion.d/gupfs\n  gupfs completion fish > ~/.config/fish/completions/gupfs.fish"
    )]
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages, one for each command.
    #[command(after_help = "Example:\n  gupfs man /usr/local/share/man/man1 && man gupfs-lab-up")]
    Man {
        /// Where to: a directory that exists.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
struct AskArgs {
    /// State directory.
    #[arg(long)]
    state: PathBuf,
}

fn parse_pagepool(text: &str) -> std::result::Result<u64, String> {
    settings::check_pagepool(parse_argument(text)?)
}

/// Parses the arguments, runs the command, reports its failure.
pub fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = mount::helper(&arguments) {
        return code;
    }
    let is_fsck = arguments.get(1).is_some_and(|word| word == "fsck");
    let cli = match Cli::try_parse_from(&arguments) {
        Err(error) if is_fsck && error.use_stderr() => {
            let _ = error.print();
            return ExitCode::from(fsck::USAGE);
        }
        Err(error) if error.use_stderr() => error.exit(),
        Err(error) => {
            // Help and version.
            output::note(error.print());
            return end(Ok(()));
        }
        Ok(cli) => cli,
    };
    if let Command::Dump {
        what, of, offline, ..
    } = &cli.command
        && let Err((kind, said)) = dump::check(*what, of.as_deref(), *offline)
    {
        let mut all = Cli::command();
        all.build();
        let command = all.find_subcommand_mut("dump").expect("it is there");
        command.error(kind, said).exit();
    }
    if let Command::Fsck(args) = &cli.command {
        return fsck::main(args, cli.json);
    }
    end(dispatch(cli.command, cli.json))
}

fn end(outcome: Result<()>) -> ExitCode {
    match outcome.and_then(|()| output::check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain("gupfs", &failure);
            ExitCode::FAILURE
        }
    }
}

/// Says why the program `name` failed.
pub(crate) fn complain(name: &str, failure: &Failure) {
    // Nothing can be done if even this cannot be written.
    let _ = writeln!(std::io::stderr(), "{name}: {failure}");
}

fn dispatch(command: Command, json: bool) -> Result<()> {
    match command {
        Command::Up(args) => up::run(args, json),
        Command::Down { state, destroy } => report(crate::up::down(&state, destroy), json),
        Command::Daemon {
            state,
            mut set,
            log_format,
            log_level,
            mount_options,
            source,
        } => {
            set.extend(log_format.map(|format| format!("log_format={}", format.name())));
            set.extend(log_level.map(|level| format!("log_level={}", level.name())));
            without_json(json, "daemon")
                .and_then(|()| daemon::run(&state, &set, &mount_options, source))
        }
        Command::Mount {
            state,
            point,
            options,
        } => {
            let mounted = mount::Options::parse(&options, false)
                .and_then(|options| mount::mount(&state, point.as_deref(), &options));
            report(mounted, json)
        }
        Command::Umount { point } => report(mount::umount(&point), json),
        Command::Fsck(_) => unreachable!("its exit code is its own"),
        Command::Status(args) => run_ask(&args, "status", json),
        Command::Waiters(args) => run_ask(&args, "waiters", json),
        Command::Df { state, path } => run_df(path.as_deref(), state.as_deref(), json),
        Command::Stat { sync, file } => {
            let value = stat::look(&file, sync)?;
            show_as(&value, json, stat::to_text);
            Ok(())
        }
        Command::Top {
            ask,
            once,
            interval,
            count,
        } => top::run(
            &Place::new(&ask.state)?,
            top::Plan {
                interval: Duration::from_secs(interval),
                count: if once { Some(1) } else { count },
                json,
            },
        ),
        Command::LookAt {
            sync,
            layout,
            set_layout,
            path,
        } => {
            locate::look_at(&path, &errand(sync, layout, set_layout));
            Ok(())
        }
        Command::Bench(args) => {
            args.directories().try_for_each(locate::require_answer)?;
            show_as(&bench::run(&args)?, json, bench::to_text);
            Ok(())
        }
        Command::Du(args) => du::run(&args, json),
        Command::Layout(command) => layout::run(command, json),
        Command::Dump {
            what,
            of,
            offline,
            ask,
        } => dump::run(what, of.as_deref(), offline, &ask, json),
        Command::Nsd(command) => nsd::run(command, json),
        Command::Fs(command) => fs::run(command, json),
        Command::Config(command) => config::run(command, json),
        Command::Lab(command) => lab::run(command, json),
        Command::Demo(args) => demo::run(&DemoArgs { json, ..args }),
        Command::Completion { shell } => {
            without_json(json, "completion").and_then(|()| pages::print_completion(shell))
        }
        Command::Man { dir } => report(pages::write_man_pages(&dir), json),
    }
}

fn errand(sync: bool, layout: bool, set_layout: Option<String>) -> Errand {
    match (set_layout, layout, sync) {
        (Some(text), ..) => Errand::SetLayout(text),
        (None, true, _) => Errand::GetLayout,
        (None, false, true) => Errand::Sync,
        (None, false, false) => Errand::Look,
    }
}

/// Fails if JSON was asked of a command whose output is none.
fn without_json(json: bool, command: &str) -> Result<()> {
    match json {
        true => Err(Failure::new(format!(
            "gupfs {command} prints no facts: it has no JSON form"
        ))
        .help("leave --json out")),
        false => Ok(()),
    }
}

fn run_ask(args: &AskArgs, request: &str, json: bool) -> Result<()> {
    let value = inspect::ask(&Place::new(&args.state)?, request)?;
    show(&value, json);
    Ok(())
}

fn run_df(path: Option<&Path>, state: Option<&Path>, json: bool) -> Result<()> {
    let (value, silence) = df::look(path, state)?;
    show_as(&value, json, df::to_text);
    silence.map_or(Ok(()), Err)
}

/// What a command did: a line each, or `{"done": [...]}`.
fn report(outcome: Result<Vec<String>>, json: bool) -> Result<()> {
    let done = outcome?;
    match json {
        true => say!("{}", json!({ "done": done })),
        false => done.iter().for_each(|line| say!("{line}")),
    }
    Ok(())
}

/// An answer: for people, or as it is.
fn show(value: &Value, json: bool) {
    show_as(value, json, inspect::to_text);
}

fn show_as(value: &Value, json: bool, to_text: fn(&Value) -> String) {
    match json {
        true => say!("{value}"),
        false => say!("{}", to_text(value).trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_pagepool_has_room_for_requests() {
        assert_eq!(parse_pagepool("32M"), Ok(32 << 20));
        assert!(parse_pagepool("31M").is_err_and(|said| said.contains("32 MiB")));
        assert!(parse_pagepool("99T").is_err_and(|said| said.contains("of memory")));
        assert!(parse_pagepool("1G").is_ok(), "the default");
        assert!(parse_pagepool("much").is_err());
    }
}
