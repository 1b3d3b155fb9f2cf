//! The part of a process's address space in which guest memory lies.
//!
//! A guest-physical address always lies at `base + address`, with one base per space, so a blank machine can register
//! its memory slots before anything is mapped there, and pointers into guest memory stay right when layers are
//! replaced. Nothing is reserved: ranges stay unmapped until they are mapped with MAP_FIXED_NOREPLACE, because
//! registering a slot over a mapped range, or remapping under it, costs far more. Distributions' address layouts keep
//! programs, heaps, stacks and libraries above [`ADDRESS_BASE`] + 32 spaces.
#![allow(unsafe_code)]

use crate::page_set::{PageRange, PageSet};
use ramet_abi::layout::PAGE_BYTES;
use ramet_state::MemoryRegion;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use vm_memory::VolatileSlice;

/// Where the first space of a process begins: 16 TiB.
pub const ADDRESS_BASE: u64 = 0x1000_0000_0000;
/// Bytes of a space, 2 TiB: no guest-physical address of a region may reach it.
pub const SPACE_BYTES: u64 = 2 << 40;
/// Spaces in one process. A machine process uses one; tests use several.
const SPACES: u32 = 32;

/// Which spaces of this process are claimed, a bit each.
static CLAIMED: AtomicU32 = AtomicU32::new(0);

/// Why there is no space or no address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressSpaceError {
    /// Every space is taken.
    #[error("All {SPACES} guest address spaces of this process are in use; run one machine per process")]
    Exhausted,
    /// A region that does not fit.
    #[error(
        "The memory region of {bytes} bytes at {start:#x} is not made of pages below {SPACE_BYTES:#x}; \
         give the machine less memory"
    )]
    Region {
        /// Its first guest-physical address.
        start: u64,
        /// Its length.
        bytes: u64,
    },
}

