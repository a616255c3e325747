//! `gupfs daemon`: builds the daemon's configuration from the state directory and runs it in the foreground.
//!
//! Life cycle: lock the state directory; check the machine; look at a mount that a crash left; attach and
//! check the disks; run until stopped; remove socket and pid file.

use std::io::Write as _;
use std::num::NonZero;
use std::path::Path;

use tracing_subscriber::EnvFilter;

use os::daemon::{Config, DiskConfig, PeerConfig, Transport};
use types::{Incarnation, NodeId};

use crate::failure::{Failure, Result};
use crate::service::Below;
use crate::state::{self, LogFormat, LogLevel, Place, State};
use crate::system::{self, mounts};
use crate::{files, filesystem, mount, seconds, service, settings, size};

/// Runs the daemon of the state directory `path` until it is told to stop.
///
/// `overrides` are settings as `KEY=VALUE`, for this run; `mount_options` a list of words for the kernel; `source` what it shows as
/// the source of the mount, or the state directory.
pub fn run(
    path: &Path,
    overrides: &[String],
    mount_options: &str,
    source: Option<String>,
) -> Result<()> {
    // Before there is a second thread.
    os::interrupt::hold();
    os::leave_starter();
    let turns = os::priority::take_short_turns();
    let mount_flags = mount::flags(mount_options)?;
    let place = Place::new(path)?;
    let (state, settings) = settings::for_daemon(&place, place.require()?, overrides)?;
    start_log(state.log_format, state.log_level)?;
    if let Err(error) = turns {
        tracing::info!(%error, "the kernel gives no short turns: fsyncs wait longer beside streams");
    }
    system::require_root("gupfs daemon")?;
    system::require_fuse()?;
    // Released by the kernel when this process is gone, and by nothing before: whoever waits for the lock
    // waits for the end of the process.
    std::mem::forget(place.try_lock()?);
    // Nobody else has said it: a service manager starts daemons.
    if let Some(lost) = service::take_lost(&place)? {
        tracing::error!(%lost, "the last stop");
    }
    // Of a creation that was interrupted when all was made: its labels are of a file system now.
    files::remove(&place.creating())?;
    files::replace(&place.pid(), format!("{}\n", std::process::id()).as_bytes())?;
    let mut is_untold = false;
    let outcome = config(&place, &state, settings).and_then(|config| {
        check_address_free(&config)?;
        let source = source.unwrap_or_else(|| config.source.clone());
        let config = Config {
            mount_flags,
            source,
            ..config
        };
        launch(&place, config, &mut is_untold)
    });
    files::remove(&place.control())?;
    // With its number left behind whoever waits takes this daemon for one that died, and says so.
    if !is_untold {
        files::remove(&place.pid())?;
    }
    outcome
}

/// Hands over to the daemon proper; returns when it was stopped. `is_untold`: something is lost, and there is no room for saying what.
fn launch(place: &Place, config: Config, is_untold: &mut bool) -> Result<()> {
    let first = config.mount.clone();
    let on_mounted = || seconds::bring_back(place, &first);
    os::daemon::run(config, on_mounted).map_err(|error| {
        let failure = Failure::new(error.to_string());
        let remedy = match error {
            os::daemon::Error::Lost { .. } => Some(
                "what was synced is safe; write the rest again. Before a node that has work to do stops, bring those back that have \
                 left: they own its files, or serve its disks (`gupfs status` says who is away)",
            ),
            os::daemon::Error::Refused { .. } => Some(
                "what was synced is safe; write the rest again. The log says which disk failed, or which owner refused them, and a file of \
                 them: mend or replace the disk, or make room where its file lies, before it is mounted again",
            ),
            os::daemon::Error::Unlogged { .. } => Some(
                "what was synced is safe; make the rest again. The log says which disk failed, and how: mend or replace it, or make \
                 room where its file lies, before it is mounted again",
            ),
            _ => None,
        };
        if let Some(remedy) = remedy
            && let Err(failure) = service::note_lost(place, &failure.clone().help(remedy))
        {
            tracing::error!(%failure, "whoever stopped this daemon does not hear how much is lost");
            *is_untold = true;
        }
        explain(place, failure, &error)
    })
}

