//! Two owners and the region table under lost, repeated and late messages: a region is in at most one owner's hands,
//! and none is lost.

#[path = "tests/askers.rs"]
mod askers;
#[path = "tests/clearing.rs"]
mod clearing;
#[path = "tests/refusing.rs"]
mod refusing;

use std::collections::VecDeque;

use super::*;
use crate::log::Refusal;
use crate::question::OwnerEffect;
use client::message::{Ask, Body};
use data::SpaceAsk;
use data::space::{Geometry, Levels, RegionTable, Space};
use stdx::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal, Part, Urgency};
use store::testing::{Disk, recover};
use types::{Epoch, Errno, FsId, Incarnation, Run, ShardId};

const NSDS: [NsdId; 2] = [NsdId(1), NsdId(2)];
const REGION_COUNT: u64 = 8;
const REGION_SECTORS: u32 = 64;

fn geometry() -> [Geometry; 2] {
    NSDS.map(|nsd| Geometry {
        nsd,
        data_begin: 0,
        sector_count: REGION_COUNT * u64::from(REGION_SECTORS),
        region_sectors: REGION_SECTORS,
    })
}

fn log_of(life: NodeLife, is_table: bool) -> OwnerLog {
    let area = Area {
        nsd: NsdId(9),
        begin: 0,
        count: 4096,
    };
    let fs = FsId::default();
    let config = Config {
        fs,
        owner: life.node,
        incarnation: life.incarnation,
        area,
        flight_count_max: 1,
    };
    let mut disk = Disk::new();
    disk.format(config);
    let recovered = recover(&disk, area, fs, life.node, &mut |_| Ok(())).expect("empty");
    let journal = Journal::start(config, &recovered);
    let space = Space::new(&geometry(), Levels { reserve: 0, low: 1 });
    let table = is_table.then(|| RegionTable::new(&geometry()));
    let mut log = OwnerLog::new(journal, space, table, Epoch(1), NSDS.to_vec(), Prng::new(1));
    let part = Part {
        key: PartKey::Space,
        epoch: Epoch(1),
        bytes: &[],
    };
    log.journal.append_snapshot(part).expect("room");
    log.journal.end_snapshot();
    flush(&mut log);
    log
}

fn flush(log: &mut OwnerLog) {
    while let Some(flush) = log.journal.take_flush() {
        log.journal.on_flushed(flush.id, Ok(()));
    }
    log.space.on_durable(log.journal.durable_lsn());
}

#[derive(Debug)]
struct World {
    lives: [NodeLife; 2],
    cores: [Regions; 2],
    logs: [OwnerLog; 2],
    /// From, to.
    network: VecDeque<(usize, usize, Message)>,
    /// Questions that run again, by owner: how often, and the last round.
    ran: [Vec<u32>; 2],
    again: Vec<Question>,
    later: Vec<(usize, u64)>,
    now: Instant,
}

fn index(node: NodeId) -> usize {
    usize::from(node.0) - 1
}

impl World {
    fn new() -> Self {
        let lives = [1u16, 2].map(|node| NodeLife {
            node: NodeId(node),
            incarnation: Incarnation(u128::from(node)),
        });
        let mut world = Self {
            lives,
            cores: Default::default(),
            logs: [log_of(lives[0], true), log_of(lives[1], false)],
            network: VecDeque::new(),
            ran: Default::default(),
            again: Vec::new(),
            later: Vec::new(),
            now: Instant(1),
        };
        for at in 0..2 {
            world.act(at, |core, env, log, out| core.learn(env, log, out));
        }
        world
    }

    fn act(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Regions, &RegionEnv<'_>, &mut OwnerLog, &mut Outbox),
    ) {
        let owners = [NodeId(1), NodeId(2)];
        let env = RegionEnv {
            now: self.now,
            me: self.lives[at],
            owners: &owners,
            nsds: &NSDS,
        };
        let mut out = Vec::new();
        act(&mut self.cores[at], &env, &mut self.logs[at], &mut out);
        flush(&mut self.logs[at]);
        for effect in out {
            match effect {
                RegionEffect::Send(to, message) => {
                    self.network.push_back((at, index(to), message));
                }
                RegionEffect::SendAfter(lsn, to, message) => {
                    assert!(lsn <= self.logs[at].journal.durable_lsn());
                    self.network.push_back((at, index(to), message));
                }
                RegionEffect::RecallHere(_) => {}
                RegionEffect::Run(question) => {
                    self.ran[at].push(question.space_round);
                    self.again.push(*question);
                }
                RegionEffect::GiveLater(name) | RegionEffect::GiveWhenCleared(name) => {
                    self.later.push((at, name));
                }
            }
        }
        self.check();
    }

