//! Giving memory of a running machine back: balloons and unplugging.
//!
//! MADV_DONTNEED on a private mapping would bring the ancestor's page back, and MADV_REMOVE is refused; so zeros are
//! mapped over it, and the next freeze says that there is a hole. Each such mapping counts against the view's limit,
//! so neighbours should be discarded together.

use super::{Kind, MAX_MAPPINGS, View, ViewError};
use crate::page_set::{PageRange, PageSet};
use ramet_abi::layout::PAGE_BYTES;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// What becomes of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardKind {
    /// It reads as zeros and may be used again. Unplugged memory is plugged in with this.
    Zero,
    /// It is unplugged: what is written there is lost at the next freeze.
    Absent,
}

/// Why memory cannot be discarded; nothing beyond what is named has changed.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// Not a range of RAM.
    #[error("The {bytes} bytes at {start:#x} are not whole pages within one region of RAM")]
    Range {
        /// Guest-physical address.
        start: u64,
        /// How many.
        bytes: u64,
    },
    /// Too many holes.
    #[error(
        "The {bytes} bytes at {start:#x} cannot be discarded: the machine has {MAX_MAPPINGS} mappings already; \
         discard larger ranges"
    )]
    TooManyMappings {
        /// Guest-physical address.
        start: u64,
        /// How many.
        bytes: u64,
    },
    /// The file's hole cannot be made.
    #[error("Cannot make a hole of {bytes} bytes at offset {offset} of the machine's flat file")]
    Punch {
        /// Offset in RAM.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// Mapping failed.
    #[error(transparent)]
    View(#[from] ViewError),
}

impl View {
    /// Discards the contents of guest-physical memory, while the machine runs or not. Whoever else accesses it sees
    /// the old contents or zeros.
    pub fn discard(&mut self, start: u64, bytes: u64, kind: DiscardKind) -> Result<(), DiscardError> {
        let range = self.pages_at(start, bytes).ok_or(DiscardError::Range { start, bytes })?;
        match &self.kind {
            Kind::Shared(file) => {
                let (offset, flags) =
                    (range.start * PAGE_BYTES, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
                rustix::fs::fallocate(file, flags, offset, bytes).map_err(|source| DiscardError::Punch {
                    offset,
                    bytes,
                    source,
                })?;
            }
            Kind::Private if self.anonymous.contains(range) => {
                self.space.drop_anonymous(start, bytes).map_err(ViewError::from)?;
            }
            Kind::Private if self.mappings + 2 > MAX_MAPPINGS => {
                return Err(DiscardError::TooManyMappings { start, bytes });
            }
            Kind::Private => {
                let holes = |set: &PageSet| set.ranges().len();
                let before = (self.mappings, holes(&self.anonymous));
                self.map_zeros(range)?;
                // Neighbours merge, so it is the number of holes that counts.
                self.mappings = before.0 + 2 * holes(&self.anonymous).saturating_sub(before.1);
            }
        }
        self.record_discard(range, kind);
        Ok(())
    }

    fn record_discard(&mut self, range: PageRange, kind: DiscardKind) {
        self.pending.written.remove(range);
        match kind {
            DiscardKind::Zero => {
                self.absent.remove(range);
                self.pending.unplugged.remove(range);
                self.pending.zeroed.insert(range);
            }
            DiscardKind::Absent => {
                self.absent.insert(range);
                self.pending.zeroed.remove(range);
                self.pending.unplugged.insert(range);
            }
        }
    }

    /// The pages of RAM at a guest-physical range, if it is whole pages of one region.
    fn pages_at(&self, start: u64, bytes: u64) -> Option<PageRange> {
        if bytes == 0 || !start.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let end = start.checked_add(bytes)?;
        let region = self.ram.iter().find(|region| region.start <= start && end <= region.start + region.bytes)?;
        let first = (region.ram_offset + (start - region.start)) / PAGE_BYTES;
        Some(PageRange { start: first, pages: bytes / PAGE_BYTES })
    }
}
