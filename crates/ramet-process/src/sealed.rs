//! Bytes in a sealed memfd: a way to hand another process data that neither side can change afterwards.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::{Errno, pread, retry_on_intr, write};

/// The seals without which a received memfd is refused: its bytes and its size are final.
pub const REQUIRED_SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Why a sealed memfd could not be made.
#[derive(Debug, thiserror::Error)]
#[error("Making a sealed memfd of {bytes} bytes failed at {step}")]
pub struct SealError {
    /// The size wanted.
    pub bytes: usize,
    /// The system call that failed.
    pub step: &'static str,
    /// Its error.
    pub source: Errno,
}

/// Why a received descriptor was refused as a sealed memfd.
#[derive(Debug, thiserror::Error)]
pub enum UnsealError {
    /// Its peer could still change it, or it is no memfd.
    #[error("The descriptor is not a memfd with the seals {REQUIRED_SEALS:?}; it has {found:?}")]
    NotSealed {
        /// The seals it has; none for what is not a memfd.
        found: SealFlags,
    },
    /// Its size is not the announced one.
    #[error("The sealed memfd holds {found} bytes where {expected} were announced")]
    Size {
        /// The size announced.
        expected: usize,
        /// The size it has.
        found: i64,
    },
    /// There is no memory for a copy.
    #[error("There is no memory for a message of {0} bytes")]
    OutOfMemory(usize),
    /// Reading failed.
    #[error("Reading a sealed memfd failed")]
    Read(#[source] Errno),
}

/// A memfd that holds `bytes`, sealed with [`REQUIRED_SEALS`]. The name shows in /proc/PID/fd.
pub fn sealed_memfd(name: &str, bytes: &[u8]) -> Result<OwnedFd, SealError> {
    let failed = |step| move |source| SealError { bytes: bytes.len(), step, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag.
    let memfd = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|errno| if errno == Errno::INVAL { memfd_create(name, flags) } else { Err(errno) })
        .map_err(failed("memfd_create"))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = retry_on_intr(|| write(&memfd, rest)).map_err(failed("write"))?;
        rest = &rest[written..];
    }
    fcntl_add_seals(&memfd, REQUIRED_SEALS).map_err(failed("F_ADD_SEALS"))?;
    Ok(memfd)
}

/// Copies the `expected` bytes of a memfd that another process sent, after checking its seals and size.
///
/// The caller bounds `expected`.
pub fn read_sealed(memfd: impl AsFd, expected: usize) -> Result<Vec<u8>, UnsealError> {
    let memfd = memfd.as_fd();
    let found = seals(memfd);
    if !found.contains(REQUIRED_SEALS) {
        return Err(UnsealError::NotSealed { found });
    }
    let size = fstat(memfd).map_err(UnsealError::Read)?.st_size;
    if usize::try_from(size) != Ok(expected) {
        return Err(UnsealError::Size { expected, found: size });
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(expected).map_err(|_| UnsealError::OutOfMemory(expected))?;
    bytes.resize(expected, 0);
    let mut filled = 0;
    while filled < expected {
        match retry_on_intr(|| pread(memfd, &mut bytes[filled..], filled as u64)).map_err(UnsealError::Read)? {
            0 => return Err(UnsealError::Size { expected, found: filled as i64 }),
            read => filled += read,
        }
    }
    Ok(bytes)
}

fn seals(descriptor: BorrowedFd<'_>) -> SealFlags {
    fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_read_back_and_cannot_change() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let memfd = sealed_memfd("test", &bytes).unwrap();
        assert_eq!(read_sealed(&memfd, bytes.len()).unwrap(), bytes);
        assert_eq!(write(&memfd, b"x"), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&memfd, 0), Err(Errno::PERM));
    }

    #[test]
    fn a_memfd_without_all_seals_is_refused() {
        let memfd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        write(&memfd, b"abc").unwrap();
        for seals in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW] {
            fcntl_add_seals(&memfd, seals).unwrap();
            assert!(matches!(read_sealed(&memfd, 3), Err(UnsealError::NotSealed { .. })));
        }
        fcntl_add_seals(&memfd, SealFlags::SEAL).unwrap();
        assert_eq!(read_sealed(&memfd, 3).unwrap(), b"abc");
    }

    #[test]
    fn another_size_and_another_kind_of_file_are_refused() {
        let memfd = sealed_memfd("test", b"abc").unwrap();
        for wrong in [0, 2, 4] {
            assert!(matches!(read_sealed(&memfd, wrong), Err(UnsealError::Size { found: 3, .. })));
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(read_sealed(&null, 0), Err(UnsealError::NotSealed { .. })));
    }
}
