//! Pages of trees against sets of runs, over random checkpoints, snapshots and crashes.

use super::*;

struct Trees {
    space: Space,
    random: Random,
    taken: Vec<Run>,
    /// Of the roots in memory.
    roots: Vec<Run>,
    /// Of the roots that the newest durable snapshot names, and that snapshot.
    durable: (Vec<Run>, Vec<SpaceMutation>),
    /// The same of a snapshot on its way.
    pending: Option<(Vec<Run>, Vec<SpaceMutation>)>,
    took: u32,
}

fn sorted(runs: &[Run]) -> Vec<Location> {
    let mut all: Vec<Location> = runs.iter().flat_map(|run| sectors(*run)).collect();
    all.sort_unstable();
    all
}

impl Trees {
    fn new(seed: u64) -> Self {
        let mut space = Space::new(&geometry(), LEVELS);
        let mut out = Vec::new();
        for (nsd, index) in [(0, 0), (0, 1), (1, 0), (2, 1)] {
            let nsd = NsdId(nsd);
            let region = RegionId { nsd, index };
            space.take_region(region, &mut out).expect("free");
            if nsd != NsdId(2) {
                space.use_region_for_pages(region, &mut out).expect("empty");
                assert!(space.use_region_for_pages(region, &mut out).is_err());
            }
        }
        Self {
            space,
            random: Random(seed),
            taken: Vec::new(),
            roots: Vec::new(),
            durable: (Vec::new(), out),
            pending: None,
            took: 0,
        }
    }

    fn pick(&mut self, from: fn(&mut Self) -> &mut Vec<Run>) -> Option<Run> {
        let count = from(self).len() as u64;
        (count > 0).then(|| {
            let at = self.random.below(count) as usize;
            from(self).swap_remove(at)
        })
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..4 => self.take(),
            4 => {
                if let Some(run) = self.pick(|t| &mut t.taken) {
                    self.space.pages_mut().give_back(run);
                }
            }
            5 | 6 if !self.space.pages().is_sealed() => {
                let (mut new, mut old) = (Vec::new(), Vec::new());
                for _ in 0..self.random.below(4) {
                    new.extend(self.pick(|t| &mut t.taken));
                    old.extend(self.pick(|t| &mut t.roots));
                }
                self.space.pages_mut().link(&new, &old);
                self.roots.extend(new);
            }
            7 if !self.space.pages().is_sealed() => {
                self.space.pages_mut().seal();
                let mut snapshot = Vec::new();
                self.space.snapshot(&mut |mutation| snapshot.push(mutation));
                self.pending = Some((self.roots.clone(), snapshot));
            }
            8 => {
                if self.space.pages().is_settling() {
                    let count = self.random.below(4) as usize;
                    self.space.pages_mut().settle(count);
                } else if let Some(pending) = self.pending.take() {
                    let is_durable = self.random.below(4) > 0;
                    self.space.pages_mut().unseal(is_durable);
                    if is_durable {
                        self.durable = pending;
                    }
                }
            }
            9 if self.random.below(20) == 0 => self.crash(),
            _ => {}
        }
    }

    fn take(&mut self) {
        let count = 1 + self.random.below(16) as u32;
        let nsd = NsdId(self.random.below(2) as u16);
        let Some(run) = self.space.pages_mut().take(count, &|of| of == nsd) else {
            return;
        };
        assert_eq!((run.at.nsd, run.count), (nsd, count));
        let all = [&self.roots, &self.taken, &self.durable.0];
        for other in all.into_iter().flatten() {
            assert!(!run.overlaps(other), "{run:?} is somebody's");
        }
        if let Some((roots, _)) = &self.pending {
            assert!(!roots.iter().any(|other| run.overlaps(other)));
        }
        self.taken.push(run);
        self.took += 1;
    }

    fn crash(&mut self) {
        self.space = Space::new(&geometry(), LEVELS);
        for mutation in &self.durable.1 {
            let bytes = mutation.to_bytes();
            let again = SpaceMutation::from_bytes(&bytes, "mutation").expect("round trip");
            self.space.apply(&again).expect("it was journaled");
        }
        (self.taken, self.pending) = (Vec::new(), None);
        self.roots.clone_from(&self.durable.0);
    }

    fn check(&self) {
        self.space.check();
        let linked: Vec<Run> = self.space.pages().linked().iter().collect();
        assert_eq!(sorted(&linked), sorted(&self.roots));
        let counts = self.space.pages().counts();
        assert_eq!(counts.taken, sorted(&self.taken).len() as u64);
        assert_eq!(counts.total, 3 * u64::from(REGION));
        assert_eq!(self.space.counts().total, self.space.counts().free);
    }
}

