//! Tests of the gates without a kernel: each rule at one inode, step by step.

use types::{Duration, Instant};

use super::*;

const ALL_PAGES: ByteRange = ByteRange {
    begin: 0,
    end: 4 * PAGE_SIZE,
};

fn pages(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first * PAGE_SIZE, last * PAGE_SIZE)
}

fn request(ticket: u64, kind: RequestKind, range: ByteRange, has_token: bool) -> GateRequest {
    GateRequest {
        ticket: Ticket(ticket),
        kind,
        range,
        has_token,
    }
}

fn lost(range: ByteRange) -> Scope {
    Scope {
        lost: RangeSet::of(range),
        lost_pages: RangeSet::of(range),
        ..Scope::default()
    }
}

/// A gate, and the effects of each call, which must come as told.
struct Script {
    gate: Gate,
    out: Outbox,
}

impl Script {
    fn new(is_mappable: bool) -> Self {
        Self {
            gate: Gate::new(Rules::DEFAULT, is_mappable),
            out: Vec::new(),
        }
    }

    fn ask(&mut self, ticket: u64, kind: RequestKind, range: ByteRange) -> Verdict {
        self.gate
            .on_request(request(ticket, kind, range, true), &mut self.out)
    }

    fn ask_without(&mut self, ticket: u64, kind: RequestKind, range: ByteRange) -> Verdict {
        self.gate
            .on_request(request(ticket, kind, range, false), &mut self.out)
    }

    fn expect(&mut self, effects: &[Effect]) {
        self.gate.check();
        assert_eq!(std::mem::take(&mut self.out), effects);
    }
}

fn notify(id: u64, pages: ByteRange) -> Effect {
    Effect::Notify {
        notify: NotifyId(id),
        pages: Some(pages),
    }
}

fn flush(revoke: u64, ranges: ByteRange) -> Effect {
    Effect::Flush {
        revoke: RevokeId(revoke),
        ranges: RangeSet::of(ranges),
    }
}

fn release(revoke: u64) -> Effect {
    Effect::Release {
        revoke: RevokeId(revoke),
        is_data_lost: false,
    }
}

fn retry(ticket: u64) -> Effect {
    Effect::Retry {
        ticket: Ticket(ticket),
    }
}

#[test]
fn a_revoke_drains_notifies_flushes_and_releases() {
    let mut s = Script::new(false);
    assert_eq!(s.ask(1, RequestKind::Write, pages(0, 1)), Verdict::Serve);
    s.gate
        .begin_revoke(RevokeId(9), lost(ALL_PAGES), &mut s.out);
    s.expect(&[]); // The write is in service.
    s.gate.on_served(Ticket(1), &mut s.out);
    s.expect(&[notify(0, ALL_PAGES)]);
    assert_eq!(s.ask(2, RequestKind::Write, pages(0, 1)), Verdict::Park);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[flush(9, ALL_PAGES)]);
    s.gate
        .on_flushed(RevokeId(9), FlushOutcome::Committed, &mut s.out);
    s.expect(&[release(9), retry(2)]);
    assert!(s.gate.is_idle());
}

#[test]
fn reads_during_a_notification_are_served_and_notified_again() {
    let mut s = Script::new(false);
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    s.expect(&[notify(0, ALL_PAGES)]);
    assert_eq!(s.ask(1, RequestKind::Read, pages(2, 3)), Verdict::Serve);
    // Read-ahead beyond what we hold would wait for another node while it holds our folio.
    let verdict = s.ask_without(2, RequestKind::Read, pages(3, 6));
    assert_eq!(verdict, Verdict::Fail(Failure::Again));
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[]); // Drains.
    s.gate.on_served(Ticket(1), &mut s.out);
    s.expect(&[notify(1, pages(2, 3))]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[flush(1, ALL_PAGES)]);
}

#[test]
fn pages_of_parked_reads_are_left_out() {
    let mut s = Script::new(false);
    assert_eq!(
        s.ask_without(1, RequestKind::Read, pages(1, 2)),
        Verdict::Park
    );
    assert_eq!(
        s.ask_without(2, RequestKind::DirectRead, pages(3, 4)),
        Verdict::Park
    );
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    s.expect(&[notify(0, pages(0, 1)), notify(1, pages(2, 4))]);
    s.gate.on_token_granted(&mut s.out);
    s.expect(&[]); // Blocked by the revoke all the same.
}

