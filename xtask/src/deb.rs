//! `cargo xtask deb`: the Debian package, with man pages and completions made by the program itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::guided;

/// Builds the package and prints its path; with `--test` installs, uses and removes it.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let is_tested = match arguments {
        [] => false,
        [one] if one == "--test" => true,
        other => bail!("deb does not know {}", other.join(" ")),
    };
    let has_tool = Command::new("cargo-deb")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    ensure!(
        has_tool,
        "cargo-deb is missing: cargo install cargo-deb --locked"
    );
    pages(root, &guided::install(root)?)?;
    // --no-build: the binary is there, and its pages belong to it.
    let output = Command::new("cargo-deb")
        .args(["deb", "-p", "gupfs", "--no-build", "--no-strip"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo-deb")?;
    ensure!(output.status.success(), "cargo-deb failed");
    let said = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    let package = said.lines().last().context("cargo-deb names no package")?;
    println!("{package}");
    if !is_tested {
        return Ok(());
    }
    let status = Command::new(root.join("packaging/test-deb.sh"))
        .arg(package)
        .status()
        .context("cannot run packaging/test-deb.sh")?;
    ensure!(status.success(), "packaging/test-deb.sh failed");
    Ok(())
}

/// Writes man pages and completions to where the package's list of files has them.
fn pages(root: &Path, program: &Path) -> Result<()> {
    let directory = root.join("target/package");
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("cannot clear target/package");
        }
        _ => {}
    }
    fs::create_dir_all(directory.join("man")).context("cannot make target/package")?;
    let run = |words: &[&str]| {
        let output = Command::new(program)
            .args(words)
            .current_dir(&directory)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run gupfs")?;
        ensure!(output.status.success(), "gupfs {} failed", words.join(" "));
        Ok(output.stdout)
    };
    run(&["man", "man"])?;
    for (shell, file) in [
        ("bash", "gupfs.bash"),
        ("zsh", "_gupfs"),
        ("fish", "gupfs.fish"),
    ] {
        let text = run(&["completion", shell])?;
        fs::write(directory.join(file), text).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}
