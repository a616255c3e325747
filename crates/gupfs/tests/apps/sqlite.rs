//! SQLite, by Python's module: several processes write one database, one is killed, and the database says of itself that it is whole.

use std::fs;

use crate::{have, mounted, remount, sh};

/// Moves money between accounts; the sum stays. Prints what was committed, one line a transaction.
const WRITER: &str = r#"
import random, sqlite3, sys
path, mode, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
r = random.Random(seed)
d = sqlite3.connect(path, timeout=60, isolation_level=None)
d.execute(f"pragma journal_mode={mode}")
d.execute("pragma synchronous=full")
for n in range(count):
    a, b, m = r.randrange(100), r.randrange(100), r.randrange(50)
    d.execute("begin immediate")
    d.execute("update account set money = money - ? where id = ?", (m, a))
    d.execute("update account set money = money + ? where id = ?", (m, b))
    d.execute("insert into note values (?, ?, ?)", (seed, n, "x" * r.randrange(3000)))
    d.execute("commit")
    print(n, flush=True)
"#;

const MAKE: &str = r#"
import sqlite3, sys
d = sqlite3.connect(sys.argv[1])
d.execute(f"pragma journal_mode={sys.argv[2]}")
d.execute("create table account (id integer primary key, money integer)")
d.execute("create table note (writer integer, number integer, text text)")
d.executemany("insert into account values (?, 1000)", [(n,) for n in range(100)])
d.commit()
"#;

/// The last line of each writer's list is acknowledged: it must be there.
const CHECK: &str = r#"
import sqlite3, sys
d = sqlite3.connect(sys.argv[1])
assert d.execute("pragma integrity_check").fetchall() == [("ok",)]
assert d.execute("select sum(money) from account").fetchone() == (100000,)
for seed in range(1, 4):
    lines = open(f"{sys.argv[2]}/said{seed}").read().split("\n")
    told = len(lines) - 1
    numbers = [n for (n,) in d.execute("select number from note where writer = ? order by number", (seed,))]
    assert numbers == list(range(len(numbers))), numbers
    assert told <= len(numbers) <= told + 1, (seed, told, len(numbers))
    print(seed, told)
"#;

#[test]
fn sqlite_keeps_what_it_committed() {
    if !have(&["python3"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    let outside = node.state().parent().unwrap().to_owned();
    for (name, text) in [("make", MAKE), ("writer", WRITER), ("check", CHECK)] {
        fs::write(outside.join(format!("{name}.py")), text).unwrap();
    }
    for mode in ["wal", "delete", "truncate", "persist"] {
        let base = node.mount().join(format!("{mode}.db"));
        // Three writers; the third is killed in the middle. What each was told is noted outside: the lists of the mode before go first,
        // or the third is killed for what that one's third had been told, before it has begun.
        let script = format!(
            "db={}; python3 make.py $db {mode}; : >said1; : >said2; : >said3
            for n in 1 2; do python3 writer.py $db {mode} $n 25 >said$n & done
            python3 writer.py $db {mode} 3 100000 >said3 & third=$!
            n=0; while test $(wc -l <said3) -lt 8 && test $n -lt 2000; do sleep 0.02; n=$((n+1)); done
            kill -9 $third; wait $third || true
            wait; python3 check.py $db .",
            base.display()
        );
        let said = sh(100, &outside, &script);
        eprintln!(
            "{mode}: committed by writer: {}",
            said.trim().replace('\n', ", ")
        );
    }
    remount(&node);
    for mode in ["wal", "delete", "truncate", "persist"] {
        // The lists are the last mode's: only what the database says of itself.
        let script = format!(
            "python3 -c 'import sqlite3; print(sqlite3.connect(\"{mode}.db\").execute(\"pragma integrity_check\").fetchall())'"
        );
        assert_eq!(sh(30, &node.mount(), &script).trim(), "[('ok',)]");
    }
}
