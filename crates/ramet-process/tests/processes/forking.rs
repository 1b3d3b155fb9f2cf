//! A forked process: its number, its end, its namespaces, and what it has of its parent.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ramet_process::inspect;
use ramet_process::signals::{MaskGuard, SignalFd, has_ended, make_interrupting, send_signal, wait_ended};
use ramet_process::{
    Exit, ForkError, Forked, Namespaces, exit_now, fork::join_cgroup, fork_process, reap_children, wait_for,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid};

use crate::harness::{Case, fork, fork_with_socket, recv_text, require_root, run_as_nobody, until_closed};

pub(crate) const CASES: &[Case] = &[
    ("fork_returns_on_both_sides", returns_on_both_sides),
    ("fork_makes_a_pid_namespace", makes_a_pid_namespace),
    ("fork_is_refused_with_threads", is_refused_with_threads),
    ("fork_leaves_the_c_library_usable", leaves_the_c_library_usable),
    ("fork_into_a_cgroup", into_a_cgroup),
    ("fork_of_a_pid_namespace_needs_rights", needs_rights),
    ("fork_of_a_pid_namespace_needs_rights_as_nobody", needs_rights_as_nobody),
    ("ends_are_reported", ends_are_reported),
    ("signals_are_read_from_a_descriptor", signals_are_read),
    ("an_interrupting_signal_interrupts", an_interrupting_signal),
];

fn returns_on_both_sides() {
    let parent = getpid();
    let mut value = 1;
    let (child, socket) = fork_with_socket(Namespaces::default(), |socket| {
        value += 1;
        assert_eq!(getppid(), Some(parent));
        socket.send(format!("{} {value}", getpid()).as_bytes(), &[]).unwrap();
    });
    assert_eq!(recv_text(&socket), format!("{} 2", child.pid));
    assert_eq!(value, 1);
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}

fn makes_a_pid_namespace() {
    require_root();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        assert_eq!((getpid().as_raw_nonzero().get(), getppid()), (1, None));
        socket.send(b"in", &[]).unwrap();
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "in");
    let pids = inspect::status(child.pid).unwrap().pids;
    assert_eq!(pids[1..], [1]);
    assert!(inspect::children(getpid()).unwrap().contains(&child.pid));
    assert!(!has_ended(&child.pidfd).unwrap());
    drop(socket);
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}

fn is_refused_with_threads() {
    let (send, recv) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || recv.recv());
    assert!(matches!(fork_process(Namespaces::default(), None), Err(ForkError::MultiThreaded)));
    drop(send);
    assert!(thread.join().unwrap().is_err());
}

/// Threads, locks, allocation and abort in a child that the C library did not make itself.
fn leaves_the_c_library_usable() {
    require_root();
    for namespaces in [Namespaces::default(), Namespaces { pid: true }] {
        let child = fork(namespaces, || {
            let numbers: Vec<usize> = (0..4)
                .map(|n| std::thread::spawn(move || vec![n; 100_000].len() + n))
                .collect::<Vec<_>>()
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            assert_eq!(numbers, [100_000, 100_001, 100_002, 100_003]);
        });
        assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
    }
    let child = fork(Namespaces::default(), || std::process::abort());
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Signal(libc::SIGABRT));
    // As process 1 of its namespace it is deaf to its own SIGABRT, and still ends.
    let child = fork(Namespaces { pid: true }, || std::process::abort());
    assert!(matches!(wait_for(&child.pidfd).unwrap(), Exit::Signal(_)));
}

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
    PathBuf::from(mount.expect("a cgroup version 2 hierarchy must be mounted")[1])
}

fn cgroup_of(pid: rustix::process::Pid) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Self {
        let path = cgroup2().join(format!("ramet-test-{name}-{}", getpid()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn is_of(&self, pid: rustix::process::Pid) -> bool {
        Path::new(&cgroup_of(pid)).file_name() == self.0.file_name()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
    }
}

fn into_a_cgroup() {
    require_root();
    let cgroup = Cgroup::new("born");
    let directory = open(&cgroup.0, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (ours, theirs) = ramet_process::SeqPacket::pair().unwrap();
    let child = match fork_process(Namespaces { pid: true }, Some(directory.as_fd())).unwrap() {
        Forked::Parent(child) => child,
        Forked::Child => {
            drop(ours);
            until_closed(&theirs);
            exit_now(0)
        }
    };
    assert!(cgroup.is_of(child.pid), "{}", cgroup_of(child.pid));
    assert!(!cgroup.is_of(getpid()));
    drop(ours);
    wait_for(&child.pidfd).unwrap();

    let joined = Cgroup::new("joined");
    let procs = open(joined.0.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        join_cgroup(procs.as_fd()).unwrap();
        socket.send(b"joined", &[]).unwrap();
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "joined");
    assert!(joined.is_of(child.pid));
    drop(socket);
    wait_for(&child.pidfd).unwrap();
}

fn needs_rights() {
    run_as_nobody("fork_of_a_pid_namespace_needs_rights_as_nobody");
}

fn needs_rights_as_nobody() {
    if rustix::process::getuid().is_root() {
        return run_as_nobody("fork_of_a_pid_namespace_needs_rights_as_nobody");
    }
    let error = fork_process(Namespaces { pid: true }, None).unwrap_err();
    assert!(matches!(error, ForkError::Refused { source: Errno::PERM, .. }), "{error}");
}

fn ends_are_reported() {
    let ended = fork(Namespaces::default(), || exit_now(7));
    let killed = fork(Namespaces::default(), || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    assert!(wait_ended(&ended.pidfd, Some(Duration::from_secs(30))).unwrap());
    let reaped = reap_children().unwrap();
    assert_eq!(reaped.iter().map(|one| (one.pid, one.exit)).collect::<Vec<_>>(), [(ended.pid, Exit::Code(7))]);
    assert!(reap_children().unwrap().is_empty());
    send_signal(&killed.pidfd, Signal::KILL).unwrap();
    assert_eq!(wait_for(&killed.pidfd).unwrap(), Exit::Signal(9));
    assert_eq!(send_signal(&killed.pidfd, Signal::KILL), Err(Errno::SRCH));
    assert!(reap_children().unwrap().is_empty(), "without children there is nothing to collect");
    assert!(wait_for(&killed.pidfd).is_err());
}

fn signals_are_read() {
    MaskGuard::block(&[Signal::CHILD]).unwrap().keep();
    let signals = SignalFd::new(&[Signal::CHILD]).unwrap();
    assert_eq!(signals.next_pending().unwrap(), None);
    let child = fork(Namespaces::default(), || ());
    assert!(wait_ended(&signals, Some(Duration::from_secs(30))).unwrap(), "the descriptor becomes readable");
    let received = signals.next_pending().unwrap().unwrap();
    assert_eq!((received.number, received.pid), (libc::SIGCHLD, Some(child.pid)));
    assert_eq!(reap_children().unwrap().len(), 1);
}

fn an_interrupting_signal() {
    let (child, socket) = fork_with_socket(Namespaces::default(), |socket| {
        make_interrupting(Signal::USR1).unwrap();
        socket.send(b"ready", &[]).unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(socket, &mut byte), Err(Errno::INTR));
    });
    assert_eq!(recv_text(&socket), "ready");
    // It may not be in read() yet: signal until it has ended.
    while !wait_ended(&child.pidfd, Some(Duration::from_millis(10))).unwrap() {
        send_signal(&child.pidfd, Signal::USR1).unwrap();
    }
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}
