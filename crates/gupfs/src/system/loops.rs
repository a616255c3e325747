//! Loop devices over files: found by the file behind them, never by a remembered device name.

use std::fs;
use std::path::{Path, PathBuf};

use super::shell;
use crate::failure::{Failure, Result};

/// A loop device and the file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Such as `/dev/loop3`.
    pub device: PathBuf,
    /// The file, as the kernel names it (`(deleted)` may follow).
    pub file: String,
}

/// The loop devices over `file`.
pub fn over(file: &Path) -> Result<Vec<PathBuf>> {
    if !is_any_attached() {
        return Ok(Vec::new());
    }
    let text = shell::run(
        "losetup",
        &[
            "-n".as_ref(),
            "-O".as_ref(),
            "NAME".as_ref(),
            "-j".as_ref(),
            file.as_os_str(),
        ],
    )?;
    Ok(text
        .lines()
        .map(|l| PathBuf::from(l.trim()))
        .filter(|p| p.is_absolute())
        .collect())
}

/// Whether any loop device has a file, as far as it can be seen: most machines have none.
fn is_any_attached() -> bool {
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return true;
    };
    let mut devices = devices.flatten();
    devices.any(|device| device.path().join("loop/backing_file").exists())
}

/// All loop devices whose file lies in `directory`, deleted files included.
pub fn below(directory: &Path) -> Result<Vec<Loop>> {
    let text = shell::run("losetup", &["-l", "-n", "-O", "NAME,BACK-FILE"])?;
    Ok(parse(&text)
        .into_iter()
        .filter(|l| Path::new(&l.file).starts_with(directory))
        .collect())
}

fn parse(text: &str) -> Vec<Loop> {
    let line = |line: &str| {
        let (device, file) = line.trim().split_once(char::is_whitespace)?;
        Some(Loop {
            device: PathBuf::from(device),
            file: file.trim().to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// The loop device over `file`, attached now if there was none.
pub fn attach(file: &Path) -> Result<PathBuf> {
    let there = over(file)?;
    match there.as_slice() {
        [] => {}
        [device] => return Ok(device.clone()),
        more => {
            return Err(Failure::new(format!(
                "{} is attached to {} loop devices: the same disk under two names",
                file.display(),
                more.len()
            ))
            .help(format!(
                "detach all but one (losetup -d {})",
                more[1].display()
            )));
        }
    }
    let attach = |direct: &str| {
        shell::run(
            "losetup",
            &[
                "--find".as_ref(),
                "--show".as_ref(),
                direct.as_ref(),
                file.as_os_str(),
            ],
        )
    };
    // tmpfs may refuse direct I/O, and its data is in memory anyway.
    let shown = attach("--direct-io=on").or_else(|_| match over(file)?.first() {
        Some(device) => Ok(device.display().to_string()),
        None => attach("--direct-io=off"),
    })?;
    Ok(PathBuf::from(shown.trim()))
}

/// Detaches every loop device over a file in `directory`.
pub fn detach_below(directory: &Path) -> Result<Vec<Loop>> {
    let found = below(directory)?;
    for device in &found {
        shell::run("losetup", &["-d".as_ref(), device.device.as_os_str()])?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_losetup_is_read() {
        let found = parse("/dev/loop1 /a b/c.img\n/dev/loop12 /x (deleted)\n\n");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].file, "/a b/c.img");
        assert_eq!(found[1].device, Path::new("/dev/loop12"));
    }
}
