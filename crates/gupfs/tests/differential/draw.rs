//! What is called next: names from a small pool, so that calls meet one another, and errors of all kinds come by themselves.

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use stdx::Prng;

use crate::call::{Call, SLOT_COUNT, Slot};

/// Files end below this, but for a few.
const SIZE: u64 = 200_000;
/// The few.
const LARGE: u64 = 6 << 20;

fn one<T: Copy>(prng: &mut Prng, items: &[T]) -> T {
    *prng.pick(items).expect("some")
}

/// A path of one to three names.
fn path(prng: &mut Prng) -> String {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let depth = one(prng, &[1, 1, 1, 2, 2, 2, 2, 3]);
    let names: Vec<&str> = (0..depth).map(|_| one(prng, &NAMES)).collect();
    let path = names.join("/");
    match prng.below(200) {
        0 => path + "/",
        1 => path + "/.",
        2 => format!("{path}/{}", "long".repeat(60)),
        3 => format!("{path}/{}", "x".repeat(256)),
        4 => String::new(),
        _ => path,
    }
}

fn place(prng: &mut Prng) -> u64 {
    let at = match prng.below(40) {
        0 => prng.below(LARGE),
        1..10 => prng.below(5000),
        _ => prng.below(SIZE),
    };
    match prng.below(3) {
        0 => at / 4096 * 4096,
        _ => at,
    }
}

fn size(prng: &mut Prng) -> usize {
    let size = match prng.below(30) {
        0 => prng.below(3 << 20),
        1..10 => 1 + prng.below(3000),
        10..15 => 4096 * (1 + prng.below(20)),
        _ => 1 + prng.below(70_000),
    };
    usize::try_from(size).expect("small")
}

fn fill(prng: &mut Prng) -> u8 {
    u8::try_from(prng.below(256)).expect("a byte")
}

fn mode(prng: &mut Prng) -> u32 {
    one(
        prng,
        &[
            0o644, 0o600, 0o666, 0o755, 0o777, 0o400, 0o000, 0o4755, 0o2755, 0o2770, 0o1777, 0o6777,
        ],
    )
}

fn xattr(prng: &mut Prng) -> String {
    let names = [
        "user.a",
        "user.b",
        "user.c",
        "user.a",
        "trusted.t",
        "security.s",
        "other.x",
    ];
    one(prng, &names).to_owned()
}

/// A call of a player that has the files of `open` open.
pub fn draw(prng: &mut Prng, open: &[Slot]) -> Call {
    let is_of_file = !open.is_empty() && prng.chance(1, 2);
    match is_of_file {
        true => of_file(prng, open),
        false => match prng.below(4) {
            0 => opening(prng),
            1 | 2 => of_names(prng),
            _ => of_attributes(prng),
        },
    }
}

fn opening(prng: &mut Prng) -> Call {
    let slot = usize::try_from(prng.below(SLOT_COUNT as u64)).expect("small");
    let path = path(prng);
    if prng.chance(1, 10) {
        return Call::Tmpfile {
            slot,
            path,
            mode: mode(prng),
        };
    }
    let mut flags = one(
        prng,
        &[
            OFlags::RDWR,
            OFlags::RDWR,
            OFlags::RDWR,
            OFlags::WRONLY,
            OFlags::RDONLY,
        ],
    );
    flags |= OFlags::NONBLOCK;
    for (flag, of) in [
        (OFlags::CREATE, 2),
        (OFlags::EXCL, 8),
        (OFlags::TRUNC, 6),
        (OFlags::APPEND, 8),
        (OFlags::NOFOLLOW, 12),
        (OFlags::DIRECTORY, 40),
        (OFlags::DSYNC, 20),
    ] {
        if prng.chance(1, of) {
            flags |= flag;
        }
    }
    // O_EXCL without O_CREAT means nothing.
    if !flags.contains(OFlags::CREATE) {
        flags -= OFlags::EXCL;
    }
    Call::Open {
        slot,
        path,
        flags,
        mode: mode(prng),
    }
}

