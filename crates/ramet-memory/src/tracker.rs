//! Which pages of private memory were written since the last look.
//!
//! Two ways, of which the kernel decides ([`TrackerKind`]):
//!
//! - *Write protection*: one PAGEMAP_SCAN finds the pages that are private to the process (not a file's) and not
//!   write-protected, which is what was written since the last scan, and protects exactly those; the kernel lifts the
//!   protection by itself at the next write (userfaultfd, UFFD_FEATURE_WP_ASYNC, Linux 6.7). Clean file pages are
//!   never touched and cost nothing, so the set is exact from the first scan on.
//! - *Private pages*: on older kernels /proc/self/pagemap tells a process's own pages from a file's. That finds
//!   everything written since the memory was mapped, at each scan: correct, but growing.
//!
//! Once a page is protected, only PAGE_IS_WRITTEN says anything about it: protection leaves entries that look present.
//! Pages in swap keep their mark. Both descriptors are bound to the process that opens them, and must be opened by it
//! before it gives up its rights ([`Tracker::open`]).
#![allow(unsafe_code)]

use crate::page_set::PageRange;
use crate::sys;
use ramet_abi::layout::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Ranges that one PAGEMAP_SCAN can report; a scan goes on where it stopped.
const SCAN_REGIONS: usize = 2048;
/// Written pages that are further apart are protected by system calls of their own: protecting takes what lies between
/// away from the guest too, at 1.2 ns a page at once and some microseconds for each 2 MiB it comes back to, where a
/// system call costs 2 us.
const SPLIT_PAGES: u64 = 512;
/// Entries of /proc/self/pagemap in one read.
const PAGEMAP_ENTRIES: usize = 8192;
/// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const PAGEMAP_FILE: u64 = 1 << 61;
const PAGEMAP_SWAPPED: u64 = 1 << 62;
const PAGEMAP_PRESENT: u64 = 1 << 63;

/// Request numbers of the ioctls that a tracker makes once it is open: what a machine's seccomp filter must let through.
pub const TRACKER_IOCTLS: &[u32] =
    &[sys::UFFDIO_REGISTER as u32, sys::UFFDIO_COPY as u32, sys::UFFDIO_ZEROPAGE as u32, sys::PAGEMAP_SCAN as u32];

/// How a tracker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerKind {
    /// Finds what was written since the last scan.
    WriteProtection,
    /// Finds what was written since the memory was mapped.
    PrivatePages,
}