#[test]
fn write_back_is_never_parked_in_a_revoke() {
    let mut s = Script::new(true);
    assert_eq!(
        s.ask_without(1, RequestKind::WriteBack, pages(0, 1)),
        Verdict::Park
    );
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    s.expect(&[Effect::Serve { ticket: Ticket(1) }]);
    s.gate.on_served(Ticket(1), &mut s.out);
    s.expect(&[notify(0, ALL_PAGES)]);
    assert_eq!(
        s.ask(2, RequestKind::WriteBack, pages(1, 2)),
        Verdict::Serve
    );
    s.gate.on_served(Ticket(2), &mut s.out);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[notify(1, ALL_PAGES)]); // The second pass of R6.
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[flush(1, ALL_PAGES)]);
    // Even during the flush: then it is flushed once more.
    assert_eq!(
        s.ask(3, RequestKind::WriteBack, pages(1, 2)),
        Verdict::Serve
    );
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[]);
    s.gate.on_served(Ticket(3), &mut s.out);
    s.expect(&[flush(1, ALL_PAGES)]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Lost, &mut s.out);
    s.expect(&[Effect::Release {
        revoke: RevokeId(1),
        is_data_lost: true,
    }]);
}

#[test]
fn a_truncate_gives_way_to_write_back() {
    let cut = ByteRange::new(0, u64::MAX);
    let mut s = Script::new(true);
    assert_eq!(s.ask_without(1, RequestKind::SetSize, cut), Verdict::Park);
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    let interrupted = Effect::Fail {
        ticket: Ticket(1),
        why: Failure::Interrupted,
    };
    s.expect(&[interrupted, notify(0, ALL_PAGES)]);
    assert_eq!(s.ask(2, RequestKind::SetSize, cut), Verdict::Serve);
    let verdict = s.ask_without(3, RequestKind::SetSize, cut);
    assert_eq!(verdict, Verdict::Fail(Failure::Interrupted));
    // NOWRITE is the whole file's, so the range does not matter.
    let far = ByteRange::new(9 * PAGE_SIZE, u64::MAX);
    let verdict = s.ask_without(4, RequestKind::SetSize, far);
    assert_eq!(verdict, Verdict::Fail(Failure::Interrupted));
    // Without mappings nothing is written back, and it waits.
    let mut s = Script::new(false);
    assert_eq!(s.ask_without(1, RequestKind::SetSize, cut), Verdict::Park);
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    s.expect(&[notify(0, ALL_PAGES)]);
}

#[test]
fn a_downgrade_leaves_reads_and_pages_alone() {
    let demoted = Scope {
        demoted: RangeSet::of(ALL_PAGES),
        demoted_pages: RangeSet::of(ALL_PAGES),
        attributes: AttributesGo::Demoted,
        ..Scope::default()
    };
    let mut s = Script::new(false);
    s.gate
        .begin_revoke(RevokeId(1), demoted.clone(), &mut s.out);
    s.expect(&[flush(1, ALL_PAGES)]);
    assert_eq!(s.ask(1, RequestKind::Read, pages(0, 1)), Verdict::Serve);
    assert_eq!(
        s.ask(2, RequestKind::Attributes, ByteRange::default()),
        Verdict::Serve
    );
    assert_eq!(s.ask(3, RequestKind::Write, pages(0, 1)), Verdict::Park);
    // A file that becomes mappable in between loses its pages after all.
    s.gate.set_mappable(true);
    s.gate.on_served(Ticket(1), &mut s.out);
    s.gate.on_served(Ticket(2), &mut s.out);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[notify(0, ALL_PAGES)]);
}

