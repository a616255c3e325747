//! Asking a running daemon through its control socket: one line there, one JSON line back.
//!
//! Invariant: whoever asks waits for a limited time in all, whatever the daemon does: also where it does not accept,
//! or sends its answer byte by byte.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::failure::{Failure, Result};

/// Longest answer that is read, in bytes.
const ANSWER_SIZE_MAX: u64 = 16 << 20;
/// How long a command waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The daemon's answer.
    Said(Value),
    /// Nobody listens: the daemon is not running.
    Absent,
    /// It listens and does not answer in time: it hangs.
    Silent,
}

/// Asks the daemon behind `socket` for `request` and waits at most `limit`.
///
/// # Errors
/// An answer that is no JSON, or a socket that cannot be used for another reason.
pub fn ask(socket: &Path, request: &str, limit: Duration) -> Result<Answer> {
    // Time-outs of the socket hold for one call each, and connecting has none: the thread ends with this process at
    // the latest.
    let (said, answer) = mpsc::channel();
    let (path, line) = (socket.to_owned(), request.to_owned());
    std::thread::spawn(move || {
        // Nobody waits any longer: then nobody hears it.
        let _ = said.send(exchange(&path, &line, limit));
    });
    answer.recv_timeout(limit).unwrap_or(Ok(Answer::Silent))
}

fn exchange(socket: &Path, request: &str, limit: Duration) -> Result<Answer> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(Answer::Absent);
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            return Err(Failure::io("connect to", socket, &e)
                .help("the daemon answers root only: run the command with sudo"));
        }
        Err(e) => return Err(Failure::io("connect to", socket, &e)),
    };
    let mut line = String::new();
    let exchange = stream
        .set_read_timeout(Some(limit))
        .and_then(|()| stream.set_write_timeout(Some(limit)))
        .and_then(|()| stream.write_all(format!("{request}\n").as_bytes()))
        .and_then(|()| {
            BufReader::new(stream)
                .take(ANSWER_SIZE_MAX)
                .read_line(&mut line)
        });
    match exchange {
        Ok(0) => return Ok(Answer::Absent),
        Ok(_) => {}
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Ok(Answer::Silent);
        }
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            return Ok(Answer::Absent);
        }
        Err(e) => return Err(Failure::io("talk through", socket, &e)),
    }
    serde_json::from_str(&line).map(Answer::Said).map_err(|e| {
        Failure::new(format!(
            "the daemon behind {} answered no JSON: {e}",
            socket.display()
        ))
    })
}

/// The same for a daemon that must be running.
pub fn require(socket: &Path, request: &str) -> Result<Value> {
    require_within(socket, request, PATIENCE)
}

/// The same for a request that the daemon has so long for.
pub fn require_within(socket: &Path, request: &str, limit: Duration) -> Result<Value> {
    match ask(socket, request, limit)? {
        Answer::Said(value) => Ok(value),
        Answer::Absent => Err(
            Failure::new(format!("no daemon listens on {}", socket.display()))
                .help("start it with `gupfs up`, or name the right --state"),
        ),
        Answer::Silent => Err(Failure::new(format!(
            "the daemon behind {} did not answer within {} s",
            socket.display(),
            limit.as_secs()
        ))
        .help("see its log; `gupfs down` ends it in any case")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn served(answer: Option<&'static str>) -> Answer {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).expect("bound");
        let (done, wait) = mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut line = String::new();
            BufReader::new(stream.try_clone().expect("cloned"))
                .read_line(&mut line)
                .expect("a request");
            assert_eq!(line, "status\n");
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).expect("answered");
            } else {
                let _ = wait.recv();
            }
        });
        // Who answers has long enough on any machine.
        let limit = answer.map_or(Duration::from_millis(200), |_| Duration::from_secs(20));
        let answer = ask(&socket, "status", limit).expect("asked");
        drop(done);
        server.join().expect("served");
        answer
    }

    /// A daemon that always says a little more keeps nobody.
    #[test]
    fn an_answer_that_does_not_end_is_a_silence() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).expect("bound");
        let (asked, wait) = mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            // Each byte comes well within the limit of one read.
            while wait.recv_timeout(Duration::from_millis(5))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                let _ = stream.write_all(b" ");
            }
        });
        let answer = ask(&socket, "status", Duration::from_millis(100)).expect("asked");
        assert_eq!(answer, Answer::Silent);
        drop(asked);
        server.join().expect("served");
    }

    #[test]
    fn an_answer_a_silence_and_an_end_are_told_apart() {
        assert_eq!(
            served(Some("{\"mounted\":true}\n")),
            Answer::Said(serde_json::json!({"mounted": true}))
        );
        assert_eq!(served(None), Answer::Silent);
        assert_eq!(served(Some("")), Answer::Absent);
        let nobody = ask(
            Path::new("/no/such/socket"),
            "status",
            Duration::from_secs(1),
        );
        assert_eq!(nobody, Ok(Answer::Absent));
    }
}
