//! The host's memory: what layers, clones and write tracking need.
#![allow(unsafe_code)]

use super::{Check, Status, first_line, sysctl};
use rustix::io::Errno;
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

/// struct pm_scan_arg (linux/fs.h, Linux 6.7).
#[repr(C)]
#[derive(Default)]
struct PageMapScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// struct page_region (linux/fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// struct uffdio_api (linux/userfaultfd.h).
#[repr(C)]
struct UserfaultApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xC060_6610_u32 as libc::Ioctl;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;

/// Mappings that a machine of the demo uses, with room for deltas that are mapped run by run.
const MAPPINGS: u64 = 4096;
/// Least memory for the demo with some clones.
const AVAILABLE_BYTES: u64 = 512 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![
        available(),
        page_map(),
        page_map_scan(),
        write_protection(),
        huge_tmpfs(),
        transparent("huge pages, anonymous", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
        transparent("huge pages, memfd", "/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise"),
        mappings(),
        overcommit(),
    ]
}

fn available() -> Check {
    const NAME: &str = "memory available";
    let kilobytes = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let Some(bytes) = kilobytes.map(|kilobytes| kilobytes.saturating_mul(1024)) else {
        let lost = "a warning before the host runs out of memory";
        return Check::lacking(Status::Degraded, NAME, "unknown", lost, "mount /proc");
    };
    let found = format!("{} MiB", bytes >> 20);
    if bytes >= AVAILABLE_BYTES {
        return Check::ok(NAME, found);
    }
    Check::lacking(Status::Degraded, NAME, found, "machines of usual sizes", "stop other programs, or add memory")
}

fn page_map() -> Check {
    const NAME: &str = "/proc/self/pagemap";
    match File::open("/proc/self/pagemap") {
        Ok(_) => Check::ok(NAME, "readable"),
        Err(error) => Check::lacking(
            Status::Missing,
            NAME,
            error.to_string(),
            "finding what a running machine wrote, so every live fork",
            "mount /proc, and build the kernel with CONFIG_PROC_PAGE_MONITOR",
        ),
    }
}

fn page_map_scan() -> Check {
    const NAME: &str = "PAGEMAP_SCAN";
    match scan_own_stack() {
        Ok(()) => Check::ok(NAME, "works"),
        Err(errno) => Check::lacking(
            Status::Degraded,
            NAME,
            errno.to_string(),
            "fast scans for written pages: pagemap is read entry by entry instead",
            "use Linux 6.7 or newer",
        ),
    }
}

fn scan_own_stack() -> Result<(), Errno> {
    let pagemap = File::open("/proc/self/pagemap").map_err(|error| raw(&error))?;
    let mut regions = [PageRegion::default(); 1];
    let page = std::ptr::from_ref(&regions) as u64 & !0xFFF;
    let mut scan = PageMapScan {
        size: size_of::<PageMapScan>() as u64,
        start: page,
        end: page + 0x1000,
        vector: regions.as_mut_ptr() as u64,
        vector_length: 1,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes one pm_scan_arg and at most one page_region, both of which are locals.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
    if found < 0 { Err(raw(&std::io::Error::last_os_error())) } else { Ok(()) }
}

fn write_protection() -> Check {
    const NAME: &str = "userfaultfd, asynchronous write protection";
    match enable_write_protection() {
        Ok(()) => Check::ok(NAME, "works"),
        Err(errno) => Check::lacking(
            Status::Degraded,
            NAME,
            errno.to_string(),
            "incremental tracking: each freeze of a machine copies all that it ever wrote",
            "use Linux 6.7 or newer with CONFIG_USERFAULTFD; a container's seccomp filter must allow userfaultfd",
        ),
    }
}

fn enable_write_protection() -> Result<(), Errno> {
    /// UFFD_USER_MODE_ONLY: needs no rights (Linux 5.11).
    const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: the descriptor is closed below, with nothing registered to it.
    let descriptor: OwnedFd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY) }?;
    let mut api = UserfaultApi { api: UFFD_API, features: UFFD_FEATURE_WP_ASYNC, ioctls: 0 };
    // SAFETY: the kernel reads and writes one uffdio_api, which is a local.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, &raw mut api) };
    if result < 0 { Err(raw(&std::io::Error::last_os_error())) } else { Ok(()) }
}

fn huge_tmpfs() -> Check {
    const NAME: &str = "tmpfs with huge pages";
    let errno = match make_huge_tmpfs() {
        Ok(()) => return Check::ok(NAME, "can be mounted"),
        Err(errno) => errno,
    };
    let remedy = match errno {
        Errno::PERM => "run as root (CAP_SYS_ADMIN)",
        Errno::NOSYS => "use Linux 5.2 or newer",
        _ => "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE and CONFIG_TMPFS",
    };
    let lost = "cheap first reads in clones: templates lie in 4 KiB pages of memfds, each 3 us to touch";
    Check::lacking(Status::Degraded, NAME, errno.to_string(), lost, remedy)
}

/// Makes one that is mounted nowhere, and drops it.
fn make_huge_tmpfs() -> Result<(), Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "huge", "always")?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC).map(drop)
}

/// The setting in brackets in a file of /sys/kernel/mm/transparent_hugepage.
fn selected(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split_once(']').map(|(setting, _)| setting)
}

fn transparent(name: &'static str, path: &str, wanted: &str) -> Check {
    let line = first_line(path).unwrap_or_default();
    match selected(&line) {
        Some(setting @ ("always" | "madvise" | "advise" | "within_size" | "force")) => Check::ok(name, setting),
        found => Check::lacking(
            Status::Degraded,
            name,
            found.unwrap_or("unknown"),
            "fewer page faults where Ramet's own tmpfs cannot be had; nothing where it can",
            format!("echo {wanted} > {path}"),
        ),
    }
}

fn mappings() -> Check {
    const NAME: &str = "vm.max_map_count";
    match sysctl("/proc/sys/vm/max_map_count") {
        Some(count) if count >= MAPPINGS => Check::ok(NAME, count.to_string()),
        count => Check::lacking(
            Status::Degraded,
            NAME,
            count.map_or("unknown".to_owned(), |count| count.to_string()),
            "mapping scattered deltas instead of copying them",
            "sysctl vm.max_map_count=65530",
        ),
    }
}

fn overcommit() -> Check {
    const NAME: &str = "vm.overcommit_memory";
    match sysctl("/proc/sys/vm/overcommit_memory") {
        Some(2) => Check::lacking(
            Status::Degraded,
            NAME,
            "2 (strict)",
            "clones beyond the commit limit: each counts with its whole size, though it uses little of it",
            "sysctl vm.overcommit_memory=0",
        ),
        Some(mode) => Check::ok(NAME, mode.to_string()),
        None => Check::lacking(Status::Degraded, NAME, "unknown", "a warning of strict accounting", "mount /proc"),
    }
}

fn raw(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_setting_is_the_one_in_brackets() {
        assert_eq!(selected("always [madvise] never"), Some("madvise"));
        assert_eq!(selected("always madvise"), None);
        assert_eq!(selected(""), None);
    }

    #[test]
    fn the_scan_structure_is_the_kernels() {
        assert_eq!((size_of::<PageMapScan>(), size_of::<PageRegion>(), size_of::<UserfaultApi>()), (96, 24, 24));
    }
}
