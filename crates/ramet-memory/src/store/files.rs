//! The files of flat layers: on a tmpfs of the store's own, or memfds.

use crate::memfd;
use crate::sys;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// What flat layers lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A mount of tmpfs with huge pages that only this process has: a clone reads it almost for free.
    HugeTmpfs {
        /// Whether machines get files through a read-only mount, so that nobody can reopen one for writing. `Err` says
        /// why not; then only the file's owner can, which machines are not if they have users of their own.
        read_only_mount: Result<(), Errno>,
    },
    /// Memory files in 4 KiB pages.
    Memfd {
        /// Why there is no tmpfs (EPERM: mounting takes CAP_SYS_ADMIN in the user namespace); `None` where memfds were
        /// asked for.
        reason: Option<Errno>,
    },
}

/// Makes files for flat layers.
#[derive(Debug)]
pub(super) struct Files {
    backing: Backing,
    /// The mount for writing, and the one for reading (the same, where there is no second).
    mounts: Option<(OwnedFd, Option<OwnedFd>)>,
    next_name: AtomicU64,
}

impl Files {
    pub(super) fn open(limit_bytes: Option<u64>) -> Files {
        let mount = match mount_huge_tmpfs(limit_bytes) {
            Ok(mount) => mount,
            Err(reason) => return Files::on_memfds(Some(reason)),
        };
        let (read_only_mount, second) = match read_only_twin(&mount) {
            Ok(twin) => (Ok(()), Some(twin)),
            Err(error) => (Err(error), None),
        };
        Files {
            backing: Backing::HugeTmpfs { read_only_mount },
            mounts: Some((mount, second)),
            next_name: AtomicU64::new(0),
        }
    }

    pub(super) fn on_memfds(reason: Option<Errno>) -> Files {
        Files { backing: Backing::Memfd { reason }, mounts: None, next_name: AtomicU64::new(0) }
    }

    pub(super) fn backing(&self) -> Backing {
        self.backing
    }

    /// An empty file without a name: a descriptor for writing and one for reading.
    pub(super) fn create(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        let Some((mount, second)) = &self.mounts else {
            let writable = memfd::create_memfd("ramet-flat")?;
            let read_only = memfd::reopen_read_only(writable.as_fd())?;
            return Ok((writable, read_only));
        };
        let writing = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let Some(second) = second else {
            let writable = rustix::fs::openat(mount, ".", writing | OFlags::TMPFILE, mode)?;
            let read_only = memfd::reopen_read_only(writable.as_fd())?;
            return Ok((writable, read_only));
        };
        // Only a name leads from one mount to the other. Nobody else can reach either.
        let name = self.next_name.fetch_add(1, Ordering::Relaxed).to_string();
        let writable = rustix::fs::openat(mount, &name, writing | OFlags::CREATE | OFlags::EXCL, mode)?;
        let read_only = rustix::fs::openat(second, &name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        rustix::fs::unlinkat(mount, &name, AtFlags::empty())?;
        Ok((writable, read_only?))
    }
}

/// A tmpfs with huge pages that is mounted nowhere and goes with its descriptor.
fn mount_huge_tmpfs(limit_bytes: Option<u64>) -> Result<OwnedFd, Errno> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "huge", "always")?;
    fsconfig_set_string(&context, "mode", "0700")?;
    // The store counts by itself; this is the second line. 0 is no limit, where the default were half of the memory.
    fsconfig_set_string(&context, "size", limit_bytes.unwrap_or(0).to_string())?;
    fsconfig_create(&context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A read-only mount of the same file system. Older kernels cannot copy a mount that is mounted nowhere.
fn read_only_twin(mount: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let twin = rustix::mount::open_tree(mount, "", flags)?;
    sys::mount_set_read_only(twin.as_fd())?;
    Ok(twin)
}
