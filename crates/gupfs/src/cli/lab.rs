//! `gupfs lab` and the arguments of `gupfs demo`: clusters on this machine.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{parse_pagepool, report, show};
use crate::failure::Result;
use crate::lab::{self, Lab, Plan};
use crate::size::parse_argument;
use crate::state::{self, Backing, Transport};

#[derive(Debug, Subcommand)]
pub(super) enum LabCommand {
    /// Make a lab, or bring what is missing of it up again.
    #[command(
        after_help = "Example:\n  gupfs lab up --dir /tmp/lab --nodes 2 --backing ram --size 8G"
    )]
    Up {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
        /// Nodes.
        #[arg(long, default_value_t = 2)]
        nodes: u16,
        /// Where the NSDs lie.
        #[arg(long, value_enum, default_value = "file")]
        backing: Backing,
        /// Bytes of all NSDs together.
        #[arg(long, default_value = "8G", value_parser = parse_argument)]
        size: u64,
        /// How requests travel between kernel and daemon.
        #[arg(long, value_enum, default_value = "device")]
        transport: Transport,
        /// Bytes of memory for caching, of each node.
        #[arg(long, default_value = "1G", value_parser = parse_pagepool)]
        pagepool: u64,
        /// As of `gupfs up`.
        #[arg(long, value_name = "SIZE", value_parser = parse_argument)]
        direct_from: Option<u64>,
        /// Milliseconds of a node's lease: how long a silent node is waited for.
        #[arg(long, default_value_t = types::limits::LEASE_MS, value_parser = lease_range())]
        lease_ms: u64,
    },
    /// What each node is doing.
    #[command(after_help = "Example:\n  gupfs lab status --dir /tmp/lab --json")]
    Status {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Kill a node's daemon with SIGKILL, as a crash would.
    #[command(
        after_help = "Example:\n  gupfs lab kill n2 --dir /tmp/lab && gupfs lab start n2 --dir /tmp/lab"
    )]
    Kill {
        /// Such as n2.
        #[arg(value_parser = parse_node)]
        node: u16,
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Start nodes again.
    #[command(after_help = "Example:\n  gupfs lab start n1 n2 --dir /tmp/lab")]
    Start {
        /// Such as n2; several start together.
        #[arg(value_parser = parse_node, required = true)]
        nodes: Vec<u16>,
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Remove the lab: daemons, mounts, name spaces, loop devices, data.
    #[command(
        after_help = "Example:\n  gupfs lab down --dir /tmp/lab    (works from any state a crash can leave)"
    )]
    Down {
        /// Directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
}

/// Arguments of the demo.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Directory of the lab that the demo makes and removes.
    #[arg(long, required_unless_present = "on")]
    pub dir: Option<PathBuf>,
    /// Tree to copy; may be given several times. Default: the Rust toolchain and cargo's sources.
    #[arg(long, conflicts_with = "seed")]
    pub tree: Vec<PathBuf>,
    /// Copy a tree generated from this seed instead.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Files of the generated tree.
    #[arg(long, default_value_t = 10_000)]
    pub files: u64,
    /// Bytes of the generated tree.
    #[arg(long, default_value = "512M", value_parser = parse_argument)]
    pub bytes: u64,
    /// Two directories that show the same files: no lab is made and nothing is killed.
    #[arg(long, value_delimiter = ',', num_args = 1, conflicts_with = "dir")]
    pub on: Vec<PathBuf>,
    /// Where the NSDs lie.
    #[arg(long, value_enum, default_value = "file")]
    pub backing: Backing,
    /// Bytes of all NSDs together.
    #[arg(long, default_value = "8G", value_parser = parse_argument)]
    pub size: u64,
    /// FUSE transport of the lab's nodes.
    #[arg(long, value_enum, default_value = "device")]
    pub transport: Transport,
    /// Threads that copy and that verify.
    #[arg(long, default_value_t = 4)]
    pub threads: usize,
    /// Leave the lab running.
    #[arg(long)]
    pub keep: bool,
    /// Skip the same copy on a local file system.
    #[arg(long)]
    pub no_compare: bool,
    /// Print JSON at the end: the flag of all commands.
    #[arg(skip)]
    pub json: bool,
}

fn lease_range() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(state::LEASE_MS)
}

fn parse_node(text: &str) -> std::result::Result<u16, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("{text:?} is no node; write for example n2"))
}

pub(super) fn run(command: LabCommand, json: bool) -> Result<()> {
    match command {
        LabCommand::Up {
            dir,
            nodes,
            backing,
            size,
            transport,
            pagepool,
            direct_from,
            lease_ms,
        } => {
            let plan = Plan::new(nodes, backing, size).with(transport, pagepool);
            let plan = plan.with_lease(lease_ms).with_direct_from(direct_from);
            report(lab::up(&Lab::new(&dir)?, &plan), json)
        }
        LabCommand::Status { dir } => lab::status(&Lab::new(&dir)?).map(|value| show(&value, json)),
        LabCommand::Kill { node, dir } => report(lab::kill(&Lab::new(&dir)?, node), json),
        LabCommand::Start { nodes, dir } => report(lab::start(&Lab::new(&dir)?, &nodes), json),
        LabCommand::Down { dir } => report(lab::down(&Lab::new(&dir)?), json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_written_with_or_without_n() {
        assert_eq!(parse_node("n2"), Ok(2));
        assert_eq!(parse_node("12"), Ok(12));
        parse_node("x").expect_err("no node");
    }
}
