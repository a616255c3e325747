//! Whether blocks of many extents may be rewritten: not on a mount for reading only, also from a remount on.

use std::io;

use super::{Daemon, lock};
use crate::mountinfo::{self, Mount, Watch};

/// What was seen of the mount.
#[derive(Debug, Default)]
pub(super) struct MountLook {
    watch: Option<Watch>,
    /// The connection that was looked for, and found out about.
    number: Option<u64>,
}

impl MountLook {
    /// Whether the mount of the connection `number` may be written to; `None`: as before. What cannot be seen now is looked at again
    /// the next time: the kernel tells of a change once.
    fn may_write(
        &mut self,
        number: u64,
        has_changed: bool,
        list: impl FnOnce() -> io::Result<Vec<Mount>>,
    ) -> Option<bool> {
        if self.number == Some(number) && !has_changed {
            return None;
        }
        self.number = None;
        let Ok(mounts) = list() else {
            return Some(false);
        };
        self.number = Some(number);
        let is_ours = |mount: &&Mount| {
            mount.is_gupfs() && mount.major == 0 && u64::from(mount.minor) == number
        };
        let ours = mounts.iter().find(is_ours);
        Some(ours.is_some_and(|mount| !mount.is_read_only))
    }
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
        let has_changed = look.watch.as_mut().is_none_or(Watch::has_changed);
        let number = self.connection_number();
        if let Some(may_write) = look.may_write(number, has_changed, mountinfo::list) {
            self.pace.set_rate(match may_write {
                true => self.config.rewrite_rate,
                false => 0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(minor: u32, is_read_only: bool) -> Mount {
        Mount {
            id: 2,
            parent: 1,
            major: 0,
            minor,
            root: "/".into(),
            point: "/mnt".into(),
            options: "rw,relatime".to_owned(),
            kind: mountinfo::KIND.to_owned(),
            source: "gupfs".into(),
            is_read_only,
            user: Some(0),
        }
    }

    #[test]
    fn a_mount_is_looked_at_when_it_has_changed() {
        let mut look = MountLook::default();
        let all = || Ok(vec![mount(7, true), mount(8, false)]);
        let none = || unreachable!("nothing has changed");
        assert_eq!(look.may_write(8, true, all), Some(true));
        assert_eq!(look.may_write(8, false, none), None);
        assert_eq!(
            look.may_write(8, true, || Ok(vec![mount(8, true)])),
            Some(false)
        );
        assert_eq!(look.may_write(7, false, all), Some(false), "another one");
        assert_eq!(look.may_write(9, true, all), Some(false), "there is none");
    }

    /// The kernel says once that something has changed.
    #[test]
    fn what_could_not_be_read_is_read_the_next_time() {
        let mut look = MountLook::default();
        let fails = || Err(io::Error::from(io::ErrorKind::OutOfMemory));
        let all = || Ok(vec![mount(8, false)]);
        assert_eq!(look.may_write(8, true, all), Some(true));
        assert_eq!(look.may_write(8, true, fails), Some(false));
        assert_eq!(look.may_write(8, false, fails), Some(false));
        assert_eq!(look.may_write(8, false, all), Some(true));
    }
}
