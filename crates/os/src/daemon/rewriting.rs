//! Whether blocks of many extents may be rewritten: not on a mount for reading only, also from a remount on.

use super::{Daemon, lock};
use crate::mountinfo::{self, Mount, Watch};

/// What was seen of the mount.
#[derive(Debug, Default)]
pub(super) struct MountLook {
    watch: Option<Watch>,
    /// The connection that was looked for.
    number: Option<u64>,
}

impl Daemon {
    /// Looks at the mount if it may have changed since. Where that cannot be seen nothing is rewritten.
    pub(super) fn look_at_mount(&self) {
        if self.config.rewrite_rate == 0 {
            return;
        }
        let mut look = lock(&self.mount_look);
        if look.watch.is_none() {
            look.watch = Watch::new().ok();
        }
        let number = self.connection_number();
        let has_changed = look.watch.as_mut().is_none_or(Watch::has_changed);
        if look.number.replace(number) == Some(number) && !has_changed {
            return;
        }
        let is_ours = |mount: &&Mount| {
            mount.is_gupfs() && mount.major == 0 && u64::from(mount.minor) == number
        };
        let mounts = mountinfo::list().unwrap_or_default();
        let ours = mounts.iter().find(is_ours);
        let may_write = ours.is_some_and(|mount| !mount.is_read_only);
        self.pace.set_rate(match may_write {
            true => self.config.rewrite_rate,
            false => 0,
        });
    }
}
