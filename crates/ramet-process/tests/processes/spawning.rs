//! A spawned program starts with one socket and nothing else of its parent.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use ramet_process::{Limits, Received, Zygote, ZygoteError, claim_inherited_socket, inspect};
use rustix::process::getpid;

use crate::harness::{Case, recv_text};

pub(crate) const ZYGOTE_ARGUMENT: &str = "zygote-for-test";

pub(crate) const CASES: &[Case] = &[
    ("a_zygote_is_started_with_one_socket", started_with_one_socket),
    ("a_zygote_ends_with_its_supervisor", ends_with_its_supervisor),
    ("a_program_that_does_not_exist_is_named", a_program_that_does_not_exist),
    ("a_zygote_started_by_hand_says_so", started_by_hand),
];

/// The zygote of these tests: says what it has, then answers until its supervisor is gone.
pub(crate) fn serve() -> ExitCode {
    let socket = claim_inherited_socket().unwrap();
    let descriptors: Vec<String> = inspect::descriptors(getpid())
        .unwrap()
        .into_iter()
        .map(|descriptor| format!("{}={}", descriptor.fd, descriptor.target.display()))
        .collect();
    let environment: Vec<String> = std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    for text in [descriptors.join(" "), environment.join(" ")] {
        // The supervisor may be gone already: the receive below finds out.
        let _ = socket.send(text.as_bytes(), &[]);
    }
    while let Received::Message(message) = socket.recv(Limits::default()).unwrap() {
        let descriptors: Vec<_> = message.descriptors.iter().map(|fd| fd.as_fd()).collect();
        socket.send(&message.bytes, &descriptors).unwrap();
    }
    ExitCode::from(42)
}

fn spawn() -> Zygote {
    Zygote::spawn(Path::new("/proc/self/exe"), &[OsStr::new(ZYGOTE_ARGUMENT)]).unwrap()
}

fn started_with_one_socket() {
    // Descriptors of the supervisor that the zygote must not keep, one as a careless shell passes it on.
    let file = std::fs::File::open("/etc/passwd").unwrap();
    let careless = file.try_clone().unwrap();
    rustix::io::fcntl_setfd(&careless, rustix::io::FdFlags::empty()).unwrap();
    let zygote = spawn();
    let descriptors = recv_text(&zygote.socket);
    let words: Vec<&str> = descriptors.split(' ').collect();
    assert_eq!(words.len(), 4, "{descriptors}");
    assert_eq!(words[..2], ["0=/dev/null", "1=/dev/null"], "{descriptors}");
    assert!(words[3].contains("=socket:["), "{descriptors}");
    assert_eq!(recv_text(&zygote.socket), "RUST_BACKTRACE=0");
    zygote.socket.send(b"hello", &[]).unwrap();
    assert_eq!(recv_text(&zygote.socket), "hello");
}

fn ends_with_its_supervisor() {
    let Zygote { mut process, socket } = spawn();
    drop(socket);
    assert_eq!(process.wait().unwrap().code(), Some(42));
}

fn a_program_that_does_not_exist() {
    let error = Zygote::spawn(Path::new("/does/not/exist"), &[]).unwrap_err();
    assert_eq!(error.to_string(), "/does/not/exist could not be started as the zygote");
}

fn started_by_hand() {
    let error = claim_inherited_socket().unwrap_err();
    assert!(matches!(error, ZygoteError::NotInherited(_)), "{error}");
    let again = claim_inherited_socket();
    assert!(matches!(again, Err(ZygoteError::NotInherited(_))));
}
