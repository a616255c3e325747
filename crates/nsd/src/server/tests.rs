//! Each check, bound and fence by itself; durability over server and client is tested in
//! `tests/durability.rs`.

use super::*;
use types::{ClusterId, FrameRef, FsId, NodeId, NodeView};

const NSD: NsdId = NsdId(1);
const SECTORS: u64 = 1000;

fn life(node: u16, incarnation: u128) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

fn server() -> Server {
    let limits = Limits {
        request_count_max: 3,
        bytes_max: 8 * SECTOR_SIZE,
    };
    let mut server = Server::new(life(1, 100), limits);
    server.add_disk(NSD, 7, SECTORS);
    server.on_view(&view(1, 200));
    server
}

fn read(sector: u64, count: u32) -> Request {
    Request::Read {
        nsd: NSD,
        sector,
        count,
        epoch: Epoch(1),
    }
}

fn write(sector: u64, count: u32) -> Request {
    Request::Write {
        nsd: NSD,
        sector,
        count,
        epoch: Epoch(1),
        grant_mac: 0,
        fua: false,
    }
}

const FLUSH: Request = Request::Flush {
    nsd: NSD,
    epoch: Epoch(1),
};

fn span(sectors: u32) -> Vec<Span> {
    vec![Span {
        frame: FrameRef(9),
        offset: 0,
        length: sectors * 4096,
    }]
}

/// Sends a request of node 2 with the payload that fits it.
fn ask(server: &mut Server, number: u64, request: Request) -> Outbox {
    let payload = match request {
        Request::Write { count, .. } => span(count),
        Request::Read { .. } | Request::Flush { .. } => Vec::new(),
    };
    ask_with(server, life(2, 200), number, request, payload)
}

fn ask_with(
    server: &mut Server,
    from: NodeLife,
    number: u64,
    request: Request,
    payload: Vec<Span>,
) -> Outbox {
    let mut out = Vec::new();
    server.on_request(from, RequestId(number), request, payload, &mut out);
    server.check();
    out
}

fn done(server: &mut Server, tag: DiskTag, result: Result<Vec<Span>, Errno>) -> Outbox {
    let mut out = Vec::new();
    server.on_disk_done(tag, result, &mut out);
    server.check();
    out
}

fn tag(out: &Outbox) -> DiskTag {
    match &out[..] {
        [Effect::Disk { tag, disk: 7, .. }] => *tag,
        other => panic!("{other:?}"),
    }
}

fn replies(out: &Outbox) -> Vec<(u64, Reply)> {
    let replies = out.iter().filter_map(|effect| match effect {
        Effect::Reply { request, reply, .. } => Some((request.0, *reply)),
        Effect::Disk { .. } | Effect::Drop { .. } | Effect::Fenced { .. } => None,
    });
    replies.collect()
}

fn error(out: &Outbox) -> NsdError {
    match &replies(out)[..] {
        [(_, Reply::Failed { error, .. })] => *error,
        other => panic!("{other:?}"),
    }
}

const OWN: Verifier = Verifier(100);

#[test]
fn what_cannot_be_served_is_refused_and_its_payload_released() {
    let mut server = server();
    let nsd = NsdId(5);
    let elsewhere = Request::Flush {
        nsd,
        epoch: Epoch(1),
    };
    assert_eq!(
        error(&ask(&mut server, 1, elsewhere)),
        NsdError::NoSuchNsd { nsd }
    );
    let huge = 4200;
    for (sector, count) in [
        (0, 0),
        (SECTORS, 1),
        (SECTORS - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 1, 2),
        (0, huge),
        (0, u32::MAX),
    ] {
        let out = ask(&mut server, 1, read(sector, count));
        assert!(matches!(error(&out), NsdError::OutOfRange { .. }));
    }
    let from = life(2, 200);
    let out = ask_with(&mut server, from, 1, write(0, 2), span(1));
    assert_eq!(out[0], Effect::Drop { payload: span(1) });
    let bad = NsdError::BadPayload {
        count: 2,
        found: 4096,
    };
    assert_eq!(error(&out), bad);
    let out = ask_with(&mut server, from, 1, read(0, 2), span(2));
    assert!(matches!(error(&out), NsdError::BadPayload { .. }));
    assert_eq!(server.in_flight_count(), 0);
}

