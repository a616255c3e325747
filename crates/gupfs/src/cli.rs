//! The command line: one definition of all commands, their help and examples, and their dispatch.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use serde_json::{Value, json};

use crate::demo;
use crate::failure::{Failure, Result};
use crate::filesystem::{self, NewDisk, NewFileSystem, NewNode};
use crate::inspect;
use crate::lab::{self, Lab, Plan};
use crate::size::parse_argument;
use crate::state::{self, Backing, Disk, Place, State, Transport};
use crate::{
    daemon, destroy, df, dump, files, fsck, locate, mount, settings, stat, system, top, up,
};

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
        /// How the kernel mounts: a list of ro, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime.
        #[arg(long, value_name = "LIST", default_value = "")]
        mount_options: String,
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
    /// Check a file system that nobody uses: labels, journals, trees, names, inodes, sectors; with --data every byte.
    #[command(
        after_help = "Examples:\n  gupfs fsck /var/lib/gupfs\n  gupfs fsck --data /var/lib/gupfs\n  gupfs fsck --data --resume /var/lib/gupfs    (goes on after Ctrl-C)\n  gupfs fsck --repair /var/lib/gupfs\n\nExit codes: 0 clean, 1 repaired, 4 something is wrong, 8 it could not be checked, 16 usage, 32 interrupted (docs/fsck.md)."
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
        after_help = "Examples:\n  gupfs df                        (all that daemons of this machine serve)\n  gupfs df /mnt/gupfs/home\n  gupfs df --state /var/lib/gupfs --json"
    )]
    Df {
        /// State directory.
        #[arg(long, conflicts_with = "path")]
        state: Option<PathBuf>,
        /// Anything on the file system.
        path: Option<PathBuf>,
    },
    /// A file: its attributes, its layout, and the NSDs and sectors that its bytes lie on.
    #[command(
        after_help = "Examples:\n  gupfs stat /mnt/gupfs/file\n  gupfs stat --sync /mnt/gupfs/file --json\n\nExtents are what is committed: --sync brings what was written to its place first (fsync)."
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
    /// What `df` and `stat` start to look at a path that may not answer.
    #[command(hide = true)]
    LookAt {
        #[arg(long)]
        sync: bool,
        path: PathBuf,
    },
    /// Print an inner table of the daemon.
    #[command(after_help = "Example:\n  gupfs dump counters --state /var/lib/gupfs --json")]
    Dump {
        /// What to print.
        what: Dump,
        /// Of `inode`: its number, or a path on a mount.
        of: Option<String>,
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
struct UpArgs {
    /// Where to mount: an empty directory.
    #[arg(long)]
    mount: PathBuf,
    /// State directory; made if it does not exist.
    #[arg(long)]
    state: PathBuf,
    /// Bytes of the four NSDs together, for a new file system.
    #[arg(long, default_value = "8G", value_parser = parse_argument)]
    size: u64,
    /// Where the NSDs of a new file system lie.
    #[arg(long, value_enum, default_value = "file")]
    backing: Backing,
    /// How requests travel between kernel and daemon.
    #[arg(long, value_enum, default_value = "device")]
    transport: Transport,
    /// Bytes of memory for caching.
    #[arg(long, default_value = "1G", value_parser = parse_pagepool)]
    pagepool: u64,
    /// Files of this size and more are read past the kernel's page cache, unless they are read in small pieces or mapped
    /// [default: 128M, and a file that is read again comes through the page cache].
    #[arg(long, value_name = "SIZE", value_parser = parse_argument)]
    direct_from: Option<u64>,
    /// Make the mount point if it is missing.
    #[arg(long)]
    mkdir: bool,
}

#[derive(Debug, Args)]
struct AskArgs {
    /// State directory.
    #[arg(long)]
    state: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Dump {
    /// Requests, messages, context switches, copied bytes, flushes, journal bytes.
    Counters,
    /// Sectors of each NSD by state, what this node has in hand, and whether its files use what is counted.
    Space,
    /// The configuration that the state directory holds.
    Config,
    /// The cluster view that the state directory holds.
    View,
    /// Attributes, layout and extents of an inode, at its owner.
    Inode,
    /// The labels on the disks of the state directory, daemon or not.
    Superblock,
    /// The segment headers of the journals on these disks.
    Journal,
}

#[derive(Debug, Subcommand)]
enum NsdCommand {
    /// Make files to be used as NSDs, or check that disks can be.
    #[command(
        after_help = "Examples:\n  gupfs nsd create --size 2G /data/1.img /data/2.img\n  gupfs nsd create /dev/sdb           (checks it; nothing is written)\n  gupfs nsd create --force /dev/sdb   (erases its first sectors)"
    )]
    Create {
        /// Make sparse files of this size.
        #[arg(long, value_parser = parse_argument)]
        size: Option<u64>,
        /// Erase what the first sectors hold.
        #[arg(long)]
        force: bool,
        /// Files or block devices.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show the labels of disks.
    #[command(
        after_help = "Examples:\n  gupfs nsd list                   (all block devices of this machine)\n  gupfs nsd list --state /var/lib/gupfs\n  gupfs nsd list /data/1.img --json"
    )]
    List {
        /// The disks of this state directory.
        #[arg(long)]
        state: Option<PathBuf>,
        /// Files or block devices.
        paths: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum FsCommand {
    /// Make a file system over given disks, for one node.
    #[command(
        after_help = "Example:\n  gupfs nsd create --size 2G /data/1.img /data/2.img\n  gupfs fs create --state /var/lib/gupfs --mount /mnt/gupfs /data/1.img /data/2.img\n  gupfs up --state /var/lib/gupfs --mount /mnt/gupfs"
    )]
    Create {
        /// State directory; made if it does not exist.
        #[arg(long)]
        state: PathBuf,
        /// Where it will be mounted.
        #[arg(long)]
        mount: PathBuf,
        /// Stripe unit in bytes.
        #[arg(long, default_value = "1M", value_parser = parse_argument)]
        block_size: u64,
        /// Destroy what the disks hold.
        #[arg(long)]
        force: bool,
        /// Files or block devices.
        #[arg(required = true)]
        disks: Vec<PathBuf>,
    },
    /// Show the file systems of this machine, or of the named disks.
    #[command(
        after_help = "Examples:\n  gupfs fs list\n  gupfs fs list --state /var/lib/gupfs\n  gupfs fs list --json /data/1.img /data/2.img"
    )]
    List {
        /// The file system of this state directory.
        #[arg(long, conflicts_with = "paths")]
        state: Option<PathBuf>,
        /// Files or block devices.
        paths: Vec<PathBuf>,
    },
    /// Remove a file system that is not mounted, with all its data; asks first.
    #[command(
        after_help = "Examples:\n  gupfs fs destroy --state /var/lib/gupfs\n  gupfs fs destroy --state /var/lib/gupfs --yes\n\nNSDs that were given to `gupfs fs create` are blank afterwards; those that `gupfs up` made are removed."
    )]
    Destroy {
        /// State directory; it is removed, too.
        #[arg(long)]
        state: PathBuf,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// All settings.
    #[command(
        after_help = "Examples:\n  gupfs config show --state /var/lib/gupfs\n  gupfs config show --state /var/lib/gupfs --json"
    )]
    Show(AskArgs),
    /// The value of one setting.
    #[command(
        after_help = "Examples:\n  gupfs config get pagepool_size --state /var/lib/gupfs\n  gupfs config get lease_ms --state /var/lib/gupfs --json    (with origin, default and what is allowed)"
    )]
    Get {
        /// Its name, as `show` lists it.
        key: String,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Change a setting; a running daemon takes it up at its next start.
    #[command(
        after_help = "Examples:\n  gupfs config set pagepool_size 4G --state /var/lib/gupfs\n  gupfs config set direct_from default --state /var/lib/gupfs"
    )]
    Set {
        /// Its name, as `show` lists it.
        key: String,
        /// The new value; `default` goes back to the default.
        #[arg(allow_hyphen_values = true)]
        value: String,
        #[command(flatten)]
        ask: AskArgs,
    },
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Make a lab, or bring what is missing of it up again.
    #[command(
        after_help = "Example:\n  gupfs lab up --dir /tmp/lab --nodes 2 --backing ram --size 8G"
    )]
    Up {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
        /// Nodes.
        #[arg(long, default_value_t = 2)]
        nodes: u16,
        /// Where the NSDs lie.
        #[arg(long, value_enum, default_value = "file")]
        backing: Backing,
        /// Bytes of all NSDs together.
        #[arg(long, default_value = "8G", value_parser = parse_argument)]
        size: u64,
        /// How requests travel between kernel and daemon.
        #[arg(long, value_enum, default_value = "device")]
        transport: Transport,
        /// Bytes of memory for caching, of each node.
        #[arg(long, default_value = "1G", value_parser = parse_pagepool)]
        pagepool: u64,
        /// As of `gupfs up`.
        #[arg(long, value_name = "SIZE", value_parser = parse_argument)]
        direct_from: Option<u64>,
        /// Milliseconds of a node's lease: how long a silent node is waited for.
        #[arg(long, default_value_t = types::limits::LEASE_MS, value_parser = lease_range())]
        lease_ms: u64,
    },
    /// What each node is doing.
    #[command(after_help = "Example:\n  gupfs lab status --dir /tmp/lab --json")]
    Status {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Kill a node's daemon with SIGKILL, as a crash would.
    #[command(
        after_help = "Example:\n  gupfs lab kill n2 --dir /tmp/lab && gupfs lab start n2 --dir /tmp/lab"
    )]
    Kill {
        /// Such as n2.
        #[arg(value_parser = parse_node)]
        node: u16,
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Start nodes again.
    #[command(after_help = "Example:\n  gupfs lab start n1 n2 --dir /tmp/lab")]
    Start {
        /// Such as n2; several start together.
        #[arg(value_parser = parse_node, required = true)]
        nodes: Vec<u16>,
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Remove the lab: daemons, mounts, name spaces, loop devices, data.
    #[command(
        after_help = "Example:\n  gupfs lab down --dir /tmp/lab    (works from any state a crash can leave)"
    )]
    Down {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
}

