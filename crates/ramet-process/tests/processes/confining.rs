//! A confined process has no rights, and none of its threads or children gets one back.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ramet_process::confinement::Confinement;
use ramet_process::signals::{own_pidfd, send_signal, wait_ended};
use ramet_process::{
    ConfinementError, Credentials, Exit, HostDescriptors, Limits, Namespaces, Received, SeqPacket, inspect, wait_for,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, set_child_subreaper};

use crate::harness::{Case, NOBODY, fork, fork_with_socket, recv_text, require_root, run_as_nobody, until_closed};

pub(crate) const CASES: &[Case] = &[
    ("confined_machines_have_no_rights_and_share_nothing", no_rights_and_nothing_shared),
    ("confined_machines_cannot_regain_rights", cannot_regain_rights),
    ("confined_machines_die_with_their_zygote", die_with_their_zygote),
    ("confinement_notices_a_dead_zygote", notices_a_dead_zygote),
    ("confinement_as_root_is_refused", as_root_is_refused),
    ("confinement_of_nobody_keeps_the_ids", of_nobody),
    ("confinement_replaces_closed_standard_descriptors", closed_standard_descriptors),
];

pub(crate) const MACHINE: Credentials = Credentials { uid: 70_001, gid: 70_002 };

/// Confines the calling child, which keeps its socket and what else it is given.
pub(crate) fn confine(host: &HostDescriptors, parent: &OwnedFd, keep: &[BorrowedFd<'_>]) {
    let confinement =
        Confinement { host, parent: parent.as_fd(), credentials: Some(MACHINE), keep, descriptor_limit: 64 };
    confinement.apply().unwrap();
}

fn no_rights_and_nothing_shared() {
    require_root();
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    // What a careless zygote might hold: no machine may inherit it.
    let _secret = std::fs::File::open("/etc/passwd").unwrap();
    let machine = || {
        let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
            let kvm = host.open_kvm().unwrap();
            confine(&host, &zygote, &[socket.as_fd(), kvm.as_fd()]);
            socket.send(format!("{} {}", socket.as_fd().as_raw_fd(), kvm.as_raw_fd()).as_bytes(), &[]).unwrap();
            until_closed(socket);
        });
        let numbers = recv_text(&socket);
        (child, socket, numbers)
    };
    let machines = [machine(), machine(), machine()];
    for (child, _, numbers) in &machines {
        let status = inspect::status(child.pid).unwrap();
        assert!(status.is_without_rights(), "{status:?}");
        assert_eq!((status.uid, status.gid, status.groups), ([MACHINE.uid; 4], [MACHINE.gid; 4], vec![]));
        assert_eq!((status.pids[1], status.threads, status.blocked_signals), (1, 1, 0));
        let open = inspect::descriptors(child.pid).unwrap();
        let expected = format!("0 1 2 {numbers}");
        let mut expected: Vec<i32> = expected.split(' ').map(|word| word.parse().expect(numbers)).collect();
        expected.sort_unstable();
        assert_eq!(open.iter().map(|descriptor| descriptor.fd).collect::<Vec<_>>(), expected);
        assert!(open[..3].iter().all(|descriptor| descriptor.target == Path::new("/dev/null")), "{open:?}");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.pid)).unwrap();
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((limit("Max core file size").as_str(), limit("Max open files").as_str()), ("0 0", "64 64"));
    }
    let mut pids: Vec<Pid> = machines.iter().map(|(child, ..)| child.pid).collect();
    pids.push(getpid());
    assert_eq!(inspect::shared_descriptions(&pids).unwrap(), Vec::<Vec<inspect::Descriptor>>::new());
    assert!(!inspect::same_address_space(pids[0], pids[1]).unwrap());
    for (child, socket, _) in machines {
        drop(socket);
        assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
    }
}

fn cannot_regain_rights() {
    require_root();
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        confine(&host, &zygote, &[socket.as_fd()]);
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_res_uid};
        let root = rustix::process::Uid::ROOT;
        assert_eq!(set_thread_res_uid(root, root, root), Err(Errno::PERM));
        let all = CapabilitySet::SYS_ADMIN;
        let wanted = CapabilitySets { effective: all, permitted: all, inheritable: CapabilitySet::empty() };
        assert_eq!(set_capabilities(None, wanted), Err(Errno::PERM));
        assert!(capabilities(None).unwrap().permitted.is_empty());
        assert!(std::fs::File::open("/etc/shadow").is_err());
        assert!(std::fs::File::open("/dev/kvm").is_err() || std::fs::read("/proc/self/mem").is_err());
        socket.send(b"held", &[]).unwrap();
    });
    assert_eq!(recv_text(&socket), "held");
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}