/// Who uses a mapped page all the time asks for it again in each pass: from the third on he is parked by a flush.
#[test]
fn a_page_in_constant_use_is_given_up() {
    let mut s = Script::new(true);
    let page = pages(0, 1);
    s.gate.begin_revoke(RevokeId(1), lost(page), &mut s.out);
    for pass in 0..2 {
        s.expect(&[notify(pass, page)]);
        assert_eq!(s.ask(pass, RequestKind::Read, page), Verdict::Serve);
        s.gate.on_served(Ticket(pass), &mut s.out);
        s.gate.on_notified(NotifyId(pass), &mut s.out);
    }
    s.expect(&[flush(1, page)]);
    // Nothing is notified now, so that the page can wait.
    assert_eq!(s.ask(2, RequestKind::Read, page), Verdict::Park);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[flush(1, page)]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[release(1), Effect::Retry { ticket: Ticket(2) }]);
}

/// The last page of a file is written back up to the file's end only, and what leaves may begin behind that.
#[test]
fn write_back_of_a_part_of_a_notified_page_is_served() {
    let mut s = Script::new(true);
    let part = ByteRange::new(0, 864);
    assert_eq!(
        s.ask_without(1, RequestKind::WriteBack, part),
        Verdict::Park
    );
    let scope = Scope {
        lost: RangeSet::of(ByteRange::new(864, u64::MAX)),
        lost_pages: RangeSet::of(pages(0, 1)),
        ..Scope::default()
    };
    s.gate.begin_revoke(RevokeId(1), scope, &mut s.out);
    let ticket = Ticket(1);
    s.expect(&[Effect::Serve { ticket }]);
    s.gate.on_served(ticket, &mut s.out);
    s.expect(&[notify(0, pages(0, 1))]);
    assert_eq!(
        s.ask_without(2, RequestKind::WriteBack, part),
        Verdict::Serve
    );
}

/// A truncate that is not sent yet waits for the WRITE of one page (`fuse_set_nowrite`) and keeps back that of another one,
/// which the notification waits for. So no write-back may wait for a token meanwhile, wherever it goes.
#[test]
fn write_back_of_other_pages_than_those_notified_is_served() {
    let mut s = Script::new(true);
    let far = pages(0, 1);
    assert_eq!(s.ask_without(1, RequestKind::WriteBack, far), Verdict::Park);
    s.gate
        .begin_revoke(RevokeId(1), lost(pages(2, 4)), &mut s.out);
    let ticket = Ticket(1);
    s.expect(&[Effect::Serve { ticket }, notify(0, pages(2, 4))]);
    s.gate.on_served(ticket, &mut s.out);
    assert_eq!(
        s.ask_without(2, RequestKind::WriteBack, far),
        Verdict::Serve
    );
    s.gate.on_served(Ticket(2), &mut s.out);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[notify(1, pages(2, 4))]);

    // A drop notifies, too.
    let mut s = Script::new(true);
    assert_eq!(s.ask_without(1, RequestKind::WriteBack, far), Verdict::Park);
    s.gate
        .begin_drop(RevokeId(1), RangeSet::of(pages(2, 4)), &mut s.out);
    s.expect(&[Effect::Serve { ticket }, notify(0, pages(2, 4))]);
    assert_eq!(
        s.ask_without(2, RequestKind::WriteBack, far),
        Verdict::Serve
    );
}

#[test]
fn attributes_that_the_kernel_was_not_given_are_not_notified() {
    let mut s = Script::new(false);
    let attributes = |is_attr_unknown| Scope {
        attributes: AttributesGo::Lost,
        is_attr_unknown,
        ..Scope::default()
    };
    s.gate
        .begin_revoke(RevokeId(1), attributes(true), &mut s.out);
    assert!(matches!(s.out[..], [Effect::Flush { .. }]));
    s.out.clear();
    s.gate
        .begin_revoke(RevokeId(2), attributes(false), &mut s.out);
    assert!(matches!(s.out[..], [Effect::Notify { pages: None, .. }]));
}

#[test]
fn a_release_waits_while_another_revoke_notifies_its_pages() {
    let mut s = Script::new(false);
    s.gate
        .begin_revoke(RevokeId(1), lost(pages(0, 1)), &mut s.out);
    s.gate
        .begin_revoke(RevokeId(2), lost(ALL_PAGES), &mut s.out);
    s.expect(&[notify(0, pages(0, 1)), notify(1, ALL_PAGES)]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[flush(1, pages(0, 1))]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[]); // A READ of page 0 would still have to be served.
    assert_eq!(s.ask(1, RequestKind::Read, pages(0, 1)), Verdict::Serve);
    s.gate.on_served(Ticket(1), &mut s.out);
    s.expect(&[notify(2, pages(0, 1))]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[notify(3, pages(0, 1))]);
}

