//! The few files of the host that machine processes need, kept open where the root directory is empty.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::{Errno, retry_on_intr};

/// O_PATH descriptors of /proc, /dev/kvm and /dev/null: names that survive the loss of the file system. They give no
/// access by themselves; [`reopen`] opens the files anew.
#[derive(Debug)]
pub struct HostDescriptors {
    /// The host's /proc, with the pid namespace that it was mounted in.
    pub proc: OwnedFd,
    /// /dev/kvm.
    pub kvm: OwnedFd,
    /// /dev/null.
    pub null: OwnedFd,
}

/// Why a file of the host could not be had.
#[derive(Debug, thiserror::Error)]
#[error("{path} could not be opened: {advice}")]
pub struct HostDescriptorError {
    /// The file.
    pub path: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// The error of open.
    pub source: Errno,
}

impl HostDescriptors {
    /// Opens all three. Whether /dev/kvm may be used shows only when it is reopened.
    pub fn open() -> Result<Self, HostDescriptorError> {
        let open_path =
            |path, extra, advice| {
                open(path, OFlags::PATH | OFlags::CLOEXEC | extra, Mode::empty())
                    .map_err(|source| HostDescriptorError { path, advice, source })
            };
        Ok(Self {
            proc: open_path("/proc", OFlags::DIRECTORY, "mount proc there")?,
            kvm: open_path("/dev/kvm", OFlags::empty(), "load kvm-intel or kvm-amd, or make the device visible here")?,
            null: open_path("/dev/null", OFlags::empty(), "mount devtmpfs on /dev")?,
        })
    }

    /// A new open file description of /dev/kvm, shared with no other process.
    pub fn open_kvm(&self) -> Result<OwnedFd, Errno> {
        reopen(self.proc.as_fd(), self.kvm.as_fd(), OFlags::RDWR | OFlags::CLOEXEC)
    }

    /// A new open file description of /dev/null, shared with no other process.
    pub fn open_null(&self) -> Result<OwnedFd, Errno> {
        reopen(self.proc.as_fd(), self.null.as_fd(), OFlags::RDWR | OFlags::CLOEXEC)
    }
}

/// Opens the file behind `descriptor` anew through `proc`/self/fd: a new open file description, with its own offset,
/// flags and locks. The file's permissions are checked again.
pub fn reopen(proc: BorrowedFd<'_>, descriptor: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("self/fd/{}", descriptor.as_raw_fd());
    retry_on_intr(|| openat(proc, path.as_str(), flags, Mode::empty()))
}