/// Why something could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A region that does not fit.
    #[error(transparent)]
    Region(#[from] AddressSpaceError),
    /// Something else lies there.
    #[error("{bytes} bytes at {address:#x} are needed for guest memory and already in use in this process")]
    Occupied {
        /// First host address.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// The system refused.
    #[error("Cannot map {bytes} bytes of guest memory at {address:#x}")]
    System {
        /// First host address.
        address: u64,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
}

/// What to map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backing<'a> {
    /// A file from this byte on, shared with whoever else maps it.
    Shared(BorrowedFd<'a>, u64),
    /// A file from this byte on; writes stay here.
    Private(BorrowedFd<'a>, u64),
    /// Zeros.
    Anonymous,
}

/// A claimed space, and what is mapped in it; unmapped and given back when dropped.
#[derive(Debug)]
pub struct AddressSpace {
    index: u32,
    /// Pages of the host's address space.
    mapped: PageSet,
    /// Somebody may still hold pointers into it: never unmapped, never given back.
    leaked: bool,
}

impl AddressSpace {
    /// Claims the first space that is free: in a process with one machine, the one at [`ADDRESS_BASE`].
    pub fn claim() -> Result<AddressSpace, AddressSpaceError> {
        let mut claimed = CLAIMED.load(Ordering::Relaxed);
        loop {
            let index = claimed.trailing_ones();
            if index >= SPACES {
                return Err(AddressSpaceError::Exhausted);
            }
            match CLAIMED.compare_exchange(claimed, claimed | 1 << index, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(AddressSpace { index, mapped: PageSet::new(), leaked: false }),
                Err(now) => claimed = now,
            }
        }
    }

    /// Host address of guest-physical address 0.
    pub fn base(&self) -> u64 {
        ADDRESS_BASE + u64::from(self.index) * SPACE_BYTES
    }

    /// Host address of a region: what its memory slot gets, whether it is mapped yet or not.
    pub fn host_address(&self, region: &MemoryRegion) -> Result<u64, AddressSpaceError> {
        let MemoryRegion { start, bytes, .. } = *region;
        let aligned = start.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES) && bytes > 0;
        if !aligned || start.checked_add(bytes).is_none_or(|end| end > SPACE_BYTES) {
            return Err(AddressSpaceError::Region { start, bytes });
        }
        Ok(self.base() + start)
    }

    /// Maps something at guest-physical `start`, over what this space has there, but over nothing that is not its own.
    pub(crate) fn map(&mut self, start: u64, bytes: u64, backing: Backing<'_>) -> Result<(), MapError> {
        let address = self.checked_address(start, bytes)?;
        let pages = PageRange { start: address / PAGE_BYTES, pages: bytes / PAGE_BYTES };
        // MAP_FIXED replaces only what is wholly ours; all else must be free.
        let placed = match self.mapped.contains(pages) {
            true => MapFlags::FIXED,
            false => MapFlags::FIXED_NOREPLACE,
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (at, length) = (address as *mut c_void, bytes as usize);
        // SAFETY: the range is within this space, which this value has claimed for itself, and by the flags the call
        // replaces nothing but this space's own mappings. Of those there are raw pointers only, and they stay valid:
        // what takes their place is readable and writable memory too.
        let result = unsafe {
            match backing {
                Backing::Shared(fd, offset) => rustix::mm::mmap(
                    at,
                    length,
                    protection,
                    placed | MapFlags::SHARED | MapFlags::NORESERVE,
                    fd,
                    offset,
                ),
                Backing::Private(fd, offset) => {
                    let flags = placed | MapFlags::PRIVATE | MapFlags::NORESERVE;
                    rustix::mm::mmap(at, length, protection, flags, fd, offset)
                }
                Backing::Anonymous => {
                    rustix::mm::mmap_anonymous(at, length, protection, placed | MapFlags::PRIVATE | MapFlags::NORESERVE)
                }
            }
        };
        match result {
            Ok(_) => self.mapped.insert(pages),
            Err(Errno::EXIST) => return Err(MapError::Occupied { address, bytes }),
            Err(source) => return Err(MapError::System { address, bytes, source }),
        }
        if matches!(backing, Backing::Anonymous) {
            self.refuse_huge_pages(address, bytes)?;
        }
        Ok(())
    }

    /// Zeroes pages that are anonymous already, giving their memory back.
    pub(crate) fn drop_anonymous(&self, start: u64, bytes: u64) -> Result<(), MapError> {
        let address = self.checked_address(start, bytes)?;
        self.require_mapped(address, bytes)?;
        // SAFETY: the range is this space's own, and only volatile accesses are made to it.
        unsafe { rustix::mm::madvise(address as *mut c_void, bytes as usize, rustix::mm::Advice::LinuxDontNeed) }
            .map_err(|source| MapError::System { address, bytes, source })
    }

    /// Pointer to `bytes` of mapped guest memory.
    pub(crate) fn pointer(&self, start: u64, bytes: u64) -> Result<*mut u8, MapError> {
        let address = self.checked_address(start, bytes)?;
        self.require_mapped(address, bytes)?;
        Ok(address as *mut u8)
    }

    /// `bytes` of mapped guest memory.
    pub(crate) fn slice(&self, start: u64, bytes: u64) -> Result<VolatileSlice<'_>, MapError> {
        let pointer = self.pointer(start, bytes)?;
        // SAFETY: the memory is mapped, readable and writable for as long as the space lives, which the slice borrows;
        // what else writes to it, a volatile slice allows for.
        Ok(unsafe { VolatileSlice::new(pointer, bytes as usize) })
    }

    /// Forgets what is mapped: somebody still points into it.
    pub(crate) fn leak(&mut self) {
        self.leaked = true;
    }

    /// A huge page would make one written byte 512 written pages.
    fn refuse_huge_pages(&self, address: u64, bytes: u64) -> Result<(), MapError> {
        // SAFETY: advice about this space's own mapping, which changes neither contents nor permissions.
        let advised =
            unsafe { rustix::mm::madvise(address as *mut c_void, bytes as usize, rustix::mm::Advice::LinuxNoHugepage) };
        match advised {
            // A kernel without transparent huge pages needs no advice.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(source) => Err(MapError::System { address, bytes, source }),
        }
    }

    fn checked_address(&self, start: u64, bytes: u64) -> Result<u64, AddressSpaceError> {
        let aligned = start.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES) && bytes > 0;
        match start.checked_add(bytes) {
            Some(end) if aligned && end <= SPACE_BYTES => Ok(self.base() + start),
            _ => Err(AddressSpaceError::Region { start, bytes }),
        }
    }

    fn require_mapped(&self, address: u64, bytes: u64) -> Result<(), MapError> {
        let pages = PageRange { start: address / PAGE_BYTES, pages: bytes / PAGE_BYTES };
        match self.mapped.contains(pages) {
            true => Ok(()),
            false => Err(MapError::System { address, bytes, source: Errno::FAULT }),
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if self.leaked {
            return;
        }
        for range in self.mapped.ranges() {
            let (address, bytes) = (range.start * PAGE_BYTES, range.pages * PAGE_BYTES);
            // SAFETY: the range is this space's own, and `leak` has been called if anybody else may point into it.
            // If the kernel cannot split a mapping there is nothing to be done, so the space stays claimed.
            if unsafe { rustix::mm::munmap(address as *mut c_void, bytes as usize) }.is_err() {
                return;
            }
        }
        CLAIMED.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_state::{CloneRule, RegionPurpose};

    fn region(start: u64, bytes: u64) -> MemoryRegion {
        MemoryRegion { start, bytes, ram_offset: 0, purpose: RegionPurpose::Ram, rule: CloneRule::Copy }
    }

    #[test]
    fn spaces_do_not_meet() {
        let (one, two) = (AddressSpace::claim().unwrap(), AddressSpace::claim().unwrap());
        assert!(one.base().abs_diff(two.base()) >= SPACE_BYTES);
        assert_eq!(one.host_address(&region(0x1000, 0x1000)), Ok(one.base() + 0x1000));
    }

    #[test]
    fn regions_beyond_the_space_or_off_the_page_are_refused() {
        let space = AddressSpace::claim().unwrap();
        for (start, bytes) in [(SPACE_BYTES - 4096, 8192), (1, 4096), (0, 0), (0, 100), (u64::MAX - 4095, 4096)] {
            assert_eq!(space.host_address(&region(start, bytes)), Err(AddressSpaceError::Region { start, bytes }));
        }
    }

    #[test]
    fn what_lies_there_already_is_not_replaced() {
        let mut space = AddressSpace::claim().unwrap();
        let mut other = AddressSpace { index: space.index, mapped: PageSet::new(), leaked: true };
        space.map(0x2000, 0x2000, Backing::Anonymous).unwrap();
        let address = space.base() + 0x1000;
        let occupied = MapError::Occupied { address, bytes: 0x2000 };
        assert_eq!(other.map(0x1000, 0x2000, Backing::Anonymous), Err(occupied));
        assert_eq!(space.map(0x1000, 0x2000, Backing::Anonymous), Err(occupied), "half of it is not the space's own");
        space.map(0x2000, 0x1000, Backing::Anonymous).expect("its own may be replaced");
    }
}