/// The token of a page's first half has gone and come back while its second half is leaving. A third revoke notifies the
/// page then: what the second half's revoke knew of the page must not be forgotten with the first release, or its release
/// would not wait, and a page read meanwhile would stay in the cache.
#[test]
fn a_token_that_came_back_brings_its_pages_back_to_other_revokes() {
    let first = |pages| Scope {
        lost: RangeSet::of(ByteRange::new(PAGE_SIZE, PAGE_SIZE + 1024)),
        lost_pages: RangeSet::of(pages),
        ..Scope::default()
    };
    let second = ByteRange::new(PAGE_SIZE + 1024, 2 * PAGE_SIZE);
    let mut s = Script::new(false);
    let scope = Scope {
        lost: RangeSet::of(second),
        ..lost(pages(1, 2))
    };
    s.gate.begin_revoke(RevokeId(1), scope, &mut s.out);
    s.expect(&[notify(0, pages(1, 2))]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[flush(1, second)]);
    s.gate
        .begin_revoke(RevokeId(2), first(pages(1, 2)), &mut s.out);
    s.expect(&[notify(1, pages(1, 2))]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.out.clear();
    s.gate
        .on_flushed(RevokeId(2), FlushOutcome::Committed, &mut s.out);
    s.expect(&[release(2)]);
    // Granted again, used, revoked again.
    s.gate
        .begin_revoke(RevokeId(3), first(pages(0, 2)), &mut s.out);
    s.expect(&[notify(2, pages(0, 2))]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[]); // A READ of page 1 can still be served.
    assert_eq!(s.ask(1, RequestKind::Read, pages(1, 2)), Verdict::Serve);
    s.gate.on_served(Ticket(1), &mut s.out);
    s.expect(&[notify(3, pages(1, 2))]); // The first revoke's: it was read under its token.
    s.gate.on_notified(NotifyId(2), &mut s.out);
    s.expect(&[notify(4, pages(1, 2))]);
    s.gate.on_notified(NotifyId(3), &mut s.out);
    s.expect(&[flush(1, second)]);
}

#[test]
fn a_drop_leaves_the_token_and_parked_reads_alone() {
    let mut s = Script::new(false);
    assert_eq!(s.ask(1, RequestKind::Write, pages(1, 2)), Verdict::Serve);
    assert_eq!(
        s.ask_without(2, RequestKind::Read, pages(2, 6)),
        Verdict::Park
    );
    s.gate
        .begin_drop(RevokeId(7), RangeSet::of(pages(1, 3)), &mut s.out);
    s.expect(&[notify(0, pages(1, 2))]);
    assert_eq!(s.ask(3, RequestKind::Read, pages(1, 2)), Verdict::Serve);
    let verdict = s.ask_without(4, RequestKind::Read, pages(1, 6));
    assert_eq!(verdict, Verdict::Fail(Failure::Again));
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[release(7)]);
}

#[test]
fn a_lapse_fails_first_and_notifies_then() {
    let mut s = Script::new(false);
    assert_eq!(
        s.ask_without(1, RequestKind::Read, pages(0, 1)),
        Verdict::Park
    );
    s.gate.begin_lapse(&mut s.out);
    let fail = Effect::Fail {
        ticket: Ticket(1),
        why: Failure::LeaseLost,
    };
    s.expect(&[fail, notify(0, ByteRange::ALL)]);
    let verdict = s.ask(2, RequestKind::Read, pages(0, 1));
    assert_eq!(verdict, Verdict::Fail(Failure::LeaseLost));
    assert_eq!(
        s.ask(3, RequestKind::Attributes, ByteRange::default()),
        Verdict::Park
    );
    s.gate.on_notify_overdue(&mut s.out);
    s.expect(&[Effect::Abort]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[Effect::LapseDone, retry(3)]);
}

