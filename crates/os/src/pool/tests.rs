//! The pool against a dumb twin, by hand and by many threads.

use std::collections::BTreeSet;

use client::pool::Pool;
use stdx::Prng;

use super::*;

const SLAB: u64 = SLAB_SIZE as u64;

fn pool(slab_count: u64) -> Arc<Pagepool> {
    Pagepool::new(slab_count * SLAB).expect("a small pool")
}

fn drain(pool: &Pagepool) -> Vec<FrameRef> {
    std::iter::from_fn(|| pool.alloc()).collect()
}

#[test]
fn sizes_that_make_no_pool_are_refused() {
    for size in [0, SLAB - 1, u64::MAX] {
        assert!(matches!(Pagepool::new(size), Err(PoolError::Size { .. })));
    }
}

#[test]
fn every_frame_is_handed_out_once_and_the_limit_is_hard() {
    let pool = pool(3);
    let slab = pool.alloc_slab().expect("three are free");
    let mut frames: BTreeSet<FrameRef> = drain(&pool).into_iter().collect();
    assert_eq!(frames.len(), 512);
    assert!((slab.0..slab.0 + 256).all(|f| frames.insert(FrameRef(f))));
    assert_eq!(pool.frame_counts(), (768, 0));
    assert_eq!((pool.alloc(), pool.alloc_slab()), (None, None));
    assert_eq!(pool.counters().refused_count, 3);
    for frame in frames {
        pool.release(frame);
    }
    assert_eq!(pool.frame_counts(), (768, 768));
    // All whole again, those that were carved too.
    let slabs: Vec<_> = std::iter::from_fn(|| pool.alloc_slab()).collect();
    assert_eq!(slabs.len(), 3);
}

#[test]
fn single_frames_leave_whole_slabs_whole() {
    let pool = pool(3);
    let whole = pool.alloc_slab().expect("free");
    pool.release(whole);
    // One frame of the whole slab is free, but a free slab is broken first.
    let first = pool.alloc().expect("free");
    assert_ne!(first.0 / 256, whole.0 / 256);
    let second = pool.alloc().expect("free");
    assert_eq!(first.0 / 256, second.0 / 256);
    // The free slab stays for whoever needs a whole one; after it, leftovers are used up.
    let rest = drain(&pool);
    assert_eq!(rest.len(), 254 + 256 + 1);
    assert_eq!(rest.last(), Some(&whole));
}

#[test]
fn references_freeze_and_keep() {
    let pool = pool(1);
    let frame = pool.alloc().expect("free");
    assert!(!pool.is_shared(frame));
    pool.retain(frame);
    assert!(pool.is_shared(frame));
    pool.release(frame);
    assert!(!pool.is_shared(frame));
    assert_eq!(pool.frame_counts(), (256, 255));
    pool.release(frame);
    assert_eq!(pool.frame_counts(), (256, 256));
    let span = Span {
        frame: pool.alloc_slab().expect("free"),
        offset: 4095,
        length: 2,
    };
    assert_eq!(Pagepool::frames(span).count(), 2);
    assert_eq!(Pagepool::frames(Span { length: 1, ..span }).count(), 1);
    assert_eq!(
        Pagepool::frames(Span {
            length: 0,
            offset: 0,
            ..span
        })
        .count(),
        0
    );
    pool.retain_span(span);
    assert!(pool.is_shared(FrameRef(span.frame.0 + 1)));
    assert!(!pool.is_shared(FrameRef(span.frame.0 + 2)));
    pool.release_span(span);
    assert!(!pool.is_shared(span.frame));
}

#[test]
#[should_panic(expected = "released once")]
fn a_reference_too_few_is_our_bug() {
    let pool = pool(1);
    let frame = pool.alloc().expect("free");
    pool.release(frame);
    pool.release(frame);
}

#[test]
#[should_panic(expected = "lies in the pool")]
fn a_span_outside_is_our_bug() {
    let frame = FrameRef(255);
    pool(1).zero(Span {
        frame,
        offset: 1,
        length: 4096,
    });
}

#[test]
fn bytes_move_as_in_an_array() {
    let pool = pool(2);
    let (a, b) = (
        pool.alloc_slab().expect("free"),
        pool.alloc_slab().expect("free"),
    );
    let span = |frame, offset, length| Span {
        frame,
        offset,
        length,
    };
    let mut prng = Prng::new(9);
    let mut twin = vec![0; SLAB_SIZE];
    prng.fill(&mut twin);
    let whole = span(a, 0, 1 << 20);
    pool.store(whole, &twin);
    assert_eq!(pool.crc(whole), types::crc32c(&twin));
    pool.zero(whole.part(4090, 20));
    twin[4090..4110].fill(0);
    pool.copy(whole.part(5000, 9000), span(b, 1, 9000));
    assert_eq!(&*pool.load(span(b, 1, 9000)), &twin[5000..14_000]);
    assert_eq!(&*pool.load(whole.part(4000, 200)), &twin[4000..4200]);
    // SAFETY: this test alone uses the pool.
    assert_eq!(unsafe { pool.slice(whole) }, twin);
    let iovec = pool.iovec(whole.part(4096, 5));
    assert_eq!(
        iovec.iov_base,
        pool.memory()
            .iov_base
            .wrapping_byte_add(4096 + a.0 as usize * 4096)
    );
    assert_eq!(iovec.iov_len, 5);
}

