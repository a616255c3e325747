//! Every operation against sets of single bytes, over all small patterns.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use super::*;

/// Bytes of the small universe.
const SIZE: u64 = 24;

/// All patterns with offset, length, stride and count small, and those without end.
fn all() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for offset in 0..6 {
        for stride in 1..8 {
            for length in 1..=stride {
                for count in [1, 2, 3, u64::MAX] {
                    shapes.extend(Shape::of(&Pattern {
                        offset,
                        length,
                        stride,
                        count,
                    }));
                }
            }
        }
    }
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

/// The dumb twin: bit `i` is byte `i`, as far as one looks.
fn bits(pattern: &Pattern) -> u64 {
    let mut bits = 0;
    for index in 0..pattern.count.min(64) {
        let begin = u128::from(pattern.offset) + u128::from(index) * u128::from(pattern.stride);
        for byte in 0..pattern.length.min(64) {
            let at = begin + u128::from(byte);
            if at < 64 {
                bits |= 1 << at;
            }
        }
    }
    bits
}

fn union(shapes: &[Shape]) -> u64 {
    shapes.iter().fold(0, |sum, s| sum | bits(&s.pattern()))
}

#[test]
fn normal_form_has_the_same_bytes() {
    for offset in 0..4 {
        for length in 0..6 {
            for stride in 0..6 {
                for count in [0, 1, 2, 5, u64::MAX] {
                    let pattern = Pattern {
                        offset,
                        length,
                        stride,
                        count,
                    };
                    let shape = Shape::of(&pattern);
                    // Without a stride there is one piece, however many are said to be.
                    let one = Pattern {
                        count: count.min(1),
                        ..pattern
                    };
                    let twin = if stride == 0 { one } else { pattern };
                    assert_eq!(shape.map_or(0, |s| bits(&s.pattern())), bits(&twin));
                }
            }
        }
    }
}

#[test]
fn two_shapes_agree_with_sets_of_bytes() {
    let shapes = all();
    let (mut pairs, mut inexact) = (0, 0);
    for a in &shapes {
        let x = bits(&a.pattern());
        for b in &shapes {
            let y = bits(&b.pattern());
            // 64 bytes hold more than the least common multiple of two strides behind both offsets.
            assert_eq!(a.overlaps(b), x & y != 0, "{a:?} {b:?}");
            assert!(!a.contains(b) || y & !x == 0, "{a:?} {b:?}");
            let same = a.pattern().stride == b.pattern().stride;
            assert!(a.contains(b) || y & !x != 0 || !same, "{a:?} {b:?}");
            for rounding in [Rounding::Down, Rounding::Up] {
                let (mut both, mut rest) = (Vec::new(), Vec::new());
                a.split(b, rounding, &mut both, &mut rest);
                let (both, rest) = (union(&both), union(&rest));
                match rounding {
                    Rounding::Down => assert!(both & !(x & y) == 0 && rest & !(x & !y) == 0),
                    Rounding::Up => assert!((x & y) & !both == 0 && (x & !y) & !rest == 0),
                }
                inexact += u64::from(both != x & y || rest != x & !y);
                pairs += 1;
            }
        }
    }
    assert!(pairs > 100_000, "{pairs} pairs are too few");
    // Strides below 8 have common multiples within EXPANSION_MAX.
    assert_eq!(inexact, 0);
}

#[test]
fn ranges_agree_with_sets_of_bytes() {
    for shape in all() {
        let x = bits(&shape.pattern());
        for begin in 0..SIZE {
            for end in begin + 1..=SIZE {
                let range = ByteRange::new(begin, end);
                let y = bits(&Pattern::plain(range));
                assert_eq!(shape.overlaps_range(&range), x & y != 0);
                let mut clipped = Vec::new();
                shape.clip(&range, &mut clipped);
                assert_eq!(union(&clipped), x & y, "{shape:?} {range:?}");
                assert!(clipped.len() <= 3);
            }
            let end = (begin..64).find(|at| x & 1 << at == 0).unwrap_or(64);
            let reach = shape.reach(begin);
            assert_eq!(reach.map(|r| r.min(64)), (end > begin).then_some(end));
        }
    }
}

#[test]
fn many_pieces_take_no_time() {
    let records = |offset, stride| {
        let pattern = Pattern {
            offset,
            length: 47_008,
            stride,
            count: u64::MAX,
        };
        Shape::of(&pattern).unwrap()
    };
    // Four writers of interleaved records never meet.
    for a in 0..4 {
        for b in 0..4 {
            let (x, y) = (
                records(a * 47_008, 4 * 47_008),
                records(b * 47_008, 4 * 47_008),
            );
            assert_eq!(x.overlaps(&y), a == b);
            assert_eq!(x.contains(&y), a == b);
        }
    }
    // Strides without a common divisor meet somewhere, far away.
    let (x, y) = (records(0, 1 << 40), records(1 << 30, (1 << 40) - 47_007));
    assert!(x.overlaps(&y));
    let (mut both, mut rest) = (Vec::new(), Vec::new());
    x.split(&y, Rounding::Down, &mut both, &mut rest);
    assert!(union(&both) == 0 && both.is_empty());
    x.split(&y, Rounding::Up, &mut both, &mut rest);
    assert!(rest.iter().any(|s| matches!(s, Shape::Strided(_))));
    // One multiple apart, in even phases, they never do.
    let even = |offset, stride| {
        Shape::of(&Pattern {
            offset,
            length: 1,
            stride,
            count: u64::MAX,
        })
        .unwrap()
    };
    assert!(!even(0, 6).overlaps(&even(1, 1 << 50)));
    assert!(even(0, 6).overlaps(&even(2, 1 << 50)));
    assert!(!even(0, 6).overlaps(&even(3, 1 << 50)));
}

#[test]
fn the_end_of_all_bytes() {
    let top = u64::MAX;
    for offset in top - 40..top {
        for stride in 2..6 {
            for length in 1..stride {
                let shape = Shape::of(&Pattern {
                    offset,
                    length,
                    stride,
                    count: u64::MAX,
                });
                let shape = shape.unwrap();
                let holds = |at: u64| (at - offset) % stride < length;
                for at in offset..top {
                    assert_eq!(shape.reach(at).is_some(), holds(at));
                    let range = ByteRange::at(at, 2);
                    let next = at + 1 < top && holds(at + 1);
                    assert_eq!(shape.overlaps_range(&range), holds(at) || next);
                }
                let other = Shape::of(&Pattern {
                    offset: offset - 1,
                    length: 1,
                    stride: 2 * stride,
                    count: u64::MAX,
                });
                let (mut both, mut rest) = (Vec::new(), Vec::new());
                shape.split(&other.unwrap(), Rounding::Down, &mut both, &mut rest);
                for at in offset..top {
                    let in_other = (at + 1 - offset).is_multiple_of(2 * stride);
                    let has = |list: &[Shape]| list.iter().any(|s| s.reach(at).is_some());
                    assert_eq!(has(&both), holds(at) && in_other);
                    assert_eq!(has(&rest), holds(at) && !in_other);
                }
            }
        }
    }
}
