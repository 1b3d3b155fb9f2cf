//! Where layers live: the supervisor's side.
//!
//! ```text
//!   create_flat -> FlatFile --- a founder writes, then is frozen ---> finish, publish -> Layer
//!   a machine's memfd ---------------------------------------------> adopt_delta -> Layer
//!   flatten, consolidate: a map of many layers ---------------------> a Layer
//! ```
//!
//! A published layer can be written by nobody: a memfd is sealed; a tmpfs file, which cannot be, is checked to have no
//! writer left and was handed out through a read-only mount, so that its descriptors cannot be reopened for writing.
//!
//! Everything counts against one limit *before* it is written, holes included, because a tmpfs that runs full under a
//! mapping is a SIGBUS and not an error. Files have no names: when the last descriptor goes, so does the memory.
//!
//! Deliberately absent: the tree of nodes, and who maps what.

mod combine;
mod files;
mod layer;
mod layered;

pub use combine::CombineError;
pub use files::Backing;
pub use layer::{FlatFile, Layer, LayerKind, WrittenFlatFile};
pub use layered::{LayeredMemory, LayeredMemoryError};

use crate::memfd;
use crate::page_map::{LayerId, PageMap, PageMapError, Run, Source};
use crate::sys;
use files::Files;
use layer::{Budget, Reservation};
use ramet_abi::layout::PAGE_BYTES;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Flat files grow and are allocated in huge pages.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Holes of a flat file that are shorter stay part of its data: each costs a mapping in every clone.
const MIN_HOLE_PAGES: u64 = 512;

/// How large a store may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// Most bytes that all layers together may have; `None` leaves it to the host's memory.
    pub limit_bytes: Option<u64>,
}

