//! Tells what a disk holds that is not ours, for the message and so that nothing is overwritten.

/// A format that is not ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Foreign {
    /// ext2, ext3 or ext4.
    Ext,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// A GPT partition table.
    Gpt,
    /// An MBR partition table or boot sector (FAT and NTFS have its signature too).
    Mbr,
    /// A physical disk of LVM.
    Lvm,
    /// Swap space.
    Swap,
    /// LUKS encryption.
    Luks,
    /// Not zero, and nothing that we know.
    Unknown,
}

/// A format's signature: at `offset` lie the bytes `magic`. The first row that fits counts: a GPT
/// disk also has an MBR, and an ext boot sector may.
const SIGNATURES: &[(Foreign, usize, &[u8])] = &[
    (Foreign::Luks, 0, b"LUKS\xba\xbe"),
    (Foreign::Xfs, 0, b"XFSB"),
    (Foreign::Lvm, 0, b"LABELONE"),
    (Foreign::Lvm, 512, b"LABELONE"),
    (Foreign::Lvm, 1024, b"LABELONE"),
    (Foreign::Lvm, 1536, b"LABELONE"),
    (Foreign::Gpt, 512, b"EFI PART"),
    (Foreign::Gpt, 4096, b"EFI PART"),
    (Foreign::Ext, 1080, b"\x53\xef"),
    (Foreign::Btrfs, 0x1_0040, b"_BHRfS_M"),
    (Foreign::Swap, 4086, b"SWAPSPACE2"),
    (Foreign::Swap, 4086, b"SWAP-SPACE"),
    (Foreign::Mbr, 510, b"\x55\xaa"),
];

impl Foreign {
    /// What the disk's first bytes look like; `None` if they have no signature known here.
    pub fn recognise(head: &[u8]) -> Option<Self> {
        SIGNATURES
            .iter()
            .find(|(_, offset, magic)| {
                let bytes = head.get(*offset..*offset + magic.len());
                bytes == Some(*magic)
            })
            .map(|(kind, _, _)| *kind)
    }
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ext => "an ext2/ext3/ext4 file system",
            Self::Xfs => "an XFS file system",
            Self::Btrfs => "a Btrfs file system",
            Self::Gpt => "a GPT partition table",
            Self::Mbr => "an MBR partition table or boot sector",
            Self::Lvm => "an LVM physical disk",
            Self::Swap => "swap space",
            Self::Luks => "a LUKS encrypted disk",
            Self::Unknown => "data of unknown kind",
        })
    }
}
