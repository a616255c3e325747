//! Access times that readers tell: taken while nothing has changed, and nobody is asked for it.

use super::*;

fn accessed(attr: &Attr, secs: i64, change: u64) -> Op {
    Op::Accessed {
        ino: attr.ino,
        at: Timestamp { secs, nanos: 0 },
        change,
    }
}

#[test]
fn a_read_changes_nothing_but_the_access_time() {
    let mut f = Fixture::new();
    let made = f.create("file");
    f.now = 1000;
    let old = made.change - 1;
    assert!(f.executed(&accessed(&made, 500, old)).mutations.is_empty());
    assert_eq!(f.attr(made.ino), made, "it has changed since");

    let reply = f.run(&accessed(&made, 500, made.change));
    let expected = Attr {
        atime: Timestamp {
            secs: 500,
            nanos: 0,
        },
        ..made
    };
    assert_eq!(reply, Reply::Attr(expected));
    assert_eq!(f.attr(made.ino), expected);

    // Never back but from a time that was set ahead, and never ahead of the owner's clock.
    assert!(
        f.executed(&accessed(&made, 499, made.change))
            .mutations
            .is_empty()
    );
    f.run(&accessed(&made, 5000, made.change));
    let now = f.now;
    assert_eq!(f.attr(made.ino).atime.secs, now);
    f.now = now - 10;
    f.run(&accessed(&made, now - 20, made.change));
    assert_eq!(f.attr(made.ino).atime.secs, now - 20);
    f.now = now;
    f.is_error(
        &accessed(
            &Attr {
                ino: InodeId::new(ShardId(0), 999),
                ..made
            },
            1,
            1,
        ),
        Errno::ESTALE,
    );
}