/// Why there is no tracker, or no answer from it.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    /// The page map cannot be opened.
    #[error("Cannot open pagemap in this process's directory of /proc; open it before giving up rights")]
    Pagemap(#[source] Errno),
    /// The system's write protection was demanded and is missing.
    #[error("This kernel cannot track written pages by write protection; it takes Linux 6.7 with userfaultfd")]
    WriteProtection(#[source] Errno),
    /// Registering failed.
    #[error("Cannot register {bytes} bytes at {address:#x} for write tracking")]
    Register {
        /// First host address.
        address: u64,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// Scanning failed.
    #[error("Cannot scan {bytes} bytes at {address:#x} for written pages")]
    Scan {
        /// First host address.
        address: u64,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
}

/// Finds written pages of the process that opened it.
#[derive(Debug)]
pub struct Tracker {
    pagemap: OwnedFd,
    userfault: Option<OwnedFd>,
    regions: Vec<sys::PageRegion>,
}

impl Tracker {
    /// Opens the best tracker there is. `proc_self` is this process's own directory of /proc.
    pub fn open(proc_self: BorrowedFd<'_>) -> Result<Tracker, TrackerError> {
        match Tracker::open_kind(proc_self, TrackerKind::WriteProtection) {
            Err(TrackerError::WriteProtection(_)) => Tracker::open_kind(proc_self, TrackerKind::PrivatePages),
            opened => opened,
        }
    }

    /// Opens a tracker of one kind.
    pub fn open_kind(proc_self: BorrowedFd<'_>, kind: TrackerKind) -> Result<Tracker, TrackerError> {
        let pagemap = rustix::fs::openat(proc_self, "pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(TrackerError::Pagemap)?;
        let userfault = match kind {
            TrackerKind::WriteProtection => Some(open_userfault(&pagemap).map_err(TrackerError::WriteProtection)?),
            TrackerKind::PrivatePages => None,
        };
        // Made at the first scan: most clones are never frozen.
        let regions = Vec::new();
        Ok(Tracker { pagemap, userfault, regions })
    }

    /// What must stay open in a process that closes everything else.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.pagemap.as_fd()), self.userfault.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// How it works.
    pub fn kind(&self) -> TrackerKind {
        match self.userfault {
            Some(_) => TrackerKind::WriteProtection,
            None => TrackerKind::PrivatePages,
        }
    }

    /// Prepares a range for scanning; again after anything in it was mapped anew. Repeating it is harmless.
    pub(crate) fn register(&self, address: u64, bytes: u64) -> Result<(), TrackerError> {
        match &self.userfault {
            Some(fd) => sys::userfault_register(fd.as_fd(), address, bytes).map_err(|source| TrackerError::Register {
                address,
                bytes,
                source,
            }),
            None => Ok(()),
        }
    }

    /// Gives untouched pages of a registered range the contents at address `from`, or zeros, without their counting as
    /// written. Only trackers by write protection can; others answer EOPNOTSUPP.
    ///
    /// # Safety
    /// `to .. to + bytes` is mapped private memory of which no Rust reference exists.
    pub(crate) unsafe fn fill(&self, to: u64, from: Option<u64>, bytes: u64) -> Result<(), Errno> {
        let fd = self.userfault.as_ref().ok_or(Errno::OPNOTSUPP)?.as_fd();
        match from {
            // SAFETY: the caller vouches for the range.
            Some(from) => unsafe { sys::userfault_copy(fd, to, from, bytes) },
            // SAFETY: as above.
            None => unsafe { sys::userfault_zero(fd, to, bytes) },
        }
    }

    /// Reports the written pages of a registered range, in ascending order, as pages from its start on, and leaves
    /// everything as it is.
    pub(crate) fn look(
        &mut self,
        address: u64,
        bytes: u64,
        found: &mut dyn FnMut(PageRange),
    ) -> Result<(), TrackerError> {
        match self.kind() {
            TrackerKind::WriteProtection => self.scan_written(address, bytes, 0, found),
            TrackerKind::PrivatePages => self.scan_private(address, bytes, found),
        }
        .map_err(|source| TrackerError::Scan { address, bytes, source })
    }

    /// Reports the written pages like [`Tracker::look`], and protects them, so that they are not reported again before
    /// they are written again. What was reported before an error stays true, and may not be reported again.
    ///
    /// It looks where there is something to protect, then protects there. What the second finds is what counts: a page
    /// that is written in between is found by it or left for the next time.
    pub(crate) fn take(
        &mut self,
        address: u64,
        bytes: u64,
        found: &mut dyn FnMut(PageRange),
    ) -> Result<(), TrackerError> {
        if self.kind() == TrackerKind::PrivatePages {
            return self.look(address, bytes, found);
        }
        let mut clusters: Vec<PageRange> = Vec::new();
        self.look(address, bytes, &mut |range| match clusters.last_mut() {
            Some(last) if range.start < last.end() + SPLIT_PAGES => *last = PageRange::between(last.start, range.end()),
            _ => clusters.push(range),
        })?;
        for cluster in clusters {
            let (address, bytes) = (address + cluster.start * PAGE_BYTES, cluster.pages * PAGE_BYTES);
            self.scan_written(address, bytes, sys::PM_SCAN_WP_MATCHING, &mut |range| {
                found(PageRange { start: cluster.start + range.start, ..range });
            })
            .map_err(|source| TrackerError::Scan { address, bytes, source })?;
        }
        Ok(())
    }

    fn scan_written(
        &mut self,
        address: u64,
        bytes: u64,
        flags: u64,
        found: &mut dyn FnMut(PageRange),
    ) -> Result<(), Errno> {
        let unwanted = sys::PAGE_IS_FILE | sys::PAGE_IS_PFNZERO;
        let (mut from, end) = (address, address + bytes);
        while from < end {
            let mut arg = sys::PmScanArg {
                flags: flags | sys::PM_SCAN_CHECK_WPASYNC,
                start: from,
                end,
                category_inverted: unwanted,
                category_mask: sys::PAGE_IS_WRITTEN | unwanted,
                // A page that was never touched counts as written, too: it is not protected.
                category_anyof_mask: sys::PAGE_IS_PRESENT | sys::PAGE_IS_SWAPPED,
                return_mask: sys::PAGE_IS_WRITTEN,
                ..Default::default()
            };
            self.regions.resize(SCAN_REGIONS, sys::PageRegion::default());
            let filled = sys::pagemap_scan(self.pagemap.as_fd(), &mut arg, &mut self.regions)?;
            for region in &self.regions[..filled] {
                let start = (region.start - address) / PAGE_BYTES;
                found(PageRange { start, pages: (region.end - region.start) / PAGE_BYTES });
            }
            // Linux (6.18 too) leaves `walk_end` at an earlier place when a scan ends in its second or later buffer of
            // 512 regions; what was reported must not be reported again.
            let reported = self.regions[..filled].last().map_or(0, |region| region.end);
            let reached = arg.walk_end.max(reported);
            // A kernel that made no headway would loop for ever.
            if reached <= from {
                return Err(Errno::NODATA);
            }
            from = reached;
        }
        Ok(())
    }

    fn scan_private(&self, address: u64, bytes: u64, found: &mut dyn FnMut(PageRange)) -> Result<(), Errno> {
        let pages = bytes / PAGE_BYTES;
        let mut buffer = vec![0u8; PAGEMAP_ENTRIES * 8];
        let mut page = 0;
        while page < pages {
            let wanted = usize::try_from(pages - page).unwrap_or(usize::MAX).min(PAGEMAP_ENTRIES) * 8;
            let offset = (address / PAGE_BYTES + page) * 8;
            let read = rustix::io::pread(&self.pagemap, &mut buffer[..wanted], offset)?;
            if read < 8 {
                return Err(Errno::NODATA);
            }
            for entry in buffer[..read].chunks_exact(8) {
                let entry = entry.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
                if entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED) != 0 && entry & PAGEMAP_FILE == 0 {
                    found(PageRange { start: page, pages: 1 });
                }
                page += 1;
            }
        }
        Ok(())
    }
}

/// A userfaultfd with the features that tracking takes, on a kernel that has PAGEMAP_SCAN.
fn open_userfault(pagemap: &OwnedFd) -> Result<OwnedFd, Errno> {
    // UFFD_USER_MODE_ONLY needs no right; that the kernel's own writes fault too does not matter, since the kernel
    // resolves all faults here by itself.
    // SAFETY: the descriptor is kept private and only used to register mappings for write protection.
    let fd = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(1)) }?;
    sys::userfault_enable_async_wp(fd.as_fd())?;
    // An empty range: an older kernel answers ENOTTY.
    let mut arg = sys::PmScanArg { start: 0, end: 0, return_mask: sys::PAGE_IS_WRITTEN, ..Default::default() };
    sys::pagemap_scan(pagemap.as_fd(), &mut arg, &mut [sys::PageRegion::default()])?;
    Ok(fd)
}
