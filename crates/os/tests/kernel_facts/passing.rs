//! What calls that name two files make of another node's rename between their lookups (`client::passing`).

use crate::server::{Fixture, arrives, in_thread, name};
use crate::{fixture, is};
use client::request::Operation;
use types::Errno;

fn looks_up(text: &'static str) -> impl Fn(&Operation) -> bool {
    move |operation| matches!(operation, Operation::Lookup { name: of, .. } if *of == name(text))
}

/// Renames `old` to `new`; another node does the same when the first name has been looked up, and the second one is answered with an error once.
fn race(fixture: &Fixture, refusal: Option<Errno>) -> Result<(), Option<i32>> {
    fixture.state().entry_timeout_ns = 0;
    fixture.file("old", b"x");
    fixture.hold(looks_up("new"));
    let (from, to) = (fixture.path("old"), fixture.path("new"));
    let renaming = in_thread(move || std::fs::rename(from, to).map_err(|e| e.raw_os_error()));
    fixture.wait_held(1);
    fixture.rename("old", "new");
    if let Some(errno) = refusal {
        fixture.refuse(looks_up("new"), errno);
    }
    fixture.release();
    arrives(&renaming)
}

/// Both names lead to one inode: rename(2) says that it is done and asks nobody. With ESTALE it looks both up again, and says what is true.
#[test]
fn a_rename_that_another_node_has_made_is_done_unless_a_name_is_stale() {
    let (known, refused) = (fixture!(), fixture!());
    assert_eq!(race(&known, None), Ok(()));
    assert_eq!(race(&refused, Some(Errno::ESTALE)), Err(Some(libc::ENOENT)));
    assert!(refused.count(looks_up("old")) > known.count(looks_up("old")));
    for fixture in [known, refused] {
        assert_eq!(fixture.count(is!(Rename { .. })), 0);
    }
}

/// Calls that look a path up try again after ESTALE. Those that make a name do not, but where the kernel has known the name.
#[test]
fn who_makes_a_name_does_not_look_again_after_estale() {
    let fixture = fixture!();
    fixture.state().entry_timeout_ns = 0;
    for file in ["a", "b", "c", "d"] {
        fixture.file(file, b"x");
        fixture.refuse(looks_up(file), Errno::ESTALE);
    }
    assert!(std::fs::metadata(fixture.path("a")).is_ok());
    assert!(std::fs::File::open(fixture.path("b")).is_ok());
    let errno = |made: std::io::Result<()>| made.err().and_then(|e| e.raw_os_error());
    let make = |name| errno(std::fs::create_dir(fixture.path(name)));
    let link = |name| errno(std::fs::hard_link(fixture.path("a"), fixture.path(name)));
    assert_eq!(make("c"), Some(libc::ESTALE));
    assert_eq!(link("d"), Some(libc::ESTALE));
    // Known since.
    std::fs::metadata(fixture.path("c")).unwrap();
    fixture.refuse(looks_up("c"), Errno::ESTALE);
    assert_eq!(make("c"), Some(libc::EEXIST));
}
