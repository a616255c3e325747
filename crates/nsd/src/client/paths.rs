//! Which way an NSD is reached: its disk here, or one of its servers; chosen per I/O.
//!
//! Invariants (`check`)
//! - A path that failed is not chosen before its retry time or a sign that it has healed, as long as
//!   another one is left.
//! - Ways are tried in a fixed order (policy, then servers primary first), so an I/O goes back to the
//!   better way as soon as that has healed.
//! - Retry times grow from `RETRY_MIN` to `RETRY_MAX`: nobody hammers a dead server, and none is
//!   forgotten for ever.
//!
//! What this deliberately does not do: repeat an I/O. A write with unknown outcome is repeated to
//! other sectors by whoever holds the grants.

use std::collections::BTreeMap;

use thiserror::Error;
use types::{ClusterView, Duration, Instant, NodeId, NsdId};

/// First wait before a failed path is tried again.
pub const RETRY_MIN: Duration = Duration::from_millis(500);
/// Longest wait before a failed path is tried again.
pub const RETRY_MAX: Duration = Duration::from_secs(30);

/// A way to an NSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Path {
    /// This node's own disk, by the driver's index.
    Direct {
        /// Index of the disk.
        disk: u32,
    },
    /// An NSD server.
    Server {
        /// The node.
        node: NodeId,
    },
}

/// Whether a node that sees the disk uses it directly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Policy {
    /// Only directly: an error when the disk is not seen.
    Always,
    /// Directly where the disk is seen and works, else through the servers.
    #[default]
    Prefer,
    /// Only through servers. Where this node is itself a server of the NSD it still uses its disk,
    /// in the place that the order of servers gives it.
    Never,
}

/// No way to the NSD works now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unreachable {
    /// Every way failed: try again at `retry_at`, or when a node or disk comes back.
    #[error("{nsd}: every path has failed")]
    AllFailed {
        /// The NSD.
        nsd: NsdId,
        /// When the first of them may be tried again.
        retry_at: Instant,
    },
    /// The configuration has no way: the disk is not seen here and the policy or the server list
    /// leaves nothing else.
    #[error("{nsd}: no disk here and no server allowed")]
    NoPath {
        /// The NSD.
        nsd: NsdId,
    },
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    retry_at: Instant,
    wait: Duration,
}

#[derive(Debug, Default)]
struct Ways {
    disk: Option<u32>,
    servers: Vec<NodeId>,
    failures: BTreeMap<Path, Failure>,
}

/// The ways of one node to every NSD.
#[derive(Debug)]
pub struct Paths {
    own: NodeId,
    policy: Policy,
    nsds: BTreeMap<NsdId, Ways>,
}

impl Paths {
    /// No NSD is known yet.
    pub fn new(own: NodeId, policy: Policy) -> Self {
        Self {
            own,
            policy,
            nsds: BTreeMap::new(),
        }
    }

    /// Takes the server lists from the view. NSDs that are not in it any more lose their servers.
    pub fn on_view(&mut self, view: &ClusterView) {
        for ways in self.nsds.values_mut() {
            ways.servers.clear();
        }
        for nsd in &view.nsds {
            let ways = self.nsds.entry(nsd.id).or_default();
            ways.servers.clone_from(&nsd.servers);
        }
        for ways in self.nsds.values_mut() {
            let Ways {
                servers, failures, ..
            } = ways;
            failures.retain(|path, _| match path {
                Path::Direct { .. } => true,
                Path::Server { node } => servers.contains(node),
            });
        }
    }

    /// This node sees the disk of `nsd` (its label was read); a disk that came back counts as healed.
    pub fn on_disk_found(&mut self, nsd: NsdId, disk: u32) {
        let ways = self.nsds.entry(nsd).or_default();
        ways.disk = Some(disk);
        ways.failures.remove(&Path::Direct { disk });
    }

    /// The disk of `nsd` is gone from this node.
    pub fn on_disk_lost(&mut self, nsd: NsdId) {
        let ways = self.nsds.entry(nsd).or_default();
        if let Some(disk) = ways.disk.take() {
            ways.failures.remove(&Path::Direct { disk });
        }
    }

