//! An isolated process sees an empty root, no network and only the descriptors it was given.

use std::io::Read;
use std::os::fd::AsFd;

use ramet_process::{HostDescriptors, Isolation, Obtained, RootIsolation, isolate_zygote, reopen};
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::harness::{Case, require_root, run_as_nobody};

pub(crate) const CASES: &[Case] = &[
    ("isolation_as_root_is_complete", as_root_is_complete),
    ("isolation_as_nobody_is_reported", as_nobody),
    ("isolation_without_proc_is_an_error", without_proc),
];

fn read(host: &HostDescriptors, path: &str) -> String {
    let file = openat(&host.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text).unwrap();
    text
}

/// What to expect here: a host that runs from its initial RAM file system cannot change its root for good.
fn expected_root() -> RootIsolation {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[1] == "/");
    if root.expect("something is mounted on /")[2] == "rootfs" {
        RootIsolation::EmptyByChroot
    } else {
        RootIsolation::Empty
    }
}

fn assert_nothing_is_reachable(isolation: &Isolation, host: &HostDescriptors) {
    assert_eq!(std::fs::read_dir("/").unwrap().count(), 0);
    assert_eq!(std::env::current_dir().unwrap().as_os_str(), "/");
    let refused = std::fs::write("/file", b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(read(host, "self/mountinfo").lines().count(), 1);
    let interfaces = read(host, "self/net/dev");
    assert_eq!(interfaces.lines().skip(2).count(), 1, "{interfaces}");
    if isolation.root == RootIsolation::EmptyByChroot {
        return;
    }
    // Up from /proc there is no host either.
    let parent = openat(&host.proc, "..", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let names: Vec<_> = Dir::read_from(&parent).unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert!(!names.iter().any(|name| name.as_c_str() == c"etc" || name.as_c_str() == c"usr"), "{names:?}");
}

fn as_root_is_complete() {
    require_root();
    let expected = expected_root();
    let (isolation, host) = isolate_zygote().unwrap();
    assert_eq!(isolation.missing(), []);
    assert_eq!((isolation.user, isolation.root), (Obtained::NotNeeded, expected));
    assert_eq!(isolation.to_string(), "fully isolated");
    assert_nothing_is_reachable(&isolation, &host);
    host.open_kvm().expect("/dev/kvm can be opened by root");
    let (first, second) = (host.open_null().unwrap(), host.open_null().unwrap());
    let pid = rustix::process::getpid();
    // Through the descriptor of /proc, since the path is gone: kcmp needs none.
    let at = |fd: &std::os::fd::OwnedFd| (pid, std::os::fd::AsRawFd::as_raw_fd(fd));
    assert!(!ramet_process::inspect::same_description(at(&first), at(&second)).unwrap());
    let unknown = reopen(host.proc.as_fd(), host.null.as_fd(), OFlags::DIRECTORY).unwrap_err();
    assert_eq!(unknown, Errno::NOTDIR);
}

fn as_nobody() {
    if rustix::process::getuid().is_root() {
        return run_as_nobody("isolation_as_nobody_is_reported");
    }
    let (isolation, host) = isolate_zygote().unwrap();
    match isolation.user {
        Obtained::Yes => {
            assert_eq!(isolation.missing(), []);
            assert_nothing_is_reachable(&isolation, &host);
            assert_eq!(rustix::process::getuid().as_raw(), crate::harness::NOBODY);
        }
        Obtained::Refused(_) => {
            let missing: Vec<_> = isolation.missing().into_iter().map(|(name, _)| name).collect();
            assert_eq!(missing, ["user", "mount", "net", "ipc", "uts", "cgroup", "pid", "root"]);
        }
        Obtained::NotNeeded => panic!("nobody has no right to isolate itself"),
    }
}

/// An isolated zygote has neither /proc nor /dev/kvm by name any more: isolating it again says so.
fn without_proc() {
    require_root();
    isolate_zygote().unwrap();
    let error = isolate_zygote().unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "/proc could not be opened: mount proc there");
}