/// Why a file for a layer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The limit is reached.
    #[error(
        "A layer of {wanted} bytes does not fit: {used} of {limit} bytes are in use; end machines or raise the limit"
    )]
    OutOfSpace {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes in use.
        used: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A size that no layer can have.
    #[error("A layer of {bytes} bytes cannot be made; it must have whole pages of 4096 bytes, and at least one")]
    Size {
        /// The size.
        bytes: u64,
    },
    /// The system refused.
    #[error("Cannot {step} a file of {bytes} bytes for a layer")]
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

/// Why a flat file cannot become a layer.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Somebody can still write to it.
    #[error("The flat file is still open for writing or mapped writable by a process; freeze its machine first")]
    StillWritable {
        /// The file, to try again.
        file: Box<WrittenFlatFile>,
    },
    /// The system refused.
    #[error("Cannot make a flat file immutable and find its holes")]
    System(#[from] Errno),
    /// Its map is impossible.
    #[error("The flat file's holes do not make a page map")]
    Map(#[from] PageMapError),
}

/// Why a delta cannot become a layer.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Not a memfd.
    #[error("The delta's descriptor is not of a memfd in 4 KiB pages that can be sealed")]
    NotMemfd,
    /// Another size.
    #[error("The delta's file has {found} bytes instead of {expected}")]
    Size {
        /// Its size.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// Somebody maps it writable.
    #[error("The delta's file is still mapped writable by a process; unmap it before handing it over")]
    WritableMapping,
    /// The limit is reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system refused.
    #[error("Cannot seal and reopen the delta's file")]
    System(#[from] Errno),
}

/// A flat layer and the map of a machine that is all there is in it.
#[derive(Clone, Debug)]
pub struct Published {
    /// The layer.
    pub layer: Arc<Layer>,
    /// Its data, and zeros where it has holes.
    pub map: PageMap,
}

/// Makes layers and counts them against a limit.
#[derive(Debug)]
pub struct LayerStore {
    files: Files,
    budget: Arc<Budget>,
    next_id: AtomicU64,
}

impl LayerStore {
    /// A store on a tmpfs of its own with huge pages, or on memfds where this process may not have one.
    pub fn open(config: StoreConfig) -> LayerStore {
        LayerStore::on(Files::open(config.limit_bytes), config)
    }

    /// A store on memfds.
    pub fn on_memfds(config: StoreConfig) -> LayerStore {
        LayerStore::on(Files::on_memfds(None), config)
    }

    fn on(files: Files, config: StoreConfig) -> LayerStore {
        LayerStore { files, budget: Arc::new(Budget::new(config.limit_bytes)), next_id: AtomicU64::new(1) }
    }

    /// What flat layers lie on, and why not on something better.
    pub fn backing(&self) -> Backing {
        self.files.backing()
    }

    /// Bytes in use of the limit: resident layers, and what flat files may still grow to.
    pub fn used_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// A sparse file for a founder of `bytes` of RAM.
    pub fn create_flat(&self, bytes: u64) -> Result<FlatFile, StoreError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(StoreError::Size { bytes });
        }
        // Whole huge pages: one that reaches beyond the end would be allocated, then split again.
        let file_bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(StoreError::Size { bytes })?;
        let reservation = Reservation::take(&self.budget, file_bytes)?;
        let failed = |step| move |source| StoreError::System { step, bytes, source };
        let (writable, read_only) = self.files.create().map_err(failed("create"))?;
        rustix::fs::ftruncate(&writable, file_bytes).map_err(failed("size"))?;
        let sealable = matches!(self.backing(), Backing::Memfd { .. });
        Ok(FlatFile { writable, read_only, sealable, pages: bytes / PAGE_BYTES, reservation })
    }

    /// Makes a layer of a flat file that nobody writes any more.
    pub fn publish(&self, file: WrittenFlatFile) -> Result<Published, PublishError> {
        let still_writable = |file| Err(PublishError::StillWritable { file: Box::new(file) });
        match &file.sealable {
            Some(writable) => match rustix::fs::fcntl_add_seals(writable, memfd::FINAL_SEALS) {
                Ok(()) => {}
                Err(Errno::BUSY) => return still_writable(file),
                Err(error) => return Err(error.into()),
            },
            None if !sys::has_no_writer(file.read_only.as_fd())? => return still_writable(file),
            None => {}
        }
        let WrittenFlatFile { read_only, pages, reservation, .. } = file;
        self.publish_immutable(read_only, pages, reservation)
    }

    /// Makes a layer of a memfd that a machine process wrote. The descriptor may come from a hostile process.
    pub fn adopt_delta(&self, fd: OwnedFd, pages: u64) -> Result<Arc<Layer>, AdoptError> {
        if !memfd::is_memfd(fd.as_fd())? {
            return Err(AdoptError::NotMemfd);
        }
        let expected = pages.checked_mul(PAGE_BYTES).ok_or(StoreError::Size { bytes: u64::MAX })?;
        let reservation = Reservation::take(&self.budget, expected)?;
        match rustix::fs::fcntl_add_seals(&fd, memfd::FINAL_SEALS) {
            Ok(()) => {}
            Err(Errno::BUSY) => return Err(AdoptError::WritableMapping),
            // Somebody has forbidden further seals: enough only if these were among the earlier ones.
            Err(Errno::PERM) if rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::WRITE) => {}
            Err(error) => return Err(error.into()),
        }
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(memfd::FINAL_SEALS) {
            return Err(AdoptError::NotMemfd);
        }
        // Only now can the size not change any more.
        let found = memfd::file_bytes(&fd)?;
        if found != expected {
            return Err(AdoptError::Size { found, expected });
        }
        let read_only = memfd::reopen_read_only(fd.as_fd())?;
        Ok(Arc::new(Layer::new(self.new_id(), LayerKind::Delta, read_only, pages, reservation)))
    }

    fn new_id(&self) -> LayerId {
        LayerId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// A layer of a file that can no longer change.
    fn publish_immutable(
        &self,
        fd: OwnedFd,
        pages: u64,
        mut reservation: Reservation,
    ) -> Result<Published, PublishError> {
        let id = self.new_id();
        let data = data_ranges(fd.as_fd(), 0, pages, MIN_HOLE_PAGES)?;
        let mut runs = Vec::with_capacity(2 * data.len() + 1);
        let mut end = 0;
        for (start, length) in data {
            if start > end {
                runs.push(Run { start: end, pages: start - end, source: Source::Zero });
            }
            runs.push(Run { start, pages: length, source: Source::Layer { layer: id, first: start } });
            end = start + length;
        }
        if end < pages {
            runs.push(Run { start: end, pages: pages - end, source: Source::Zero });
        }
        let map = PageMap::from_runs(runs)?;
        // A hole that is mapped is filled at the first access, so it counts as if it were; and a huge page is whole.
        let mappable = map.data_pages() * PAGE_BYTES;
        reservation.shrink(mappable.max(memfd::resident_bytes(&fd)?));
        let file_pages = memfd::file_bytes(&fd)? / PAGE_BYTES;
        let layer = Arc::new(Layer::new(id, LayerKind::Flat, fd, file_pages, reservation));
        Ok(Published { layer, map })
    }
}

/// The data of a sparse file within pages `first .. first + pages`, as (page, pages). Holes shorter than `min_hole`
/// pages count as data.
pub(crate) fn data_ranges(fd: BorrowedFd<'_>, first: u64, pages: u64, min_hole: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let limit = (first + pages) * PAGE_BYTES;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = first * PAGE_BYTES;
    while at < limit {
        let Some(data) = memfd::seek(fd, memfd::Find::Data, at)?.filter(|data| *data < limit) else { break };
        let hole = memfd::seek(fd, memfd::Find::Hole, data)?.unwrap_or(limit).min(limit);
        let (start, end) = ((data / PAGE_BYTES).max(first), hole.div_ceil(PAGE_BYTES));
        match ranges.last_mut() {
            Some(last) if start < last.0 + last.1 + min_hole => last.1 = end - last.0,
            _ => ranges.push((start, end - start)),
        }
        at = hole.max(data + 1);
    }
    Ok(ranges)
}