/// A zygote that forks one machine, which runs `body`; its socket, and the machine's pidfd.
fn zygote_with_machine(
    body: impl FnOnce(&SeqPacket, &HostDescriptors, &OwnedFd),
) -> (ramet_process::Child, SeqPacket, OwnedFd) {
    set_child_subreaper(Some(getpid())).unwrap();
    let host = HostDescriptors::open().unwrap();
    let (zygote, socket) = fork_with_socket(Namespaces::default(), |socket| {
        let parent = own_pidfd().unwrap();
        let machine = fork(Namespaces { pid: true }, || body(socket, &host, &parent));
        socket.send(b"machine", &[machine.pidfd.as_fd()]).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    });
    let mut pidfd = None;
    while pidfd.is_none() {
        match socket.recv(Limits::default()).unwrap() {
            Received::Message(mut message) => pidfd = message.descriptors.pop(),
            Received::EndOfStream => panic!("the zygote ended"),
        }
    }
    (zygote, socket, pidfd.unwrap())
}

fn die_with_their_zygote() {
    require_root();
    let (ready, theirs) = SeqPacket::pair().unwrap();
    let (zygote, socket, machine) = zygote_with_machine(|_, host, parent| {
        confine(host, parent, &[theirs.as_fd()]);
        theirs.send(b"confined", &[]).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    });
    assert_eq!(recv_text(&ready), "confined");
    send_signal(&zygote.pidfd, Signal::KILL).unwrap();
    assert!(wait_ended(&machine, Some(Duration::from_secs(30))).unwrap(), "the machine outlives its zygote");
    assert_eq!(wait_for(&machine).unwrap(), Exit::Signal(9));
    drop(socket);
}

fn notices_a_dead_zygote() {
    require_root();
    let (result, theirs) = SeqPacket::pair().unwrap();
    let (zygote, _socket, machine) = zygote_with_machine(|_, host, parent| {
        assert!(wait_ended(parent, Some(Duration::from_secs(30))).unwrap());
        let keep = [theirs.as_fd()];
        let confinement =
            Confinement { host, parent: parent.as_fd(), credentials: Some(MACHINE), keep: &keep, descriptor_limit: 64 };
        let gone = matches!(confinement.apply(), Err(ConfinementError::ParentGone));
        theirs.send(format!("{gone}").as_bytes(), &[]).unwrap();
    });
    send_signal(&zygote.pidfd, Signal::KILL).unwrap();
    assert_eq!(recv_text(&result), "true");
    assert_eq!(wait_for(&machine).unwrap(), Exit::Code(0));
}

fn as_root_is_refused() {
    let host = HostDescriptors::open().unwrap();
    let parent = own_pidfd().unwrap();
    for (uid, gid) in [(0, 1), (1, 0)] {
        let confinement = Confinement {
            host: &host,
            parent: parent.as_fd(),
            credentials: Some(Credentials { uid, gid }),
            keep: &[],
            descriptor_limit: 64,
        };
        assert!(matches!(confinement.apply(), Err(ConfinementError::Root { .. })));
    }
    std::fs::File::open("/dev/null").expect("nothing was changed");
}

fn of_nobody() {
    if rustix::process::getuid().is_root() {
        return run_as_nobody("confinement_of_nobody_keeps_the_ids");
    }
    let host = HostDescriptors::open().unwrap();
    let parent = own_pidfd().unwrap();
    let (child, socket) = fork_with_socket(Namespaces::default(), |socket| {
        let keep = [socket.as_fd()];
        let confinement =
            Confinement { host: &host, parent: parent.as_fd(), credentials: None, keep: &keep, descriptor_limit: 64 };
        confinement.apply().unwrap();
        socket.send(b"confined", &[]).unwrap();
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "confined");
    let status = inspect::status(child.pid).unwrap();
    assert!(status.no_new_privileges && status.permitted == 0 && status.uid == [NOBODY; 4], "{status:?}");
    drop(socket);
    assert_eq!(wait_for(&child.pidfd).unwrap(), Exit::Code(0));
}

fn closed_standard_descriptors() {
    require_root();
    let host = HostDescriptors::open().unwrap();
    let zygote = own_pidfd().unwrap();
    let (child, socket) = fork_with_socket(Namespaces { pid: true }, |socket| {
        close_standard_descriptors();
        confine(&host, &zygote, &[socket.as_fd()]);
        socket.send(b"confined", &[]).unwrap();
        until_closed(socket);
    });
    assert_eq!(recv_text(&socket), "confined");
    let open = inspect::descriptors(child.pid).unwrap();
    assert_eq!(open.iter().filter(|descriptor| descriptor.target == Path::new("/dev/null")).count(), 3, "{open:?}");
    assert_eq!(open.len(), 4);
    drop(socket);
    wait_for(&child.pidfd).unwrap();
}

fn close_standard_descriptors() {
    use std::os::fd::FromRawFd;
    for number in 0..=2 {
        // SAFETY: the child does not use its standard descriptors afterwards.
        #[allow(unsafe_code)]
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}
