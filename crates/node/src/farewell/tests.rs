//! Two nodes that stop, and those that stay.

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

fn answer(to: u16, round: u32, is_last: bool) -> Option<Act> {
    let to = life(to);
    Some(Act::Answer { to, round, is_last })
}

fn lives<const N: usize>(nodes: [u16; N]) -> [NodeLife; N] {
    nodes.map(life)
}

#[test]
fn who_stays_answers_when_all_slices_have_swept() {
    let mut node = Farewells::default();
    let ask = |node: &mut Farewells, from, round| node.on_stopping((life(from), round), SLICES);
    assert_eq!(ask(&mut node, 2, 0), Some(Act::Sweep(1)));
    assert_eq!(ask(&mut node, 2, 0), None, "a repeat");
    assert_eq!(ask(&mut node, 3, 0), Some(Act::Sweep(2)));
    assert_eq!(node.on_swept(1), None);
    assert_eq!(node.on_swept(1), None);
    assert_eq!(node.on_swept(2), None);
    assert_eq!(node.on_swept(1), answer(2, 0, false));
    assert_eq!(node.on_swept(1), None, "an old one");
    // The answer was lost.
    assert_eq!(ask(&mut node, 2, 0), answer(2, 0, false));
    // What was written since.
    assert_eq!(ask(&mut node, 2, 1), Some(Act::Sweep(3)));
    assert_eq!(ask(&mut node, 2, 0), None, "a late one");
    // The second round comes before the first has ended.
    assert_eq!(ask(&mut node, 3, 1), Some(Act::Sweep(4)));
    for _ in 0..SLICES {
        assert_eq!(node.on_swept(2), None, "nobody waits for it");
    }
    assert!(node.has_asked(life(3)) && node.is_any());
    node.ended(life(3));
    assert_eq!(node.on_swept(4), None);
    assert_eq!(node.missing().count(), 0, "it does not stop");
}

#[test]
fn who_stops_too_answers_when_it_writes_nothing_any_more() {
    let mut node = Farewells::default();
    let now = Instant(1);
    assert_eq!(node.on_stopping((life(2), 0), 1), Some(Act::Sweep(1)));
    assert_eq!(node.on_stopping((life(3), 1), 1), Some(Act::Sweep(2)));
    assert_eq!(node.on_swept(1), answer(2, 0, false));
    node.begin(now, &lives([2, 3, 4]));
    assert_eq!(node.on_swept(2), None, "its unmount brings more");
    assert_eq!(node.on_stopping((life(2), 1), 1), None);
    assert_eq!(node.on_stopping((life(4), 0), 1), None);
    let all = [(2, 1), (3, 1), (4, 0)];
    let all = all.map(|(to, round)| answer(to, round, true).expect("an answer"));
    assert_eq!(node.written(), all);
    assert_eq!(node.on_stopping((life(4), 1), 1), answer(4, 1, true));
}

#[test]
fn an_answer_counts_in_the_second_round_and_until_its_sender_stops_too() {
    let mut node = Farewells::default();
    node.begin(Instant(1), &lives([2, 3, 4]));
    assert_eq!(node.round(), 0);
    node.on_written_back(life(2), 0, false);
    assert_eq!(node.missing().count(), 3, "it writes on");
    node.on_written_back(life(3), 0, true);
    assert_eq!(node.missing().collect::<Vec<_>>(), lives([2, 4]));
    node.written();
    assert_eq!(node.round(), 1);
    node.on_written_back(life(2), 0, false);
    assert_eq!(
        node.missing().collect::<Vec<_>>(),
        lives([2, 4]),
        "a late one"
    );
    node.on_written_back(life(2), 1, false);
    node.on_written_back(life(4), 1, false);
    assert_eq!(node.missing().count(), 0);
    assert!(node.waiters().is_empty());
    for from in [2, 3] {
        let act = node.on_stopping((life(from), 0), 1);
        assert_eq!(act, answer(from, 0, true));
    }
    let missing: Vec<NodeLife> = node.missing().collect();
    assert_eq!(missing, lives([2]), "the other one's was its last");
    let waiters = node.waiters();
    assert!(waiters[0].0.contains("node 2"), "{waiters:?}");
    assert_eq!(waiters[0].1, Instant(1), "since it began to stop");
}

#[test]
fn who_is_no_member_or_has_no_link_is_not_waited_for() {
    let mut node = Farewells::default();
    node.begin(Instant(0), &lives([2, 3, 4]));
    let patience = LINK_PATIENCE.0;
    // Nobody has looked for long, and a link is being made anew.
    let late = 10 * patience;
    let members = lives([3, 4]);
    assert!(
        node.on_tick(Instant(late), &members, |_| false, &[])
            .is_empty()
    );
    assert_eq!(
        node.missing().collect::<Vec<_>>(),
        members,
        "2 is no member"
    );
    node.on_tick(
        Instant(late + patience - 1),
        &members,
        |life| life.node.0 == 3,
        &[],
    );
    assert_eq!(node.missing().count(), 2);
    node.on_tick(Instant(late + patience), &members, |_| false, &[]);
    assert_eq!(node.missing().collect::<Vec<_>>(), lives([3]));
    // One that joins now.
    node.on_tick(Instant(late + patience), &lives([3, 4, 5]), |_| true, &[]);
    assert_eq!(node.missing().collect::<Vec<_>>(), lives([3, 5]));
    node.ended(life(3));
    assert_eq!(node.missing().count(), 1);
}

