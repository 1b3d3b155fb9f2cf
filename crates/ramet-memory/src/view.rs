//! What a machine runs on: its RAM at fixed host addresses, in the machine's process.
//!
//! ```text
//!   map_founder --> shared: writes go into a flat file
//!                      | freeze(Some(read-only descriptor)): nothing is copied
//!                      v
//!   map_layers ---> private: writes stay in this process
//!                      | freeze(None): the pages written since the last freeze become a delta
//!                      +--> private
//! ```
//!
//! A view that failed half-way is dropped and unmaps itself. All mapping is MAP_NORESERVE: clones together may map
//! more than there is. Holes of layers are mapped as zeros of the process's own, never as holes of the file, because an
//! access to those would fill the file. Absent ranges are zeros too, so a device that is sent there by a guest cannot
//! bring the process down; what is written there is never frozen.
//!
//! Once confined, a view takes these system calls: mmap, munmap, madvise, ioctl (PAGEMAP_SCAN; UFFDIO_REGISTER,
//! UFFDIO_COPY, UFFDIO_ZEROPAGE), memfd_create, fallocate, ftruncate, fstat, lseek, preadv, pread64 and close.
//!
//! Deliberately absent: who pauses vCPUs and when; descriptors' ways here; zeroing of memory that was never mapped.
#![allow(unsafe_code)]

mod copying;
mod discard;
mod freeze;
mod mapping;
mod steps;

pub use discard::{DiscardError, DiscardKind};
pub use freeze::{FreezeError, Frozen};

use crate::address_space::{AddressSpace, AddressSpaceError, Backing, MapError};
use crate::delta::DeltaReserve;
use crate::memfd;
use crate::page_map::{LayerId, PageMapError};
use crate::page_set::{PageRange, PageSet};
use crate::tracker::{Tracker, TrackerError, TrackerKind};
use ramet_abi::layout::PAGE_BYTES;
use ramet_state::{MemoryRegion, RegionPurpose};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Most mappings that a view makes of its own will; Linux allows a process 65,530 (vm.max_map_count), and each one
/// makes registering, remapping and exit slower.
pub(crate) const MAX_MAPPINGS: usize = 4000;