fn of_file(prng: &mut Prng, open: &[Slot]) -> Call {
    let slot = one(prng, open);
    let (at, fill) = (place(prng), fill(prng));
    match prng.below(40) {
        0..2 => Call::Close { slot },
        2..11 => Call::Write {
            slot,
            at,
            size: size(prng),
            fill,
        },
        11..19 => Call::Read {
            slot,
            at,
            size: size(prng),
        },
        19..22 => Call::Store {
            slot,
            at: at.min(LARGE),
            size: size(prng),
            fill,
        },
        22..24 => Call::Load {
            slot,
            at,
            size: size(prng),
        },
        24..27 => Call::Cut { slot, size: at },
        27..30 => Call::Allocate {
            slot,
            is_zero: prng.chance(1, 2),
            keeps_size: prng.chance(1, 2),
            at,
            size: size(prng) as u64,
        },
        30..32 => {
            let to = one(prng, open);
            Call::Copy {
                from: slot,
                to,
                from_at: at,
                to_at: place(prng),
                size: size(prng),
            }
        }
        32..34 => Call::Holes { slot, at },
        34..36 => Call::Sync {
            slot,
            is_data: prng.chance(1, 2),
        },
        36 => Call::Name {
            slot,
            path: path(prng),
        },
        _ => Call::StatOpen { slot },
    }
}

fn of_names(prng: &mut Prng) -> Call {
    let path = path(prng);
    match prng.below(20) {
        0..3 => Call::Mkdir {
            path,
            mode: mode(prng) | 0o700,
        },
        3 => {
            let kind = one(prng, &[libc::S_IFIFO, libc::S_IFREG, libc::S_IFSOCK]);
            Call::Mknod {
                path,
                mode: kind | mode(prng),
            }
        }
        4 => Call::Symlink {
            path,
            target: one(prng, &["a", "b", "c/d", "a/b", "e", "nowhere"]).to_owned(),
        },
        5 => Call::Readlink { path },
        6..8 => Call::Unlink { path },
        // The directory of the player itself stays: a file could take its name.
        8 if path.is_empty() => Call::List { path },
        8 => Call::Rmdir { path },
        9..11 => Call::Link {
            from: path,
            to: self::path(prng),
        },
        11..16 => {
            let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
            let whiteout = RenameFlags::WHITEOUT;
            let none = RenameFlags::empty();
            let flags = one(
                prng,
                &[
                    none,
                    none,
                    none,
                    none,
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                    whiteout,
                    whiteout | RenameFlags::NOREPLACE,
                    both,
                ],
            );
            Call::Rename {
                from: path,
                to: self::path(prng),
                flags,
            }
        }
        16..18 => Call::List { path },
        _ => Call::ReadPath { path },
    }
}

fn of_attributes(prng: &mut Prng) -> Call {
    let path = path(prng);
    match prng.below(20) {
        0..6 => Call::Stat {
            path,
            follows: prng.chance(1, 3),
        },
        6..8 => Call::Truncate {
            path,
            size: place(prng),
        },
        8..10 => Call::Chmod {
            path,
            mode: mode(prng),
        },
        10 => {
            // One of them is given: of a chown that sets nothing the kernel does not tell the daemon, so that set-id
            // bits stay.
            let ids = [Some(0), Some(65_534), Some(1)];
            let (user, group) = (one(prng, &ids), one(prng, &ids));
            let (user, group) = one(prng, &[(user, group), (user, None), (None, group)]);
            Call::Chown { path, user, group }
        }
        11..14 => {
            let seconds = i64::try_from(1_000_000_000 + prng.below(1 << 28)).expect("small");
            Call::Utimes {
                path,
                seconds,
                follows: prng.chance(1, 2),
            }
        }
        14..16 => Call::SetXattr {
            path,
            name: xattr(prng),
            size: usize::try_from(prng.below(900)).expect("small"),
            fill: fill(prng),
            flags: one(
                prng,
                &[
                    XattrFlags::empty(),
                    XattrFlags::empty(),
                    XattrFlags::CREATE,
                    XattrFlags::REPLACE,
                ],
            ),
        },
        16 | 17 => Call::GetXattr {
            path,
            name: xattr(prng),
        },
        18 => Call::ListXattr { path },
        _ => Call::RemoveXattr {
            path,
            name: xattr(prng),
        },
    }
}
