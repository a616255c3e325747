//! fio: requests at a depth, which plain system calls of one thread cannot give.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::rig::{run, text};

/// What fio is to do with one file or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job<'a> {
    /// The file or device; it is there.
    pub(crate) path: &'a Path,
    /// As fio names it: `randread`, `randwrite`, `read`.
    pub(crate) pattern: &'static str,
    /// Bytes of a request.
    pub(crate) request_size: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
    /// First byte of the part that is touched; each request of it once.
    pub(crate) offset: u64,
    /// Bytes of that part.
    pub(crate) size: u64,
    /// Through a mapping instead of O_DIRECT.
    pub(crate) is_mapped: bool,
}

impl Job<'_> {
    /// Runs it; bytes per second. Of writes the fsync at the end is a part.
    pub(crate) fn rate(&self) -> Result<f64> {
        let mut arguments = vec![
            "--name=bench".to_owned(),
            "--output-format=json".to_owned(),
            "--thread".to_owned(),
            "--end_fsync=1".to_owned(),
            "--fallocate=none".to_owned(),
            // What is in memory is the row's affair.
            "--invalidate=0".to_owned(),
            format!("--filename={}", text(self.path)),
            format!("--rw={}", self.pattern),
            format!("--bs={}", self.request_size),
            format!("--offset={}", self.offset),
            format!("--size={}", self.size),
            format!("--randseed={}", self.offset + 1),
        ];
        if self.is_mapped {
            arguments.push("--ioengine=mmap".to_owned());
        } else {
            arguments.push("--ioengine=libaio".to_owned());
            arguments.push("--direct=1".to_owned());
            arguments.push(format!("--iodepth={}", self.depth));
        }
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let answer = run("fio", &words).context("fio is needed for this row")?;
        rate_of(&answer, self.pattern.ends_with("write"))
    }
}

/// Bytes per second that fio's JSON tells of.
fn rate_of(answer: &str, is_write: bool) -> Result<f64> {
    // fio says some things before its JSON.
    let begin = answer.find('{').context("fio printed no JSON")?;
    let told: Value = serde_json::from_str(&answer[begin..]).context("fio prints JSON")?;
    let side = &told["jobs"][0][if is_write { "write" } else { "read" }];
    let (bytes, runtime) = (side["io_bytes"].as_f64(), side["runtime"].as_f64());
    let (bytes, milliseconds) = bytes.zip(runtime).context("fio tells bytes and time")?;
    anyhow::ensure!(
        bytes > 0.0 && milliseconds > 0.0,
        "fio did nothing that could be timed"
    );
    Ok(bytes / milliseconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_bytes_by_time() {
        let answer = "fio: a note\n{\"jobs\":[{\"read\":{\"io_bytes\":8192,\"runtime\":2},\
                      \"write\":{\"io_bytes\":0,\"runtime\":0}}]}";
        let rate = rate_of(answer, false).expect("a rate");
        assert!((rate - 4_096_000.0).abs() < 1e-6);
        rate_of(answer, true).expect_err("nothing was written");
        rate_of("fio: no such file", false).expect_err("no JSON");
    }
}