#[test]
fn populating_gives_memory_and_changes_none() {
    let pool = pool(3);
    let span = Span::whole(pool.alloc().expect("free"));
    pool.store(span, b"kept");
    assert_eq!(pool.populate(1), SLAB);
    assert_eq!(pool.populate(u64::MAX), 3 * SLAB);
    assert_eq!(&*pool.load(span.part(0, 4)), b"kept");
    let mut resident = vec![0_u8; 3 * 256];
    let memory = pool.memory();
    // SAFETY: the pool's mapping, and a byte for each page of it.
    let result = unsafe { libc::mincore(memory.iov_base, memory.iov_len, resident.as_mut_ptr()) };
    assert_eq!(result, 0);
    assert!(resident.iter().all(|byte| byte & 1 == 1));
}

/// Threads take frames and slabs, mark each with their own number, and check the mark before giving it
/// back: a frame handed out twice shows as a foreign mark.
#[test]
fn threads_never_get_the_same_frame() {
    let pool = pool(6);
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut prng = Prng::new(thread.into());
                let mut held: Vec<FrameRef> = Vec::new();
                let mark = |frame| pool.store(Span::whole(frame), &[thread; 8]);
                for _ in 0..3000 {
                    match prng.below(10) {
                        0 => {
                            if let Some(first) = pool.alloc_slab() {
                                held.extend((first.0..first.0 + 256).map(FrameRef));
                                held[held.len().saturating_sub(256)..]
                                    .iter()
                                    .copied()
                                    .for_each(mark);
                            }
                        }
                        1..=5 => {
                            if let Some(frame) = pool.alloc() {
                                mark(frame);
                                held.push(frame);
                            }
                        }
                        _ => {
                            for _ in 0..prng.below(80).min(held.len() as u64) {
                                let index = usize::try_from(prng.below(held.len() as u64));
                                let frame = held.swap_remove(index.expect("small"));
                                let bytes = pool.load(Span::whole(frame).part(0, 8));
                                assert_eq!(*bytes, [thread; 8]);
                                pool.release(frame);
                            }
                        }
                    }
                }
                held.into_iter().for_each(|frame| pool.release(frame));
            });
        }
    });
    assert_eq!(pool.frame_counts(), (6 * 256, 6 * 256));
    assert_eq!(std::iter::from_fn(|| pool.alloc_slab()).count(), 6);
}

/// Small things all over the pool: three quarters of the frames are free, and no slab is whole.
fn scattered(pool: &Pagepool) -> Vec<FrameRef> {
    let mut held = drain(pool);
    assert_eq!(pool.alloc_slab(), None);
    for (page, frame) in held.iter().enumerate() {
        pool.own_run(*frame, 1, InodeId::from_raw(7), page as u64);
    }
    held.retain(|frame| {
        let is_kept = frame.0 % 4 == 0;
        if !is_kept {
            pool.release(*frame);
        }
        is_kept
    });
    assert_eq!(pool.alloc_slab(), None, "frames are free, but no slab");
    held
}

#[test]
fn a_scattered_pool_gets_whole_slabs_back_by_moving_a_few_frames() {
    let pool = pool(256);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    pool.on_shortage(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    let mut held = scattered(&pool);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "told once");
    let wanted = pool.wanted_slab_count();
    assert!((2..=16).contains(&wanted), "some, not all: {wanted}");
    // What the daemon does, with an owner that moves all that it has.
    let mut rounds = 0;
    while pool.wanted_slab_count() > 0 {
        rounds += 1;
        assert!(rounds <= 3, "each round drains what it takes on");
        for slab in pool.drain_more(pool.wanted_slab_count()) {
            assert!(pool.is_draining(slab));
            for wanted in pool.held(slab).collect::<Vec<_>>() {
                assert_eq!(wanted.ino, InodeId::from_raw(7));
                let other = pool.alloc().expect("three quarters are free");
                assert_ne!(
                    other.0 / 256,
                    slab,
                    "nothing of a draining slab is handed out"
                );
                pool.own_run(other, 1, wanted.ino, wanted.page);
                pool.release(wanted.frame);
                let at = held.iter().position(|frame| *frame == wanted.frame);
                held[at.expect("it was held")] = other;
            }
            assert!(!pool.is_draining(slab), "its last frame made it whole");
        }
    }
    pool.relieved();
    assert!(!pool.is_short_of_slabs());
    let slab = pool.alloc_slab().expect("whole slabs are there again");
    // The hard limit holds: every frame is free or held once.
    assert_eq!(pool.frame_counts().1, 65536 - 256 - held.len() as u64);
    pool.release_span(Span {
        frame: slab,
        offset: 0,
        length: 1 << 20,
    });
    held.into_iter().for_each(|frame| pool.release(frame));
    assert_eq!(pool.frame_counts(), (65536, 65536));
}

#[test]
fn a_slab_that_does_not_drain_is_used_as_before() {
    let pool = pool(8);
    let held = scattered(&pool);
    let drained = pool.drain_more(8);
    // Threads may carve some, and those are left alone.
    assert!(!drained.is_empty());
    let free = pool.frame_counts().1;
    let others = drain(&pool);
    assert!(
        (others.len() as u64) < free,
        "free frames of draining slabs stay"
    );
    drained.iter().for_each(|slab| pool.undrain(*slab));
    let rest = drain(&pool);
    assert_eq!((others.len() + rest.len()) as u64, free);
    for frame in held.into_iter().chain(others).chain(rest) {
        pool.release(frame);
    }
    assert_eq!(std::iter::from_fn(|| pool.alloc_slab()).count(), 8);
}
