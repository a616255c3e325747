//! PostgreSQL: a cluster of databases that many clients write to, killed in the middle, recovers and says that its tables and indexes
//! are whole; each acknowledged transaction is there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::{have, mounted, remount, sh};

/// Where Debian puts the server's programs: the newest version.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .map(|e| e.path().join("bin"))
        .collect();
    found.sort();
    found
        .into_iter()
        .rev()
        .find(|p| p.join("initdb").exists() && p.join("pgbench").exists())
}

/// Ends the server when the test ends, however that is.
struct Server<'a> {
    data: &'a Path,
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        if let Some(pid) = pid.lines().next() {
            let kill = format!("grep -q postgres /proc/{pid}/comm && kill -9 {pid}; true");
            sh(10, Path::new("/"), &kill);
        }
    }
}

#[test]
fn postgres_recovers_with_all_it_acknowledged() {
    let Some(bin) = programs() else {
        crate::left_out::left_out("PostgreSQL is not installed (.ci/tools does it)");
        return;
    };
    if !have(&["setpriv"]) {
        return;
    }
    let Some((node, _turn)) = mounted() else {
        return;
    };
    for place in [node.mount().parent().unwrap().to_owned(), node.mount()] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let data = node.mount().join("data");
    // Its socket lies outside: it has no network.
    let outside = node.state().parent().unwrap().join("socket");
    fs::create_dir(&outside).unwrap();
    sh(
        10,
        &node.mount(),
        &format!("mkdir data; chown nobody: data {}", outside.display()),
    );
    let server = Server { data: &data };
    let prelude = format!(
        "cd /; export PGDATA={data} PGHOST={socket} PGUSER=nobody PGDATABASE=postgres PATH={bin}:$PATH
        as() {{ setpriv --reuid nobody --regid nogroup --clear-groups -- env HOME={socket} \"$@\"; }}
        start() {{ as pg_ctl start -w -s -t 60 -l {socket}/log -o \"-k {socket} -c listen_addresses= -c shared_buffers=16MB -c max_wal_size=64MB\" </dev/null >/dev/null 2>&1 \
            || {{ cat {socket}/log; exit 1; }}; }}\n",
        data = data.display(),
        socket = outside.display(),
        bin = bin.display()
    );
    let run = |seconds, script: &str| sh(seconds, &outside, &format!("{prelude}{script}"));
    run(
        60,
        "as initdb -A trust -k --locale=C -E UTF8 >/dev/null; start; as pgbench -q -i -s 1 >/dev/null 2>&1; as psql -qc 'create extension amcheck'",
    );
    // Clients note what was acknowledged, outside; the server is killed with all its processes while they write.
    let load = "as psql -qc 'create table note (client int, number int, text text)'
        for c in 1 2 3; do (n=0; while as psql -qc \"insert into note select $c, $n, repeat('x', 100 * $c)\" 2>/dev/null; do n=$((n+1)); echo $n >$PGHOST/told$c; done) & done
        as pgbench -n -c 4 -j 2 -T 60 >/dev/null 2>&1 & sleep 2
        for n in $(seq 600); do test -s $PGHOST/told1 -a -s $PGHOST/told2 -a -s $PGHOST/told3 && break; sleep 0.05; done
        main=$(head -1 $PGDATA/postmaster.pid); kill -9 $main; wait || true
        for n in $(seq 200); do as pg_isready -q || test -e /proc/$main || break; sleep 0.05; done";
    run(90, load);
    let check = "for c in 1 2 3; do told=$(cat $PGHOST/told$c); found=$(as psql -Atc \"select count(*) from note where client = $c\")
            test $found -ge $told || { echo \"client $c: $told acknowledged, $found there\"; exit 1; }; test $told -gt 0; done
        as psql -Atc 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
            and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)' | grep -qx t
        as pg_amcheck --heapallindexed --parent-check -d postgres";
    run(
        90,
        &format!(
            "start\n{check}\nas pgbench -n -c 4 -j 2 -t 30 2>&1 | grep -q 'failed transactions: 0'; as vacuumdb -qfz; as pg_ctl stop -s -m fast -w; as pg_checksums --check >/dev/null"
        ),
    );
    drop(server);
    remount(&node);
    let _server = Server { data: &data };
    run(60, &format!("start\n{check}\nas pg_ctl stop -s -m fast -w"));
}