    fn deliver(&mut self, from: usize, to: usize, message: &Message) {
        let sender = NodeId(u16::try_from(from + 1).expect("small"));
        self.act(to, |core, env, log, out| match message {
            Message::TakeRegions { .. } => core.on_take(env, log, sender, message, out),
            Message::Regions { id, regions } => core.on_regions(env, log, *id, regions, out),
            Message::GiveRegions { id } => core.on_give(env, log, *id, out),
            Message::RegionsBack { id, regions } => {
                core.on_back(env, log, sender, (*id, regions), out);
            }
            Message::RecallSpace { .. } => {}
            other => panic!("{other:?}"),
        });
    }

    fn say_again(&mut self, at: usize) {
        let owners = [NodeId(1), NodeId(2)];
        let env = RegionEnv {
            now: self.now,
            me: self.lives[at],
            owners: &owners,
            nsds: &NSDS,
        };
        for (to, message) in self.cores[at].repeats(&env) {
            self.network.push_back((at, index(to), message));
        }
    }

    /// Nobody holds what another one holds, or what is free at the table.
    fn check(&self) {
        let mut seen = std::collections::BTreeSet::new();
        for log in &self.logs {
            for region in log.space.held_regions() {
                assert!(seen.insert(region), "{region:?} has two owners");
            }
        }
        for nsd in NSDS {
            let held: u64 = (self.logs.iter())
                .map(|log| log.space.regions_of(nsd).0 as u64)
                .sum();
            let table = self.logs[0].table.as_ref().expect("the table's owner");
            let free = u64::from(table.free_count(nsd));
            assert!(held + free <= REGION_COUNT, "{held} held, {free} free");
        }
    }

    fn held(&self, at: usize) -> u64 {
        let log = &self.logs[at];
        NSDS.map(|nsd| log.space.regions_of(nsd).0 as u64)
            .iter()
            .sum()
    }

    /// A sector is needed there; so much was gathered for it.
    fn question(&self, at: usize, space_round: u32) -> Question {
        let ask = SpaceAsk {
            number: 1,
            need: 1,
            ..SpaceAsk::default()
        };
        Question {
            from: self.lives[at],
            call: 1,
            origin: None,
            shard: ShardId(0),
            ask: Ask::Space(ask),
            facts: Vec::new(),
            grants: Vec::new(),
            since: self.now,
            tries: 0,
            gave_way: 0,
            space_round,
            of_layout: OfLayout::default(),
            walk: Vec::new(),
            is_unreadable: false,
            refusal: None,
            listed: crate::question::ListingState::Unknown,
            is_mover: false,
        }
    }

    fn need(&mut self, at: usize) {
        let question = self.question(at, 1);
        self.act(at, |core, env, log, out| {
            core.gather(env, log, Box::new(question), out);
        });
    }

    /// What was said comes, and what waits for the journal is given.
    fn deliver_all(&mut self) {
        while let Some((from, to, message)) = self.network.pop_front() {
            self.deliver(from, to, &message);
        }
        for (at, name) in std::mem::take(&mut self.later) {
            self.act(at, |core, env, log, out| core.give(env, log, name, out));
        }
    }

    /// Everything is said again until nothing is left to say.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.deliver_all();
            self.now = self.now + Duration::from_millis(600);
            for at in 0..2 {
                self.act(at, |core, env, log, out| core.on_tick(env, log, out));
                self.say_again(at);
            }
            if self.network.is_empty() && self.cores.iter().all(Regions::is_idle) {
                return;
            }
        }
        panic!("somebody waits: {:?}", self.cores);
    }
}

/// Owner 1 takes all regions; then owner 2 needs some.
fn with_all_at(holder: usize) -> World {
    let mut world = World::new();
    world.settle();
    for _ in 0..REGION_COUNT {
        world.need(holder);
        world.settle();
    }
    assert_eq!(world.held(holder), 2 * REGION_COUNT);
    world
}

