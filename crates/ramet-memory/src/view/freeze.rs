//! Freeze: what a machine wrote since its last freeze becomes a delta.
//!
//! While the machine runs, [`View::prepare_freeze`] makes a file and, if much is to be expected, copies into it what has
//! been written so far. With the machine paused, [`View::freeze`] then looks for what was written since, and copies that. Written pages are first
//! protected, then copied, so one that is written during or after the copy is found again.

use super::{Kind, Pending, View, ViewError};
use crate::delta::{DeltaContent, DeltaReserve, DeltaRun, FrozenDelta};
use crate::page_set::{PageRange, PageSet};
use crate::tracker::TrackerError;
use ramet_abi::layout::PAGE_BYTES;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Room for so many pages more than were found, and a quarter more: what will be written until the pause.
const SLACK_PAGES: u64 = 64;

/// Below so many pages in the last freeze, the next one copies with the machine paused: that takes some tenths of a
/// millisecond, and copying ahead would make whoever waits for the freeze wait twice as long.
const COPY_AHEAD_PAGES: u64 = 256;

/// Why a freeze failed. The machine is as it was and can go on, and the next freeze has all that this one lacked.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// A founder's first freeze takes its file.
    #[error("A founder's first freeze takes the read-only descriptor of its flat file")]
    FileNeeded,
    /// And no other.
    #[error("The read-only descriptor is not of the flat file that the founder runs on")]
    OtherFile,
    /// The tracker failed.
    #[error(transparent)]
    Tracker(#[from] TrackerError),
    /// Remapping failed.
    #[error(transparent)]
    View(#[from] ViewError),
    /// No memory for the delta.
    #[error("Cannot allocate and map {pages} pages for a delta")]
    Allocate {
        /// How many.
        pages: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// Copying failed.
    #[error("Cannot copy {pages} written pages into a delta")]
    Copy {
        /// How many.
        pages: u64,
        /// The system's error.
        #[source]
        source: Errno,
    },
}

/// What a freeze gives.
#[derive(Debug)]
pub enum Frozen {
    /// The founder's file is its layer now; nothing was copied.
    Flat {
        /// Ranges that are unplugged; zeros are holes of the file.
        holes: Vec<DeltaRun>,
    },
    /// What was written.
    Delta(FrozenDelta),
}

impl View {
    /// Makes the next freeze short; the machine may run. It costs the machine a fault for each page that it has written
    /// and writes again, so call it only when a freeze is near. After an error a freeze may be tried all the same.
    pub fn prepare_freeze(&mut self) -> Result<(), FreezeError> {
        if matches!(self.kind, Kind::Shared(_)) {
            return Ok(());
        }
        let mut pages = self.last_written_pages;
        if pages < COPY_AHEAD_PAGES {
            self.register()?;
        } else {
            self.take_written()?;
            pages = self.pending.written.pages();
        }
        self.copy_written(pages + pages / 4 + SLACK_PAGES)
    }

    /// Freezes. The machine is paused: no vCPU and no device writes to RAM until this returns.
    ///
    /// `read_only` is the read-only descriptor of the flat file for a founder's first freeze; it is not looked at after
    /// that. Call [`FrozenDelta::finish`] when the machine goes on.
    pub fn freeze(&mut self, read_only: Option<BorrowedFd<'_>>) -> Result<Frozen, FreezeError> {
        if let Kind::Shared(file) = &self.kind {
            let read_only = read_only.ok_or(FreezeError::FileNeeded)?;
            let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
            let theirs = rustix::fs::fstat(read_only).map(identity).map_err(ViewError::File)?;
            if rustix::fs::fstat(file).map(identity).map_err(ViewError::File)? != theirs {
                return Err(FreezeError::OtherFile);
            }
            self.make_private(read_only)?;
            let pending = std::mem::take(&mut self.pending);
            return Ok(Frozen::Flat { holes: runs_of(&pending.unplugged, DeltaContent::Absent).collect() });
        }
        self.take_written()?;
        if !self.pending.written.is_empty() {
            self.copy_written(0)?;
        }
        let pending = std::mem::take(&mut self.pending);
        self.last_written_pages = pending.written.pages();
        let reserve = if pending.written.is_empty() { None } else { self.reserve.take() };
        let runs = delta_runs(&pending, reserve.as_ref());
        Ok(Frozen::Delta(FrozenDelta { reserve, runs }))
    }

    /// Takes back a delta that came to nothing, so that the next freeze has its contents again.
    pub fn take_back(&mut self, runs: &[DeltaRun]) {
        for run in runs {
            let range = PageRange { start: run.start, pages: run.pages };
            match run.content {
                DeltaContent::Data { .. } => self.pending.written.insert(range),
                DeltaContent::Zero => self.pending.zeroed.insert(range),
                DeltaContent::Absent => self.pending.unplugged.insert(range),
            }
        }
        // What has been plugged in since is zeros, which its own record says.
        self.pending.unplugged = self.pending.unplugged.without(&self.pending.unplugged.without(&self.absent));
        self.pending.written = self.pending.written.without(&self.absent);
    }

    /// Takes what was written from the tracker into the pending set. It is there even after an error: what the tracker
    /// has given once it will not give again.
    fn take_written(&mut self) -> Result<(), TrackerError> {
        self.register()?;
        let mut found = PageSet::new();
        let mut result = Ok(());
        for region in &self.ram {
            let first = region.ram_offset / PAGE_BYTES;
            result = self.tracker.take(self.space.base() + region.start, region.bytes, &mut |range| {
                found.insert(PageRange { start: first + range.start, ..range });
            });
            if result.is_err() {
                break;
            }
        }
        let found = found.without(&self.absent);
        if let Some(reserve) = &mut self.reserve {
            found.ranges().iter().for_each(|range| reserve.forget(*range));
        }
        self.pending.written.insert_all(&found);
        result
    }

    /// Copies the pending pages that are not copied yet into the reserve, which has room for `room` pages in the end.
    fn copy_written(&mut self, room: u64) -> Result<(), FreezeError> {
        let room = room.min(self.pages()).max(self.pending.written.pages());
        let allocate = |pages| move |source| FreezeError::Allocate { pages, source };
        let mut reserve = match self.reserve.take() {
            Some(reserve) => reserve,
            None => DeltaReserve::new().map_err(allocate(room))?,
        };
        let wanted = self.pending.written.without(reserve.copied());
        // Those that have a place need no other, but to count them takes longer than room for them costs.
        let pages = room.max(reserve.used() + wanted.pages());
        reserve.grow(pages).map_err(allocate(pages))?;
        for range in wanted.ranges() {
            let failed = |source| FreezeError::Copy { pages: range.pages, source };
            for (part, address) in self.pieces(*range) {
                for (placed, place) in reserve.place(part) {
                    let address = address + (placed.start - part.start) * PAGE_BYTES;
                    let from = self.space.slice(address, placed.pages * PAGE_BYTES);
                    reserve.copy_in(placed, place, &from.map_err(|_| failed(Errno::FAULT))?).map_err(failed)?;
                }
            }
        }
        self.reserve = Some(reserve);
        Ok(())
    }
}

/// The runs of a set, all with one content.
fn runs_of(set: &PageSet, content: DeltaContent) -> impl Iterator<Item = DeltaRun> + '_ {
    set.ranges().iter().map(move |range| DeltaRun { start: range.start, pages: range.pages, content })
}

/// What a delta says: where written pages are in its file, and what is zeros or unplugged and not written.
fn delta_runs(pending: &Pending, reserve: Option<&DeltaReserve>) -> Vec<DeltaRun> {
    let mut runs: Vec<DeltaRun> = Vec::with_capacity(pending.written.ranges().len());
    for range in pending.written.ranges() {
        let places = reserve.map_or(Vec::new(), |reserve| reserve.placed(*range));
        let data = |(part, first): (PageRange, u64)| DeltaRun {
            start: part.start,
            pages: part.pages,
            content: DeltaContent::Data { first },
        };
        runs.extend(places.into_iter().map(data));
    }
    let holes = pending.zeroed.without(&pending.unplugged).without(&pending.written);
    runs.extend(runs_of(&holes, DeltaContent::Zero));
    runs.extend(runs_of(&pending.unplugged.without(&pending.written), DeltaContent::Absent));
    runs.sort_unstable_by_key(|run| run.start);
    runs
}
