//! Freeze: what a machine wrote since its last freeze becomes a delta.
//!
//! While the machine runs, [`View::prepare_freeze`] allocates and maps a file with room for what a look at the written
//! pages expects. With the machine paused, [`View::freeze`] is then one scan and one copy.

use super::{Kind, View, ViewError};
use crate::delta::{DeltaContent, DeltaReserve, DeltaRun, FrozenDelta};
use crate::page_set::{PageRange, PageSet};
use crate::tracker::{Scan, TrackerError};
use ramet_abi::layout::PAGE_BYTES;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Room for so many pages more than the look found, and a quarter more: what is written until the pause.
const SLACK_PAGES: u64 = 64;

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
    /// Makes the next freeze fast; the machine may run. Needed before none, useful before each.
    pub fn prepare_freeze(&mut self) -> Result<(), FreezeError> {
        if matches!(self.kind, Kind::Shared(_)) {
            return Ok(());
        }
        self.register()?;
        let mut found = self.pending.written.clone();
        self.scan_into(Scan::Look, &mut found)?;
        let pages = found.pages();
        self.reserve(pages + pages / 4 + SLACK_PAGES)
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
        self.register()?;
        // Into the pending set first: what a scan has protected, no later scan will find.
        let mut written = std::mem::take(&mut self.pending.written);
        let scanned = self.scan_into(Scan::Protect, &mut written);
        self.pending.written = written.without(&self.absent);
        scanned?;
        self.copy_written().map(Frozen::Delta)
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

    /// Adds the written pages to a set.
    fn scan_into(&mut self, scan: Scan, found: &mut PageSet) -> Result<(), TrackerError> {
        for region in &self.ram {
            let first = region.ram_offset / PAGE_BYTES;
            let address = self.space.base() + region.start;
            self.tracker.scan(address, region.bytes, scan, &mut |range| {
                found.insert(PageRange { start: first + range.start, pages: range.pages });
            })?;
        }
        Ok(())
    }

    /// Makes room for a delta of so many pages.
    fn reserve(&mut self, pages: u64) -> Result<(), FreezeError> {
        let pages = pages.min(self.pages());
        let failed = |source| FreezeError::Allocate { pages, source };
        let reserve = match &mut self.reserve {
            Some(reserve) => reserve,
            none => none.insert(DeltaReserve::new().map_err(failed)?),
        };
        if reserve.pages() < pages { reserve.grow(pages).map_err(failed) } else { Ok(()) }
    }

    /// Copies the pending pages into the reserve, and only when all is copied forgets them.
    fn copy_written(&mut self) -> Result<FrozenDelta, FreezeError> {
        let pages = self.pending.written.pages();
        let mut reserve = None;
        if pages > 0 {
            self.reserve(pages)?;
            reserve = self.reserve.take();
        }
        if let Err(source) = self.copy_into(reserve.as_mut()) {
            self.reserve = reserve;
            return Err(FreezeError::Copy { pages, source });
        }
        let pending = std::mem::take(&mut self.pending);
        let runs = delta_runs(&pending.written, &pending.zeroed, &pending.unplugged);
        Ok(FrozenDelta { reserve, runs, pages })
    }

    fn copy_into(&self, reserve: Option<&mut DeltaReserve>) -> Result<(), Errno> {
        let Some(mapping) = reserve.and_then(DeltaReserve::mapping) else {
            return if self.pending.written.is_empty() { Ok(()) } else { Err(Errno::NOMEM) };
        };
        let mut to = 0;
        for range in self.pending.written.ranges() {
            for (part, address) in self.pieces(*range) {
                let bytes = part.pages * PAGE_BYTES;
                let from = self.space.pointer(address, bytes).map_err(|_| Errno::FAULT)?;
                // SAFETY: `pointer` gave mapped memory of this length, and the caller of `freeze` has paused whatever
                // writes there.
                unsafe { mapping.copy_in(to, from, bytes as usize) }?;
                to += bytes as usize;
            }
        }
        Ok(())
    }
}

/// The runs of a set, all with one content.
fn runs_of(set: &PageSet, content: DeltaContent) -> impl Iterator<Item = DeltaRun> + '_ {
    set.ranges().iter().map(move |range| DeltaRun { start: range.start, pages: range.pages, content })
}

/// What a delta says: written pages one after the other in its file, then what is zeros or unplugged and not written.
fn delta_runs(written: &PageSet, zeroed: &PageSet, unplugged: &PageSet) -> Vec<DeltaRun> {
    let mut first = 0;
    let mut runs: Vec<DeltaRun> = Vec::with_capacity(written.ranges().len());
    for range in written.ranges() {
        runs.push(DeltaRun { start: range.start, pages: range.pages, content: DeltaContent::Data { first } });
        first += range.pages;
    }
    let zeroed = zeroed.without(unplugged).without(written);
    runs.extend(runs_of(&zeroed, DeltaContent::Zero));
    runs.extend(runs_of(&unplugged.without(written), DeltaContent::Absent));
    if runs.len() > written.ranges().len() {
        runs.sort_unstable_by_key(|run| run.start);
    }
    runs
}
