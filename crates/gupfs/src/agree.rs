//! The question before what cannot be undone: only the word `yes`, typed at a terminal, is one.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::failure::{Failure, Result};

/// Longest answer that is read, in bytes.
const ANSWER_SIZE_MAX: u64 = 1024;

/// Asks `question` on standard error and waits for the answer.
///
/// # Errors
/// The answer is not `yes`, or nobody can be asked; the message ends with `not_done`, such as 'nothing was repaired'.
pub fn ask(question: &str, not_done: &str) -> Result<()> {
    let refused = |what: &str| {
        Failure::new(format!("{what}: {not_done}"))
            .help("answer yes, or give --yes where nobody can be asked")
    };
    let stdin = std::io::stdin().lock();
    if !stdin.is_terminal() {
        return Err(refused("standard input is no terminal"));
    }
    let mut out = std::io::stderr();
    let asked = write!(out, "{question} Type yes: ").and_then(|()| out.flush());
    asked.map_err(|e| refused(&format!("cannot ask: {e}")))?;
    let mut answer = String::new();
    let heard = std::io::Read::take(stdin, ANSWER_SIZE_MAX).read_line(&mut answer);
    heard.map_err(|e| refused(&format!("no answer: {e}")))?;
    match answer.trim() {
        "yes" => Ok(()),
        other => Err(refused(&format!("{other:?} is not yes"))),
    }
}