#[test]
fn a_full_disk_queue_pushes_back_and_opens_again() {
    let mut server = server();
    let first = tag(&ask(&mut server, 1, write(0, 4)));
    let second = tag(&ask(&mut server, 2, read(4, 4)));
    // Eight sectors are in flight: the bytes are full, then the requests.
    assert_eq!(error(&ask(&mut server, 3, read(8, 1))), NsdError::Busy);
    done(&mut server, second, Ok(span(4)));
    tag(&ask(&mut server, 4, read(8, 1)));
    tag(&ask(&mut server, 5, read(9, 1)));
    assert_eq!(error(&ask(&mut server, 6, read(10, 1))), NsdError::Busy);
    // A flush is no data request.
    tag(&ask(&mut server, 7, FLUSH));
    let out = done(&mut server, first, Ok(Vec::new()));
    assert_eq!(replies(&out), [(1, Reply::Written { verifier: OWN })]);
    assert_eq!(server.in_flight_count(), 3);
}

#[test]
fn an_idle_disk_takes_a_request_larger_than_its_bound() {
    let mut server = server();
    let large = tag(&ask(&mut server, 1, read(0, 100)));
    assert_eq!(error(&ask(&mut server, 2, read(0, 1))), NsdError::Busy);
    let out = done(&mut server, large, Ok(span(100)));
    let payload = span(100);
    let reply = Reply::Read { verifier: OWN };
    let to = life(2, 200);
    let request = RequestId(1);
    let expected = Effect::Reply {
        to,
        request,
        reply,
        payload,
    };
    assert_eq!(out, [expected]);
}

#[test]
fn flushes_that_come_during_a_flush_are_done_together_after_it() {
    let mut server = server();
    let first = tag(&ask(&mut server, 1, FLUSH));
    for number in 2..5 {
        assert_eq!(ask(&mut server, number, FLUSH), []);
    }
    assert_eq!(error(&ask(&mut server, 5, FLUSH)), NsdError::Busy);
    let out = done(&mut server, first, Ok(Vec::new()));
    let flushed = Reply::Flushed { verifier: OWN };
    assert_eq!(replies(&out), [(1, flushed)]);
    let Some(Effect::Disk { tag: second, .. }) = out.last() else {
        panic!("{out:?}");
    };
    let out = done(&mut server, *second, Ok(Vec::new()));
    assert_eq!(replies(&out), [(2, flushed), (3, flushed), (4, flushed)]);
    assert_eq!(out.len(), 3, "no third flush");
}

#[test]
fn a_failure_changes_the_verifier_for_everybody() {
    let errno = Errno::EIO;
    let mut server = server();
    let slow = tag(&ask(&mut server, 1, write(0, 1)));
    let bad = tag(&ask(&mut server, 2, write(1, 1)));
    let out = done(&mut server, bad, Err(errno));
    let next = OWN.next();
    let error = NsdError::Io { errno };
    let failed = Reply::Failed {
        error,
        verifier: next,
    };
    assert_eq!(replies(&out), [(2, failed)]);
    // Submitted before the failure: its bytes may have been dropped by it.
    let out = done(&mut server, slow, Ok(Vec::new()));
    assert_eq!(replies(&out), [(1, Reply::Written { verifier: OWN })]);
    let flush = tag(&ask(&mut server, 3, FLUSH));
    let out = done(&mut server, flush, Ok(Vec::new()));
    assert_eq!(replies(&out), [(3, Reply::Flushed { verifier: next })]);
    // A failed read loses nothing.
    let read = tag(&ask(&mut server, 4, read(0, 1)));
    done(&mut server, read, Err(errno));
    assert_eq!(server.verifier(NSD), Some(next));
    // A flush of the server's own, told once.
    for _ in 0..2 {
        server.on_losses(NSD, 1);
        assert_eq!(server.verifier(NSD), Some(next.next()));
    }
    server.add_disk(NSD, 8, SECTORS);
    assert_eq!(server.verifier(NSD), Some(next.next().next()));
    assert_eq!(server.disk(NSD), Some(8));
}

