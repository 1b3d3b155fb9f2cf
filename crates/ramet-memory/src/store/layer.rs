//! Layers, the files that become layers, and what they count.

use super::StoreError;
use crate::page_map::LayerId;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a layer's file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Page `n` of the file is page `n` of RAM.
    Flat,
    /// Dense pages in the order of a delta's runs.
    Delta,
}

/// An immutable file of guest pages. It goes when its last holder does; processes that map it keep its memory.
#[derive(Debug)]
pub struct Layer {
    id: LayerId,
    kind: LayerKind,
    fd: OwnedFd,
    file_pages: u64,
    reservation: Reservation,
}

impl Layer {
    pub(super) fn new(id: LayerId, kind: LayerKind, fd: OwnedFd, file_pages: u64, reservation: Reservation) -> Layer {
        Layer { id, kind, fd, file_pages, reservation }
    }

    /// Its name within its store.
    pub fn id(&self) -> LayerId {
        self.id
    }

    /// How its file is laid out.
    pub fn kind(&self) -> LayerKind {
        self.kind
    }

    /// Pages of its file.
    pub fn file_pages(&self) -> u64 {
        self.file_pages
    }

    /// Bytes it counts in its store.
    pub fn bytes(&self) -> u64 {
        self.reservation.bytes
    }
}

/// The read-only descriptor that machine processes get.
impl AsFd for Layer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A sparse file that a founder runs on.
#[derive(Debug)]
pub struct FlatFile {
    pub(super) writable: OwnedFd,
    pub(super) read_only: OwnedFd,
    pub(super) sealable: bool,
    pub(super) pages: u64,
    pub(super) reservation: Reservation,
}

impl FlatFile {
    /// What the founder maps, read-write. No copy of it may outlive the founder's first freeze.
    pub fn writable(&self) -> BorrowedFd<'_> {
        self.writable.as_fd()
    }

    /// What the founder is remapped over at its first freeze, read-only.
    pub fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Pages of RAM in it.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Gives up writing to it. Call it as soon as the founder has its descriptor: no other will be needed.
    pub fn finish(self) -> WrittenFlatFile {
        let FlatFile { writable, read_only, sealable, pages, reservation } = self;
        WrittenFlatFile { sealable: sealable.then_some(writable), read_only, pages, reservation }
    }
}

/// A flat file that this process does not write any more; a founder may still.
#[derive(Debug)]
pub struct WrittenFlatFile {
    /// Sealing takes a writable descriptor; only memfds can be sealed.
    pub(super) sealable: Option<OwnedFd>,
    pub(super) read_only: OwnedFd,
    pub(super) pages: u64,
    pub(super) reservation: Reservation,
}

impl WrittenFlatFile {
    /// What the founder is remapped over at its first freeze, read-only.
    pub fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }
}

/// Bytes that all layers of a store together may have.
#[derive(Debug)]
pub(super) struct Budget {
    limit: Option<u64>,
    used: AtomicU64,
}

impl Budget {
    pub(super) fn new(limit: Option<u64>) -> Budget {
        Budget { limit, used: AtomicU64::new(0) }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Bytes taken from a budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    pub(super) fn take(budget: &Arc<Budget>, bytes: u64) -> Result<Reservation, StoreError> {
        let limit = budget.limit.unwrap_or(u64::MAX);
        let add = |used: u64| used.checked_add(bytes).filter(|total| *total <= limit);
        budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|used| StoreError::OutOfSpace {
            wanted: bytes,
            used,
            limit,
        })?;
        Ok(Reservation { budget: Arc::clone(budget), bytes })
    }

    /// Gives back what is more than `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        self.budget.used.fetch_sub(excess, Ordering::Relaxed);
        self.bytes -= excess;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