#[test]
fn a_lease_that_is_over_drops_pages_and_keeps_requests() {
    let mut s = Script::new(true);
    let rest = ByteRange::new(pages(0, 3).end, u64::MAX);
    assert_eq!(s.ask(1, RequestKind::Read, pages(0, 1)), Verdict::Serve);
    assert_eq!(
        s.ask_without(2, RequestKind::Read, pages(1, 2)),
        Verdict::Park
    );
    assert_eq!(
        s.ask_without(3, RequestKind::WriteBack, pages(2, 3)),
        Verdict::Park
    );
    assert_eq!(s.ask_without(4, RequestKind::SetSize, rest), Verdict::Park);
    s.gate.suspend(&mut s.out);
    // What a notification would wait for goes first; pages that wait to be READ hold nothing old.
    let serve = Effect::Serve { ticket: Ticket(3) };
    let give_up = Effect::Fail {
        ticket: Ticket(4),
        why: Failure::Interrupted,
    };
    let rest = ByteRange::new(pages(0, 2).end, u64::MAX);
    s.expect(&[serve, give_up, notify(0, rest)]);
    s.gate.on_served(Ticket(3), &mut s.out);
    assert_eq!(
        s.ask(5, RequestKind::Read, pages(4, 5)),
        Verdict::Fail(Failure::LeaseLost)
    );
    assert_eq!(
        s.ask(6, RequestKind::WriteBack, pages(4, 5)),
        Verdict::Serve
    );
    s.gate.on_served(Ticket(6), &mut s.out);
    assert_eq!(s.ask(7, RequestKind::Write, pages(4, 5)), Verdict::Park);
    assert_eq!(
        s.ask(8, RequestKind::Attributes, ByteRange::default()),
        Verdict::Park
    );
    s.gate.on_notify_overdue(&mut s.out);
    s.expect(&[Effect::Abort]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[notify(1, rest)]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[Effect::LapseDone]);
    assert_eq!(s.ask(9, RequestKind::Read, pages(4, 5)), Verdict::Park);
    s.gate.on_notify_overdue(&mut s.out);
    s.expect(&[]);
    s.gate.resume(&mut s.out);
    s.expect(&[retry(2), retry(7), retry(8), retry(9)]);
    s.gate.on_served(Ticket(1), &mut s.out);
    assert!(s.gate.is_idle());
}

#[test]
fn revokes_wait_for_the_lease_and_go_on() {
    let mut s = Script::new(false);
    s.gate
        .begin_revoke(RevokeId(1), lost(pages(0, 1)), &mut s.out);
    s.expect(&[notify(0, pages(0, 1))]);
    s.gate.suspend(&mut s.out);
    s.expect(&[notify(1, ByteRange::ALL)]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[]);
    s.gate
        .begin_revoke(RevokeId(2), lost(pages(2, 3)), &mut s.out);
    s.expect(&[]);
    // The lease comes back while a notification of its end is still under way: a READ of its pages is served.
    s.gate.resume(&mut s.out);
    s.expect(&[flush(1, pages(0, 1)), notify(2, pages(2, 3))]);
    assert_eq!(s.ask(1, RequestKind::Read, pages(5, 6)), Verdict::Serve);
    assert_eq!(
        s.ask_without(2, RequestKind::Read, pages(5, 6)),
        Verdict::Fail(Failure::Again)
    );
    s.gate.on_served(Ticket(1), &mut s.out);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    // A READ of the page could still come, which only the old token can serve.
    s.expect(&[]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[release(1)]);
    s.gate.check();
}

#[test]
fn tokens_that_are_gone_after_all_fail_what_waits() {
    let mut s = Script::new(false);
    s.gate.suspend(&mut s.out);
    s.expect(&[notify(0, ByteRange::ALL)]);
    assert_eq!(s.ask(1, RequestKind::Write, pages(0, 1)), Verdict::Park);
    s.gate.begin_lapse(&mut s.out);
    let fail = Effect::Fail {
        ticket: Ticket(1),
        why: Failure::LeaseLost,
    };
    s.expect(&[fail]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[notify(1, ByteRange::ALL)]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[Effect::LapseDone]);
    assert!(s.gate.is_idle());
}