#[test]
fn a_fence_is_acknowledged_when_the_last_write_has_ended() {
    let mut server = server();
    let (old, new) = (life(2, 200), life(2, 201));
    let epoch = Epoch(9);
    let fenced = Effect::Fenced { life: old, epoch };
    let a_write = tag(&ask(&mut server, 1, write(0, 1)));
    let a_read = tag(&ask(&mut server, 2, read(0, 1)));
    let mut out = Vec::new();
    server.on_fence(old, epoch, &mut out);
    server.on_fence(old, epoch, &mut out);
    server.check();
    assert_eq!(out, []);
    assert_eq!(
        error(&ask(&mut server, 3, write(1, 1))),
        NsdError::Fenced { epoch }
    );
    assert_eq!(
        error(&ask(&mut server, 4, FLUSH)),
        NsdError::Fenced { epoch }
    );
    let out = done(&mut server, a_write, Ok(Vec::new()));
    assert_eq!(out.last(), Some(&fenced));
    let out = done(&mut server, a_read, Ok(span(1)));
    assert_eq!(out.len(), 1, "acknowledged once");
    let mut out = Vec::new();
    server.on_fence(old, epoch, &mut out);
    assert_eq!(out, [fenced], "and again when asked again");
    server.on_view(&view(9, 201));
    tag(&ask_with(&mut server, new, 5, write(2, 1), span(1)));
}

fn view(epoch: u64, incarnation: u128) -> ClusterView {
    ClusterView {
        cluster: ClusterId(1),
        fs: FsId(1),
        epoch: Epoch(epoch),
        manager: NodeId(1),
        nodes: vec![NodeView {
            id: NodeId(2),
            address: String::new(),
            incarnation: Incarnation(incarnation),
        }],
        nsds: Vec::new(),
        owners: Vec::new(),
        block_size: 1 << 20,
    }
}

#[test]
fn the_view_fences_lives_that_are_not_in_it() {
    let mut server = server();
    let with_epoch = |epoch| Request::Flush {
        nsd: NSD,
        epoch: Epoch(epoch),
    };
    let try_it = |server: &mut Server, incarnation, epoch| {
        let from = life(2, incarnation);
        let out = ask_with(server, from, 1, with_epoch(epoch), Vec::new());
        let refused = Reply::Failed {
            error: NsdError::Fenced {
                epoch: server.epoch,
            },
            verifier: OWN,
        };
        let is_refused = replies(&out) == [(1, refused)];
        if !is_refused {
            done(server, tag(&out), Ok(Vec::new()));
        }
        !is_refused
    };
    server.on_view(&view(5, 200));
    assert!(try_it(&mut server, 200, 5));
    assert!(try_it(&mut server, 200, 4));
    assert!(!try_it(&mut server, 199, 5));
    assert!(!try_it(&mut server, 199, 3));
    assert!(try_it(&mut server, 201, 6), "it knows a newer view");
    server.on_view(&view(4, 199));
    assert!(!try_it(&mut server, 199, 5), "an older view is ignored");
    server.on_view(&view(6, 0));
    assert!(!try_it(&mut server, 200, 6));
}

#[test]
fn without_a_view_only_the_own_node_is_served() {
    let own = life(1, 100);
    let mut server = Server::new(own, Limits::default());
    server.add_disk(NSD, 7, SECTORS);
    assert_eq!(error(&ask(&mut server, 1, read(0, 1))), NsdError::Busy);
    tag(&ask_with(&mut server, own, 2, read(0, 1), Vec::new()));
    server.on_view(&view(1, 200));
    tag(&ask(&mut server, 3, read(0, 1)));
    // The view does not name node 1, whose server this is: its own lease rules it.
    tag(&ask_with(&mut server, own, 4, read(0, 1), Vec::new()));
}

#[test]
fn the_fence_table_is_bounded_by_what_the_view_refuses_anyway() {
    let mut server = server();
    server.on_view(&view(1_000_000, 0));
    let mut out = Vec::new();
    for incarnation in 0..FENCE_COUNT_MAX + 10 {
        let incarnation = incarnation as u128 + 1;
        let epoch = Epoch(u64::try_from(incarnation).unwrap());
        server.on_fence(life(2, incarnation), epoch, &mut out);
    }
    assert_eq!(out.len(), FENCE_COUNT_MAX + 10);
    assert_eq!(server.fences.len(), FENCE_COUNT_MAX);
    assert!(matches!(
        error(&ask_with(&mut server, life(2, 1), 1, FLUSH, Vec::new())),
        NsdError::Fenced { .. }
    ));
}
