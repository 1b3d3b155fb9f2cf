//! Taking the host away from the zygote before it serves: its children inherit the emptiness.
//!
//! ```text
//! [user namespace, if CAP_SYS_ADMIN is lacking] -> mount, net, ipc, uts, cgroup namespaces
//!     -> keep /proc, /dev/kvm, /dev/null -> empty read-only tmpfs becomes the root -> the old root is detached
//! ```
//!
//! What a host refuses is not an error here: [`Isolation`] reports exactly what was obtained, and the caller decides.
//! Deliberately absent: pid namespaces (each machine gets its own by [`crate::fork_process`]).

use std::fmt;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_move, unmount};
use rustix::process::{chdir, chroot, getgid, getuid, pivot_root};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};
use serde::{Deserialize, Serialize};

use crate::fork::{ForkError, Forked, Namespaces, fork_process};
use crate::host::{HostDescriptorError, HostDescriptors};
use crate::sys;

/// Whether one isolation was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obtained {
    /// It holds.
    Yes,
    /// It was not asked for because nothing needs it.
    NotNeeded,
    /// The host refused it with this errno.
    Refused(i32),
}

impl Obtained {
    fn from_result(result: Result<(), Errno>) -> Self {
        match result {
            Ok(()) => Obtained::Yes,
            Err(errno) => Obtained::Refused(errno.raw_os_error()),
        }
    }
}

/// What the root directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootIsolation {
    /// An empty read-only file system; the host's is detached.
    Empty,
    /// An empty read-only file system put over the host's, which a process with CAP_SYS_CHROOT could find again. So
    /// on a host that runs from its initial RAM file system, where pivot_root is impossible.
    EmptyByChroot,
    /// Still the host's: the errno of what was refused.
    Host(i32),
}

/// Which isolations the zygote has, and its machines with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// A user namespace with one id. Needed only without CAP_SYS_ADMIN, to obtain the others.
    pub user: Obtained,
    /// Own mounts: nothing that is mounted here later reaches the host, nor the other way round.
    pub mount: Obtained,
    /// The root directory.
    pub root: RootIsolation,
    /// No network interface but a loopback that is down; abstract Unix sockets of the host cannot be reached.
    pub net: Obtained,
    /// Own System V IPC objects and POSIX message queues.
    pub ipc: Obtained,
    /// Own host name.
    pub uts: Obtained,
    /// Own view of cgroup paths.
    pub cgroup: Obtained,
    /// Whether children can have pid namespaces of their own.
    pub child_pid: Obtained,
}

impl Isolation {
    /// The isolations that the host refused, by name and errno; empty when everything was obtained.
    pub fn missing(&self) -> Vec<(&'static str, i32)> {
        let mut missing: Vec<_> = [
            ("user", self.user),
            ("mount", self.mount),
            ("net", self.net),
            ("ipc", self.ipc),
            ("uts", self.uts),
            ("cgroup", self.cgroup),
            ("pid", self.child_pid),
        ]
        .into_iter()
        .filter_map(|(name, obtained)| match obtained {
            Obtained::Refused(errno) => Some((name, errno)),
            Obtained::Yes | Obtained::NotNeeded => None,
        })
        .collect();
        if let RootIsolation::Host(errno) = self.root {
            missing.push(("root", errno));
        }
        missing
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing();
        if missing.is_empty() {
            return write!(f, "fully isolated");
        }
        write!(f, "isolated except for")?;
        for (position, (name, errno)) in missing.into_iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(f, "{separator} {name} ({})", Errno::from_raw_os_error(errno))?;
        }
        Ok(())
    }
}

