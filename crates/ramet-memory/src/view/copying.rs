//! Copying single pages of layers into a view that no machine runs on yet.
//!
//! Where there is userfaultfd, it fills pages and marks them as unwritten at once (1.9 us each, and a page of zeros
//! takes no memory); else they are read over the mapping (2.7 us each), and taken for written ever after.
#![allow(unsafe_code)]

use super::steps::Step;
use super::{View, ViewError};
use crate::memfd;
use crate::page_map::{LayerId, PageMapError};
use crate::page_set::PageRange;
use crate::sys::{self, SourceMapping};
use crate::tracker::TrackerKind;
use ramet_abi::layout::PAGE_BYTES;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;

/// Parts that one preadv takes (UIO_MAXIOV).
const MAX_PARTS: usize = 1024;

impl View {
    /// Carries out the steps that write. Nothing has touched the pages since they were mapped.
    pub(super) fn copy_in(
        &mut self,
        copies: &[Step],
        layers: &HashMap<LayerId, BorrowedFd<'_>>,
    ) -> Result<(), ViewError> {
        if copies.is_empty() {
            return Ok(());
        }
        match self.tracker.kind() {
            TrackerKind::WriteProtection => self.fill(copies, layers),
            TrackerKind::PrivatePages => self.read(copies, layers),
        }
    }

    fn fill(&mut self, copies: &[Step], layers: &HashMap<LayerId, BorrowedFd<'_>>) -> Result<(), ViewError> {
        self.register()?;
        let mut sources: HashMap<LayerId, SourceMapping> = HashMap::new();
        for step in copies {
            let (range, source) = written_by(step);
            if let Some((layer, _)) = source
                && !sources.contains_key(&layer)
            {
                sources.insert(layer, map_source(layer, range, layers)?);
            }
            let mapped = source.and_then(|(layer, first)| sources.get(&layer).map(|mapping| (layer, first, mapping)));
            for (part, address) in self.pieces(range) {
                let bytes = part.pages * PAGE_BYTES;
                let layer = source.map_or(LayerId(0), |(layer, _)| layer);
                let failed = |source| ViewError::Read { layer, bytes, source };
                let from = match mapped {
                    Some((_, first, mapping)) => {
                        let offset = (first + part.start - range.start) * PAGE_BYTES;
                        Some(mapping.address(offset, bytes).map_err(failed)?)
                    }
                    None => None,
                };
                let to = self.space.pointer(address, bytes)? as u64;
                // SAFETY: `pointer` gave mapped memory of this length, private as all of a view that is mapped from
                // layers, and of guest memory there are only raw pointers.
                unsafe { self.tracker.fill(to, from, bytes) }.map_err(failed)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, copies: &[Step], layers: &HashMap<LayerId, BorrowedFd<'_>>) -> Result<(), ViewError> {
        let mut batch = Batch::default();
        for step in copies {
            let (range, source) = written_by(step);
            for (part, address) in self.pieces(range) {
                let bytes = part.pages * PAGE_BYTES;
                let pointer = self.space.pointer(address, bytes)?;
                match source {
                    Some((layer, first)) => {
                        let file =
                            *layers.get(&layer).ok_or(PageMapError::UnknownLayer { start: part.start, layer })?;
                        let offset = (first + part.start - range.start) * PAGE_BYTES;
                        batch.add(layer, file, offset, pointer, bytes)?;
                    }
                    // SAFETY: `pointer` gave mapped memory of this length; no machine runs on it yet.
                    None => unsafe { pointer.write_bytes(0, bytes as usize) },
                }
            }
        }
        batch.flush()
    }
}

/// The pages that a step writes, and the layer and page of its file that they come from, or else zeros.
fn written_by(step: &Step) -> (PageRange, Option<(LayerId, u64)>) {
    match *step {
        Step::Copy { start, pages, layer, first } => (PageRange { start, pages }, Some((layer, first))),
        Step::Clear { start, pages } => (PageRange { start, pages }, None),
        Step::File { start, .. } | Step::Anonymous { start, .. } => (PageRange { start, pages: 0 }, None),
    }
}

fn map_source(
    layer: LayerId,
    range: PageRange,
    layers: &HashMap<LayerId, BorrowedFd<'_>>,
) -> Result<SourceMapping, ViewError> {
    let file = *layers.get(&layer).ok_or(PageMapError::UnknownLayer { start: range.start, layer })?;
    let bytes = memfd::file_bytes(file).map_err(ViewError::File)?;
    usize::try_from(bytes)
        .map_err(|_| Errno::FBIG)
        .and_then(|bytes| SourceMapping::new(file, bytes))
        .map_err(|source| ViewError::Read { layer, bytes, source })
}

/// Copies that lie one after the other in a layer's file, for one system call.
#[derive(Default)]
struct Batch<'a> {
    source: Option<(LayerId, BorrowedFd<'a>)>,
    offset: u64,
    bytes: u64,
    parts: Vec<libc::iovec>,
}

impl<'a> Batch<'a> {
    fn add(
        &mut self,
        layer: LayerId,
        file: BorrowedFd<'a>,
        offset: u64,
        pointer: *mut u8,
        bytes: u64,
    ) -> Result<(), ViewError> {
        let goes_on = self.source.is_some_and(|(same, _)| same == layer) && offset == self.offset + self.bytes;
        if !goes_on || self.parts.len() == MAX_PARTS {
            self.flush()?;
            (self.source, self.offset) = (Some((layer, file)), offset);
        }
        self.parts.push(libc::iovec { iov_base: pointer.cast(), iov_len: bytes as usize });
        self.bytes += bytes;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ViewError> {
        let Some((layer, file)) = self.source.take() else { return Ok(()) };
        let mut parts = &mut self.parts[..];
        while !parts.is_empty() {
            let failed = |source| ViewError::Read { layer, bytes: self.bytes, source };
            // SAFETY: each part is mapped guest memory (`AddressSpace::pointer`) on which no machine runs yet, and of
            // which there are only raw pointers.
            let mut read = unsafe { sys::read_scattered(file, parts, self.offset) }.map_err(failed)?;
            if read == 0 {
                return Err(failed(Errno::NODATA));
            }
            self.offset += read;
            while let Some(part) = parts.first_mut() {
                let taken = read.min(part.iov_len as u64);
                read -= taken;
                // SAFETY: `taken` is at most the part's length, so the pointer stays within it or at its end.
                part.iov_base = unsafe { part.iov_base.cast::<u8>().add(taken as usize) }.cast();
                part.iov_len -= taken as usize;
                if part.iov_len > 0 {
                    break;
                }
                parts = &mut parts[1..];
            }
        }
        self.parts.clear();
        self.bytes = 0;
        Ok(())
    }
}