#[test]
fn a_directory_is_made_shared_once() {
    let now = Instant(5);
    let mut gate = DirectoryGate::new(Rules::DEFAULT, true);
    let mut out = Vec::new();
    assert_eq!(gate.on_request(Ticket(1), true), DirectoryVerdict::Serve);
    assert_eq!(gate.timeout(Duration(7)), Duration(7));
    gate.begin_revoke(now, RevokeId(1), &mut out);
    assert_eq!(
        out,
        [DirectoryEffect::DropNames {
            notify: NotifyId(0)
        }]
    );
    // R7: answered while names are dropped, and the answer is not cached.
    assert_eq!(gate.on_request(Ticket(2), true), DirectoryVerdict::Serve);
    assert_eq!(gate.timeout(Duration(7)), Duration(0));
    gate.on_notified(now, NotifyId(0), &mut out);
    gate.on_served(now, Ticket(1), &mut out);
    assert_eq!(out.len(), 1);
    gate.on_served(now, Ticket(2), &mut out);
    assert_eq!(
        out[1..],
        [DirectoryEffect::Release {
            revoke: RevokeId(1)
        }]
    );
    // Shared now: the next revoke has nothing to drop.
    out.clear();
    assert_eq!(gate.timeout(Duration(7)), Duration(0));
    gate.begin_revoke(now, RevokeId(2), &mut out);
    assert_eq!(
        out,
        [DirectoryEffect::Release {
            revoke: RevokeId(2)
        }]
    );
    gate.check();
}

#[test]
fn without_epochs_the_time_outs_are_waited_out() {
    let mut gate = DirectoryGate::new(Rules::DEFAULT, false);
    let mut out = Vec::new();
    assert_eq!(gate.timeout(Duration(7)), Duration(7));
    gate.begin_revoke(Instant(0), RevokeId(1), &mut out);
    let until = Instant(0) + Duration::from_millis(types::limits::KERNEL_TIMEOUT_MS_MAX);
    assert_eq!(gate.next_timeout(), Some(until));
    assert_eq!(gate.on_request(Ticket(1), true), DirectoryVerdict::Serve);
    gate.on_served(Instant(1), Ticket(1), &mut out);
    assert_eq!(out, []);
    gate.on_timeout(until, &mut out);
    assert_eq!(
        out,
        [DirectoryEffect::Release {
            revoke: RevokeId(1)
        }]
    );
}

/// Begins a revoke of a part of page 2, which no token covers whole.
fn begin_with_part(s: &mut Script) {
    let part = ByteRange::new(2 * PAGE_SIZE + 10, 2 * PAGE_SIZE + 20);
    let scope = Scope {
        lost: RangeSet::of(part),
        ..Scope::default()
    };
    s.gate.begin_revoke(RevokeId(1), scope, &mut s.out);
    s.expect(&[flush(1, part)]);
}

/// A page that no token covered whole when a revoke began, and a newer one does: if it is READ because another's
/// notification waits for it, this revoke drops it too before it is released.
#[test]
fn a_page_covered_since_a_revoke_began_is_dropped_by_it() {
    let mut s = Script::new(false);
    begin_with_part(&mut s);
    // A grant has come that covers the page, and the next revoke takes it.
    s.gate
        .begin_revoke(RevokeId(2), lost(pages(2, 3)), &mut s.out);
    s.expect(&[notify(0, pages(2, 3))]);
    assert_eq!(s.ask(1, RequestKind::Read, pages(2, 3)), Verdict::Serve);
    s.gate.on_served(Ticket(1), &mut s.out);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[notify(1, pages(2, 3))]);
}

/// A page is notified that a revoke takes a part of, though the kernel could not have it when that began: a READ of it can
/// be served until the part goes. So the part waits for the notification, and afterwards nobody notifies the page.
#[test]
fn a_part_of_a_page_that_is_notified_waits() {
    let mut s = Script::new(true);
    begin_with_part(&mut s);
    // A grant has come that covers the page, and the next revoke takes it.
    s.gate
        .begin_revoke(RevokeId(2), lost(pages(2, 4)), &mut s.out);
    s.expect(&[notify(0, pages(2, 4))]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[release(1), notify(1, pages(3, 4))]);
}

