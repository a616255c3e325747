//! Runs the scripts of `testdata/` and compares what happens with the transcript in the file.
//!
//! `UPDATE=1 cargo test -p token --test scenarios` rewrites the transcripts: read the difference.
//!
//! A script is a story (`#` lines), then commands, each followed by its transcript (`  ` lines):
//! `nodes N`, `write|read nK A..B`, `inode nK Mode`, `directory nK Mode`, `deliver [I]`, `drop [I]`,
//! `repeat [I]`, `finish nK`, `resend nK`, `close nK`, `evict nK`, `forget nK`, `lose nK`, `advance MS`, `owner`,
//! `settle`, `show`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic and read UPDATE"
)]

mod world;

use std::fmt::Write as _;
use std::path::Path;

use token::{Message, Rights};
use types::{
    ByteRange, DirectoryMode, InodeMode, Pattern, RangeMode, TokenKind, TokenNumber, Want,
};
use world::{INO, World, life};

fn bytes(pattern: &Pattern) -> String {
    let end = |at: u64| match at {
        u64::MAX => "inf".to_owned(),
        at => at.to_string(),
    };
    let first = ByteRange::at(pattern.offset, pattern.length);
    let mut text = format!("{}..{}", first.begin, end(first.end));
    if pattern.count > 1 {
        let _ = write!(text, " every {} x {}", pattern.stride, end(pattern.count));
    }
    text
}

fn kind(kind: &TokenKind) -> String {
    match kind {
        TokenKind::Directory { mode, .. } => format!("directory {mode:?}"),
        TokenKind::Inode { mode } => format!("inode {mode:?}"),
        TokenKind::Range { mode, patterns } => {
            let patterns: Vec<String> = patterns.iter().map(bytes).collect();
            format!("{mode:?} {}", patterns.join(", "))
        }
    }
}

fn kinds<'a>(all: impl IntoIterator<Item = &'a TokenKind>) -> String {
    let all: Vec<String> = all.into_iter().map(kind).collect();
    match all.is_empty() {
        true => "nothing".to_owned(),
        false => all.join("; "),
    }
}

fn wants(all: &[Want]) -> String {
    let want = |want: &Want| match want {
        Want::Directory { mode } => format!("directory {mode:?}"),
        Want::Inode { mode } => format!("inode {mode:?}"),
        Want::Range {
            mode,
            required,
            desired,
        } => format!("{mode:?} {} of {}", bytes(required), bytes(desired)),
    };
    all.iter().map(want).collect::<Vec<_>>().join("; ")
}

/// Numbers count from the first of their epoch.
fn number(number: TokenNumber) -> String {
    match number.0 >> 44 {
        0 => number.0.to_string(),
        epoch => format!("e{epoch}+{}", number.0 - (epoch << 44)),
    }
}

fn say(node: usize, message: &Message) -> String {
    let node = node + 1;
    match message {
        Message::Acquire(m) => format!("n{node} -> Acquire {}: {}", m.ticket, wants(&m.wants)),
        Message::Granted(m) => {
            let held = kinds(m.holdings.iter().map(|h| &h.kind));
            format!(
                "n{node} <- Granted {} state {}: {held}",
                m.ticket,
                number(m.number)
            )
        }
        Message::Revoke(m) => {
            let wants = wants(&m.wants);
            format!(
                "n{node} <- Revoke {} state {}: {wants}",
                m.revoke,
                number(m.number)
            )
        }
        Message::Released(m) => format!(
            "n{node} -> Released {} state {}: keeps {}",
            m.revoke,
            number(m.number),
            kinds(&m.kept)
        ),
        other => format!("n{node} {other:?}"),
    }
}

fn describe(rights: &Rights) -> String {
    kinds(&rights.kinds())
}

struct Script {
    world: World,
    shown: usize,
    transcript: String,
}

impl Script {
    fn line(&mut self, text: &str) {
        self.transcript.push_str("  ");
        self.transcript.push_str(text);
        self.transcript.push('\n');
    }

    fn node(word: &str) -> usize {
        let number: usize = word.strip_prefix('n').unwrap().parse().unwrap();
        number - 1
    }

    fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let index = |at: usize| words.get(at).map_or(0, |w| w.parse().unwrap());
        let before = self.world.network.len();
        match words[0] {
            "nodes" => self.world = World::new(index(1)),
            "write" | "read" | "inode" | "directory" => self.want(&words),
            "deliver" => {
                let text = {
                    let envelope = &self.world.network[index(1)];
                    say(envelope.node, &envelope.message)
                };
                self.line(&format!("arrived: {text}"));
                self.world.deliver(index(1));
                self.show_new(before - 1);
                return;
            }
            "drop" => {
                let lost = self.world.network.remove(index(1));
                self.line(&format!("lost: {}", say(lost.node, &lost.message)));
                return;
            }
            "repeat" => {
                let copy = self.world.network[index(1)].clone();
                self.world.network.push(copy);
            }
            "finish" => self.world.finish(Self::node(words[1]), index(2)),
            "resend" => {
                let node = Self::node(words[1]);
                let tickets: Vec<u64> = self.world.nodes[node].tickets.keys().copied().collect();
                for ticket in tickets {
                    self.world.send_acquire(node, ticket);
                }
            }
            "close" => self.world.nodes[Self::node(words[1])].activity.is_open = false,
            "evict" => {
                let node = &mut self.world.nodes[Self::node(words[1])];
                let plan = node.holder.give_up(INO);
                node.plans.extend(plan);
            }
            "forget" => {
                let holder = &mut self.world.nodes[Self::node(words[1])].holder;
                assert!(holder.is_idle());
                *holder = token::Holder::forgotten(holder.seen());
            }
            "lose" => self.world.lose(Self::node(words[1])),
            "advance" => self.world.advance(u64::try_from(index(1)).unwrap()),
            "owner" => self.world.change_owner(),
            "settle" => self.settle(),
            "show" => self.show(),
            other => panic!("what is {other}?"),
        }
        self.show_new(before);
    }

    fn want(&mut self, words: &[&str]) {
        let node = Self::node(words[1]);
        let want = match words[0] {
            "inode" => Want::Inode {
                mode: match words[2] {
                    "Read" => InodeMode::Read,
                    "SharedWrite" => InodeMode::SharedWrite,
                    _ => InodeMode::Exclusive,
                },
            },
            "directory" => Want::Directory {
                mode: match words[2] {
                    "Read" => DirectoryMode::Read,
                    _ => DirectoryMode::Write,
                },
            },
            access => {
                let (begin, end) = words[2].split_once("..").unwrap();
                let range = ByteRange::new(begin.parse().unwrap(), end.parse().unwrap());
                let mode = match access {
                    "read" => RangeMode::Read,
                    _ => RangeMode::Write,
                };
                self.world.range_want(node, mode, range)
            }
        };
        if self.world.want(node, vec![want]) {
            self.line("covered");
        }
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.world.network.is_empty() {
                self.run("deliver");
            } else if let Some(node) = self.world.nodes.iter().position(|n| !n.plans.is_empty()) {
                self.run(&format!("finish n{}", node + 1));
            } else {
                return;
            }
        }
        panic!("it does not settle");
    }

    fn show(&mut self) {
        for node in 0..self.world.nodes.len() {
            let held = describe(self.world.nodes[node].holder.held());
            let rights = self.world.manager.rights(life(node), INO);
            let recorded = rights.map_or("nothing".to_owned(), |(_, r)| describe(r));
            let text = match held == recorded {
                true => format!("n{} holds {held}", node + 1),
                false => format!("n{} holds {held}; recorded is {recorded}", node + 1),
            };
            self.line(&text);
        }
        for waiting in self.world.manager.waiters() {
            let whom: Vec<String> = waiting
                .waits_for
                .iter()
                .map(|(l, _)| l.node.to_string())
                .collect();
            let text = format!("{} waits for [{}]", waiting.holder.node, whom.join(" "));
            self.line(&text);
        }
    }

    /// Says what was sent, noted, and checks everything.
    fn show_new(&mut self, from: usize) {
        let from = from.min(self.world.network.len());
        let new: Vec<String> = self.world.network[from..]
            .iter()
            .map(|e| say(e.node, &e.message))
            .collect();
        for text in new {
            self.line(&text);
        }
        let notes: Vec<String> = self.world.notes[self.shown..].to_vec();
        self.shown += notes.len();
        for note in notes {
            self.line(&note);
        }
        self.world.check();
    }
}

fn play(text: &str) -> String {
    let mut script = Script {
        world: World::new(0),
        shown: 0,
        transcript: String::new(),
    };
    for line in text.lines().filter(|l| !l.starts_with("  ")) {
        script.transcript.push_str(line);
        script.transcript.push('\n');
        if !line.is_empty() && !line.starts_with('#') {
            script.run(line);
        }
    }
    script.transcript
}

#[test]
fn scripts_have_their_transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 5);
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let transcript = play(&text);
        if std::env::var("UPDATE").is_ok() {
            std::fs::write(&path, &transcript).unwrap();
        }
        let name = path.file_name().unwrap();
        assert!(
            text == transcript || std::env::var("UPDATE").is_ok(),
            "{name:?}:\n{transcript}"
        );
    }
}
