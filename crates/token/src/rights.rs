//! All that one node holds on one inode: the state that a token number names, on both sides.

use types::{
    ByteRange, DirectoryMode, Holding, InodeId, InodeMode, RangeMode, TokenKind, TokenNumber, Want,
};

use crate::compat;
use crate::pattern::Shape;
use crate::set::{PatternSet, union_contains};

/// What one node holds on one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Directory token.
    pub directory: Option<DirectoryMode>,
    /// Inode token.
    pub inode: Option<InodeMode>,
    /// Bytes that may be cached for reading; those of `write` may be too.
    pub read: PatternSet,
    /// Bytes that may be changed in the cache.
    pub write: PatternSet,
}

impl Rights {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            directory: None,
            inode: None,
            read: PatternSet::new(),
            write: PatternSet::new(),
        }
    }

    /// As messages carry it.
    pub fn from_kinds<'a>(kinds: impl IntoIterator<Item = &'a TokenKind>) -> Self {
        let mut rights = Self::new();
        for kind in kinds {
            match kind {
                TokenKind::Directory { mode, .. } => rights.directory = Some(*mode),
                TokenKind::Inode { mode } => rights.inode = Some(*mode),
                TokenKind::Range { mode, patterns } => {
                    let set = PatternSet::from_patterns(patterns);
                    match mode {
                        RangeMode::Read => rights.read.add_set(&set),
                        RangeMode::Write => rights.write.add_set(&set),
                    }
                }
            }
        }
        rights
    }

    /// As messages carry it.
    pub fn kinds(&self) -> Vec<TokenKind> {
        let mut kinds = Vec::with_capacity(self.kind_count());
        self.visit_kinds(|kind| kinds.push(kind));
        kinds
    }

    fn kind_count(&self) -> usize {
        usize::from(self.directory.is_some())
            + usize::from(self.inode.is_some())
            + usize::from(!self.read.is_empty())
            + usize::from(!self.write.is_empty())
    }

    fn visit_kinds(&self, mut visit: impl FnMut(TokenKind)) {
        if let Some(mode) = self.directory {
            visit(TokenKind::Directory {
                mode,
                hash_begin: 0,
                hash_end: u64::MAX,
            });
        }
        if let Some(mode) = self.inode {
            visit(TokenKind::Inode { mode });
        }
        for (mode, set) in [
            (RangeMode::Read, &self.read),
            (RangeMode::Write, &self.write),
        ] {
            if !set.is_empty() {
                let patterns = set.patterns();
                visit(TokenKind::Range { mode, patterns });
            }
        }
    }

    /// As messages carry it, each with its name.
    pub fn holdings(&self, ino: InodeId, number: TokenNumber) -> Vec<Holding> {
        let mut holdings = Vec::with_capacity(self.kind_count());
        self.visit_kinds(|kind| holdings.push(Holding { ino, number, kind }));
        holdings
    }

    /// Holds nothing.
    pub fn is_empty(&self) -> bool {
        let none = self.directory.is_none() && self.inode.is_none();
        none && self.read.is_empty() && self.write.is_empty()
    }

    /// Allows all that `mode` does on `range`. Exact.
    pub fn covers_range(&self, mode: RangeMode, range: &ByteRange) -> bool {
        match mode {
            RangeMode::Read => union_contains([&self.write, &self.read], range),
            RangeMode::Write => self.write.contains_range(range),
        }
    }

    /// Allows what `want` requires. May say no to a strided requirement that several patterns meet.
    pub fn covers(&self, want: &Want) -> bool {
        match want {
            Want::Directory { mode } => self
                .directory
                .is_some_and(|held| compat::directory_covers(held, *mode)),
            Want::Inode { mode } => self
                .inode
                .is_some_and(|held| compat::inode_covers(held, *mode)),
            Want::Range { mode, required, .. } => match Shape::of(required) {
                None => true,
                Some(Shape::Plain(range)) => self.covers_range(*mode, &range),
                Some(shape) => {
                    self.write.contains(&shape)
                        || (*mode == RangeMode::Read && self.read.contains(&shape))
                }
            },
        }
    }

    /// Another node cannot have what `want` requires as long as this is held. Exact.
    pub fn conflicts(&self, want: &Want) -> bool {
        match want {
            Want::Directory { mode } => self
                .directory
                .is_some_and(|held| !compat::directory_compatible(held, *mode)),
            Want::Inode { mode } => self
                .inode
                .is_some_and(|held| !compat::inode_compatible(held, *mode)),
            Want::Range { mode, required, .. } => {
                Shape::of(required).is_some_and(|shape| self.conflicts_on(*mode, &shape))
            }
        }
    }

    /// Another node cannot have `mode` on all of `shape`. Exact.
    pub fn conflicts_on(&self, mode: RangeMode, shape: &Shape) -> bool {
        self.write.overlaps(shape) || (mode == RangeMode::Write && self.read.overlaps(shape))
    }

    /// Two nodes must not hold these at a time. Exact.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let directory = self.directory.zip(other.directory);
        let inode = self.inode.zip(other.inode);
        directory.is_some_and(|(a, b)| !compat::directory_compatible(a, b))
            || inode.is_some_and(|(a, b)| !compat::inode_compatible(a, b))
            || self.write.overlaps_set(&other.write)
            || self.write.overlaps_set(&other.read)
            || self.read.overlaps_set(&other.write)
    }
}

/// Two nodes cannot have both.
pub fn wants_conflict(a: &Want, b: &Want) -> bool {
    match (a, b) {
        (Want::Directory { mode: a }, Want::Directory { mode: b }) => {
            !compat::directory_compatible(*a, *b)
        }
        (Want::Inode { mode: a }, Want::Inode { mode: b }) => !compat::inode_compatible(*a, *b),
        (
            Want::Range {
                mode: a,
                required: x,
                ..
            },
            Want::Range {
                mode: b,
                required: y,
                ..
            },
        ) => {
            let shapes = Shape::of(x).zip(Shape::of(y));
            !compat::range_compatible(*a, *b) && shapes.is_some_and(|(x, y)| x.overlaps(&y))
        }
        (Want::Directory { .. }, _) | (Want::Inode { .. }, _) | (Want::Range { .. }, _) => false,
    }
}