/// Arguments of the demo.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Directory of the lab that the demo makes and removes.
    #[arg(long, required_unless_present = "on")]
    pub dir: Option<PathBuf>,
    /// Tree to copy; may be given several times. Default: the Rust toolchain and cargo's sources.
    #[arg(long, conflicts_with = "seed")]
    pub tree: Vec<PathBuf>,
    /// Copy a tree generated from this seed instead.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Files of the generated tree.
    #[arg(long, default_value_t = 10_000)]
    pub files: u64,
    /// Bytes of the generated tree.
    #[arg(long, default_value = "512M", value_parser = parse_argument)]
    pub bytes: u64,
    /// Two directories that show the same files: no lab is made and nothing is killed.
    #[arg(long, value_delimiter = ',', num_args = 1, conflicts_with = "dir")]
    pub on: Vec<PathBuf>,
    /// Where the NSDs lie.
    #[arg(long, value_enum, default_value = "file")]
    pub backing: Backing,
    /// Bytes of all NSDs together.
    #[arg(long, default_value = "8G", value_parser = parse_argument)]
    pub size: u64,
    /// FUSE transport of the lab's nodes.
    #[arg(long, value_enum, default_value = "device")]
    pub transport: Transport,
    /// Threads that copy and that verify.
    #[arg(long, default_value_t = 4)]
    pub threads: usize,
    /// Leave the lab running.
    #[arg(long)]
    pub keep: bool,
    /// Skip the same copy on a local file system.
    #[arg(long)]
    pub no_compare: bool,
    /// Print JSON at the end: the flag of all commands.
    #[arg(skip)]
    pub json: bool,
}