/// R13: what is on its way into the page cache would stay there.
#[test]
fn nothing_goes_while_bytes_are_on_their_way() {
    let mut s = Script::new(false);
    s.gate.begin_fill();
    s.gate
        .begin_revoke(RevokeId(1), lost(ALL_PAGES), &mut s.out);
    s.gate
        .begin_drop(RevokeId(2), RangeSet::of(pages(0, 1)), &mut s.out);
    s.expect(&[]);
    assert!(!s.gate.is_idle());
    s.gate.end_fill(&mut s.out);
    s.expect(&[notify(0, pages(0, 1)), notify(1, ALL_PAGES)]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[release(2)]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.expect(&[flush(1, ALL_PAGES)]);
}

#[test]
fn who_changes_the_file_waits_for_bytes_on_their_way() {
    let mut s = Script::new(false);
    s.gate.begin_fill();
    assert_eq!(s.ask(1, RequestKind::Write, pages(0, 1)), Verdict::Park);
    assert_eq!(s.ask(2, RequestKind::SetSize, ALL_PAGES), Verdict::Park);
    // These hold nothing up, or must not be held up.
    assert_eq!(
        s.ask(3, RequestKind::Attributes, ByteRange::default()),
        Verdict::Serve
    );
    assert_eq!(s.ask(4, RequestKind::Read, pages(2, 3)), Verdict::Serve);
    s.gate.on_token_granted(&mut s.out);
    s.expect(&[retry(1), retry(2)]);
    assert_eq!(s.ask(1, RequestKind::Write, pages(0, 1)), Verdict::Park);
    assert_eq!(s.ask(2, RequestKind::SetSize, ALL_PAGES), Verdict::Park);
    s.gate.end_fill(&mut s.out);
    s.expect(&[retry(1), retry(2)]);
    assert_eq!(s.ask(1, RequestKind::Write, pages(0, 1)), Verdict::Serve);
}

#[test]
fn a_lease_that_is_over_waits_for_bytes_on_their_way() {
    let mut s = Script::new(false);
    s.gate.begin_fill();
    s.gate.suspend(&mut s.out);
    s.expect(&[]);
    s.gate.end_fill(&mut s.out);
    s.expect(&[notify(0, ByteRange::ALL)]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[Effect::LapseDone]);
    let mut s = Script::new(false);
    s.gate.begin_fill();
    s.gate.begin_lapse(&mut s.out);
    s.expect(&[]);
    s.gate.end_fill(&mut s.out);
    s.expect(&[notify(0, ByteRange::ALL)]);
}

/// What is to be cleared before a writable open is answered, a revoke that begins meanwhile notifies, too: a READ of that page is served
/// under the read token as long as the open is not answered, and it is not before that revoke is over. It was: the READ could be neither
/// served nor parked, and its application was told EAGAIN.
#[test]
fn a_writable_open_waits_for_revokes_that_begin_while_the_kernel_is_cleared() {
    let mut s = Script::new(false);
    let page = pages(1, 2);
    let kept = RangeSet::of(pages(0, 2));
    s.gate.begin_clearing(RevokeId(7), kept, &mut s.out);
    s.expect(&[notify(0, pages(0, 2))]);
    s.gate.begin_revoke(RevokeId(1), lost(page), &mut s.out);
    s.expect(&[notify(1, page)]);
    s.gate.on_notified(NotifyId(0), &mut s.out);
    s.expect(&[]);
    // The kernel waits for the folio of this READ: it has to be served.
    assert_eq!(
        s.ask_without(1, RequestKind::Read, page),
        Verdict::Fail(Failure::Again)
    );
    let asked = request(1, RequestKind::Read, page, false);
    assert!(s.gate.borrow(asked, &mut s.out));
    s.expect(&[]);
    s.gate.on_notified(NotifyId(1), &mut s.out);
    s.gate.on_served(Ticket(1), &mut s.out);
    // What it has brought is dropped once more, by both.
    s.expect(&[notify(2, page), notify(3, page)]);
    s.gate.on_notified(NotifyId(2), &mut s.out);
    s.gate.on_notified(NotifyId(3), &mut s.out);
    s.expect(&[flush(1, page)]);
    s.gate
        .on_flushed(RevokeId(1), FlushOutcome::Committed, &mut s.out);
    s.expect(&[release(1), release(7)]);
    assert!(s.gate.is_idle());
}