/// Why the zygote cannot serve at all.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// It has several threads: namespaces would hold for one of them only.
    #[error("Only a process with one thread can be isolated: isolate the zygote before it starts threads")]
    MultiThreaded,
    /// A file that machines need is not there.
    #[error("A file that machines need is missing")]
    HostDescriptor(#[from] HostDescriptorError),
    /// Asking for the capabilities or the number of threads failed.
    #[error("{call} failed")]
    Call {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
    /// The user namespace exists but its id could not be mapped, so every file would belong to nobody.
    #[error("Writing {value:?} to {path} failed")]
    IdMap {
        /// The file.
        path: &'static str,
        /// What was written.
        value: String,
        /// The error.
        source: std::io::Error,
    },
    /// Trying a child failed for want of resources or threads.
    #[error("A trial process could not be forked")]
    Trial(#[from] ForkError),
    /// Waiting for the trial child failed.
    #[error("A trial process could not be collected")]
    Reap(#[from] crate::exit::ReapError),
}

/// Isolates the calling process, which must have one thread, and returns what was obtained with the descriptors that
/// its machines need of the host.
pub fn isolate_zygote() -> Result<(Isolation, HostDescriptors), IsolationError> {
    if !sys::is_single_threaded().map_err(|source| IsolationError::Call { call: "unshare", source })? {
        return Err(IsolationError::MultiThreaded);
    }
    drop(HostDescriptors::open()?);
    let has_rights = capabilities(None)
        .map_err(|source| IsolationError::Call { call: "capget", source })?
        .effective
        .contains(CapabilitySet::SYS_ADMIN);
    let user = if has_rights { Obtained::NotNeeded } else { enter_user_namespace()? };
    let mount = unshare(UnshareFlags::NEWNS);
    let net = unshare(UnshareFlags::NEWNET);
    let ipc = unshare(UnshareFlags::NEWIPC);
    let uts = unshare(UnshareFlags::NEWUTS);
    let cgroup = unshare(UnshareFlags::NEWCGROUP);
    // Opened after the mount namespace was left: once the mounts are detached, /proc/.. leads nowhere.
    let host = HostDescriptors::open()?;
    let root = match mount {
        Obtained::Refused(errno) => RootIsolation::Host(errno),
        Obtained::Yes | Obtained::NotNeeded => empty_root(),
    };
    let child_pid = try_child_pid_namespace()?;
    Ok((Isolation { user, mount, root, net, ipc, uts, cgroup, child_pid }, host))
}

fn unshare(flags: UnshareFlags) -> Obtained {
    Obtained::from_result(sys::unshare(flags))
}

/// Maps the caller's ids to themselves: to the machines nobody looks like root.
fn enter_user_namespace() -> Result<Obtained, IsolationError> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    if let Err(errno) = sys::unshare(UnshareFlags::NEWUSER) {
        return Ok(Obtained::Refused(errno.raw_os_error()));
    }
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{uid} {uid} 1")),
        ("/proc/self/gid_map", format!("{gid} {gid} 1")),
    ];
    for (path, value) in maps {
        std::fs::write(path, &value).map_err(|source| IsolationError::IdMap { path, value, source })?;
    }
    Ok(Obtained::Yes)
}

fn empty_root() -> RootIsolation {
    match enter_empty_root() {
        Ok(root) => root,
        Err(errno) => RootIsolation::Host(errno.raw_os_error()),
    }
}

fn enter_empty_root() -> Result<RootIsolation, Errno> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // /proc is the one directory that is known to exist.
    mount("ramet-empty", "/proc", "tmpfs", flags, c"size=4k,nr_inodes=1,mode=0555")?;
    chdir("/proc")?;
    // pivot_root(2), "pivot_root(".", ".")": the old root ends up on top of the new one and is detached there.
    match pivot_root(".", ".") {
        Ok(()) => {
            unmount(".", UnmountFlags::DETACH)?;
            chdir("/")?;
            Ok(RootIsolation::Empty)
        }
        Err(Errno::INVAL) => {
            mount_move(".", "/")?;
            chroot(".")?;
            chdir("/")?;
            Ok(RootIsolation::EmptyByChroot)
        }
        Err(errno) => Err(errno),
    }
}

fn try_child_pid_namespace() -> Result<Obtained, IsolationError> {
    match fork_process(Namespaces { pid: true }, None) {
        Ok(Forked::Child) => sys::exit_now(0),
        Ok(Forked::Parent(child)) => {
            crate::exit::wait_for(&child.pidfd)?;
            Ok(Obtained::Yes)
        }
        Err(ForkError::Refused { source, .. }) => Ok(Obtained::Refused(source.raw_os_error())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let full = Isolation {
            user: Obtained::NotNeeded,
            mount: Obtained::Yes,
            root: RootIsolation::Empty,
            net: Obtained::Yes,
            ipc: Obtained::Yes,
            uts: Obtained::Yes,
            cgroup: Obtained::Yes,
            child_pid: Obtained::Yes,
        };
        assert_eq!(full.missing(), []);
        let partial =
            Isolation { net: Obtained::Refused(libc::EPERM), root: RootIsolation::Host(libc::EINVAL), ..full };
        assert_eq!(partial.missing(), [("net", libc::EPERM), ("root", libc::EINVAL)]);
        assert!(partial.to_string().starts_with("isolated except for net (Operation not permitted"));
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        // In a thread of its own: with one test at a time the harness may have no other thread.
        std::thread::spawn(|| {
            assert!(matches!(isolate_zygote(), Err(IsolationError::MultiThreaded)));
            assert!(matches!(fork_process(Namespaces::default(), None), Err(ForkError::MultiThreaded)));
        })
        .join()
        .unwrap();
    }
}