#[test]
fn pages_of_durable_roots_stay_until_newer_ones_are_durable() {
    let mut took = 0;
    for seed in 0..50 {
        let mut trees = Trees::new(seed);
        for _ in 0..600 {
            trees.step();
            trees.check();
        }
        trees.crash();
        trees.check();
        took += trees.took;
    }
    assert!(took > 2000, "{took} pages");
}

#[test]
fn page_regions_go_back_when_they_are_empty() {
    let mut space = Space::new(&geometry(), LEVELS);
    let region = RegionId {
        nsd: NsdId(1),
        index: 0,
    };
    let mut out = Vec::new();
    assert!(space.use_region_for_pages(region, &mut out).is_err());
    space.take_region(region, &mut out).expect("free");
    space.use_region_for_pages(region, &mut out).expect("empty");
    assert!(space.take_region(region, &mut out).is_err(), "held");
    assert_eq!(space.unknown_regions(&[region]), []);
    assert_eq!((space.returnable(), space.grantable()), (vec![], 0));
    let run = space.pages_mut().take(4, &|_| true).expect("there are 40");
    assert_eq!(space.pages().returnable(), []);
    assert!(space.use_region_for_data(region, &mut out).is_err());
    space.pages_mut().give_back(run);
    assert_eq!(space.pages().returnable(), [region]);
    space.use_region_for_data(region, &mut out).expect("empty");
    assert_eq!(space.returnable(), [region]);
    assert_eq!(space.counts().free, u64::from(REGION));
    space.check();
}

/// A region with a few pages in it is emptied, if the others have room for twice as much, and no new pages come there.
#[test]
fn sparse_regions_are_drained() {
    let mut trees = Trees::new(1);
    let pages = trees.space.pages_mut();
    // All three are full of pages of four.
    let mut runs = Vec::new();
    while let Some(run) = pages.take(4, &|_| true) {
        runs.push(run);
    }
    assert_eq!(pages.sparse(4, 0), [], "they are full");
    let first = runs[0].at;
    let begin = |run: &Run| run.at.nsd == first.nsd && run.at.sector < first.sector + 40;
    let (inside, others): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(begin);
    let (stays, goes) = inside.split_first().expect("ten");
    for run in goes {
        pages.give_back(*run);
    }
    assert_eq!(pages.sparse(4, 0), [], "there is no room elsewhere");
    pages.give_back(others[0]);
    assert_eq!(pages.sparse(4, 0), [], "there is too little");
    pages.give_back(others[1]);
    let place = Run {
        at: first,
        count: REGION,
    };
    assert_eq!(pages.sparse(4, 0), [place]);
    assert_eq!(pages.sparse(4, 4), [place], "four are free when it is gone");
    assert_eq!(pages.sparse(4, 5), []);
    assert_eq!(pages.sparse(40, 0), [], "more than one of forty");
    pages.drain(&[place]);
    let new = [pages.take(4, &|_| true), pages.take(4, &|_| true)];
    let elsewhere = [others[0].at, others[1].at];
    assert!(new.iter().flatten().all(|run| elsewhere.contains(&run.at)));
    // Rather there than nowhere.
    let run = pages.take(4, &|_| true).expect("there is room in it");
    assert!(begin(&run) && run != *stays);
    pages.give_back(run);
    pages.give_back(*stays);
    let region = pages.returnable();
    assert_eq!(region.len(), 1);
    let mut out = Vec::new();
    let space = &mut trees.space;
    space
        .use_region_for_data(region[0], &mut out)
        .expect("empty");
    // It is not remembered.
    space
        .use_region_for_pages(region[0], &mut out)
        .expect("empty");
    let run = space.pages_mut().take(4, &|_| true).expect("there is room");
    assert!(begin(&run));
}

/// Pages go to others while there are any; what is free on an NSD that is avoided is no room, and is not given back.
#[test]
fn an_nsd_that_takes_no_writes_is_avoided() {
    let mut trees = Trees::new(1);
    let pages = trees.space.pages_mut();
    let (all, given) = (pages.counts().free, pages.returnable().len());
    pages.avoid([NsdId(0)].into());
    assert!(pages.is_avoided(NsdId(0)) && !pages.is_avoided(NsdId(1)));
    assert_eq!(pages.usable(), u64::from(REGION));
    assert_eq!((pages.counts().free, pages.returnable().len()), (all, 1));
    let mut taken = Vec::new();
    while let Some(run) = pages.take(4, &|_| true) {
        taken.push(run.at.nsd);
    }
    assert_eq!(taken.len() as u64, all / 4, "it is better than nothing");
    let first = usize::try_from(REGION / 4).expect("small");
    assert!(taken[..first].iter().all(|nsd| *nsd == NsdId(1)));
    assert!(taken[first..].iter().all(|nsd| *nsd == NsdId(0)));
    pages.avoid(BTreeSet::new());
    assert!(given > 1 && !pages.is_avoided(NsdId(0)));
}
