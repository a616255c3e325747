//! What people and programs write: the file of settings, options of mounts, sizes, layouts and access control lists in extended attributes.
#![no_main]

use std::path::Path;

use gupfs::mount::Options;
use gupfs::{size, state};
use gupfs_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use meta::acl::Acl;
use types::Layout;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let rest = input.rest();
    let text = String::from_utf8_lossy(rest);
    match kind % 5 {
        0 => {
            if let Ok(state) = state::parse(&text, Path::new("gupfs.toml")) {
                let written = state::to_text(&state);
                assert!(
                    state::parse(&written, Path::new("gupfs.toml")).is_ok(),
                    "{written}"
                );
            }
        }
        1 => drop(Options::parse(&[text.into_owned()], false)),
        2 => drop(size::parse(&text)),
        3 => {
            if let Ok(layout) = Layout::parse(rest) {
                assert_eq!(Layout::parse(layout.to_string().as_bytes()), Ok(layout));
            }
        }
        _ => {
            if let Ok(list) = Acl::parse(rest) {
                assert_eq!(Acl::parse(&list.to_bytes()), Ok(list));
            }
        }
    }
});