/// What is left is for a node that is away: nobody waits for it but this one.
#[test]
fn a_sweep_that_is_stuck_keeps_nobody() {
    let mut node = Farewells::default();
    let patience = STUCK_PATIENCE.0;
    let tick = |node: &mut Farewells, now, is_it: bool| {
        let mut stuck = node.sweeps();
        stuck.retain(|(asker, sweep, left)| {
            assert_eq!((*asker, *sweep), (life(2), 1));
            is_it && *left == 1
        });
        node.on_tick(Instant(now), &lives([2]), |_| true, &stuck)
    };
    node.on_stopping((life(2), 1), 2);
    assert!(
        tick(&mut node, 10 * patience, true).is_empty(),
        "one goes on"
    );
    assert_eq!(node.on_swept(1), None);
    assert!(tick(&mut node, 11 * patience, true).is_empty());
    assert!(tick(&mut node, 12 * patience - 1, true).is_empty());
    assert!(
        tick(&mut node, 13 * patience, false).is_empty(),
        "it goes on"
    );
    assert!(tick(&mut node, 14 * patience, true).is_empty(), "anew");
    let acts = tick(&mut node, 15 * patience, true);
    assert_eq!(acts, [answer(2, 1, false).expect("an answer")]);
    let repeat = node.on_stopping((life(2), 1), 2);
    assert_eq!(repeat, answer(2, 1, false));
    assert_eq!(node.on_swept(1), None, "it ends all the same");
    node.keep_members(&lives([2, 3]));
    assert!(node.has_asked(life(2)));
    node.keep_members(&lives([3]));
    assert!(!node.is_any());
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
    /// When each other node's `Stopping` of the second round came first.
    heard: [Option<u64>; COUNT],
    /// It has heard that they stop.
    knows_of: [bool; COUNT],
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
    Stopping(u32),
    WrittenBack(u32, bool),
}

impl World {
    fn act(&mut self, at: usize, act: Option<Act>) {
        match act {
            Some(Act::Sweep(sweep)) => self.nodes[at].sweeps.push((sweep, self.now)),
            Some(Act::Answer { to, round, is_last }) => {
                let message = Message::WrittenBack(round, is_last);
                self.messages
                    .push_back((at, usize::from(to.node.0), message));
            }
            None => {}
        }
    }

    fn deliver(&mut self) {
        let Some(index) = self.draw(self.messages.len()) else {
            return;
        };
        let (from, to, _) = self.messages[index];
        // Links keep order; some messages are lost.
        let is_first = |m: &(usize, usize, Message)| (m.0, m.1) == (from, to);
        let first = self.messages.iter().position(is_first);
        let first = first.expect("the one that was drawn, or one before it");
        let (_, _, message) = self.messages.remove(first).expect("its position");
        if self.nodes[to].has_left || self.prng.below(4) == 0 {
            return;
        }
        let sender = life_of(from);
        let node = &mut self.nodes[to];
        match message {
            Message::Stopping(round) => {
                // The second round is the one that counts.
                if round == 1 {
                    node.heard[from].get_or_insert(self.now);
                }
                node.knows_of[from] = true;
                let act = node.farewells.on_stopping((sender, round), 1);
                self.act(to, act);
            }
            Message::WrittenBack(round, is_last) => {
                node.farewells.on_written_back(sender, round, is_last);
            }
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
        self.may_be_lost(at, (to, since));
    }

    /// The node that this is for has left, and nobody takes it.
    fn may_be_lost(&self, at: usize, (to, since): (usize, u64)) {
        let (node, gone) = (&self.nodes[at], &self.nodes[to]);
        // On a node that stayed, what was written after the other one had asked for the last time waits until that comes back.
        assert!(
            node.heard[to].is_none_or(|heard| heard < since),
            "it was there before the other one asked"
        );
        assert!(
            node.stops.is_none() || !gone.knows_of[at],
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
                let others: Vec<NodeLife> = (0..COUNT).filter(|o| *o != at).map(life_of).collect();
                node.farewells.begin(Instant(self.now), &others);
            }
            4 | 5 if node.stops.is_some() => self.stop_on(at),
            _ => self.deliver(),
        }
    }

    fn stop_on(&mut self, at: usize) {
        let now = Instant(self.now);
        let left: Vec<bool> = self.nodes.iter().map(|node| node.has_left).collect();
        let members: Vec<NodeLife> = (0..COUNT)
            .filter(|other| *other != at && !left[*other])
            .map(life_of)
            .collect();
        let node = &mut self.nodes[at];
        let round = node.farewells.round();
        if !node.is_unmounted {
            node.is_unmounted = self.prng.below(4) == 0;
        } else if round == 0 && node.dirty.iter().all(|(to, _)| left[*to]) {
            let lost = node.dirty.clone();
            lost.into_iter().for_each(|lost| self.may_be_lost(at, lost));
            let node = &mut self.nodes[at];
            for act in node.farewells.written() {
                self.act(at, Some(act));
            }
        } else if round == 1 {
            node.farewells.on_tick(now, &members, |_| true, &[]);
            if node.farewells.missing().count() == 0 {
                node.has_left = true;
                let gone = life_of(at);
                for node in &mut self.nodes {
                    node.farewells.ended(gone);
                }
                return;
            }
        }
        let farewells = &self.nodes[at].farewells;
        let (missing, round): (Vec<NodeLife>, u32) =
            (farewells.missing().collect(), farewells.round());
        for to in missing {
            let to = usize::from(to.node.0);
            self.messages.push_back((at, to, Message::Stopping(round)));
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
