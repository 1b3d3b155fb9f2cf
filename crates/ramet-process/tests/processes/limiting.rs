//! What happens at the limits of descriptors and processes: a typed error, and nothing left behind.

use std::os::fd::{AsFd, AsRawFd};

use ramet_process::limits::{raise_descriptor_limit, read};
use ramet_process::{ForkError, Limits, Namespaces, RecvError, SeqPacket, fork_process, inspect};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

use crate::harness::{Case, fork_with_socket, recv_text, run_as_nobody, until_closed};

pub(crate) const CASES: &[Case] = &[
    ("the_descriptor_limit_is_raised", the_limit_is_raised),
    ("no_descriptor_leaks_when_the_limit_is_reached", no_descriptor_leaks),
    ("fork_at_the_descriptor_limit_says_what_to_do", fork_at_the_descriptor_limit),
    ("fork_at_the_process_limit_says_what_to_do", fork_at_the_process_limit),
    ("shared_descriptions_are_found", shared_descriptions_are_found),
];

fn set_soft_limit(descriptors: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
}

fn the_limit_is_raised() {
    set_soft_limit(64);
    let raised = raise_descriptor_limit().unwrap();
    assert_eq!((raised.before, raised.now), (Some(64), getrlimit(Resource::Nofile).maximum));
    assert_eq!(read().descriptors.soft, raised.now);
    assert_eq!(raise_descriptor_limit().unwrap().before, raised.now);
}

fn open_descriptors() -> usize {
    inspect::descriptors(getpid()).unwrap().len()
}

fn no_descriptor_leaks() {
    let (a, b) = SeqPacket::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let before = open_descriptors();
    let highest = null.as_fd();
    for payload in [10, 100_000] {
        a.send(&vec![0; payload], &[highest; 20]).unwrap();
        set_soft_limit(before as u64 + 8);
        assert!(matches!(b.recv(Limits::default()), Err(RecvError::DescriptorsLost { .. })));
        raise_descriptor_limit().unwrap();
        assert_eq!(open_descriptors(), before);
    }
    // The connection goes on.
    a.send(b"next", &[highest]).unwrap();
    assert_eq!(recv_text(&b), "next");
    assert_eq!(open_descriptors(), before);
}

fn fork_at_the_descriptor_limit() {
    // The limit is on numbers: nothing from the lowest free one on.
    let lowest_free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    set_soft_limit(lowest_free as u64);
    let error = fork_process(Namespaces::default(), None).unwrap_err();
    assert!(matches!(error, ForkError::LimitReached { .. }));
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

fn fork_at_the_process_limit() {
    if rustix::process::getuid().is_root() {
        return run_as_nobody("fork_at_the_process_limit_says_what_to_do");
    }
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let error = fork_process(Namespaces::default(), None).unwrap_err();
    assert!(error.to_string().contains("ulimit -u"), "{error}");
}

fn shared_descriptions_are_found() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let own = std::fs::File::open("/dev/zero").unwrap();
    let _twice = own.try_clone().unwrap();
    let (child, socket) = fork_with_socket(Namespaces::default(), |socket| {
        drop(own);
        socket.send(b"ready", &[]).unwrap();
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "ready");
    let groups = inspect::shared_descriptions(&[getpid(), child.pid]).unwrap();
    let number = file.as_raw_fd();
    let group = groups.iter().find(|group| group.iter().any(|d| d.fd == number)).unwrap();
    assert_eq!(group.iter().map(|d| (d.pid, d.fd)).collect::<Vec<_>>(), {
        let mut both = [(getpid().as_raw_nonzero().get(), number), (child.pid.as_raw_nonzero().get(), number)];
        both.sort_unstable();
        both
    });
    drop(socket);
}
