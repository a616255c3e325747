//! Random sequences of operations against sets of single bytes.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use super::*;
use stdx::prng::Prng;

/// Strides that divide 12, offsets below 30 and at most 6 pieces: what there is to see is seen below this.
const SIZE: u64 = 112;

fn bits(set: &PatternSet) -> u128 {
    (0..SIZE).fold(0, |sum, at| {
        sum | u128::from(set.overlaps_range(&ByteRange::at(at, 1))) << at
    })
}

fn any_shape(random: &mut Prng, is_tame: bool) -> Shape {
    let stride = match is_tame {
        true => [1, 2, 3, 4, 6, 12][usize::try_from(random.below(6)).unwrap()],
        false => 1 + random.below(13),
    };
    let pattern = Pattern {
        offset: random.below(30),
        length: 1 + random.below(stride),
        stride,
        count: match random.below(3) {
            0 => u64::MAX,
            1 => 1,
            _ => 1 + random.below(6),
        },
    };
    Shape::of(&pattern).unwrap()
}

#[test]
fn sets_agree_with_sets_of_bytes() {
    let mut random = Prng::new(1);
    let (mut steps, mut inexact) = (0, 0);
    for run in 0..4_000 {
        let is_tame = run % 2 == 0;
        let (mut set, mut twin) = (PatternSet::new(), 0u128);
        for _ in 0..12 {
            let shape = any_shape(&mut random, is_tame);
            let other = bits(&PatternSet::of(shape));
            let is_seen = twin & other != 0;
            assert!(set.overlaps(&shape) == is_seen || (!is_tame && !is_seen));
            assert!(!set.contains(&shape) || other & !twin == 0);
            let common = bits(&set.intersection(&shape));
            assert!(common & !(twin & other) == 0);
            if random.below(2) == 0 {
                set.add(shape);
                twin |= other;
            } else {
                let mut up = set.clone();
                up.remove(&shape, Rounding::Up);
                assert!((twin & !other) & !bits(&up) == 0);
                set.remove(&shape, Rounding::Down);
                assert!(!set.overlaps(&shape));
                assert!(bits(&set) & !(twin & !other) == 0);
                inexact += u64::from(bits(&set) != twin & !other);
                twin = bits(&set);
            }
            assert_eq!(bits(&set), twin);
            assert_eq!(
                PatternSet::from_patterns(&set.patterns()).patterns().len(),
                set.count()
            );
            let begin = random.below(SIZE - 1);
            let range = ByteRange::new(begin, begin + 1 + random.below(SIZE - begin));
            let mask = ((1u128 << range.end) - 1) & !((1u128 << range.begin) - 1);
            assert_eq!(set.contains_range(&range), mask & !twin == 0);
            assert_eq!(set.overlaps_range(&range), mask & twin != 0);
            let ranges = set.ranges_within(&range, 100);
            let sum = ranges.ranges().iter().map(ByteRange::length).sum::<u64>();
            assert_eq!(sum, u64::from((mask & twin).count_ones()));
            steps += 1;
        }
    }
    assert!(inexact * 4 < steps, "{inexact} of {steps} are rounded");
}
