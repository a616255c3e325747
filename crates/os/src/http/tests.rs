//! Requests good and bad over TCP, and connections that say nothing.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use super::*;

fn start() -> Server {
    let pages = |path: &str| {
        (path == "/metrics").then(|| Page {
            content_type: "text/plain",
            text: "a page".repeat(100_000),
        })
    };
    Server::start((Ipv4Addr::LOCALHOST, 0).into(), Box::new(pages)).expect("started")
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("connected");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("set");
    stream.set_write_timeout(limit).expect("set");
    stream
}

fn ask(server: &Server, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).expect("sent");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("answered");
    said
}

#[test]
fn each_request_has_its_answer() {
    let server = start();
    let said = ask(&server, b"GET /metrics?x=y HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = said.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Length: 600000"), "{head}");
    assert_eq!(body.len(), 600_000);
    let head = ask(&server, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 600000"));
    let many = "X: y\r\n".repeat(HEADER_COUNT_MAX + 1);
    let long = "x".repeat(HEAD_SIZE_MAX);
    let endless = "x".repeat(HEAD_SIZE_MAX * 100);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("GET /metrics/ HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("\u{0}\u{1}\u{2}\r\n\r\n".to_owned(), "400"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        ("GET /metrics HTTP/9.9\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "431"),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\nX: {endless}"), "431"),
    ] {
        let said = ask(&server, request.as_bytes());
        let is_right = said.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(
            is_right,
            "{:?}: {said:?}",
            &request[..request.len().min(40)]
        );
    }
}

#[test]
fn a_request_may_come_in_pieces() {
    let server = start();
    let mut stream = connect(&server);
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).expect("sent");
    }
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("answered");
    assert!(said.starts_with("HTTP/1.1 200"));
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    let server = start();
    let mut idle: Vec<TcpStream> = (0..100).map(|_| connect(&server)).collect();
    // Some begin a request and do not go on.
    for stream in idle.iter_mut().step_by(2) {
        let _ = stream.write_all(b"GET /met");
    }
    let said = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 200"));
    // All but the last few were ended, and these are when their time is over; a reset is an end, too.
    for stream in &mut idle {
        let mut byte = [0];
        assert!(!matches!(stream.read(&mut byte), Ok(1)));
    }
}

#[test]
fn who_does_not_read_is_dropped() {
    let server = start();
    let mut stuck: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
    for stream in &mut stuck {
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .expect("sent");
    }
    let said = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert_eq!(said.len() - said.find("\r\n\r\n").expect("a head"), 600_004);
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < PATIENCE / 2, "it ends at once");
}

#[test]
fn a_taken_port_is_said() {
    let server = start();
    let pages: Pages = Box::new(|_| None);
    let error = Server::start(server.address(), pages).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}
