//! The system calls and structures that the libraries in use do not have, and owned mappings.
//!
//! Every function here is as thin as it can be; the invariants are with the callers.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// The last error of a libc call.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What an ioctl or fcntl returned, or its error.
fn check(returned: i64) -> Result<u64, Errno> {
    u64::try_from(returned).map_err(|_| last_error())
}

/// `struct uffdio_api` (linux/userfaultfd.h).
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register` (linux/userfaultfd.h).
#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy` (linux/userfaultfd.h).
#[repr(C)]
struct UffdioCopy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}

/// `struct uffdio_zeropage` (linux/userfaultfd.h).
#[repr(C)]
struct UffdioZeropage {
    start: u64,
    len: u64,
    mode: u64,
    zeropage: i64,
}

/// `struct page_region` (linux/fs.h, since 6.7).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageRegion {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) categories: u64,
}

/// `struct pm_scan_arg` (linux/fs.h, since 6.7).
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct PmScanArg {
    pub(crate) size: u64,
    pub(crate) flags: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) walk_end: u64,
    pub(crate) vec: u64,
    pub(crate) vec_len: u64,
    pub(crate) max_pages: u64,
    pub(crate) category_inverted: u64,
    pub(crate) category_mask: u64,
    pub(crate) category_anyof_mask: u64,
    pub(crate) return_mask: u64,
}

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
pub(crate) const UFFDIO_REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;
pub(crate) const UFFDIO_COPY: libc::Ioctl = 0xC028_AA03_u32 as libc::Ioctl;
pub(crate) const UFFDIO_ZEROPAGE: libc::Ioctl = 0xC020_AA04_u32 as libc::Ioctl;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_COPY_MODE_WP: u64 = 1 << 1;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
pub(crate) const PAGEMAP_SCAN: libc::Ioctl = 0xC060_6610_u32 as libc::Ioctl;

pub(crate) const PAGE_IS_WRITTEN: u64 = 1 << 1;
pub(crate) const PAGE_IS_FILE: u64 = 1 << 2;
pub(crate) const PAGE_IS_PRESENT: u64 = 1 << 3;
pub(crate) const PAGE_IS_SWAPPED: u64 = 1 << 4;
pub(crate) const PAGE_IS_PFNZERO: u64 = 1 << 5;
pub(crate) const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
pub(crate) const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;

/// Negotiates write protection that the kernel resolves by itself (since 6.7), on any kind of mapping.
pub(crate) fn userfault_enable_async_wp(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC;
    let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `uffdio_api`, which `api` is.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) }))?;
    Ok(())
}

/// Registers `start .. start + len` for write protection. It changes no page and no permission: with
/// UFFD_FEATURE_WP_ASYNC a fault never waits for anybody.
pub(crate) fn userfault_register(fd: BorrowedFd<'_>, start: u64, len: u64) -> Result<(), Errno> {
    let mut register = UffdioRegister { start, len, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: UFFDIO_REGISTER reads and writes one `uffdio_register`; see above for what it does to the mapping.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut register) }))?;
    Ok(())
}

/// Gives pages of a registered private mapping, which nothing has touched yet, contents of their own and protects them.
/// The kernel allocates and fills a page at once, where writing would first copy the file's page under it.
///
/// # Safety
/// `to .. to + bytes` is mapped private memory of which no Rust reference exists.
pub(crate) unsafe fn userfault_copy(fd: BorrowedFd<'_>, to: u64, from: u64, bytes: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let (dst, src, len) = (to + done, from + done, bytes - done);
        let mut copy = UffdioCopy { dst, src, len, mode: UFFDIO_COPY_MODE_WP, copy: 0 };
        // SAFETY: UFFDIO_COPY reads and writes one `uffdio_copy`. It reads `src` like any system call, failing where
        // that is no memory, and the caller vouches for `dst`.
        match check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_COPY, &raw mut copy) })) {
            Ok(_) => return Ok(()),
            // It stopped half-way, because something else is changing mappings.
            Err(Errno::AGAIN) => done += u64::try_from(copy.copy).unwrap_or(0),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Puts the zero page over pages of a registered private mapping that nothing has touched yet.
///
/// # Safety
/// `to .. to + bytes` is mapped private memory of which no Rust reference exists.
pub(crate) unsafe fn userfault_zero(fd: BorrowedFd<'_>, to: u64, bytes: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes {
        let mut zero = UffdioZeropage { start: to + done, len: bytes - done, mode: 0, zeropage: 0 };
        // SAFETY: UFFDIO_ZEROPAGE reads and writes one `uffdio_zeropage`; the caller vouches for the range.
        match check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_ZEROPAGE, &raw mut zero) })) {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) => done += u64::try_from(zero.zeropage).unwrap_or(0),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// PAGEMAP_SCAN into `regions`; gives how many of them it filled, and sets `walk_end`.
