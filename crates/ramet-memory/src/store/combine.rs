//! One layer out of many: flatten, and consolidate.

use super::{
    HUGE_PAGE_BYTES, LayerKind, LayerStore, LayeredMemory, LayeredMemoryError, PublishError, StoreError, data_ranges,
};
use crate::memfd;
use crate::page_map::{LayerId, PageMap, Run, Source};
use ramet_abi::layout::PAGE_BYTES;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Why layers cannot be combined.
#[derive(Debug, thiserror::Error)]
pub enum CombineError {
    /// No room for the new layer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new file cannot be published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The new layer cannot be adopted.
    #[error(transparent)]
    Adopt(#[from] super::AdoptError),
    /// The new map is impossible.
    #[error(transparent)]
    Memory(#[from] LayeredMemoryError),
    /// Copying failed.
    #[error("Cannot copy {bytes} bytes of layer {layer} into a new one")]
    Copy {
        /// From which.
        layer: LayerId,
        /// How many.
        bytes: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
}

impl LayerStore {
    /// The same contents in one flat layer. Clones of it need one mapping; it takes as much memory as there is data.
    pub fn flatten(&self, memory: &LayeredMemory) -> Result<LayeredMemory, CombineError> {
        let map = memory.map();
        let file = self.create_flat(map.pages() * PAGE_BYTES)?;
        for run in map.runs() {
            copy_run(memory, run, file.writable(), run.start)?;
        }
        let published = self.publish(file.finish())?;
        // Where the source has a hole, the file may have data: the zeros in the rest of a huge page.
        let holes: Vec<Run> =
            map.runs().iter().filter(|run| !matches!(run.source, Source::Layer { .. })).copied().collect();
        let map = published.map.overlay(&holes).map_err(LayeredMemoryError::from)?;
        Ok(LayeredMemory::new(map, [published.layer])?)
    }

    /// The same contents with all pages that come from deltas in one delta; flat layers stay.
    pub fn consolidate(&self, memory: &LayeredMemory) -> Result<LayeredMemory, CombineError> {
        let from_delta = |run: &&Run| {
            matches!(run.source, Source::Layer { layer, .. }
                if memory.layer(layer).is_some_and(|layer| layer.kind() == LayerKind::Delta))
        };
        let runs: Vec<Run> = memory.map().runs().iter().filter(from_delta).copied().collect();
        let pages: u64 = runs.iter().map(|run| run.pages).sum();
        let failed = |step| move |source| StoreError::System { step, bytes: pages * PAGE_BYTES, source };
        let fd = memfd::create_memfd("ramet-delta").map_err(failed("create"))?;
        rustix::fs::ftruncate(&fd, pages * PAGE_BYTES).map_err(failed("size"))?;
        let mut first = 0;
        for run in &runs {
            copy_run(memory, run, fd.as_fd(), first)?;
            first += run.pages;
        }
        let layer = self.adopt_delta(fd, pages)?;
        let mut first = 0;
        let moved: Vec<Run> = runs
            .iter()
            .map(|run| {
                let source = Source::Layer { layer: layer.id(), first };
                first += run.pages;
                Run { source, ..*run }
            })
            .collect();
        let map: PageMap = memory.map().overlay(&moved).map_err(LayeredMemoryError::from)?;
        Ok(LayeredMemory::new(map, memory.layers().cloned().chain([layer]))?)
    }
}

/// Copies a run's data to page `to` of a file that has zeros there; holes of the source stay holes.
fn copy_run(memory: &LayeredMemory, run: &Run, into: BorrowedFd<'_>, to: u64) -> Result<(), CombineError> {
    let Source::Layer { layer, first } = run.source else { return Ok(()) };
    let failed = |source| CombineError::Copy { layer, bytes: run.pages * PAGE_BYTES, source };
    let from = memory.layer(layer).ok_or(Errno::BADF).map_err(failed)?.as_fd();
    let min_hole = HUGE_PAGE_BYTES / PAGE_BYTES;
    for (start, pages) in data_ranges(from, first, run.pages, min_hole).map_err(failed)? {
        let to = (to + start - first) * PAGE_BYTES;
        copy_bytes(from, start * PAGE_BYTES, into, to, pages * PAGE_BYTES).map_err(failed)?;
    }
    Ok(())
}

/// Copies through a buffer: layers may lie on different file systems, between which the kernel cannot copy.
fn copy_bytes(from: BorrowedFd<'_>, mut at: u64, into: BorrowedFd<'_>, mut to: u64, bytes: u64) -> Result<(), Errno> {
    let mut buffer = vec![0u8; CHUNK_BYTES.min(usize::try_from(bytes).unwrap_or(CHUNK_BYTES))];
    let mut left = bytes;
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = rustix::io::pread(from, &mut buffer[..wanted], at)?;
        if read == 0 {
            return Err(Errno::NODATA);
        }
        let mut written = 0;
        while written < read {
            written += rustix::io::pwrite(into, &buffer[written..read], to + written as u64)?;
        }
        at += read as u64;
        to += read as u64;
        left -= read as u64;
    }
    Ok(())
}
