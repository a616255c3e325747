//! POSIX access control lists (POSIX 1003.1e draft 17, as Linux has them): their form, and how they and the permission
//! bits follow one another.
//!
//! ```text
//! value of system.posix_acl_access, _default:  version (4) = 2 | entry ...      all little-endian
//! entry:                                       tag (2) | rights (2) | user or group (4)
//! ```
//!
//! Invariants
//! - A list is whole: the owner, users, the owning group, groups, a mask where users or groups are named, others; in this
//!   order, each but users and groups once.
//! - What the list says of the owner, others, and the mask (else the owning group) equals the inode's permission bits. So the
//!   mode tells who has no list what holds, and a list that says no more than the mode is not kept.
//!
//! Who may do what is not looked at here: the kernel checks it (default_permissions), with lists that it asks for.

use types::{Errno, SmallBytes};

/// The list that says who may use an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that what is made in a directory begins with.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Most bytes of a list: what the kernel's own buffer takes.
pub const ACL_SIZE_MAX: usize = 4096;

const VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const ENTRY_SIZE: usize = 8;
const RIGHTS: u32 = 0o7;

/// Whom an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Others,
}

impl Tag {
    const fn from_wire(tag: u16) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User,
            0x04 => Self::OwningGroup,
            0x08 => Self::Group,
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    rights: u32,
    /// As it came: the user or group, or what the kernel writes for none.
    id: u32,
}

