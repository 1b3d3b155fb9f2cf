//! A page or a few that several processes, and a guest, read and write at once.
//!
//! The clone page is one. All access is atomic or volatile and bounds-checked, since the other side may change any byte
//! at any time: copy out what must not change under your eyes, then check it.

use crate::memfd;
use crate::sys::SharedMapping;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use vm_memory::{AtomicAccess, Bytes};

/// Most bytes that may be mapped as one: 64 MiB.
const MAX_BYTES: u64 = 64 << 20;

/// Why shared memory cannot be mapped or accessed.
#[derive(Debug, thiserror::Error)]
pub enum SharedPageError {
    /// The file could shrink under the mapping.
    #[error("The memory file is not sealed against shrinking; make it with create_sealed_memfd")]
    Unsealed,
    /// A file of another size.
    #[error("The memory file has {found} bytes instead of {expected}; it must have 1 to {MAX_BYTES}")]
    Size {
        /// Its size.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The system refused.
    #[error("Cannot map {bytes} shared bytes")]
    System {
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// An access that is not within the memory, or not aligned to its own size.
    #[error("An access of {bytes} bytes at offset {offset} is unaligned or beyond the {limit} bytes of shared memory")]
    Access {
        /// Where.
        offset: usize,
        /// How many bytes.
        bytes: usize,
        /// How many there are.
        limit: usize,
    },
}

/// A mapping of a sealed memory file.
#[derive(Debug)]
pub struct SharedPage {
    mapping: SharedMapping,
}

impl SharedPage {
    /// Maps a sealed memory file of exactly this many bytes.
    pub fn map(fd: BorrowedFd<'_>, bytes: u64) -> Result<SharedPage, SharedPageError> {
        let failed = |source| SharedPageError::System { bytes, source };
        if !memfd::keeps_its_size(fd) {
            return Err(SharedPageError::Unsealed);
        }
        let found = memfd::file_bytes(fd).map_err(failed)?;
        if found != bytes || bytes == 0 || bytes > MAX_BYTES {
            return Err(SharedPageError::Size { found, expected: bytes });
        }
        let mapping = SharedMapping::new(fd, bytes as usize).map_err(failed)?;
        Ok(SharedPage { mapping })
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.mapping.slice().len()
    }

    /// Reads an aligned number; what its writer wrote before it with [`SharedPage::store_u32`] is seen too.
    pub fn load_u32(&self, offset: usize) -> Result<u32, SharedPageError> {
        self.load(offset)
    }

    /// Writes an aligned number after everything that this thread wrote before.
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<(), SharedPageError> {
        self.store(offset, value)
    }

    /// Reads an aligned number, like [`SharedPage::load_u32`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, SharedPageError> {
        self.load(offset)
    }

    /// Writes an aligned number, like [`SharedPage::store_u32`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), SharedPageError> {
        self.store(offset, value)
    }

    /// Copies bytes out. Not atomic: a writer at the same time may be seen half done.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), SharedPageError> {
        let bytes = into.len();
        self.mapping.slice().read_slice(into, offset).map_err(|_| self.access(offset, bytes))
    }

    /// Copies bytes in. Not atomic.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), SharedPageError> {
        self.check(offset, from.len())?;
        self.mapping.slice().write_slice(from, offset).map_err(|_| self.access(offset, from.len()))
    }

    fn load<T: AtomicAccess>(&self, offset: usize) -> Result<T, SharedPageError> {
        self.mapping.slice().load(offset, Ordering::Acquire).map_err(|_| self.access(offset, size_of::<T>()))
    }

    fn store<T: AtomicAccess>(&self, offset: usize, value: T) -> Result<(), SharedPageError> {
        self.mapping.slice().store(value, offset, Ordering::Release).map_err(|_| self.access(offset, size_of::<T>()))
    }

    /// Refuses what is not wholly within, so that a refused write writes nothing.
    fn check(&self, offset: usize, bytes: usize) -> Result<(), SharedPageError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(self.access(offset, bytes)),
        }
    }

    fn access(&self, offset: usize, bytes: usize) -> SharedPageError {
        SharedPageError::Access { offset, bytes, limit: self.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_sealed_memfd;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_see_each_other() {
        let fd = create_sealed_memfd(4096).unwrap();
        let (one, two) = (SharedPage::map(fd.as_fd(), 4096).unwrap(), SharedPage::map(fd.as_fd(), 4096).unwrap());
        one.write(100, b"name").unwrap();
        one.store_u32(8, 7).unwrap();
        one.store_u64(16, u64::MAX).unwrap();
        let mut name = [0; 4];
        two.read(100, &mut name).unwrap();
        assert_eq!((two.load_u32(8).unwrap(), two.load_u64(16).unwrap(), &name), (7, u64::MAX, b"name"));
    }

    #[test]
    fn accesses_beyond_or_across_are_refused_and_write_nothing() {
        let fd = create_sealed_memfd(4096).unwrap();
        let page = SharedPage::map(fd.as_fd(), 4096).unwrap();
        assert!(page.load_u32(4093).is_err());
        assert!(page.store_u64(4, 1).is_err(), "unaligned");
        assert!(page.write(4095, &[1, 2]).is_err());
        assert!(page.write(usize::MAX, &[1]).is_err());
        assert!(page.read(4096, &mut [0]).is_err());
        let mut last = [9];
        page.read(4095, &mut last).unwrap();
        assert_eq!(last, [0]);
    }

    #[test]
    fn files_that_could_shrink_or_have_another_size_are_refused() {
        let unsealed = memfd::create_memfd("test").unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(SharedPage::map(unsealed.as_fd(), 4096), Err(SharedPageError::Unsealed)));
        let fd = create_sealed_memfd(8192).unwrap();
        assert!(matches!(
            SharedPage::map(fd.as_fd(), 4096),
            Err(SharedPageError::Size { found: 8192, expected: 4096 })
        ));
    }
}
