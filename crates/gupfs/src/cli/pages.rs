//! Completions of shells and man pages, from the definition of the commands.

use std::path::Path;

use clap::CommandFactory as _;

use super::Cli;
use crate::failure::{Failure, Result};
use crate::output;

pub(super) fn print_completion(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gupfs", &mut text);
    output::write(format_args!("{}", String::from_utf8_lossy(&text)));
    Ok(())
}

pub(super) fn write_man_pages(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Err(Failure::new(format!("{} is no directory", dir.display()))
            .help("make it first, or name another one"));
    }
    let written = clap_mangen::generate_to(Cli::command(), dir);
    written.map_err(|e| Failure::io("write man pages to", dir, &e))?;
    Ok(vec![format!("wrote the man pages to {}", dir.display())])
}