    /// The way for an I/O on `nsd` that starts now. Call again after `on_path_failed`.
    ///
    /// # Errors
    /// `Unreachable`: wait until `retry_at` at most, or fail the I/O.
    pub fn choose(&self, now: Instant, nsd: NsdId) -> Result<Path, Unreachable> {
        let ways = self.nsds.get(&nsd).ok_or(Unreachable::NoPath { nsd })?;
        let mut retry_at: Option<Instant> = None;
        for path in self.candidates(ways) {
            match ways.failures.get(&path) {
                Some(failure) if now < failure.retry_at => {
                    let at = retry_at.map_or(failure.retry_at, |at| at.min(failure.retry_at));
                    retry_at = Some(at);
                }
                Some(_) | None => return Ok(path),
            }
        }
        Err(match retry_at {
            Some(retry_at) => Unreachable::AllFailed { nsd, retry_at },
            None => Unreachable::NoPath { nsd },
        })
    }

    /// An I/O on `nsd` by `path` failed or timed out: others are taken until its retry time.
    pub fn on_path_failed(&mut self, now: Instant, nsd: NsdId, path: Path) {
        let Some(ways) = self.nsds.get_mut(&nsd) else {
            return;
        };
        let failure = ways.failures.entry(path).or_insert(Failure {
            retry_at: now,
            wait: Duration(RETRY_MIN.0 / 2),
        });
        // Many I/Os fail together when a path dies: they are one failure.
        if now >= failure.retry_at {
            failure.wait = Duration(failure.wait.0.saturating_mul(2)).min(RETRY_MAX);
            failure.retry_at = now + failure.wait;
        }
    }

    /// An I/O on `nsd` by `path` succeeded: it has healed.
    pub fn on_path_worked(&mut self, nsd: NsdId, path: Path) {
        if let Some(ways) = self.nsds.get_mut(&nsd) {
            ways.failures.remove(&path);
        }
    }

    /// All connections to `node` are gone: every path through it fails now.
    pub fn on_node_down(&mut self, now: Instant, node: NodeId) {
        let path = Path::Server { node };
        let nsds: Vec<NsdId> = self
            .nsds
            .iter()
            .filter(|(_, ways)| ways.servers.contains(&node))
            .map(|(nsd, _)| *nsd)
            .collect();
        for nsd in nsds {
            self.on_path_failed(now, nsd, path);
        }
    }

    /// `node` is connected again: its paths are tried at once.
    pub fn on_node_up(&mut self, node: NodeId) {
        for ways in self.nsds.values_mut() {
            ways.failures.remove(&Path::Server { node });
        }
    }