/// A whole list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// The attribute is a list, and not an ordinary value.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Acl {
    /// From the attribute's value.
    ///
    /// # Errors
    /// EOPNOTSUPP for another version, as the kernel says it; EINVAL for what is no whole list, or too long.
    pub fn parse(value: &[u8]) -> Result<Self, Errno> {
        let (version, rest) = value
            .split_first_chunk::<HEADER_SIZE>()
            .ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if value.len() > ACL_SIZE_MAX || rest.len() % ENTRY_SIZE != 0 {
            return Err(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_SIZE);
        for bytes in rest.chunks_exact(ENTRY_SIZE) {
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let tag = Tag::from_wire(half(0)).ok_or(Errno::EINVAL)?;
            let rights = u32::from(half(2));
            let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            if rights & !RIGHTS != 0 {
                return Err(Errno::EINVAL);
            }
            entries.push(Entry { tag, rights, id });
        }
        let acl = Self { entries };
        acl.is_whole().then_some(acl).ok_or(Errno::EINVAL)
    }

    fn is_whole(&self) -> bool {
        let tags = || self.entries.iter().map(|entry| entry.tag);
        let count = |tag| tags().filter(|t| *t == tag).count();
        let is_ordered = self.entries.is_sorted_by_key(|entry| entry.tag);
        let is_named = count(Tag::User) + count(Tag::Group) > 0;
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others];
        is_ordered
            && once.into_iter().all(|tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !is_named))
    }

    /// The attribute's value.
    pub fn to_bytes(&self) -> SmallBytes {
        let mut out = Vec::with_capacity(HEADER_SIZE + self.entries.len() * ENTRY_SIZE);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for Entry { tag, rights, id } in &self.entries {
            let tag: u16 = match tag {
                Tag::Owner => 0x01,
                Tag::User => 0x02,
                Tag::OwningGroup => 0x04,
                Tag::Group => 0x08,
                Tag::Mask => 0x10,
                Tag::Others => 0x20,
            };
            let rights = u16::try_from(*rights).expect("three bits");
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&rights.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out.into()
    }

    /// It says no more than permission bits can.
    pub fn is_mode_alone(&self) -> bool {
        let is_bare =
            |entry: &Entry| matches!(entry.tag, Tag::Owner | Tag::OwningGroup | Tag::Others);
        self.entries.iter().all(is_bare)
    }

    /// The permission bits (0777) that it comes to.
    pub fn mode(&self) -> u32 {
        let bits = |e: &Entry| self.shift(e.tag).map_or(0, |by| e.rights << by);
        self.entries.iter().map(bits).fold(0, |all, one| all | one)
    }

    /// How far left in the mode the rights of an entry lie; `None`: they are not in it.
    fn shift(&self, tag: Tag) -> Option<u32> {
        let has_mask = self.entries.iter().any(|e| e.tag == Tag::Mask);
        match tag {
            Tag::Owner => Some(6),
            Tag::Mask => Some(3),
            Tag::OwningGroup => (!has_mask).then_some(3),
            Tag::Others => Some(0),
            Tag::User | Tag::Group => None,
        }
    }

    /// What chmod makes of it.
    pub fn with_mode(&self, mode: u32) -> Self {
        self.map(|_, of_mode| of_mode, mode)
    }

    /// What a new inode asked for with `mode` (without the umask) gets of a directory's default list.
    pub fn inherited(&self, mode: u32) -> Self {
        self.map(|rights, of_mode| rights & of_mode, mode)
    }

    /// The same with other rights where they lie in the mode; `change` gets those of the entry and those of `mode`.
    fn map(&self, change: impl Fn(u32, u32) -> u32, mode: u32) -> Self {
        let entry = |e: &Entry| {
            let of_mode = self.shift(e.tag).map(|by| mode >> by & RIGHTS);
            let rights = of_mode.map_or(e.rights, |of_mode| change(e.rights, of_mode));
            Entry { rights, ..*e }
        };
        Self {
            entries: self.entries.iter().map(entry).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry for each letter: owner, user, owning group, group, mask, others.
    fn value(entries: &[(char, u16)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (who, rights) in entries {
            let (tag, id): (u16, u32) = match who {
                'o' => (1, u32::MAX),
                'u' => (2, 1000),
                'g' => (4, u32::MAX),
                'n' => (8, 2000),
                'm' => (16, u32::MAX),
                'x' => (32, u32::MAX),
                _ => (64, 0),
            };
            out.extend(tag.to_le_bytes());
            out.extend(rights.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    fn acl(entries: &[(char, u16)]) -> Acl {
        Acl::parse(&value(entries)).expect("a whole list")
    }

    #[test]
    fn lists_come_back_as_they_were() {
        let long = [
            ('o', 6),
            ('u', 7),
            ('u', 4),
            ('g', 5),
            ('n', 2),
            ('m', 4),
            ('x', 0),
        ];
        for entries in [&long[..], &[('o', 6), ('g', 4), ('x', 4)]] {
            let bytes = value(entries);
            assert_eq!(acl(entries).to_bytes()[..], bytes[..]);
        }
    }

    /// Every list of up to five entries against a pattern of what is whole.
    #[test]
    fn only_whole_lists_are_taken() {
        let letters = ['o', 'u', 'g', 'n', 'm', 'x', '?'];
        let mut lists = vec![String::new()];
        for _ in 0..5 {
            let longer = lists
                .iter()
                .flat_map(|l| letters.map(|c| format!("{l}{c}")));
            lists = lists.iter().cloned().chain(longer).collect();
        }
        let mut whole = std::collections::BTreeSet::new();
        for list in &lists {
            let entries: Vec<(char, u16)> = list.chars().map(|c| (c, 4)).collect();
            if Acl::parse(&value(&entries)).is_ok() {
                whole.insert(list.as_str());
            }
        }
        let whole: Vec<&str> = whole.into_iter().collect();
        assert_eq!(whole, ["ogmx", "ognmx", "ogx", "ougmx"]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = value(&[('o', 6), ('g', 4), ('x', 4)]);
        let cut = &good[..good.len() - 1];
        assert_eq!(Acl::parse(cut), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&good[..3]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&good[..4]), Err(Errno::EINVAL));
        let mut other = good.clone();
        other[0] = 1;
        assert_eq!(Acl::parse(&other), Err(Errno::EOPNOTSUPP));
        assert_eq!(
            Acl::parse(&value(&[('o', 8), ('g', 4), ('x', 4)])),
            Err(Errno::EINVAL)
        );
        let users = vec![('u', 1); 508];
        let list = |users: &[(char, u16)]| {
            let ends = [&[('o', 7)], users, &[('g', 7), ('m', 7), ('x', 7)]];
            Acl::parse(&value(&ends.concat()))
        };
        assert_eq!(list(&users), Err(Errno::EINVAL));
        assert!(list(&users[1..]).is_ok());
    }

    #[test]
    fn mode_and_list_follow_one_another() {
        let bare = acl(&[('o', 7), ('g', 5), ('x', 4)]);
        assert!(bare.is_mode_alone());
        assert_eq!(bare.mode(), 0o754);
        assert_eq!(bare.with_mode(0o621).mode(), 0o621);
        let named = acl(&[('o', 7), ('u', 6), ('g', 5), ('m', 3), ('x', 1)]);
        assert!(!named.is_mode_alone());
        // The mask stands where the group does.
        assert_eq!(named.mode(), 0o731);
        let changed = named.with_mode(0o2640);
        assert_eq!(
            changed,
            acl(&[('o', 6), ('u', 6), ('g', 5), ('m', 4), ('x', 0)])
        );
        // What is made gets what both the list and who makes it allow.
        let made = named.inherited(0o666);
        assert_eq!(
            made,
            acl(&[('o', 6), ('u', 6), ('g', 5), ('m', 2), ('x', 0)])
        );
        assert_eq!(made.mode(), 0o620);
        assert_eq!(bare.inherited(0o776).mode(), 0o754);
        assert_eq!(bare.inherited(0o700).mode(), 0o700);
    }
}