fn lease_range() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(state::LEASE_MS)
}

fn parse_pagepool(text: &str) -> std::result::Result<u64, String> {
    match parse_argument(text)? {
        size if size < settings::PAGEPOOL_SIZE_MIN => {
            Err("a pagepool has 32 MiB at least".to_owned())
        }
        size => Ok(size),
    }
}

fn parse_node(text: &str) -> std::result::Result<u16, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("{text:?} is no node; write for example n2"))
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
        Err(error) => error.exit(),
        Ok(cli) => cli,
    };
    if let Command::Fsck(args) = &cli.command {
        return fsck::main(args, cli.json);
    }
    match dispatch(cli.command, cli.json) {
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
        Command::Up(args) => run_up(args, json),
        Command::Down { state, destroy } => report(up::down(&state, destroy), json),
        Command::Daemon {
            state,
            mut set,
            log_format,
            log_level,
            mount_options,
        } => {
            set.extend(log_format.map(|format| format!("log_format={}", format.name())));
            set.extend(log_level.map(|level| format!("log_level={}", level.name())));
            without_json(json, "daemon").and_then(|()| daemon::run(&state, &set, &mount_options))
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
        Command::LookAt { sync, path } => {
            locate::look_at(&path, sync);
            Ok(())
        }
        Command::Dump { what, of, ask } => run_dump(what, of.as_deref(), &ask, json),
        Command::Nsd(command) => run_nsd(command, json),
        Command::Fs(command) => run_fs(command, json),
        Command::Config(command) => run_config(command, json),
        Command::Lab(command) => run_lab(command, json),
        Command::Demo(args) => demo::run(&DemoArgs { json, ..args }),
        Command::Completion { shell } => {
            without_json(json, "completion").and_then(|()| print_completion(shell))
        }
        Command::Man { dir } => report(write_man_pages(&dir), json),
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

fn print_completion(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gupfs", &mut text);
    let written = std::io::stdout().write_all(&text);
    written.map_err(|e| Failure::new(format!("cannot write the completion: {e}")))
}

fn write_man_pages(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Err(Failure::new(format!("{} is no directory", dir.display()))
            .help("make it first, or name another one"));
    }
    let written = clap_mangen::generate_to(Cli::command(), dir);
    written.map_err(|e| Failure::io("write man pages to", dir, &e))?;
    Ok(vec![format!("wrote the man pages to {}", dir.display())])
}

fn run_up(args: UpArgs, json: bool) -> Result<()> {
    let done = up::up(&up::Request {
        mount: args.mount.clone(),
        state: args.state.clone(),
        size: args.size,
        backing: args.backing,
        transport: args.transport,
        pagepool_size: args.pagepool,
        direct_from: args.direct_from,
        make_mount_point: args.mkdir,
    });
    report(done, json)?;
    if json {
        return Ok(());
    }
    let (mount, state) = (args.mount.display(), args.state.display());
    say!("\nfive things to try:");
    say!("  cp -a /usr/share/doc {mount}/ && diff -r /usr/share/doc {mount}/doc");
    say!("  dd if=/dev/zero of={mount}/big bs=1M count=1024 conv=fsync");
    say!("  gupfs status --state {state}");
    say!("  gupfs dump counters --state {state}");
    say!("  gupfs down --state {state}    (and `gupfs up` again: the data is still there)");
    Ok(())
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

fn run_dump(what: Dump, of: Option<&str>, args: &AskArgs, json: bool) -> Result<()> {
    let place = Place::new(&args.state)?;
    if of.is_some() && !matches!(what, Dump::Inode) {
        return Err(Failure::new("only `dump inode` takes a number or a path"));
    }
    match what {
        Dump::Counters => run_ask(args, "counters", json),
        Dump::Space => run_ask(args, "space", json),
        Dump::Config => {
            show(&settings::to_json(&place.require()?), json);
            Ok(())
        }
        Dump::Superblock | Dump::Journal => {
            let on_disk = match what {
                Dump::Superblock => dump::superblock,
                _ => dump::journal,
            };
            on_disk(&place).map(|value| show(&value, json))
        }
        Dump::View => {
            show(&view_to_json(&place.load_view()?), json);
            Ok(())
        }
        Dump::Inode => {
            let of = of.ok_or_else(|| Failure::new("name an inode's number, or a path"))?;
            let value = inspect::ask(&place, &format!("inode {}", inode_number(of)?))?;
            if let Some(error) = value["error"].as_str() {
                return Err(Failure::new(format!("inode {of}: {error}")));
            }
            show(&value, json);
            Ok(())
        }
    }
}

/// A number as it is, or the number of what a path leads to.
fn inode_number(of: &str) -> Result<u64> {
    if let Ok(number) = of.parse() {
        return Ok(number);
    }
    let path = Path::new(of);
    let found = std::fs::symlink_metadata(path).map_err(|e| Failure::io("look at", path, &e))?;
    Ok(std::os::unix::fs::MetadataExt::ino(&found))
}

fn view_to_json(view: &types::ClusterView) -> Value {
    json!({
        "cluster": format!("{:032x}", view.cluster.0),
        "fs": format!("{:032x}", view.fs.0),
        "epoch": view.epoch.0,
        "manager": view.manager.0,
        "block_size": view.block_size,
        "nodes": view.nodes.iter().map(|n| json!({
            "node": n.id.0, "address": n.address, "incarnation": format!("{:032x}", n.incarnation.0),
        })).collect::<Vec<_>>(),
        "nsds": view.nsds.iter().map(|n| json!({
            "nsd": n.id.0, "servers": n.servers.iter().map(|s| s.0).collect::<Vec<_>>(),
            "sectors": n.sector_count, "data_begin": n.data_begin, "failure_group": n.failure_group,
        })).collect::<Vec<_>>(),
        "owners": view.owners.iter().map(|o| o.0).collect::<Vec<_>>(),
    })
}

fn run_nsd(command: NsdCommand, json: bool) -> Result<()> {
    match command {
        NsdCommand::Create { size, force, paths } => report(create_nsds(size, force, &paths), json),
        NsdCommand::List { state, paths } => {
            let (found, missing) = match state {
                Some(state) => inspect::disks_of(&Place::new(&state)?)?,
                None if paths.is_empty() => (inspect::scan()?, None),
                None => (inspect::look_at(&paths)?, None),
            };
            match json {
                true => say!("{}", inspect::nsds_to_json(&found)),
                false => say!("{}", inspect::nsds_to_text(&found).trim_end()),
            }
            missing.map_or(Ok(()), Err)
        }
    }
}

fn create_nsds(size: Option<u64>, force: bool, paths: &[PathBuf]) -> Result<Vec<String>> {
    let mut done = Vec::new();
    if let Some(size) = size {
        up::check_size(size, 1)?;
        if let Some(path) = paths.iter().find(|p| p.exists()) {
            return Err(Failure::new(format!("{} exists already", path.display()))
                .help("leave --size out to use it as it is, or name a new file"));
        }
        for (index, path) in paths.iter().enumerate() {
            if let Err(failure) = up::make_file(path, size) {
                // Half of them would only be in the way of the next try.
                for made in &paths[..index] {
                    files::remove(made)?;
                }
                return Err(failure);
            }
            done.push(format!("made {}", path.display()));
        }
        return Ok(done);
    }
    let opened = paths
        .iter()
        .map(|p| crate::disks::Disk::open_alone(p))
        .collect::<Result<Vec<_>>>()?;
    for disk in &opened {
        up::check_size(disk.sector_count * types::SECTOR_SIZE, 1)?;
    }
    for disk in &opened {
        match disk.label()? {
            Err(nsd::label::LabelError::Blank) => {
                done.push(format!("{} can be used", disk.path().display()))
            }
            _ if force => {
                disk.clear()?;
                done.push(format!(
                    "erased the first sectors of {}: it can be used",
                    disk.path().display()
                ));
            }
            Err(error) => return Err(crate::disks::explain(disk.path(), &error)),
            Ok(found) => {
                return Err(Failure::new(format!(
                    "{} is NSD '{}' of the file system {:032x}",
                    disk.path().display(),
                    found.label.name,
                    found.label.fs.0
                ))
                .help("name another disk; if that file system may be destroyed, give --force"));
            }
        }
    }
    Ok(done)
}

fn run_fs(command: FsCommand, json: bool) -> Result<()> {
    match command {
        FsCommand::Create {
            state,
            mount,
            block_size,
            force,
            disks,
        } => report(create_fs(&state, &mount, block_size, force, &disks), json),
        FsCommand::List { state, paths } => {
            let (all, _) = locate::daemons()?;
            let (found, missing) = match state {
                Some(state) => inspect::disks_of(&Place::new(&state)?)?,
                None if paths.is_empty() => (inspect::scan_with(&all)?, None),
                None => (inspect::look_at(&paths)?, None),
            };
            if !paths.is_empty() {
                inspect::require_labels(&found)?;
            }
            show_as(
                &inspect::file_systems(&found, &all),
                json,
                inspect::file_systems_to_text,
            );
            missing.map_or(Ok(()), Err)
        }
        FsCommand::Destroy { state, yes } => report(destroy::run(&state, yes), json),
    }
}

fn create_fs(
    state: &Path,
    mount: &Path,
    block_size: u64,
    force: bool,
    disks: &[PathBuf],
) -> Result<Vec<String>> {
    let place = Place::new(state)?;
    if let Some(found) = place.load()? {
        return Err(Failure::new(format!(
            "{} holds the file system {} already",
            place.root().display(),
            found.fs
        ))
        .help("mount it with `gupfs up`, or name another state directory"));
    }
    let absolute = |path: &PathBuf| {
        std::fs::canonicalize(path).map_err(|e| Failure::io("find disk", path, &e))
    };
    let paths = disks.iter().map(absolute).collect::<Result<Vec<_>>>()?;
    let view = filesystem::create(&NewFileSystem {
        nodes: vec![NewNode {
            id: 1,
            address: None,
        }],
        disks: paths
            .iter()
            .map(|path| NewDisk {
                path: path.clone(),
                server: 1,
            })
            .collect(),
        block_size: u32::try_from(block_size).unwrap_or(u32::MAX),
        force,
    })?;
    files::make_directory(place.root())?;
    place.store_view(&view)?;
    let disks = (1..).zip(paths).map(|(nsd, path)| Disk {
        nsd,
        path,
        is_loop: false,
    });
    place.store(&State {
        disks: disks.collect(),
        ..up::single(&view, &system::absolute(mount)?)
    })?;
    Ok(vec![
        format!(
            "made the file system {:032x} over {} NSDs",
            view.fs.0,
            view.nsds.len()
        ),
        format!(
            "mount it: gupfs up --state {} --mount {}",
            state.display(),
            mount.display()
        ),
    ])
}

fn run_config(command: ConfigCommand, json: bool) -> Result<()> {
    match command {
        ConfigCommand::Show(ask) => {
            let shown = settings::show(&Place::new(&ask.state)?)?;
            show_as(&shown, json, settings::to_text);
            Ok(())
        }
        ConfigCommand::Get { key, ask } => {
            let row = settings::get(&Place::new(&ask.state)?, &key)?;
            match json {
                true => say!("{row}"),
                false => say!("{}", settings::plain(&row["value"])),
            }
            Ok(())
        }
        ConfigCommand::Set { key, value, ask } => {
            report(settings::set(&Place::new(&ask.state)?, &key, &value), json)
        }
    }
}

fn run_lab(command: LabCommand, json: bool) -> Result<()> {
    match command {
        LabCommand::Up {
            dir,
            nodes,
            backing,
            size,
            transport,
            pagepool,
            direct_from,
            lease_ms,
        } => {
            let plan = Plan::new(nodes, backing, size).with(transport, pagepool);
            let plan = plan.with_lease(lease_ms).with_direct_from(direct_from);
            report(lab::up(&Lab::new(&dir)?, &plan), json)
        }
        LabCommand::Status { dir } => lab::status(&Lab::new(&dir)?).map(|value| show(&value, json)),
        LabCommand::Kill { node, dir } => report(lab::kill(&Lab::new(&dir)?, node), json),
        LabCommand::Start { nodes, dir } => report(lab::start(&Lab::new(&dir)?, &nodes), json),
        LabCommand::Down { dir } => report(lab::down(&Lab::new(&dir)?), json),
    }
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
        assert!(parse_pagepool("much").is_err());
    }

    #[test]
    fn nodes_are_written_with_or_without_n() {
        assert_eq!(parse_node("n2"), Ok(2));
        assert_eq!(parse_node("12"), Ok(12));
        parse_node("x").expect_err("no node");
    }
}