/// What to do where a daemon did not start or ended: `failure` says what happened.
fn explain(place: &Place, failure: Failure, error: &os::daemon::Error) -> Failure {
    use os::daemon::Error;
    use os::disk::DiskError;
    let root = place.root().display();
    match error {
        Error::Recovery(_) => failure.help(
            "nothing was changed. The disk does not return what was written to it: check its cables and its own \
             log, try it on another port, or bring a copy of the disk back; do not make a file system over it",
        ),
        Error::Replay(_) => failure.help(format!(
            "nothing was changed. `gupfs fsck {root}` says what is damaged and `gupfs fsck --repair {root}` repairs what can be; of what \
             has no good copy bring a copy of the disk back; do not make a file system over it"
        )),
        Error::Disk(DiskError::InUse { path }) => failure.help(format!(
            "`fuser -v {0}` and `lsblk {0}` say what uses it: stop or unmount that",
            path.display()
        )),
        Error::Disk(DiskError::Kind { .. } | DiskError::Open { .. }) => failure.help(format!(
            "bring the disk back, or correct its path in {root}/gupfs.toml"
        )),
        Error::Label {
            source: nsd::LabelError::Older { .. },
            ..
        } => failure.help(format!(
            "nothing was changed. Put back its newest copy, or copies of all its node's NSDs of one moment. Where there is none \
             `gupfs fsck --data {root}` says what is lost, and `gupfs fsck --repair {root}` goes on with what is left"
        )),
        Error::Metrics { .. } => failure.help(format!(
            "choose another port, 0 for any that is free, or off: gupfs config set metrics PORT --state {root}"
        )),
        _ => failure,
    }
}

/// Looks at the place where this file system is mounted: a dead mount there, which stays until the new one is ready, so that programs go on
/// to get errors and write nothing below it. Files that lie there all the same keep no node from coming back.
fn point_of_restart(point: &Path) -> Result<Option<mounts::Mount>> {
    let dead = service::dead_at(point)?;
    if dead.is_none() && service::clear_point(point, Below::Any)?.holds_files {
        let point = point.display();
        tracing::warn!(%point, "files lie below the mount, which hides them: unmount and move them away");
    }
    Ok(dead)
}

/// What `os::daemon::run` is told.
pub fn config(place: &Place, state: &State, settings: String) -> Result<Config> {
    service::check_hides_nothing(place, &state.disks, &state.mount)?;
    let replaces = point_of_restart(&state.mount)?;
    let (disks, labelled) = filesystem::prepare(state)?;
    let view = place.load_view()?;
    check_view(place, state, &view)?;
    let cpu_count = std::thread::available_parallelism().map_or(1, NonZero::get);
    let is_manager = state.node == state.manager;
    Ok(Config {
        node: NodeId(state.node),
        incarnation: Incarnation(system::random_u128()?),
        view,
        hash_key: labelled.hash_key,
        has_parts: labelled.has_parts,
        mount: state.mount.clone(),
        replaces,
        mount_flags: 0,
        source: place.root().display().to_string(),
        netns: state.netns.clone(),
        listen: state.listen,
        peers: state
            .peers
            .iter()
            .map(|p| PeerConfig {
                node: NodeId(p.node),
                address: p.address,
            })
            .collect(),
        disks: disks
            .into_iter()
            .map(|d| DiskConfig {
                nsd: d.nsd,
                path: d.path,
                is_volatile: d.is_volatile,
            })
            .collect(),
        transport: match state.transport {
            state::Transport::Device => Transport::Device,
            state::Transport::Ring => Transport::Ring,
        },
        fuse_thread_count: (2 * cpu_count).clamp(2, 16),
        loop_count: cpu_count.clamp(1, 16),
        lease: types::Duration::from_millis(state.lease_ms),
        pagepool_size: state.pagepool_size,
        direct_size_min: (state.direct_from).unwrap_or(types::limits::DIRECT_SIZE_MIN),
        again_size_max: match state.direct_from {
            None => os::memory_size() / 4,
            Some(_) => 0,
        },
        inode_count_max: usize::try_from(state.inode_count_max).unwrap_or(usize::MAX),
        metadata_bytes_max: metadata_bytes_max(state)?,
        rewrite_rate: state.rewrite_rate,
        mark_interval: mark_interval()?,
        async_direct_io: state.async_direct_io,
        slow: types::Duration::from_millis(state.slow_ms),
        metrics: state.metrics.0,
        settings,
        control_socket: place.control(),
        view_path: is_manager.then(|| place.view()),
        lives_path: place.lives(),
    })
}

