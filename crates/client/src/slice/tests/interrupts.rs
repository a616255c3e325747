//! Signals to who waits.

use types::Duration;

use super::*;

fn read(s: &mut Story, fills_page_cache: bool) -> Ticket {
    let effects = s.ask(Operation::Read {
        ino: INO,
        handle: Handle(0),
        offset: 0,
        length: u32::try_from(PAGE).expect("small"),
        fills_page_cache,
    });
    let asks = |effect: &Effect| matches!(effect, Effect::Call(_, _, Ask::Acquire { .. }));
    assert!(effects.iter().any(asks), "it waits for tokens: {effects:?}");
    Ticket(s.ticket)
}

fn is_interrupted(effects: &[Effect], ticket: Ticket) -> bool {
    let error = Response::Error(Errno::EINTR);
    let answers = |e: &Effect| matches!(e, Effect::Yield(of, response) if *of == ticket && *response == error);
    effects.iter().any(answers)
}

/// Of a READ of pages the kernel would make SIGBUS.
#[test]
fn a_wait_goes_on_for_some_seconds_after_a_signal() {
    for fills_page_cache in [true, false] {
        ends_late(fills_page_cache);
    }
}

fn ends_late(fills_page_cache: bool) {
    let mut s = Story::new(PAGE);
    let ticket = read(&mut s, fills_page_cache);
    let effects = s.input(Input::Interrupt(ticket.into()));
    assert!(!is_interrupted(&effects, ticket), "{effects:?}");
    s.now = s.now + Duration::from_secs(4);
    let effects = s.input(Input::Tick);
    assert!(!is_interrupted(&effects, ticket), "{effects:?}");
    s.now = s.now + Duration::from_secs(2);
    let effects = s.input(Input::Tick);
    assert!(is_interrupted(&effects, ticket), "{effects:?}");
    let effects = s.input(Input::Tick);
    assert!(!is_interrupted(&effects, ticket), "once: {effects:?}");
}

/// Reads of the kernel begin with it.
#[test]
fn a_question_for_attributes_ends_so_too_and_its_answer_tells_nobody() {
    let mut s = Story::new(PAGE);
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    let ticket = Ticket(s.ticket);
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Acquire { .. }) => Some(*call),
        _ => None,
    });
    let call = call.expect("its owner is asked");
    s.input(Input::Interrupt(ticket.into()));
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    assert!(is_interrupted(&effects, ticket), "{effects:?}");
    let refusal = Body::Refused(Errno::EIO);
    let effects = s.input(Input::Answer(call, Box::new(Answer::bare(refusal))));
    let tells = |e: &Effect| matches!(e, Effect::Reply(..) | Effect::Yield(..));
    assert!(!effects.iter().any(tells), "{effects:?}");
}
