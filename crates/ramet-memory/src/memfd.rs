//! Memory files: making them, sealing them, reopening them read-only.

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `f_type` of tmpfs and memfds (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a memory file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SealedMemfdError {
    /// A size of 0.
    #[error("A memory file of 0 bytes was asked for; give it at least one page")]
    Empty,
    /// The system refused.
    #[error("Cannot {step} a memory file of {bytes} bytes")]
    System {
        /// What was tried.
        step: &'static str,
        /// How large.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
}

/// A memory file of this size, all zeros, that cannot shrink or grow: whoever maps it cannot be killed by a peer that
/// truncates it.
pub fn create_sealed_memfd(bytes: u64) -> Result<OwnedFd, SealedMemfdError> {
    if bytes == 0 {
        return Err(SealedMemfdError::Empty);
    }
    let failed = |step| move |source| SealedMemfdError::System { step, bytes, source };
    let fd = create_memfd("ramet-shared").map_err(failed("create"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(failed("size"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed("seal"))?;
    Ok(fd)
}

/// An empty memory file that can be sealed.
pub(crate) fn create_memfd(name: &str) -> Result<OwnedFd, Errno> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    }
}

/// Whether a descriptor is of a memfd in 4 KiB pages, not of hugetlbfs (which cannot be mapped page by page).
pub(crate) fn is_memfd(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    if rustix::fs::fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Ok(false);
    }
    match rustix::fs::fcntl_get_seals(fd) {
        // A file of a tmpfs mount has the one seal that forbids sealing, from birth; a memfd that can be sealed has not.
        Ok(seals) => Ok(!seals.contains(SealFlags::SEAL) || seals.contains(SealFlags::SHRINK)),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether nobody can shrink a file, so that an access within it cannot be fatal. Files that are no memfds have no seals
/// at all, or only the one against sealing.
pub(crate) fn keeps_its_size(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Seals that make a memfd's contents and size final.
pub(crate) const FINAL_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// A second descriptor of the same file, open for reading only.
pub(crate) fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Size of a regular file.
pub(crate) fn file_bytes(fd: impl AsFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)
}

/// Bytes of memory that a file holds.
pub(crate) fn resident_bytes(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_blocks).unwrap_or(0).saturating_mul(512))
}

/// The next byte at or after `from` that is data, or that is a hole (`find` says which); `None` at the end.
pub(crate) fn seek(fd: BorrowedFd<'_>, find: Find, from: u64) -> Result<Option<u64>, Errno> {
    use rustix::fs::SeekFrom;
    let from = match find {
        Find::Data => SeekFrom::Data(from),
        Find::Hole => SeekFrom::Hole(from),
    };
    match rustix::fs::seek(fd, from) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What to look for in a sparse file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Find {
    Data,
    Hole,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_memfd_keeps_its_size() {
        let fd = create_sealed_memfd(8192).unwrap();
        assert_eq!(file_bytes(&fd).unwrap(), 8192);
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 16384), Err(Errno::PERM));
        assert!(matches!(create_sealed_memfd(0), Err(SealedMemfdError::Empty)));
    }

    #[test]
    fn only_a_memfd_is_a_memfd() {
        assert!(is_memfd(create_memfd("test").unwrap().as_fd()).unwrap());
        assert!(is_memfd(create_sealed_memfd(4096).unwrap().as_fd()).unwrap());
        assert!(!is_memfd(std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap());
        assert!(!is_memfd(std::fs::File::open("/proc/self/exe").unwrap().as_fd()).unwrap());
    }
}
