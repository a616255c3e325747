//! What developers do all day: git, tar, rsync, compilers.

use std::path::Path;

use crate::{have, mounted, remount, sh};

/// This repository's sources: text files that every checkout has.
fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn git_commits_clones_collects_and_finds_no_fault() {
    if !have(&["git"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    let script = format!(
        "git config --global user.name test; git config --global user.email test@localhost
        git config --global init.defaultBranch trunk; git config --global gc.auto 0
        git init -q one; cd one; cp -r {source}/src {source}/tests .; git add -A; git commit -qm all
        for n in $(seq 12); do
            echo line $n >>list; cp src/lab.rs src/copy$n.rs; rm -f src/copy$((n-3)).rs
            git add -A; git commit -qm \"commit $n\"
            test $((n % 3)) != 0 || git checkout -qb branch$n
        done
        git checkout -q branch6; git merge -q --no-edit branch12; git checkout -q trunk; git merge -q --no-edit branch12
        git status --porcelain >../said; test ! -s ../said
        cd ..; git clone -q --no-hardlinks one two; git clone -q one three
        cd two; git fsck --full --strict; git gc -q --prune=now; git fsck --full --strict
        test $(git rev-list --count HEAD) = 13; git status --porcelain >../said; test ! -s ../said
        cd ../one; git gc -q --prune=now; git fsck --full --strict
        cd ../three; git stash list; git mv src source; git commit -qam moved; git push -q origin HEAD:moved
        cd ../one; git worktree add -q ../four moved; diff -r ../four/source ../three/source; git fsck --full --strict",
        source = sources().display()
    );
    sh(120, &node.mount(), &script);
    remount(&node);
    let again = "for d in one two three; do (cd $d; git fsck --full --strict; git status --porcelain >../said; test ! -s ../said); done";
    sh(60, &node.mount(), again);
}

/// tar says so when a file's times change while it reads it: none does, whatever is written back meanwhile.
#[test]
fn archives_and_copies_are_what_was_archived() {
    if !have(&["tar", "gzip"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    let rsync = match have(&["rsync"]) {
        true => {
            "rsync -aHX --delete tree/ synced/; rsync -aHXc --delete -ni tree/ synced/ >said; test ! -s said; diff -r --no-dereference tree synced;"
        }
        false => "",
    };
    let script = format!(
        "mkdir tree; cp -a {}/. tree/; rm -rf tree/target
        head -c 3000000 /dev/urandom >tree/large; ln tree/large tree/linked; ln -s large tree/symbolic; mkfifo tree/pipe
        truncate -s 20M tree/sparse; echo end >>tree/sparse; chmod 4711 tree/large; touch -d @1000000000.123456789 tree/Cargo.toml
        tar -cf one.tar --sparse --xattrs tree; tar --compare -f one.tar
        tar --format=pax -cf two.tar tree; mkdir out; tar -xpf two.tar -C out; diff -r --no-dereference tree out/tree
        tar -C out --compare -f one.tar
        tar --format=pax -cf - tree | gzip -1 >three.tgz; gzip -t three.tgz; mkdir more; tar -xzpf three.tgz -C more; tar -C more --compare -f one.tar
        test $(stat -c %h more/tree/linked) = 2; test $(stat -c %a more/tree/large) = 4711
        cp -a more/tree copied; diff -r --no-dereference tree copied; {rsync}
        mv copied moved; rm -rf out more",
        sources().display()
    );
    // diff does not read pipes: it says that both are.
    let script = script.replace(
        "diff -r --no-dereference",
        "diff -r --no-dereference -x pipe",
    );
    sh(120, &node.mount(), &script);
    remount(&node);
    sh(
        60,
        &node.mount(),
        "tar --compare -f one.tar; diff -r --no-dereference -x pipe tree moved; rm -rf tree moved",
    );
}

#[test]
fn programs_are_built_and_run() {
    if !have(&["gcc", "make", "cargo"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    let c = r#"mkdir c; cd c
        runs() { said=$("./$1") || echo "$1 ended with $?"; test "$said" = 78 || { echo "$1 says '$said'"; ls -l --full-time "$1"; od -A d -t x1z "$1"
            dd if="$1" iflag=direct bs=1M | cmp - "$1" || echo 'the kernel has other bytes than the daemon'; exit 1; }; }
        for n in $(seq 12); do printf 'int f%d(int x) { return x + %d; }\n' $n $n >f$n.c; done
        { for n in $(seq 12); do echo "int f$n(int);"; done; echo '#include <stdio.h>'; echo 'int main(void) { int x = 0;'
          for n in $(seq 12); do echo "x = f$n(x);"; done; printf '%s\n' 'printf("%d\n", x); return 0; }'; } >main.c
        printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tgcc -o all $^\n%%.o: %%.c\n\tgcc -O1 -g -c -o $@ $<\n' >Makefile
        make -s -j2; runs all; ar rcs lib.a f*.o; ranlib lib.a; gcc -o again main.o lib.a; runs again
        make -s -q || make -n; touch f3.c
        make -n >../plan; test "$(grep -c '^gcc .* -c ' ../plan)" = 1 || { cat ../plan; ls -l --full-time; ls -lc --full-time; exit 1; }
        strip all; runs all"#;
    sh(100, &node.mount(), c);
    let rust = r#"cargo init -q --vcs none --name tiny tiny; cd tiny
        for n in 1 2 3 4; do echo "pub fn f(x: u64) -> u64 { (0..x).map(|n| n * $n).sum() }" >src/m$n.rs; done
        { for n in 1 2 3 4; do echo "mod m$n;"; done
          echo 'fn main() { println!("{}", m1::f(10) + m2::f(10) + m3::f(10) + m4::f(10)); }'
          echo '#[cfg(test)] mod tests { #[test] fn sum() { assert_eq!(crate::m2::f(3), 6); } }'; } >src/main.rs
        export CARGO_TARGET_DIR=$PWD/target
        test "$(cargo run -q --offline)" = 450; cargo test -q --offline
        cargo build --offline 2>&1 | grep -c Compiling && exit 1; echo '// more' >>src/m1.rs; cargo build --offline 2>&1 | grep -q Compiling"#;
    sh(200, &node.mount(), rust);
    remount(&node);
    sh(
        60,
        &node.mount(),
        "test $(c/again) = 78; test $(tiny/target/debug/tiny) = 450",
    );
}