/// An NSD that is put back from a copy is told from newer ones if the copy is older than this.
const MARK_INTERVAL: types::Duration = types::Duration::from_secs(3600);

/// GUPFS_MARK_INTERVAL_MS stands in for it in tests.
fn mark_interval() -> Result<types::Duration> {
    let Ok(text) = std::env::var("GUPFS_MARK_INTERVAL_MS") else {
        return Ok(MARK_INTERVAL);
    };
    let ms = text.parse().map(types::Duration::from_millis);
    ms.map_err(|_| {
        Failure::new(format!("GUPFS_MARK_INTERVAL_MS is {text:?}"))
            .help("write a number of milliseconds, or leave it out")
    })
}

/// GUPFS_METADATA_BYTES_MAX stands in for the setting where that is the default: so every test can be run with little metadata in
/// memory.
fn metadata_bytes_max(state: &State) -> Result<u64> {
    let set = state.metadata_bytes_max;
    let Ok(text) = std::env::var("GUPFS_METADATA_BYTES_MAX") else {
        return Ok(set);
    };
    let size = size::parse(&text).ok();
    let size = size.filter(|size| state::is_metadata_bound(*size));
    let size = size.ok_or_else(|| {
        Failure::new(format!("GUPFS_METADATA_BYTES_MAX is {text:?}"))
            .help("write a size of 64K at least, or 0")
    })?;
    Ok(match set == state::METADATA_BYTES_MAX_DEFAULT {
        true => size,
        false => set,
    })
}

fn check_view(place: &Place, state: &State, view: &types::ClusterView) -> Result<()> {
    let differs = |what: &str| {
        Failure::new(format!(
            "{} and gupfs.toml name different {what}",
            place.view().display()
        ))
        .help("one of the two files is of another state directory: restore it")
    };
    if state::to_hex(view.cluster.0) != state.cluster {
        return Err(differs("clusters"));
    }
    if state::to_hex(view.fs.0) != state.fs {
        return Err(differs("file systems"));
    }
    if view.node(NodeId(state.node)).is_none() || view.manager != NodeId(state.manager) {
        return Err(differs("nodes"));
    }
    Ok(())
}

/// A port in use is said before anything is mounted. In a network name space of its own the daemon's own
/// bind says it.
fn check_address_free(config: &Config) -> Result<()> {
    let (Some(address), None) = (config.listen, &config.netns) else {
        return Ok(());
    };
    std::net::TcpListener::bind(address).map(drop).map_err(|e| {
        Failure::new(format!("cannot listen on {address}: {e}"))
            .help("another program uses the port, or the address is not this machine's: correct `listen` in gupfs.toml")
    })
}

/// GUPFS_LOG, in the words of `tracing_subscriber::EnvFilter`, goes before the setting.
fn start_log(format: LogFormat, level: LogLevel) -> Result<()> {
    let filter = match std::env::var("GUPFS_LOG") {
        Ok(words) => EnvFilter::try_new(&words).map_err(|e| {
            Failure::new(format!("GUPFS_LOG is {words:?}: {e}"))
                .help("write for example GUPFS_LOG=debug, or GUPFS_LOG=info,gupfs::slow=off")
        })?,
        Err(_) => EnvFilter::new(level.name()),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        let _ = writeln!(std::io::stderr(), "the log was started twice");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_start_says_what_to_do() {
        use os::daemon::Error;
        use os::disk::DiskError;
        let place = Place::new(Path::new("/var/lib/gupfs/x")).expect("a place");
        let path = Path::new("/dev/sdz").to_owned();
        let in_use = DiskError::InUse { path: path.clone() };
        let page = node::replay::ReplayError::Journal(types::DecodeError::Short { what: "a page" });
        let older = nsd::LabelError::Older {
            name: "d2".to_owned(),
            generation: 3,
            seen: 5,
            by: types::NsdId(1),
        };
        let older = Error::Label {
            path: path.clone(),
            source: older,
        };
        for (error, word) in [
            (older, "gupfs fsck --repair /var/lib/gupfs/x"),
            (Error::Disk(in_use), "fuser -v /dev/sdz"),
            (Error::Disk(DiskError::Kind { path }), "/x/gupfs.toml"),
            (Error::Replay(page), "gupfs fsck /var/lib/gupfs/x"),
        ] {
            let failure = explain(&place, Failure::new(error.to_string()), &error);
            let said = failure.remedy().expect("help");
            assert!(said.contains(word), "{said}");
        }
    }
}
