//! Named network name spaces of a lab: each node sees the lab's network and nothing else.
//!
//! Two nodes are joined by one veth pair (no bridge on the path that is measured); more nodes hang on a
//! bridge in a name space of its own. Nothing is left in the machine's own name space.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use super::shell;
use crate::failure::{Failure, Result};

const ROOT: &str = "/run/netns";

/// Name spaces whose name begins with `prefix`.
pub fn list(prefix: &str) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(ROOT) else {
        return Ok(Vec::new());
    };
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| n.starts_with(prefix))
        .collect();
    names.sort();
    Ok(names)
}

/// Whether `name` is there.
pub fn exists(name: &str) -> bool {
    Path::new(ROOT).join(name).exists()
}

/// Name of node `node`'s name space.
pub fn name(prefix: &str, node: u16) -> String {
    format!("{prefix}n{node}")
}

/// The lab address of `node`.
pub fn address(node: u16) -> Ipv4Addr {
    let [high, low] = node.to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// Makes the name spaces of `node_count` nodes and joins them.
pub fn create(prefix: &str, node_count: u16) -> Result<()> {
    for node in 1..=node_count {
        let name = name(prefix, node);
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
    }
    if node_count == 2 {
        let (first, second) = (name(prefix, 1), name(prefix, 2));
        ip(&[
            "-n", &first, "link", "add", "lab0", "type", "veth", "peer", "name", "lab0", "netns",
            &second,
        ])?;
    } else if node_count > 2 {
        bridge(prefix, node_count)?;
    }
    if node_count >= 2 {
        for node in 1..=node_count {
            let name = name(prefix, node);
            ip(&[
                "-n",
                &name,
                "addr",
                "add",
                &format!("{}/16", address(node)),
                "dev",
                "lab0",
            ])?;
            ip(&["-n", &name, "link", "set", "lab0", "up"])?;
        }
    }
    Ok(())
}

fn bridge(prefix: &str, node_count: u16) -> Result<()> {
    let switch = format!("{prefix}switch");
    ip(&["netns", "add", &switch])?;
    ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
    ip(&["-n", &switch, "link", "set", "br0", "up"])?;
    for node in 1..=node_count {
        let name = name(prefix, node);
        let port = format!("port{node}");
        ip(&[
            "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "lab0", "netns",
            &name,
        ])?;
        ip(&["-n", &switch, "link", "set", &port, "master", "br0"])?;
        ip(&["-n", &switch, "link", "set", &port, "up"])?;
    }
    Ok(())
}

/// Removes every name space of the lab; its links go with them.
pub fn remove(prefix: &str) -> Result<Vec<String>> {
    let names = list(prefix)?;
    for name in &names {
        ip(&["netns", "del", name])?;
    }
    Ok(names)
}

fn ip(arguments: &[&str]) -> Result<()> {
    shell::run("ip", arguments).map(drop).map_err(|failure| {
        if shell::exists("ip") {
            return failure;
        }
        Failure::new("the program ip is not installed").help("apt-get install iproute2")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes_differ() {
        assert_eq!(address(1), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(address(258), Ipv4Addr::new(10, 77, 1, 2));
        assert_eq!(name("gupfs-ab-", 2), "gupfs-ab-n2");
    }
}
