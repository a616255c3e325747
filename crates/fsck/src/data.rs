//! The bytes of files: every sector of every copy against its checksum.
//!
//! Life cycle: `jobs` of an image, by place -> the caller reads what `checksums` and `data` name -> `judge`.

use ::data::checksum::{SECTOR, crc32c};
use types::extent::{Checksums, checksum_sector_count};
use types::{Extent, InodeId, Location, Run, SECTOR_SIZE};

use crate::finding::{Findings, Kind};
use crate::{Image, Paths};

/// One copy of one extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Where it lies.
    pub at: Location,
    /// Whose it is.
    pub file: InodeId,
    extent: Extent,
}

/// Every copy of every extent, by place. Those that lie on no NSD are left out: that is another finding.
pub fn jobs(image: &Image) -> Vec<Job> {
    let mut jobs = Vec::new();
    for seen in image.shards().flat_map(|shard| shard.inspect()) {
        let Some(map) = seen.map else { continue };
        for extent in map.extents() {
            for at in &extent.locations {
                let run = extent.run(*at);
                let end = run.at.sector + u64::from(run.count);
                if image
                    .setup
                    .nsd(at.nsd)
                    .is_some_and(|nsd| end <= nsd.sector_count)
                {
                    jobs.push(Job {
                        at: *at,
                        file: seen.attr.ino,
                        extent: extent.clone(),
                    });
                }
            }
        }
    }
    jobs.sort_by_key(|job| job.at);
    jobs
}

/// Whether jobs that lie by place have this one, with the very same extent.
pub fn has(jobs: &[Job], job: &Job) -> bool {
    let begin = jobs.partition_point(|other| other.at < job.at);
    let mut there = jobs[begin..].iter().take_while(|other| other.at == job.at);
    there.any(|other| other == job)
}

impl Job {
    /// The checksum sectors to be read first, if it has any.
    pub fn checksums(&self) -> Option<Run> {
        let Checksums::Sectors {
            run_begin,
            run_length,
            ..
        } = &self.extent.checksums
        else {
            return None;
        };
        let sector = self.at.sector - u64::from(*run_begin) + u64::from(*run_length);
        let at = Location { sector, ..self.at };
        let count = checksum_sector_count(*run_length);
        Some(Run { at, count })
    }

    /// The sectors of the extent.
    pub fn data(&self) -> Run {
        let (at, count) = (self.at, self.extent.length);
        Run { at, count }
    }

    /// In words: whose, which byte, where.
    fn describe(&self, (image, paths): (&Image, &Paths), index: u32) -> String {
        let path = paths.of(image, self.file);
        let path = path.unwrap_or_else(|| "without a name".to_owned());
        let offset = (self.extent.file_sector + u64::from(index)) * SECTOR_SIZE;
        let sector = self.at.sector + u64::from(index);
        format!(
            "{path} (inode {}), byte {offset}: {} sector {sector}",
            self.file, self.at.nsd
        )
    }

    /// What was read: the checksum sectors, if there are any, and each sector of data; `None`: cannot be read.
    pub fn judge(
        &self,
        of: (&Image, &Paths),
        checksums: Option<&[u8]>,
        data: &[Option<&[u8]>],
        findings: &mut Findings,
    ) {
        let mut add = |kind, index| findings.of(kind, self.file, self.describe(of, index));
        let crcs: Vec<u32> = match &self.extent.checksums {
            Checksums::Inline { crcs } => crcs.clone(),
            Checksums::Sectors {
                root, run_begin, ..
            } => {
                let Some(bytes) = checksums else {
                    return add(Kind::DataUnreadable, 0);
                };
                if crc32c(bytes) != *root {
                    return add(Kind::DataChecksums, 0);
                }
                let words = bytes.chunks_exact(4).skip(*run_begin as usize);
                let word = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("four bytes"));
                words.take(self.extent.length as usize).map(word).collect()
            }
        };
        for ((bytes, crc), index) in data.iter().zip(crcs).zip(0..) {
            match bytes {
                None => add(Kind::DataUnreadable, index),
                Some(bytes) if bytes.len() != SECTOR || crc32c(bytes) != crc => {
                    add(Kind::DataSector, index);
                }
                Some(_) => {}
            }
        }
    }
}