/// Why memory cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The regions do not make a machine's memory.
    #[error("The RAM region at {start:#x} does not go on where the one before it ended, at page {expected} of RAM")]
    Regions {
        /// Its guest-physical address.
        start: u64,
        /// Where it should begin.
        expected: u64,
    },
    /// There are none.
    #[error("The machine has no RAM region")]
    NoRam,
    /// A file too short for what is mapped from it.
    #[error("The file for {bytes} bytes of guest memory has only {found}; an access beyond its end would be fatal")]
    FileTooShort {
        /// Bytes needed.
        bytes: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A shared file that a peer could truncate.
    #[error("The file for the region at {start:#x} is not sealed against shrinking; make it with create_sealed_memfd")]
    Unsealed {
        /// Guest-physical address of the region.
        start: u64,
    },
    /// A map of another size.
    #[error("The page map has {found} pages, the machine's RAM has {expected}")]
    MapSize {
        /// Pages of the map.
        found: u64,
        /// Pages of RAM.
        expected: u64,
    },
    /// A map that its layers do not fit.
    #[error(transparent)]
    Map(#[from] PageMapError),
    /// A layer's page cannot be read.
    #[error("Cannot read {bytes} bytes of layer {layer}")]
    Read {
        /// Which.
        layer: LayerId,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// A file cannot be looked at.
    #[error("Cannot examine a file of guest memory")]
    File(#[source] Errno),
    /// Mapping failed.
    #[error(transparent)]
    Mapping(#[from] MapError),
    /// The tracker failed.
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    /// The memory library refused the regions.
    #[error("The RAM regions overlap or do not fit the address space")]
    GuestMemory,
}

impl From<AddressSpaceError> for ViewError {
    fn from(error: AddressSpaceError) -> ViewError {
        ViewError::Mapping(error.into())
    }
}

/// Where a view's writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// Into the flat file of a founder.
    Shared,
    /// Nowhere but this process.
    Private,
}

#[derive(Debug)]
enum Kind {
    Shared(OwnedFd),
    Private,
}

/// What changed since the last freeze, besides what the tracker will still find.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Found written, but not in any delta yet.
    written: PageSet,
    /// Discarded; zeros unless written again.
    zeroed: PageSet,
    /// Unplugged.
    unplugged: PageSet,
}

/// A machine's RAM.
#[derive(Debug)]
pub struct View {
    space: AddressSpace,
    ram: Vec<MemoryRegion>,
    regions: Vec<Arc<GuestRegionMmap>>,
    memory: GuestMemoryMmap,
    /// Regions that are not RAM.
    shared: Vec<Arc<GuestRegionMmap>>,
    kind: Kind,
    tracker: Tracker,
    /// Whether everything mapped is registered with the tracker.
    registered: bool,
    pending: Pending,
    /// What the last freeze found: what the next one is expected to find.
    last_written_pages: u64,
    /// Pages that are this process's own zeros wherever they were not written.
    anonymous: PageSet,
    /// Pages that are not plugged in.
    absent: PageSet,
    /// Mappings made, an estimate from above.
    mappings: usize,
    reserve: Option<DeltaReserve>,
}

impl View {
    /// A founder's view: RAM is the file, and what the machine writes is written there. `regions` are all the machine's
    /// (those that are not RAM are not mapped here), `file` is its flat file, read-write.
    pub fn map_founder(
        space: AddressSpace,
        regions: &[MemoryRegion],
        file: OwnedFd,
        tracker: Tracker,
    ) -> Result<View, ViewError> {
        let ram = ram_regions(&space, regions)?;
        check_file(file.as_fd(), ram_pages(&ram) * PAGE_BYTES)?;
        let mut view = View::unmapped(space, ram, tracker)?;
        view.map_shared_file(file.as_fd())?;
        view.kind = Kind::Shared(file);
        Ok(view)
    }

    /// Maps a region that is not RAM from the start of its file, shared with every process that maps it too. What is
    /// returned is that region alone: it is no part of [`View::memory`], so no device can be made to reach it by an
    /// address that a guest gives.
    pub fn map_shared(&mut self, region: &MemoryRegion, file: BorrowedFd<'_>) -> Result<GuestMemoryMmap, ViewError> {
        self.space.host_address(region)?;
        if region.purpose == RegionPurpose::Ram {
            return Err(ViewError::Regions { start: region.start, expected: region.ram_offset / PAGE_BYTES });
        }
        if !memfd::keeps_its_size(file) {
            return Err(ViewError::Unsealed { start: region.start });
        }
        check_file(file, region.bytes)?;
        self.space.map(region.start, region.bytes, Backing::Shared(file, 0))?;
        let mapped = guest_region(&self.space, region)?;
        let memory =
            GuestMemoryMmap::from_arc_regions(vec![Arc::clone(&mapped)]).map_err(|_| ViewError::GuestMemory)?;
        self.shared.push(mapped);
        Ok(memory)
    }

    /// RAM, for devices and loaders. Addresses never change, so a clone of it stays good as long as the view does; if
    /// one outlives the view, the memory stays mapped for ever.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Host address of a region: what its memory slot has.
    pub fn host_address(&self, region: &MemoryRegion) -> Result<u64, AddressSpaceError> {
        self.space.host_address(region)
    }

    /// Where its writes go.
    pub fn kind(&self) -> ViewKind {
        match self.kind {
            Kind::Shared(_) => ViewKind::Shared,
            Kind::Private => ViewKind::Private,
        }
    }

    /// How written pages are found.
    pub fn tracker_kind(&self) -> TrackerKind {
        self.tracker.kind()
    }

    /// Pages of RAM.
    pub fn pages(&self) -> u64 {
        ram_pages(&self.ram)
    }

    /// Pages that are not plugged in.
    pub fn absent(&self) -> &PageSet {
        &self.absent
    }

    fn unmapped(space: AddressSpace, ram: Vec<MemoryRegion>, tracker: Tracker) -> Result<View, ViewError> {
        let regions = ram.iter().map(|region| guest_region(&space, region)).collect::<Result<Vec<_>, _>>()?;
        let memory = GuestMemoryMmap::from_arc_regions(regions.clone()).map_err(|_| ViewError::GuestMemory)?;
        Ok(View {
            space,
            ram,
            regions,
            memory,
            shared: Vec::new(),
            kind: Kind::Private,
            tracker,
            registered: false,
            pending: Pending::default(),
            last_written_pages: 0,
            anonymous: PageSet::new(),
            absent: PageSet::new(),
            mappings: 0,
            reserve: None,
        })
    }

    /// The pieces of a range of pages that lie in one region each, as (pages, guest-physical address).
    fn pieces(&self, range: PageRange) -> impl Iterator<Item = (PageRange, u64)> + '_ {
        self.ram.iter().filter_map(move |region| {
            let first = region.ram_offset / PAGE_BYTES;
            let start = range.start.max(first);
            let end = range.end().min(first + region.bytes / PAGE_BYTES);
            (start < end).then(|| (PageRange::between(start, end), region.start + (start - first) * PAGE_BYTES))
        })
    }

    /// Registers everything with the tracker, if something was mapped since it last was.
    fn register(&mut self) -> Result<(), TrackerError> {
        if self.registered {
            return Ok(());
        }
        for region in &self.ram {
            self.tracker.register(self.space.base() + region.start, region.bytes)?;
        }
        self.registered = true;
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // `regions` and `memory` each hold RAM's regions once, `shared` the others. With more holders somebody can still
        // reach the memory.
        let held = |region: &Arc<GuestRegionMmap>, own: usize| {
            let mapping = region.get_mmap();
            Arc::strong_count(region) > own || Arc::strong_count(&mapping) > 2
        };
        if self.regions.iter().any(|region| held(region, 2)) || self.shared.iter().any(|region| held(region, 1)) {
            self.space.leak();
        }
    }
}

/// The RAM among a machine's regions, in ascending order and without gaps in RAM.
fn ram_regions(space: &AddressSpace, regions: &[MemoryRegion]) -> Result<Vec<MemoryRegion>, ViewError> {
    let ram: Vec<MemoryRegion> =
        regions.iter().filter(|region| region.purpose == RegionPurpose::Ram).copied().collect();
    let (mut offset, mut end) = (0, 0);
    for region in &ram {
        space.host_address(region)?;
        if region.ram_offset != offset || region.start < end {
            return Err(ViewError::Regions { start: region.start, expected: offset / PAGE_BYTES });
        }
        offset += region.bytes;
        end = region.start + region.bytes;
    }
    if ram.is_empty() { Err(ViewError::NoRam) } else { Ok(ram) }
}

fn ram_pages(ram: &[MemoryRegion]) -> u64 {
    ram.iter().map(|region| region.bytes / PAGE_BYTES).sum()
}

/// Refuses a file shorter than `bytes`.
fn check_file(file: BorrowedFd<'_>, bytes: u64) -> Result<(), ViewError> {
    let found = memfd::file_bytes(file).map_err(ViewError::File)?;
    if found < bytes { Err(ViewError::FileTooShort { bytes, found }) } else { Ok(()) }
}

/// A region of the memory library at its fixed address; it does not own the mapping.
fn guest_region(space: &AddressSpace, region: &MemoryRegion) -> Result<Arc<GuestRegionMmap>, ViewError> {
    let address = space.host_address(region)? as *mut u8;
    let bytes = usize::try_from(region.bytes).map_err(|_| ViewError::GuestMemory)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    // SAFETY: the region becomes reachable by `View::memory` only when all of it is mapped (the constructors return the
    // view after mapping, or drop it), what is mapped there is only ever replaced by other readable and writable
    // memory, and it is unmapped only when nobody else holds the region (`Drop for View`).
    let mapping = unsafe { vm_memory::MmapRegion::build_raw(address, bytes, protection, flags) }
        .map_err(|_| ViewError::GuestMemory)?;
    GuestRegionMmap::new(mapping, GuestAddress(region.start)).map(Arc::new).ok_or(ViewError::GuestMemory)
}

/// A view may be frozen by another thread than the one that mapped it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<View>();
};