/// The owner of the table is away: nobody knows whether there are regions, and who needs sectors asks again.
#[test]
fn a_table_that_does_not_answer_is_no_lack() {
    let mut world = with_all_at(0);
    world.need(1);
    while world.ran[1].is_empty() {
        world.network.clear();
        world.now = world.now + Duration::from_millis(600);
        world.act(1, |core, env, log, out| core.on_tick(env, log, out));
    }
    let mut question = Box::new(world.question(1, world.ran[1][0]));
    let Ask::Space(ask) = &mut question.ask else {
        unreachable!("it is one for sectors")
    };
    ask.need = 1 << 30;
    let mut out = Vec::new();
    assert!(crate::supply::answer(&mut world.logs[1], question, &mut out).is_none());
    let [OwnerEffect::Answer { answer, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(answer.body, Body::Refused(Errno::EAGAIN));
}

/// What was given last is not durable yet. If it never is, it is somebody else's after the next start: who asks what it holds hears of it
/// when it is.
#[test]
fn what_an_owner_holds_is_told_when_it_is_durable() {
    let mut world = World::new();
    world.settle();
    let mut told = None;
    world.act(0, |core, env, log, out| {
        let (given, lsn) = log.table_take(NodeId(2), &NSDS, 1);
        let lsn = lsn.expect("there are some");
        assert!(lsn > log.journal.durable_lsn());
        let ask = Message::TakeRegions {
            id: u64::MAX,
            nsds: Vec::new(),
            count: 0,
            is_short: false,
        };
        core.on_take(env, log, NodeId(2), &ask, out);
        let [RegionEffect::SendAfter(after, _, Message::Regions { regions, .. })] = &out[..] else {
            panic!("{out:?}")
        };
        assert!(given.iter().all(|region| regions.contains(region)));
        told = Some((*after, lsn));
    });
    assert!(told.is_some_and(|(after, lsn)| after >= lsn));
}

/// The table's owner begins anew, and this one asks what it holds while regions that it gives up are on their way: the answer was of before, and
/// it took up again what the table had given to a third one meanwhile.
#[test]
fn what_is_given_up_is_not_learnt_again() {
    let asks = |out: &Outbox| {
        let is_question = |effect: &RegionEffect| matches!(effect, RegionEffect::Send(_, Message::TakeRegions { nsds, .. }) if nsds.is_empty());
        out.iter().any(is_question)
    };
    let held = |log: &OwnerLog| log.space.returnable().len();
    // Given up first: the answer is of before the table heard of it.
    let mut world = with_all_at(1);
    let mut given = Vec::new();
    world.act(1, |core, env, log, out| {
        let before = held(log);
        core.wanted = Some(7);
        core.give(env, log, 7, out);
        assert!(held(log) < before);
        let Some(RegionEffect::SendAfter(lsn, _, Message::RegionsBack { regions, .. })) = out.pop()
        else {
            panic!("{out:?}");
        };
        assert!(lsn > log.journal.durable_lsn());
        given = regions;
        core.learn(env, log, out);
        assert!(asks(out), "{out:?}");
    });
    world.deliver_all();
    let holds = |world: &World, region: &RegionId| {
        let mut held = world.logs[1].space.held_regions();
        held.any(|held| held == *region)
    };
    assert!(given.iter().all(|region| !holds(&world, region)));
    // And the table has heard of it now.
    let table = world.logs[0].table.as_ref().expect("the table's owner");
    let free = table.free_count(NSDS[0]) + table.free_count(NSDS[1]);
    assert_eq!(free as usize, given.len());
    // Asked first: nothing is given up until the answer is there.
    let mut world = with_all_at(1);
    world.act(1, |core, env, log, out| {
        let before = held(log);
        core.learn(env, log, out);
        assert!(asks(out), "{out:?}");
        // Another life of the table may have wanted it; this one asks again.
        core.give(env, log, 7, out);
        core.on_give(env, log, 8, out);
        assert_eq!((held(log), out.len()), (before, 1), "{out:?}");
    });
}

/// It was asked while there was room, and waits for the other owners.
#[test]
fn a_table_whose_journal_fills_up_tells_who_waits() {
    let mut world = with_all_at(0);
    // It does not know what it holds: it gives none up.
    world.cores[0].is_known = false;
    world.need(1);
    // The question comes.
    while let Some((from, to, message)) = world.network.pop_front() {
        if matches!(message, Message::TakeRegions { .. }) {
            world.deliver(from, to, &message);
            break;
        }
    }
    world.network.clear();
    world.later.clear();
    world.logs[0].journal.refuse(Some(Urgency::Urgent));
    for _ in 0..12 {
        world.now = world.now + Duration::from_millis(600);
        world.act(1, |core, env, log, out| core.on_tick(env, log, out));
        world.say_again(1);
        world.deliver_all();
    }
    assert_eq!(world.ran[1], [3]);
}

/// The journal of the table's owner is full, and nothing makes room in it: it says so, or who needs sectors would wait for ever.
#[test]
fn a_table_without_room_in_its_journal_has_no_regions() {
    for is_hopeless in [true, false] {
        let mut world = World::new();
        world.settle();
        if is_hopeless {
            world.logs[0].journal.refuse(Some(Urgency::Urgent));
        } else {
            world.logs[0].refuse(Some(Refusal::RecordsForNow));
        }
        world.need(1);
        world.deliver_all();
        world.now = world.now + Duration::from_millis(600);
        world.act(1, |core, env, log, out| core.on_tick(env, log, out));
        world.deliver_all();
        // Gathered: everything there is, which is nothing; or it is still waited for.
        assert_eq!(world.ran[1], if is_hopeless { vec![3] } else { vec![] });
        assert_eq!(world.held(1), 0);
        world.logs[0].refuse(None);
        world.need(1);
        world.settle();
        assert!(world.held(1) > 0);
    }
}

#[test]
fn an_owner_without_regions_is_given_some_of_another_ones() {
    for holder in [0, 1] {
        let mut world = with_all_at(holder);
        let other = 1 - holder;
        world.need(other);
        world.settle();
        assert!(world.held(other) > 0);
        assert!(!world.ran[other].is_empty(), "the question runs again");
        let table = world.logs[0].table.as_ref().expect("the table's owner");
        let free: u64 = NSDS
            .iter()
            .map(|nsd| u64::from(table.free_count(*nsd)))
            .sum();
        assert_eq!(world.held(0) + world.held(1) + free, 2 * REGION_COUNT);
    }
}

#[test]
fn no_region_is_lost_with_an_answer() {
    // The n-th message is lost, or comes twice, the second time very late.
    for holder in [0, 1] {
        for at in 0..12 {
            for is_lost in [true, false] {
                let mut world = with_all_at(holder);
                let mut late = Vec::new();
                world.need(1 - holder);
                for step in 0..60 {
                    if let Some((from, to, message)) = world.network.pop_front() {
                        match (step == at, is_lost) {
                            (true, true) => continue,
                            (true, false) => late.push((from, to, message.clone())),
                            _ => {}
                        }
                        world.deliver(from, to, &message);
                    }
                }
                world.settle();
                world.network.extend(late);
                world.settle();
                assert!(world.held(1 - holder) > 0, "message {at}");
                let table = world.logs[0].table.as_ref().expect("the table's owner");
                let free: u64 = NSDS
                    .iter()
                    .map(|nsd| u64::from(table.free_count(*nsd)))
                    .sum();
                let all = world.held(0) + world.held(1) + free;
                assert_eq!(all, 2 * REGION_COUNT, "message {at}, lost: {is_lost}");
            }
        }
    }
}

impl World {
    /// That node's process ends and begins anew. What waits at the other one for its journal or its turn on the link (`late`) stays.
    fn restart(&mut self, at: usize, late: &mut VecDeque<(usize, usize, Message)>) {
        let before = self.lives[at];
        self.lives[at].incarnation.0 += 1 << 64;
        self.cores[at] = Regions::default();
        self.network.clear();
        self.later.retain(|(of, _)| *of != at);
        late.retain(|(from, ..)| *from != at);
        let other = 1 - at;
        self.act(other, |core, env, log, out| {
            core.on_life_ended(env, log, before, out);
        });
        self.act(at, |core, env, log, out| core.learn(env, log, out));
        if at == 0 {
            self.act(other, |core, env, log, out| core.learn(env, log, out));
        }
    }
}

/// What waits for the journal comes to its link after what does not (there are some microseconds in which it does), and nodes begin anew in
/// the midst of it: no region has two owners at any time, and none is lost in the end.
#[test]
fn regions_have_one_owner_whatever_comes_late_and_whoever_restarts() {
    for seed in 0..400 {
        let mut random = Prng::new(seed);
        let mut world = with_all_at(usize::from(random.chance(1, 2)));
        let mut late = VecDeque::new();
        for _ in 0..150 {
            let at = usize::from(random.chance(1, 2));
            match random.below(20) {
                0..3 => world.need(at),
                3 => world.say_again(at),
                4..6 => {
                    world.now = world.now + Duration::from_millis(700);
                    world.act(at, |core, env, log, out| core.on_tick(env, log, out));
                }
                6 => world.restart(at, &mut late),
                7..9 => {
                    for (at, name) in std::mem::take(&mut world.later) {
                        world.act(at, |core, env, log, out| core.give(env, log, name, out));
                    }
                }
                9..12 => {
                    // Its turn has come.
                    if let Some((from, to, message)) = late.pop_front() {
                        world.deliver(from, to, &message);
                    }
                }
                _ => match world.network.pop_front() {
                    // Among themselves they keep their order.
                    Some(
                        message @ (from, _, Message::RegionsBack { .. } | Message::Regions { .. }),
                    ) if random.chance(1, 2) || late.iter().any(|(of, ..)| *of == from) => {
                        late.push_back(message);
                    }
                    Some((from, to, message)) => world.deliver(from, to, &message),
                    None => {}
                },
            }
        }
        world.network.extend(late);
        // Nobody starts again: what was lost on the way is found out.
        world.settle();
        let table = world.logs[0].table.as_ref().expect("the table's owner");
        let free = NSDS.map(|nsd| u64::from(table.free_count(nsd)));
        let all = world.held(0) + world.held(1) + free.iter().sum::<u64>();
        assert_eq!(all, 2 * REGION_COUNT, "seed {seed}");
    }
}

impl World {
    /// Trees of this owner lack room, so long that it rarely asks the table, which has none.
    fn lack_pages(&mut self, at: usize) {
        self.logs[at].set_trees([], NSDS.to_vec());
        let size = crate::keeper::ShardSize {
            shard: ShardId(0),
            unsaved: 1 << 20,
            all: 1 << 20,
        };
        self.logs[at].note_sizes(&[size], true);
        let begin = self.now;
        while self.now.since(begin) < Duration::from_secs(120) {
            self.settle();
        }
        assert!(self.logs[at].lacks_page_room());
        assert!(self.cores[at].pages_not_before > self.now, "it pauses");
    }

    /// A tick of the keeper, which takes what has become free.
    fn tick_keeper(&mut self, at: usize) {
        let size = crate::keeper::ShardSize {
            shard: ShardId(0),
            unsaved: 1 << 20,
            all: 1 << 20,
        };
        self.logs[at].note_sizes(&[size], true);
    }

    /// Ticks until this owner's operations need not wait for room any more; how long that took.
    fn wait_for_pages(&mut self, at: usize) -> Duration {
        let begin = self.now;
        while self.logs[at].may_have_room_soon() && self.logs[at].lacks_page_room() {
            assert!(self.now.since(begin) < Duration::from_secs(60), "{self:?}");
            self.now = self.now + Duration::from_millis(50);
            for at in 0..2 {
                self.act(at, |core, env, log, out| core.on_tick(env, log, out));
            }
            self.tick_keeper(at);
            self.deliver_all();
        }
        self.now.since(begin)
    }
}

/// A create once heard ENOSPC while other owners had room: the first question that wanted regions of these waited for the pause of
/// those that had asked the table alone, and meanwhile nothing waited for it.
#[test]
fn failing_checkpoints_ask_the_others_at_once_and_operations_wait_for_the_answer() {
    for holder in [0, 1] {
        let mut world = with_all_at(holder);
        let other = 1 - holder;
        world.lack_pages(other);
        assert!(!world.logs[other].may_have_room_soon(), "nothing fails yet");
        world.logs[other].note_starving(true);
        let took = world.wait_for_pages(other);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(!world.logs[other].lacks_page_room());
        // Until the keeper has heard of it.
        assert!(world.logs[other].may_have_room_soon());
        assert!(world.logs[other].take_room_come());
        assert!(!world.logs[other].may_have_room_soon());
    }
}

/// A disk was once called full of metadata while the node's own hand had half of it, set aside for files that had long been written.
#[test]
fn pages_get_what_clients_of_the_owner_itself_do_not_use() {
    let mut world = with_all_at(0);
    let life = world.lives[0];
    let mut ask = SpaceAsk {
        number: 1,
        need: 2 * REGION_COUNT * u64::from(REGION_SECTORS),
        ..SpaceAsk::default()
    };
    let every = crate::supply::Gathered {
        is_all: true,
        is_of_layout: true,
        is_freed: true,
    };
    let supply = world.logs[0].supply(life, &mut ask, every);
    let crate::supply::Supply::Answer(answer, _) = supply else {
        panic!("{supply:?}");
    };
    world.lack_pages(0);
    world.logs[0].note_starving(true);
    let mut out = Vec::new();
    let env_now = world.now;
    world.act(0, |core, env, log, effects| {
        assert_eq!(env.now, env_now);
        core.on_tick(env, log, effects);
        out.extend(effects.iter().filter_map(|effect| match effect {
            RegionEffect::RecallHere(id) => Some(*id),
            _ => None,
        }));
    });
    let [id] = out[..] else {
        panic!("its own hand is asked once: {out:?}");
    };
    assert!(world.logs[0].may_have_room_soon(), "it is waited for");
    let mut back = SpaceAsk {
        number: 2,
        back: answer.grants.iter().map(|grant| grant.run).collect(),
        recall: id,
        ..SpaceAsk::default()
    };
    world.logs[0].supply(life, &mut back, every);
    world.act(0, |core, env, log, effects| {
        core.on_recalled(env, log, (life, id), effects);
    });
    assert!(
        world.logs[0].may_have_room_soon(),
        "free when it is durable"
    );
    flush(&mut world.logs[0]);
    world.tick_keeper(0);
    assert!(!world.logs[0].lacks_page_room());
}

/// Where no owner has any the operations are refused, and the owners are asked again from time to time.
#[test]
fn operations_do_not_wait_for_room_that_nobody_has() {
    for holder in [0, 1] {
        let mut world = with_all_at(holder);
        let other = 1 - holder;
        let mut ask = SpaceAsk {
            number: 1,
            need: 2 * REGION_COUNT * u64::from(REGION_SECTORS),
            ..SpaceAsk::default()
        };
        let life = world.lives[other];
        let every = crate::supply::Gathered {
            is_all: true,
            is_of_layout: true,
            is_freed: true,
        };
        let supply = world.logs[holder].supply(life, &mut ask, every);
        assert!(matches!(supply, crate::supply::Supply::Answer(..)));
        world.lack_pages(other);
        world.logs[other].note_starving(true);
        let took = world.wait_for_pages(other);
        // The client that has the sectors does not answer here: its owner waits for it as long as it may.
        assert!(took < Duration::from_secs(6), "{took:?}");
        assert!(world.logs[other].lacks_page_room());
        assert!(!world.logs[other].may_have_room_soon());
        // The sectors are free again, and are asked for within seconds.
        let freed = world.logs[holder].free_life(life);
        assert!(freed.is_some());
        flush(&mut world.logs[holder]);
        let begin = world.now;
        while world.logs[other].lacks_page_room() {
            assert!(world.now.since(begin) < Duration::from_secs(6));
            world.settle();
        }
    }
}

/// Owner 2 of the world holds regions of the second NSD, and none of the first. A file's layout names both or `named`.
fn of_one_nsd() -> World {
    let mut world = World::new();
    world.settle();
    world.act(1, |core, env, log, out| {
        core.ask(env, log, (vec![NSDS[1]], None, false), out);
    });
    world.settle();
    assert_eq!(world.held_of(), [0, 2]);
    world
}

impl World {
    /// Regions of each NSD that owner 2 holds.
    fn held_of(&self) -> [usize; 2] {
        NSDS.map(|nsd| self.logs[1].space.regions_of(nsd).0)
    }

    /// Client `node` asks owner 2 for sectors on these NSDs.
    fn ask_on(&mut self, node: u16, named: &[NsdId]) {
        let mut question = self.question(1, 0);
        question.from.node = NodeId(node);
        question.ask = Ask::Space(SpaceAsk {
            number: 1,
            need: 2,
            want: 10,
            nsds: named.to_vec(),
            ..SpaceAsk::default()
        });
        self.run(Box::new(question));
        self.run_again();
    }

    fn run_again(&mut self) {
        for _ in 0..3 {
            for question in std::mem::take(&mut self.again) {
                self.run(Box::new(question));
            }
        }
        assert!(self.again.is_empty(), "it is run again and again");
    }

    /// Runs a question at owner 2, which answers it, or gathers for it.
    fn run(&mut self, question: Box<Question>) {
        let mut out = Vec::new();
        let waits = crate::supply::answer(&mut self.logs[1], question, &mut out);
        assert!(waits.is_none());
        flush(&mut self.logs[1]);
        for effect in out {
            if let OwnerEffect::Gather(question) = effect {
                self.act(1, |core, env, log, out| {
                    core.gather(env, log, question, out)
                });
            }
        }
    }

    /// Time goes on by so much, messages come (unless the table is silent), and what is to be run again is.
    fn go_on(&mut self, by: Duration, is_silent: bool) {
        self.now = self.now + by;
        match is_silent {
            true => self.network.clear(),
            false => self.deliver_all(),
        }
        self.act(1, |core, env, log, out| core.on_tick(env, log, out));
        self.run_again();
    }

    /// The NSDs on which the client was granted sectors; nothing while it waits.
    fn granted_on(&self, node: u16) -> Option<Vec<NsdId>> {
        let mut life = self.lives[1];
        life.node = NodeId(node);
        let (answer, _) = self.logs[1].space_answers.get(&life)?;
        let mut on: Vec<NsdId> = answer.grants.iter().map(|g| g.run.at.nsd).collect();
        on.dedup();
        Some(on)
    }
}

/// What a layout names is asked of the table before the bytes go elsewhere: an owner that has nothing there for the moment is
/// not an NSD that is full. (A file of a layout once had a part of it on other NSDs, which had just been quicker.)
#[test]
fn what_a_layout_names_is_taken_from_the_table_first() {
    // With nothing under way, and with a question that was under way for something else.
    for is_busy in [false, true] {
        let mut world = of_one_nsd();
        if is_busy {
            world.act(1, |core, env, log, out| {
                core.ask(env, log, (vec![NSDS[1]], None, false), out);
            });
        }
        for node in [7, 8] {
            world.ask_on(node, &[NSDS[0]]);
            assert_eq!(world.granted_on(node), None);
        }
        world.ask_on(9, &[NSDS[1]]);
        assert_eq!(
            world.granted_on(9),
            Some(vec![NSDS[1]]),
            "it waits for nobody"
        );
        for _ in 0..4 {
            world.go_on(Duration::from_millis(1), false);
        }
        for node in [7, 8] {
            assert_eq!(world.granted_on(node), Some(vec![NSDS[0]]));
        }
        // Of that NSD alone, once.
        assert_eq!(world.held_of(), [2, if is_busy { 4 } else { 2 }]);
        assert!(world.cores[1].is_idle());
    }
}

/// An NSD without regions is full: the bytes go elsewhere, nobody is made to give any up, and the table is not asked
/// again and again.
#[test]
fn what_a_layout_names_and_is_full_goes_elsewhere() {
    for named in [&NSDS[..1], &NSDS[..]] {
        let mut world = of_one_nsd();
        let all = usize::try_from(REGION_COUNT).expect("small");
        world.act(0, |_, _, log, _| {
            let (taken, _) = log.table_take(NodeId(1), &[NSDS[0]], all);
            assert_eq!(taken.len(), all);
            log.adopt_regions(&taken);
        });
        world.ask_on(7, named);
        assert_eq!(world.granted_on(7), None);
        world.go_on(Duration::from_millis(1), false);
        assert_eq!(world.granted_on(7), Some(vec![NSDS[1]]));
        assert_eq!(world.held(0), REGION_COUNT);
        world.ask_on(8, named);
        assert_eq!(world.granted_on(8), Some(vec![NSDS[1]]), "at once");
        // Some of it may be free later on.
        world.now = world.now + Duration::from_secs(6);
        world.ask_on(9, named);
        assert_eq!(world.granted_on(9), None);
    }
}

/// A table that does not answer holds nobody up for long who can do without it, however many they are, and the next not at all.
#[test]
fn a_layout_does_not_wait_for_a_silent_table() {
    let mut world = of_one_nsd();
    let begin = world.now;
    for node in [7, 8, 9] {
        world.ask_on(node, &[NSDS[0]]);
    }
    let waits = |world: &World| [7, 8, 9].map(|node| world.granted_on(node).is_none());
    while waits(&world) != [false; 3] {
        assert_eq!(waits(&world), [true; 3]);
        assert!(world.cores[1].waiting().next().is_some());
        world.go_on(Duration::from_millis(100), true);
        let waited = world.now.since(begin);
        assert!(waited < Duration::from_secs(6), "{waited:?}");
    }
    world.ask_on(10, &[NSDS[0]]);
    assert_eq!(world.granted_on(10), Some(vec![NSDS[1]]));
    // Who is gone waits for nothing.
    world.now = world.now + Duration::from_secs(60);
    world.ask_on(11, &[NSDS[0]]);
    assert!(world.cores[1].waiting().next().is_some());
    let mut life = world.lives[1];
    life.node = NodeId(11);
    world.act(1, |core, env, log, out| {
        core.on_life_ended(env, log, life, out)
    });
    assert!(world.cores[1].waiting().next().is_none());
}

/// What was freed there a moment ago is waited for, too.
#[test]
fn what_is_freed_where_a_layout_wants_it_is_waited_for() {
    let mut world = of_one_nsd();
    let life = world.lives[0];
    let mut ask = SpaceAsk {
        number: 1,
        need: 2 * u64::from(REGION_SECTORS),
        ..SpaceAsk::default()
    };
    let supply = world.logs[1].supply(life, &mut ask, crate::supply::Gathered::default());
    let crate::supply::Supply::Answer(all, _) = supply else {
        panic!("{supply:?}");
    };
    flush(&mut world.logs[1]);
    // They are all of a file, which is removed: that is not durable yet.
    let runs: Vec<Run> = all.grants.iter().map(|grant| grant.run).collect();
    let (space, mut out) = (&mut world.logs[1].space, Vec::new());
    space.consume(life, &runs, &mut out).expect("granted");
    for run in runs {
        space.free(run, &mut out).expect("used");
    }
    ask.nsds = vec![NSDS[1]];
    (ask.number, ask.need, ask.want) = (2, 0, 10);
    let supply = world.logs[1].supply(life, &mut ask, crate::supply::Gathered::default());
    assert!(matches!(supply, crate::supply::Supply::Soon), "{supply:?}");
    // Not for ever: others may be quicker.
    let waited = crate::supply::Gathered {
        is_freed: true,
        ..Default::default()
    };
    let supply = world.logs[1].supply(life, &mut ask, waited);
    assert!(
        matches!(supply, crate::supply::Supply::Lacks(_)),
        "{supply:?}"
    );
}

impl World {
    /// Regions that an owner has or the table can give.
    fn count_all(&self) -> u64 {
        let table = self.logs[0].table.as_ref().expect("the table's owner");
        let free = NSDS.map(|nsd| u64::from(table.free_count(nsd)));
        self.held(0) + self.held(1) + free.iter().sum::<u64>()
    }
}

/// What a life of the table wanted that has ended meanwhile was given up under its name, of which the next one knows nothing: nobody had these
/// regions until somebody started again.
#[test]
fn what_a_dead_table_wanted_is_not_given() {
    let mut world = with_all_at(1);
    let name = life_half(world.lives[0]) | 77;
    world.act(1, |core, _, _, _| core.wanted = Some(name));
    world.restart(0, &mut VecDeque::new());
    world.settle();
    world.act(1, |core, env, log, out| core.give(env, log, name, out));
    for _ in 0..3 {
        world.need(0);
        world.settle();
    }
    assert_eq!(world.count_all(), 2 * REGION_COUNT);
}

/// An answer to the table is lost, and it asks no more; a refusal is lost, or comes behind the next question.
#[test]
fn what_was_given_up_is_told_until_the_table_knows() {
    // The answer.
    let mut world = with_all_at(1);
    world.need(0);
    for _ in 0..25 {
        while let Some((from, to, message)) = world.network.pop_front() {
            if !matches!(message, Message::RegionsBack { .. }) {
                world.deliver(from, to, &message);
            }
        }
        for (at, name) in std::mem::take(&mut world.later) {
            world.act(at, |core, env, log, out| core.give(env, log, name, out));
        }
        world.now = world.now + Duration::from_millis(600);
        for at in 0..2 {
            world.act(at, |core, env, log, out| core.on_tick(env, log, out));
            world.say_again(at);
        }
    }
    assert!(world.count_all() < 2 * REGION_COUNT, "it is not told yet");
    world.settle();
    assert_eq!(world.count_all(), 2 * REGION_COUNT);
    // The refusal.
    for is_lost in [true, false] {
        let mut world = with_all_at(1);
        world.act(1, |core, env, log, out| {
            core.wanted = Some(7);
            core.give(env, log, 7, out);
            out.pop();
        });
        world.restart(0, &mut VecDeque::new());
        let refusal = loop {
            let (from, to, message) = world.network.pop_front().expect("some");
            if matches!(message, Message::RegionsBack { .. }) {
                break message;
            }
            world.deliver(from, to, &message);
        };
        if !is_lost {
            world.need(1);
            while let Some((from, to, message)) = world.network.pop_front() {
                world.deliver(from, to, &message);
            }
            world.deliver(1, 0, &refusal);
        }
        assert!(world.count_all() < 2 * REGION_COUNT, "lost: {is_lost}");
        world.settle();
        assert_eq!(world.count_all(), 2 * REGION_COUNT, "lost: {is_lost}");
    }
}
