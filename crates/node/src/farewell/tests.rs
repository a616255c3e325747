use std::collections::VecDeque;

use stdx::prng::Prng;
use types::{Incarnation, NodeId};

use super::*;

const SLICES: usize = 3;

fn life(node: u16) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(u128::from(node)),
    }
}

fn answer(to: u16, is_last: bool) -> Option<Act> {
    let to = life(to);
    Some(Act::Answer { to, is_last })
}

fn tick(farewells: &mut Farewells, now: u64) {
    farewells.on_tick(Instant(now), |_| true, |_| true);
}

#[test]
fn who_stays_answers_when_all_slices_have_swept() {
    let mut node = Farewells::default();
    let now = Instant(1);
    assert_eq!(node.on_stopping(now, life(2), SLICES), Some(Act::Sweep(1)));
    assert_eq!(node.on_stopping(now, life(2), SLICES), None, "a repeat");
    assert_eq!(node.on_stopping(now, life(3), SLICES), Some(Act::Sweep(2)));
    assert_eq!(node.on_swept(1), None);
    assert_eq!(node.on_swept(1), None);
    assert_eq!(node.on_swept(2), None);
    assert_eq!(node.on_swept(1), answer(2, false));
    assert_eq!(node.on_swept(1), None, "an old one");
    // The answer was lost.
    assert_eq!(node.on_stopping(now, life(2), SLICES), answer(2, false));
    node.ended(life(3));
    assert_eq!(node.on_swept(2), None);
    assert_eq!(node.missing().count(), 0, "it does not stop");
}

#[test]
fn who_stops_too_answers_when_it_has_nothing_left() {
    let mut node = Farewells::default();
    let now = Instant(1);
    assert_eq!(node.on_stopping(now, life(2), 1), Some(Act::Sweep(1)));
    assert_eq!(node.on_stopping(now, life(3), 1), Some(Act::Sweep(2)));
    assert_eq!(node.on_swept(1), answer(2, false));
    node.begin(now, [2, 3, 4].map(life).into_iter());
    assert_eq!(node.on_swept(2), None, "its unmount brings more");
    assert_eq!(node.on_stopping(now, life(2), 1), None);
    assert_eq!(node.on_stopping(now, life(4), 1), None);
    let all = [2, 3, 4].map(|to| answer(to, true).expect("an answer"));
    assert_eq!(node.written(), all);
    assert_eq!(node.on_stopping(now, life(4), 1), answer(4, true));
}

#[test]
fn an_answer_counts_until_its_sender_stops_too() {
    let mut node = Farewells::default();
    node.begin(Instant(1), [2, 3].map(life).into_iter());
    node.on_written_back(life(2), false);
    node.on_written_back(life(3), true);
    assert_eq!(node.missing().count(), 0);
    assert!(node.waiters().is_empty());
    assert_eq!(node.on_stopping(Instant(2), life(2), 1), None);
    assert_eq!(node.on_stopping(Instant(2), life(3), 1), None);
    let missing: Vec<NodeLife> = node.missing().collect();
    assert_eq!(missing, [life(2)], "the other one's was its last");
    let waiters = node.waiters();
    assert!(waiters[0].0.contains("node 2"), "{waiters:?}");
    assert_eq!(waiters[0].1, Instant(1), "since it began to stop");
}

#[test]
fn who_is_no_member_or_has_no_link_is_not_waited_for() {
    let mut node = Farewells::default();
    node.begin(Instant(0), [2, 3, 4].map(life).into_iter());
    let end = LINK_PATIENCE.0;
    node.on_tick(Instant(end - 1), |life| life.node.0 != 2, |_| false);
    assert_eq!(node.missing().count(), 2);
    node.on_tick(Instant(end - 1), |_| true, |life| life.node.0 == 3);
    node.on_tick(Instant(end), |_| true, |_| false);
    assert_eq!(node.missing().collect::<Vec<_>>(), [life(3)]);
    tick(&mut node, 10 * end);
    assert_eq!(node.missing().count(), 1, "it has a link");
    node.ended(life(3));
    assert_eq!(node.missing().count(), 0);
}

/// A node of the model: what it holds goes to another one, which must be there to take it.
#[derive(Default)]
struct Node {
    farewells: Farewells,
    /// For whom, and when it was written.
    dirty: Vec<(usize, u64)>,
    /// Sweeps under way: what was dirty before this moment.
    sweeps: Vec<(u64, u64)>,
    /// When it has begun to stop.
    stops: Option<u64>,
    /// Its kernel holds nothing any more.
    is_unmounted: bool,
    has_left: bool,
    /// When each other node's `Stopping` came first.
    heard: [Option<u64>; COUNT],
}

const COUNT: usize = 4;

struct World {
    nodes: Vec<Node>,
    messages: VecDeque<(usize, usize, Message)>,
    prng: Prng,
    now: u64,
}

#[derive(Clone, Copy)]
enum Message {
    Stopping,
    WrittenBack(bool),
}

impl World {
    fn act(&mut self, at: usize, act: Option<Act>) {
        match act {
            Some(Act::Sweep(sweep)) => self.nodes[at].sweeps.push((sweep, self.now)),
            Some(Act::Answer { to, is_last }) => {
                let to = usize::from(to.node.0);
                self.messages
                    .push_back((at, to, Message::WrittenBack(is_last)));
            }
            None => {}
        }
    }

