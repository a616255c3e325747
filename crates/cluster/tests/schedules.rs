//! Random schedules: kills, pauses, cuts, lost lists of former lives, drifting clocks, a network that
//! loses, repeats and delays, a failing config store. The checks of `world` run after every event;
//! afterwards everything heals and all nodes must be members again within a bounded time.

mod world;

use stdx::Prng;
use world::{CALM, Faults, MS, World};

fn run(seed: u64, drift_max: u64) -> World {
    let mut prng = Prng::new(seed);
    let node_count = u16::try_from(prng.between(2, 5)).expect("at most five");
    let mut world = World::new(prng.next_u64(), node_count);
    for node in 1..=node_count {
        let drift = i64::try_from(prng.below(2 * drift_max + 1)).expect("small");
        world.set_drift(node, drift - i64::try_from(drift_max).expect("small"));
        world.start(node, true);
    }
    world.faults = Faults {
        loss_percent: prng.below(30),
        repeat_percent: prng.below(30),
        delay_max: prng.below(6) * 1000 * MS + MS,
        store_unknown_percent: prng.below(30),
    };
    for _ in 0..30 {
        let node = u16::try_from(prng.between(1, u64::from(node_count))).expect("at most five");
        match prng.below(14) {
            0 => world.kill(node),
            1 => world.start(node, prng.chance(4, 5)),
            2 => {
                world.kill(node);
                world.start(node, prng.chance(4, 5));
            }
            3..=5 => world.pause(node, true),
            6..=8 => world.pause(node, false),
            9 => world.machines.get_mut(&node).expect("it exists").is_cut = true,
            10 => world.machines.get_mut(&node).expect("it exists").is_cut = false,
            11 => world.leave(node),
            _ => world.set_store_down(prng.chance(1, 3)),
        }
        let wait = match prng.below(3) {
            0 => prng.below(100 * MS),
            1 => prng.below(3_000 * MS),
            _ => prng.below(15_000 * MS),
        };
        world.run_until(world.now + wait);
    }
    world.faults = CALM;
    world.set_store_down(false);
    for node in 1..=node_count {
        world.pause(node, false);
        world.machines.get_mut(&node).expect("it exists").is_cut = false;
    }
    // Delayed packets and goodbyes end, then whoever is gone comes back.
    world.run_until(world.now + 20_000 * MS);
    for node in 1..=node_count {
        world.start(node, true);
    }
    world.run_until(world.now + 30_000 * MS);
    world.check_all_well();
    world
}

#[test]
fn no_node_believes_in_its_lease_after_its_death_and_all_come_back() {
    let tolerance = cluster::Timing::default().drift_tolerance_ppm();
    let mut deaths = 0;
    for seed in 0..500 {
        let result = std::panic::catch_unwind(|| run(seed, tolerance));
        match result {
            Ok(world) => deaths += world.log.iter().filter(|l| l.contains("Silent")).count(),
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(
        deaths > 350,
        "the schedules are harsh: {deaths} silent deaths"
    );
}

#[test]
fn clocks_that_drift_more_than_the_margin_allows_are_found_out() {
    // Canary: the checker must see it when the margin's assumption is broken.
    let mut rng = Prng::new(1);
    let is_caught = (0..300).any(|_| {
        let seed = rng.next_u64();
        std::panic::catch_unwind(|| run(seed, 200_000)).is_err()
    });
    assert!(is_caught);
}
