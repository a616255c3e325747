//! Nodes that die, restart, and stand still, seen through the mounts of a lab of two nodes.

use std::path::Path;

use crate::lab::{LIMIT, Lab, can_run};

/// Lease and margin, and some time for a busy machine, in seconds.
const DEAD_LIMIT: u32 = 40;

impl Lab {
    /// Writes through one mount, reads through the other, both ways.
    fn works(&self, text: &str) {
        self.sh(
            LIMIT,
            &format!("echo {text}-1 >$M1/one; echo {text}-2 >$M2/two"),
        );
        self.reads("$M2/one", &format!("{text}-1"));
        self.reads("$M1/two", &format!("{text}-2"));
        self.sh(
            LIMIT,
            &format!("echo {text}-3 >$M2/one; echo {text}-4 >$M1/two"),
        );
        self.reads("$M1/one", &format!("{text}-3"));
        self.reads("$M2/two", &format!("{text}-4"));
    }

    fn log_has(&self, node: usize, words: &str) -> bool {
        self.log(node).contains(words)
    }
}

#[test]
fn restarted_owners_know_what_others_hold() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.works("begin");
    lab.sh(
        LIMIT,
        "mkdir $M1/d1 $M2/d2; for d in d1 d2; do echo 0 >$M1/$d/held; done",
    );
    for node in ["n2", "n1"] {
        // The other node holds write tokens with dirty data, and knows that a name is absent, in
        // directories of both owners.
        let (other, own) = if node == "n2" {
            ("$M1", "$M2")
        } else {
            ("$M2", "$M1")
        };
        for d in ["d1", "d2"] {
            lab.reads(&format!("{own}/{d}/held"), "0");
            lab.sh(
                LIMIT,
                &format!("echo {node} >{other}/{d}/held; ! ls {other}/{d}/new 2>&1"),
            );
        }
        lab.gupfs(&["kill", node]);
        lab.gupfs(&["start", node]);
        for d in ["d1", "d2"] {
            lab.reads(&format!("{own}/{d}/held"), node);
            lab.sh(LIMIT, &format!("echo made >{own}/{d}/new"));
            lab.reads(&format!("{other}/{d}/new"), "made");
            lab.sh(
                LIMIT,
                &format!("rm {own}/{d}/new; ! ls {other}/{d}/new 2>&1; echo 0 >{own}/{d}/held"),
            );
            lab.reads(&format!("{other}/{d}/held"), "0");
        }
        lab.works(node);
    }
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    lab.fsck();
    // Neither waits for the other's former life once both are there.
    lab.gupfs(&["start", "n1", "n2"]);
    lab.works("both");
}

#[test]
fn a_silent_node_is_declared_dead_and_starts_anew() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.works("begin");
    // Shorter than the lease: nothing but a pause.
    lab.signal(2, "STOP");
    lab.sh(LIMIT, "sleep 2");
    lab.signal(2, "CONT");
    lab.works("pause");
    assert!(!lab.log_has(2, "starting anew"), "{}", lab.logs());
    // Longer: node 1 gets the tokens that node 2 holds.
    lab.sh(LIMIT, "mkdir $M1/d1; echo old >$M1/d1/held; echo held >$M2/d1/held; ls -l $M2/d1; cat $M2/d1/held");
    lab.signal(2, "STOP");
    lab.sh(DEAD_LIMIT, "echo after >$M1/d1/held; echo new >$M1/d1/new");
    let is_member = || {
        let state = Path::new(lab.root()).join("n1");
        let mut status = std::process::Command::new(env!("CARGO_BIN_EXE_gupfs"));
        status.args(["status", "--json", "--state"]).arg(state);
        let said = status.output().unwrap().stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        said["peers"][0]["member"].as_bool().unwrap()
    };
    assert!(!is_member(), "it was declared dead");
    lab.signal(2, "CONT");
    // A dead mount for a moment, as after a crash, but never with what was.
    let seen = lab.sh(
        LIMIT,
        "until cat $M2/d1/held $M2/d1/new 2>/dev/null; do sleep 0.05; done",
    );
    assert_eq!(seen.trim_end(), "after\nnew", "{}", lab.logs());
    assert!(lab.log_has(2, "starting anew"), "{}", lab.logs());
    lab.works("again");
    assert!(is_member());
    // Alone, after both were killed: the other one's former life is declared dead.
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    lab.fsck();
    lab.gupfs(&["start", "n1"]);
    lab.sh(DEAD_LIMIT, "ls $M1 >/dev/null");
    lab.gupfs(&["start", "n2"]);
    lab.works("end");
}