    fn deliver(&mut self) {
        let Some(index) = self.draw(self.messages.len()) else {
            return;
        };
        let (from, to, message) = self.messages[index];
        // Links keep order; some messages are lost.
        let is_first = |m: &(usize, usize, Message)| (m.0, m.1) == (from, to);
        let first = self.messages.iter().position(is_first).expect("this one");
        let (_, _, message) = self.messages.remove(first).map_or((0, 0, message), |m| m);
        if self.nodes[to].has_left || self.prng.below(4) == 0 {
            return;
        }
        let (now, sender) = (Instant(self.now), life_of(from));
        let node = &mut self.nodes[to];
        match message {
            Message::Stopping => {
                node.heard[from].get_or_insert(self.now);
                let act = node.farewells.on_stopping(now, sender, 1);
                self.act(to, act);
            }
            Message::WrittenBack(is_last) => node.farewells.on_written_back(sender, is_last),
        }
    }

    fn draw(&mut self, count: usize) -> Option<usize> {
        let count = u64::try_from(count).expect("small");
        (count > 0).then(|| usize::try_from(self.prng.below(count)).expect("small"))
    }

    /// One thing that a node holds reaches the one that it is for, if that is there.
    fn write_one(&mut self, at: usize) {
        let Some(index) = self.draw(self.nodes[at].dirty.len()) else {
            return;
        };
        let (to, since) = self.nodes[at].dirty[index];
        if !self.nodes[to].has_left {
            self.nodes[at].dirty.swap_remove(index);
            return;
        }
        let (node, gone) = (&self.nodes[at], &self.nodes[to]);
        let heard = node.heard[to];
        // Written after the other one had taken leave, on a node that stayed: it waits until that comes back.
        assert!(
            heard.is_none_or(|heard| heard < since) || heard.is_none(),
            "it was there before the other one said that it stops"
        );
        let has_told = gone.heard[at];
        assert!(
            node.stops.is_none() || has_told.is_none(),
            "both were stopping, and knew it"
        );
    }

    fn step(&mut self, at: usize) {
        self.now += 1;
        let what = self.prng.below(8);
        let node = &mut self.nodes[at];
        if node.has_left {
            return;
        }
        match what {
            0 if !node.is_unmounted => {
                let to = self.draw(COUNT).expect("some");
                let now = self.now;
                self.nodes[at].dirty.push((to, now));
            }
            1 | 2 => self.write_one(at),
            3 => {
                let dirty = &node.dirty;
                let done: Vec<u64> = node
                    .sweeps
                    .extract_if(.., |(_, since)| dirty.iter().all(|(_, at)| at > since))
                    .map(|(sweep, _)| sweep)
                    .collect();
                for sweep in done {
                    let act = self.nodes[at].farewells.on_swept(sweep);
                    self.act(at, act);
                }
            }
            4 if node.stops.is_none() && self.prng.below(40) == 0 => {
                node.stops = Some(self.now);
                let others = (0..COUNT).filter(|other| *other != at).map(life_of);
                node.farewells.begin(Instant(self.now), others);
            }
            4 | 5 if node.stops.is_some() => self.stop_on(at),
            _ => self.deliver(),
        }
    }

    fn stop_on(&mut self, at: usize) {
        let now = Instant(self.now);
        let left: Vec<bool> = self.nodes.iter().map(|node| node.has_left).collect();
        let node = &mut self.nodes[at];
        if !node.is_unmounted {
            node.is_unmounted = self.prng.below(4) == 0;
        } else if node.dirty.iter().all(|(to, _)| left[*to]) {
            for act in node.farewells.written() {
                self.act(at, Some(act));
            }
            let is_member = |life: NodeLife| !left[usize::from(life.node.0)];
            let node = &mut self.nodes[at];
            node.farewells.on_tick(now, is_member, |_| true);
            if node.farewells.missing().count() == 0 {
                node.has_left = true;
                let gone = life_of(at);
                for node in &mut self.nodes {
                    node.farewells.ended(gone);
                }
                return;
            }
        }
        let missing: Vec<NodeLife> = self.nodes[at].farewells.missing().collect();
        for to in missing {
            let to = usize::from(to.node.0);
            self.messages.push_back((at, to, Message::Stopping));
        }
    }
}

fn life_of(node: usize) -> NodeLife {
    life(u16::try_from(node).expect("small"))
}

/// Nodes write, stop in any order and at once, and lose messages: what one held before it heard that another one stops, or before
/// both knew that both do, is taken. All of them end.
#[test]
fn nothing_is_left_over_whatever_the_order() {
    let mut together = 0;
    for seed in 0..3_000 {
        let nodes = (0..COUNT).map(|_| Node::default()).collect();
        let mut world = World {
            nodes,
            messages: VecDeque::new(),
            prng: Prng::new(seed),
            now: 0,
        };
        for _ in 0..200_000 {
            let at = world.draw(COUNT).expect("some");
            world.step(at);
            if world.nodes.iter().all(|node| node.has_left) {
                break;
            }
        }
        let left = world.nodes.iter().filter(|node| node.has_left).count();
        assert_eq!(left, COUNT, "seed {seed}: somebody waits for good");
        let stops: Vec<u64> = world.nodes.iter().filter_map(|node| node.stops).collect();
        together += u64::from(
            stops
                .iter()
                .any(|a| stops.iter().any(|b| a < b && b - a < 50)),
        );
    }
    assert!(together > 500, "{together} runs with stops at once");
}