pub(crate) fn pagemap_scan(
    fd: BorrowedFd<'_>,
    arg: &mut PmScanArg,
    regions: &mut [PageRegion],
) -> Result<usize, Errno> {
    arg.size = size_of::<PmScanArg>() as u64;
    arg.vec = regions.as_mut_ptr() as u64;
    arg.vec_len = regions.len() as u64;
    // SAFETY: the kernel writes at most `vec_len` regions to `vec`, which are `regions`, borrowed for the call. Write
    // protection, where asked for, only makes the next write to a page fault once (see `userfault_register`).
    let filled = check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(arg)) }))?;
    Ok(usize::try_from(filled).unwrap_or(0).min(regions.len()))
}

/// Makes a detached mount read-only, for whoever has a descriptor of a file opened through it.
pub(crate) fn mount_set_read_only(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    /// `struct mount_attr` (linux/mount.h, since 5.12).
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    const MOUNT_ATTR_RDONLY: u64 = 1;
    let attributes = MountAttr { attr_set: MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is an empty C string and `attributes` is a `mount_attr` of the size given; the kernel reads both.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    check(returned).map(|_| ())
}

/// Whether nobody has the file behind `fd` (read-only, regular) open for writing or mapped shared and writable.
///
/// The kernel grants a read lease only on such a file (fcntl(2), F_SETLEASE); it is given back at once.
pub(crate) fn has_no_writer(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: F_SETLEASE takes an integer.
    match check(i64::from(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) })) {
        Ok(_) => {}
        Err(Errno::AGAIN) => return Ok(false),
        Err(error) => return Err(error),
    }
    // SAFETY: as above.
    check(i64::from(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }))?;
    Ok(true)
}

/// Reads from `fd` at `offset` into the given parts of memory; gives the bytes read.
///
/// # Safety
/// Each part is mapped writable memory of which no Rust reference exists.
pub(crate) unsafe fn read_scattered(fd: BorrowedFd<'_>, parts: &[libc::iovec], offset: u64) -> Result<u64, Errno> {
    let count = i32::try_from(parts.len()).map_err(|_| Errno::INVAL)?;
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: the caller vouches for the parts; `count` is how many there are.
    check(unsafe { libc::preadv(fd.as_raw_fd(), parts.as_ptr(), count, offset) } as i64)
}

/// A mapping of a file that can only be read, and only by the kernel on this process's behalf.
#[derive(Debug)]
pub(crate) struct SourceMapping {
    start: NonNull<c_void>,
    bytes: usize,
}

impl SourceMapping {
    /// Maps the first `bytes` of a file; more than 0.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize) -> Result<SourceMapping, Errno> {
        use rustix::mm::{MapFlags, ProtFlags};
        // SAFETY: the kernel chooses an unused range, so nothing that exists is replaced.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, fd, 0) }?;
        Ok(SourceMapping { start: NonNull::new(start).ok_or(Errno::NOMEM)?, bytes })
    }

    /// Address of `bytes` bytes at `offset` of the file.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> Result<u64, Errno> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes as u64 => Ok(self.start.as_ptr() as u64 + offset),
            _ => Err(Errno::OVERFLOW),
        }
    }
}

impl Drop for SourceMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has more than its address. Unmapping a whole mapping can only fail
        // for bad arguments, so there is no error to keep.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A shared, writable mapping of a file somewhere in the process, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value, wherever the value goes; it has no tie to a thread.
unsafe impl Send for SharedMapping {}
// SAFETY: all access through a shared reference is by volatile or atomic operations (`slice`).
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `bytes` of a file; more than 0.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize) -> Result<SharedMapping, Errno> {
        use rustix::mm::{MapFlags, ProtFlags};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range, so nothing that exists is replaced.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::NORESERVE, fd, 0)
        }?;
        Ok(SharedMapping { start: NonNull::new(start).ok_or(Errno::NOMEM)?, bytes })
    }

    /// Makes pages from byte `from` on present and writable; an error where there is no memory for them.
    pub(crate) fn populate(&self, from: usize) -> Result<(), Errno> {
        let from = from.min(self.bytes);
        // SAFETY: the range is within the mapping; populating does not change contents.
        unsafe {
            let start = self.start.as_ptr().cast::<u8>().add(from).cast::<c_void>();
            rustix::mm::madvise(start, self.bytes - from, rustix::mm::Advice::LinuxPopulateWrite)
        }
    }

    /// Its memory.
    pub(crate) fn slice(&self) -> vm_memory::VolatileSlice<'_> {
        // SAFETY: the range is mapped for as long as `self` lives, which the slice borrows, and other processes may
        // change it, which a volatile slice allows for.
        unsafe { vm_memory::VolatileSlice::new(self.start.as_ptr().cast(), self.bytes) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows it any more. Unmapping a whole mapping can only fail for bad
        // arguments, so there is no error to keep.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}