    /// Paths that count as failed, with the time of the next try, for `gupfs status`.
    pub fn failed(&self) -> impl Iterator<Item = (NsdId, Path, Instant)> + '_ {
        self.nsds.iter().flat_map(|(nsd, ways)| {
            let failures = ways.failures.iter();
            failures.map(|(path, failure)| (*nsd, *path, failure.retry_at))
        })
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        for ways in self.nsds.values() {
            for (path, failure) in &ways.failures {
                assert!(failure.wait >= RETRY_MIN);
                assert!(failure.wait <= RETRY_MAX);
                if let Path::Direct { disk } = path {
                    assert_eq!(ways.disk, Some(*disk));
                }
            }
        }
    }

    /// The ways that the policy allows, best first.
    fn candidates(&self, ways: &Ways) -> Vec<Path> {
        let direct = ways.disk.map(|disk| Path::Direct { disk });
        let servers = ways.servers.iter().filter_map(|node| {
            if *node == self.own {
                direct
            } else {
                Some(Path::Server { node: *node })
            }
        });
        match self.policy {
            Policy::Always => direct.into_iter().collect(),
            Policy::Never => servers.collect(),
            Policy::Prefer => {
                let servers = servers.filter(|path| Some(*path) != direct);
                direct.into_iter().chain(servers).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, Epoch, FsId, NsdView};

    const NSD: NsdId = NsdId(1);
    const OWN: NodeId = NodeId(1);

    fn at(ms: u64) -> Instant {
        Instant(0) + Duration::from_millis(ms)
    }

    fn server(id: u16) -> Path {
        Path::Server { node: NodeId(id) }
    }

    fn view(servers: &[u16]) -> ClusterView {
        ClusterView {
            cluster: ClusterId(1),
            fs: FsId(1),
            epoch: Epoch(1),
            manager: OWN,
            nodes: Vec::new(),
            nsds: vec![NsdView {
                id: NSD,
                servers: servers.iter().map(|id| NodeId(*id)).collect(),
                sector_count: 1 << 20,
                data_begin: 256,
                failure_group: 0,
                has_volatile_cache: true,
            }],
            owners: Vec::new(),
            block_size: 1 << 20,
        }
    }

    #[test]
    fn every_policy_with_every_configuration_tries_its_ways_in_order() {
        const DIRECT: Path = Path::Direct { disk: 9 };
        let cases: [(Policy, bool, &[u16], &[Path]); 12] = [
            (Policy::Always, true, &[2, 3], &[DIRECT]),
            (Policy::Always, false, &[2, 3], &[]),
            (Policy::Always, true, &[], &[DIRECT]),
            (
                Policy::Prefer,
                true,
                &[2, 3],
                &[DIRECT, server(2), server(3)],
            ),
            (Policy::Prefer, true, &[2, 1], &[DIRECT, server(2)]),
            (Policy::Prefer, false, &[2, 3], &[server(2), server(3)]),
            (Policy::Prefer, false, &[1, 3], &[server(3)]),
            (Policy::Prefer, true, &[], &[DIRECT]),
            (Policy::Never, true, &[2, 3], &[server(2), server(3)]),
            (Policy::Never, true, &[2, 1], &[server(2), DIRECT]),
            (Policy::Never, false, &[1, 2], &[server(2)]),
            (Policy::Never, true, &[], &[]),
        ];
        for (policy, has_disk, servers, expected) in cases {
            let mut paths = Paths::new(OWN, policy);
            paths.on_view(&view(servers));
            if has_disk {
                paths.on_disk_found(NSD, 9);
            }
            for path in expected {
                assert_eq!(
                    paths.choose(at(0), NSD),
                    Ok(*path),
                    "{policy:?} {servers:?}"
                );
                paths.on_path_failed(at(0), NSD, *path);
                paths.check();
            }
            let nsd = NSD;
            let end = match expected.is_empty() {
                true => Unreachable::NoPath { nsd },
                false => Unreachable::AllFailed {
                    nsd,
                    retry_at: at(500),
                },
            };
            assert_eq!(paths.choose(at(0), NSD), Err(end), "{policy:?} {servers:?}");
            assert_eq!(paths.choose(at(500), NSD).ok(), expected.first().copied());
        }
    }

    #[test]
    fn take_over_and_back_when_healed() {
        let mut paths = Paths::new(OWN, Policy::Prefer);
        paths.on_view(&view(&[2, 3]));
        assert_eq!(paths.choose(at(0), NSD), Ok(server(2)));
        paths.on_node_down(at(0), NodeId(2));
        assert_eq!(paths.choose(at(1), NSD), Ok(server(3)));
        paths.on_node_up(NodeId(2));
        assert_eq!(paths.choose(at(2), NSD), Ok(server(2)));
        // Without a sign of life the primary is tried again by itself.
        paths.on_path_failed(at(2), NSD, server(2));
        assert_eq!(paths.choose(at(501), NSD), Ok(server(3)));
        assert_eq!(paths.choose(at(502), NSD), Ok(server(2)));
        paths.on_path_worked(NSD, server(2));
        assert_eq!(paths.failed().count(), 0);
        // A new view forgets failures of nodes that serve it no longer.
        paths.on_path_failed(at(600), NSD, server(2));
        paths.on_view(&view(&[3]));
        assert_eq!(paths.failed().count(), 0);
        assert_eq!(paths.choose(at(600), NSD), Ok(server(3)));
    }

    #[test]
    fn a_dead_path_is_tried_ever_more_rarely() {
        let mut paths = Paths::new(OWN, Policy::Prefer);
        paths.on_view(&view(&[2]));
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..9 {
            // Ten I/Os that were in flight fail together and count once.
            for _ in 0..10 {
                paths.on_path_failed(now, NSD, server(2));
            }
            paths.check();
            let Err(Unreachable::AllFailed { retry_at, .. }) = paths.choose(now, NSD) else {
                panic!("failed paths are not chosen");
            };
            waits.push(retry_at.since(now).0 / 1_000_000);
            now = retry_at;
        }
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(waits, expected);
    }

    #[test]
    fn a_lost_disk_leaves_the_servers() {
        let mut paths = Paths::new(OWN, Policy::Prefer);
        paths.on_view(&view(&[2]));
        paths.on_disk_found(NSD, 4);
        paths.on_path_failed(at(0), NSD, Path::Direct { disk: 4 });
        paths.on_disk_lost(NSD);
        paths.check();
        assert_eq!(paths.choose(at(0), NSD), Ok(server(2)));
        paths.on_disk_found(NSD, 5);
        assert_eq!(paths.choose(at(0), NSD), Ok(Path::Direct { disk: 5 }));
        let other = NsdId(7);
        let none = Unreachable::NoPath { nsd: other };
        assert_eq!(paths.choose(at(0), other), Err(none));
    }
}
