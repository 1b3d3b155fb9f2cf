//! Mapping files and layers under a view's addresses.

use super::steps::{Step, steps};
use super::{Kind, MAX_MAPPINGS, View, ViewError, check_file, ram_pages, ram_regions};
use crate::address_space::{AddressSpace, Backing};
use crate::memfd;
use crate::page_map::{LayerId, PageMap, PageMapError, Run, Source};
use crate::page_set::{PageRange, PageSet};
use crate::store::data_ranges;
use crate::tracker::Tracker;
use ramet_abi::layout::PAGE_BYTES;
use ramet_state::MemoryRegion;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};

/// Holes of a flat file that are shorter are mapped from the file like its data.
const MIN_HOLE_PAGES: u64 = 512;

impl View {
    /// A clone's view: RAM is what the map says, and what the machine writes stays in this process. `layers` are the
    /// read-only descriptors of the layers that the map names; they may be closed afterwards.
    pub fn map_layers<Fd: AsFd, Hasher: BuildHasher>(
        space: AddressSpace,
        regions: &[MemoryRegion],
        map: &PageMap,
        layers: &HashMap<LayerId, Fd, Hasher>,
        tracker: Tracker,
    ) -> Result<View, ViewError> {
        let ram = ram_regions(&space, regions)?;
        if map.pages() != ram_pages(&ram) {
            return Err(ViewError::MapSize { found: map.pages(), expected: ram_pages(&ram) });
        }
        let layers: HashMap<LayerId, BorrowedFd<'_>> = layers.iter().map(|(id, fd)| (*id, fd.as_fd())).collect();
        check_layers(map, &layers)?;
        let mut view = View::unmapped(space, ram, tracker)?;
        let mut copied = Vec::new();
        for region in view.ram.clone() {
            let first = region.ram_offset / PAGE_BYTES;
            let runs: Vec<Run> = map.runs_within(first, first + region.bytes / PAGE_BYTES).collect();
            for step in steps(&runs, MAX_MAPPINGS.saturating_sub(view.mappings)) {
                view.take_step(&step, region.start - region.ram_offset, &layers, &mut copied)?;
            }
        }
        for run in map.runs().iter().filter(|run| run.source == Source::Absent) {
            view.absent.insert(PageRange { start: run.start, pages: run.pages });
        }
        view.copy_in(&copied, &layers)?;
        Ok(view)
    }

    /// Maps RAM from a flat file, shared.
    pub(super) fn map_shared_file(&mut self, file: BorrowedFd<'_>) -> Result<(), ViewError> {
        for region in &self.ram {
            self.space.map(region.start, region.bytes, Backing::Shared(file, region.ram_offset))?;
            self.mappings += 1;
        }
        self.registered = false;
        Ok(())
    }

    /// Maps RAM from the flat file that it is mapped from already, but private. On an error it is shared as before.
    pub(super) fn make_private(&mut self, read_only: BorrowedFd<'_>) -> Result<(), ViewError> {
        let bytes = self.pages() * PAGE_BYTES;
        check_file(read_only, bytes)?;
        let data = data_ranges(read_only, 0, self.pages(), MIN_HOLE_PAGES).map_err(ViewError::File)?;
        if let Err(error) = self.map_private_file(read_only, &data) {
            if let Kind::Shared(file) = &self.kind {
                let file = file
                    .try_clone()
                    .map_err(|error| ViewError::File(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
                self.map_shared_file(file.as_fd())?;
                self.anonymous = PageSet::new();
            }
            return Err(error);
        }
        // The file's descriptor goes with this, and with it the last way to write to the layer.
        self.kind = Kind::Private;
        Ok(())
    }

    fn map_private_file(&mut self, file: BorrowedFd<'_>, data: &[(u64, u64)]) -> Result<(), ViewError> {
        self.registered = false;
        self.mappings = 0;
        let mut holes = PageSet::new();
        holes.insert(PageRange { start: 0, pages: self.pages() });
        for (start, pages) in data {
            holes.remove(PageRange { start: *start, pages: *pages });
        }
        for region in self.ram.clone() {
            // One mapping of all, then the holes over it: what is mapped is never less than it was.
            self.space.map(region.start, region.bytes, Backing::Private(file, region.ram_offset))?;
            self.mappings += 1;
        }
        for hole in holes.ranges() {
            self.map_zeros(*hole)?;
        }
        Ok(())
    }

    /// Maps zeros of the process's own.
    pub(super) fn map_zeros(&mut self, range: PageRange) -> Result<(), ViewError> {
        self.registered = false;
        for (pages, start) in self.pieces(range).collect::<Vec<_>>() {
            self.space.map(start, pages.pages * PAGE_BYTES, Backing::Anonymous)?;
            self.anonymous.insert(pages);
            self.mappings += 2;
        }
        Ok(())
    }

    /// Carries out a step, or puts it off into `copied`. `shift` leads from offsets in RAM to guest-physical addresses.
    fn take_step(
        &mut self,
        step: &Step,
        shift: u64,
        layers: &HashMap<LayerId, BorrowedFd<'_>>,
        copied: &mut Vec<Step>,
    ) -> Result<(), ViewError> {
        match *step {
            Step::File { start, pages, layer, first } => {
                let file = *layers.get(&layer).ok_or(PageMapError::UnknownLayer { start, layer })?;
                let backing = Backing::Private(file, first * PAGE_BYTES);
                self.space.map(shift + start * PAGE_BYTES, pages * PAGE_BYTES, backing)?;
                self.mappings += 2;
            }
            Step::Anonymous { start, pages } => self.map_zeros(PageRange { start, pages })?,
            Step::Copy { .. } | Step::Clear { .. } => copied.push(*step),
        }
        Ok(())
    }
}

/// Checks that every layer of the map is there and long enough.
fn check_layers(map: &PageMap, layers: &HashMap<LayerId, BorrowedFd<'_>>) -> Result<(), ViewError> {
    let mut sizes = HashMap::new();
    for layer in map.layers() {
        if let Some(file) = layers.get(&layer) {
            sizes.insert(layer, memfd::file_bytes(file).map_err(ViewError::File)? / PAGE_BYTES);
        }
    }
    Ok(map.validate(&|layer| sizes.get(&layer).copied())?)
}
