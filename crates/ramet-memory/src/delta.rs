//! Deltas: what a freeze gives, before and after it becomes a layer.

use crate::memfd;
use crate::page_map::{LayerId, Run, Source};
use crate::page_set::{PageRange, PageSet};
use crate::sys::SharedMapping;
use ramet_abi::layout::PAGE_BYTES;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use vm_memory::VolatileSlice;

/// What a run of a delta says about its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaContent {
    /// The delta's file holds them, from this page of it on.
    Data {
        /// First page in the file.
        first: u64,
    },
    /// They are zeros.
    Zero,
    /// They are not plugged in.
    Absent,
}

/// Pages `start .. start + pages` of RAM that a delta says something about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u64, u64, u64)", from = "(u64, u64, u64)")]
pub struct DeltaRun {
    /// First page of RAM.
    pub start: u64,
    /// How many; at least 1.
    pub pages: u64,
    /// What it says.
    pub content: DeltaContent,
}

/// Start, pages, and 0 for zeros, 1 for absent, else 2 + the first page in the file.
impl From<DeltaRun> for (u64, u64, u64) {
    fn from(run: DeltaRun) -> (u64, u64, u64) {
        let content = match run.content {
            DeltaContent::Zero => 0,
            DeltaContent::Absent => 1,
            DeltaContent::Data { first } => first.saturating_add(2),
        };
        (run.start, run.pages, content)
    }
}

impl From<(u64, u64, u64)> for DeltaRun {
    fn from((start, pages, content): (u64, u64, u64)) -> DeltaRun {
        let content = match content {
            0 => DeltaContent::Zero,
            1 => DeltaContent::Absent,
            data => DeltaContent::Data { first: data - 2 },
        };
        DeltaRun { start, pages, content }
    }
}

/// Why runs do not fit a delta's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// A run beyond the file.
    #[error("The delta's run of {pages} pages at page {start} ends beyond the {file_pages} pages of its file")]
    BeyondFile {
        /// First page of RAM.
        start: u64,
        /// Its length.
        pages: u64,
        /// Pages of the file.
        file_pages: u64,
    },
}

/// The runs of a delta as runs of a page map, once its file is `layer` of `file_pages` pages. The runs may come from
/// another process: what is wrong with their order and length is found by [`crate::PageMap::overlay`].
pub fn place_delta(runs: &[DeltaRun], layer: LayerId, file_pages: u64) -> Result<Vec<Run>, DeltaError> {
    let place = |run: &DeltaRun| {
        let source = match run.content {
            DeltaContent::Zero => Source::Zero,
            DeltaContent::Absent => Source::Absent,
            DeltaContent::Data { first } => {
                if first.checked_add(run.pages).is_none_or(|end| end > file_pages) {
                    return Err(DeltaError::BeyondFile { start: run.start, pages: run.pages, file_pages });
                }
                Source::Layer { layer, first }
            }
        };
        Ok(Run { start: run.start, pages: run.pages, source })
    };
    runs.iter().map(place).collect()
}

/// What a machine wrote, as it goes to the supervisor.
#[derive(Debug)]
pub struct Delta {
    /// A memfd of exactly `pages` pages, not mapped by this process any more; `None` where there are none.
    pub file: Option<OwnedFd>,
    /// What it says about which pages; sorted, not overlapping.
    pub runs: Vec<DeltaRun>,
    /// Pages in the file.
    pub pages: u64,
}

/// What a freeze of a private view copied; [`FrozenDelta::finish`] it once the machine goes on.
#[derive(Debug)]
pub struct FrozenDelta {
    /// `None` where there is no data.
    pub(crate) reserve: Option<DeltaReserve>,
    pub(crate) runs: Vec<DeltaRun>,
}

impl FrozenDelta {
    /// What it says about which pages; sorted, not overlapping.
    pub fn runs(&self) -> &[DeltaRun] {
        &self.runs
    }

    /// Pages of its file. That may be more than its runs have, if pages were discarded after they had been copied.
    pub fn pages(&self) -> u64 {
        self.reserve.as_ref().map_or(0, DeltaReserve::used)
    }

    /// Trims the file and unmaps it. Not part of the freeze, because it takes time that the machine need not wait.
    ///
    /// On an error the frozen delta comes back as it was: [`crate::View::take_back`] its runs, or try again.
    pub fn finish(self) -> Result<Delta, FinishError> {
        let FrozenDelta { reserve, runs } = self;
        let Some(reserve) = reserve else { return Ok(Delta { file: None, runs, pages: 0 }) };
        let pages = reserve.used;
        // Only the excess beyond what was copied goes, so nothing that is still mapped and needed is cut off.
        match rustix::fs::ftruncate(&reserve.fd, pages * PAGE_BYTES) {
            Ok(()) => Ok(Delta { file: Some(reserve.fd), runs, pages }),
            Err(source) => Err(FinishError { frozen: Box::new(FrozenDelta { reserve: Some(reserve), runs }), source }),
        }
    }
}

/// Why a frozen delta could not be trimmed.
#[derive(Debug, thiserror::Error)]
#[error("Cannot trim the file of a delta to its {} pages", .frozen.pages())]
pub struct FinishError {
    /// What was to be trimmed, unchanged.
    pub frozen: Box<FrozenDelta>,
    /// The system's error.
    #[source]
    pub source: Errno,
}

/// A memfd that is allocated, mapped and filled before the machine is paused, so that the freeze copies only what was
/// written again since, and so that a lack of memory is an error before the pause and not a SIGBUS in it.
#[derive(Debug)]
pub(crate) struct DeltaReserve {
    fd: OwnedFd,
    mapping: Option<SharedMapping>,
    /// Pages there is room for.
    capacity: u64,
    /// Which pages of RAM have a place in the file, and from which page of it on; ascending.
    places: BTreeMap<u64, (u64, u64)>,
    /// Pages of the file that have been given away.
    used: u64,
    /// Pages whose place holds what RAM held when it was last found written.
    copied: PageSet,
}

impl DeltaReserve {
    /// An empty one.
    pub(crate) fn new() -> Result<DeltaReserve, Errno> {
        Ok(DeltaReserve {
            fd: memfd::create_memfd("ramet-delta")?,
            mapping: None,
            capacity: 0,
            places: BTreeMap::new(),
            used: 0,
            copied: PageSet::new(),
        })
    }

    /// Makes room for `pages` pages; on an error it is as before.
    pub(crate) fn grow(&mut self, pages: u64) -> Result<(), Errno> {
        if pages <= self.capacity {
            return Ok(());
        }
        let (was, bytes) = (self.capacity * PAGE_BYTES, pages.checked_mul(PAGE_BYTES).ok_or(Errno::FBIG)?);
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), was, bytes - was)?;
        let mapping = SharedMapping::new(self.fd.as_fd(), usize::try_from(bytes).map_err(|_| Errno::FBIG)?)?;
        mapping.populate(usize::try_from(was).map_err(|_| Errno::FBIG)?)?;
        self.mapping = Some(mapping);
        self.capacity = pages;
        Ok(())
    }

    /// Pages of the file with a place in it.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Pages that need not be copied again.
    pub(crate) fn copied(&self) -> &PageSet {
        &self.copied
    }

    /// What was copied is not what RAM holds any more.
    pub(crate) fn forget(&mut self, range: PageRange) {
        self.copied.remove(range);
    }

    /// Where the pages of a range have their places, in ascending order; those without one get one. Needs room for them.
    pub(crate) fn place(&mut self, range: PageRange) -> Vec<(PageRange, u64)> {
        let mut places = self.placed(range);
        let mut rest = PageSet::new();
        rest.insert(range);
        places.iter().for_each(|(placed, _)| rest.remove(*placed));
        for new in rest.ranges() {
            self.places.insert(new.start, (new.pages, self.used));
            places.push((*new, self.used));
            self.used += new.pages;
        }
        if !rest.is_empty() {
            places.sort_unstable_by_key(|(part, _)| part.start);
        }
        places
    }

    /// The parts of a range that have places, in ascending order.
    pub(crate) fn placed(&self, range: PageRange) -> Vec<(PageRange, u64)> {
        let before = self.places.range(..range.start).next_back();
        let part = |(start, (pages, first)): (&u64, &(u64, u64))| {
            let from = range.start.max(*start);
            let end = range.end().min(start + pages);
            (from < end).then(|| (PageRange::between(from, end), first + from - start))
        };
        before.into_iter().chain(self.places.range(range.start..range.end())).filter_map(part).collect()
    }

    /// Copies pages to their place.
    pub(crate) fn copy_in(&mut self, pages: PageRange, place: u64, from: &VolatileSlice<'_>) -> Result<(), Errno> {
        let mapping = self.mapping.as_ref().ok_or(Errno::NOMEM)?.slice();
        let to = usize::try_from(place * PAGE_BYTES).map_err(|_| Errno::FBIG)?;
        // The machine may write to the source meanwhile, which volatile slices allow for.
        from.copy_to_volatile_slice(mapping.subslice(to, from.len()).map_err(|_| Errno::OVERFLOW)?);
        self.copied.insert(pages);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_encode_and_decode() {
        for content in [DeltaContent::Zero, DeltaContent::Absent, DeltaContent::Data { first: 7 }] {
            let run = DeltaRun { start: 3, pages: 2, content };
            let mut bytes = Vec::new();
            ciborium::into_writer(&run, &mut bytes).unwrap();
            assert_eq!(ciborium::from_reader::<DeltaRun, _>(&bytes[..]).unwrap(), run);
        }
    }

    #[test]
    fn a_run_beyond_its_file_is_refused() {
        let run = |first| DeltaRun { start: 5, pages: 2, content: DeltaContent::Data { first } };
        assert!(place_delta(&[run(2)], LayerId(1), 4).is_ok());
        for first in [3, u64::MAX - 1, u64::MAX] {
            let refused = DeltaError::BeyondFile { start: 5, pages: 2, file_pages: 4 };
            assert_eq!(place_delta(&[run(first)], LayerId(1), 4), Err(refused));
        }
    }

    #[test]
    fn a_reserve_keeps_its_contents_when_it_grows() {
        use vm_memory::Bytes;
        let mut reserve = DeltaReserve::new().unwrap();
        reserve.grow(1).unwrap();
        assert_eq!(reserve.place(PageRange { start: 7, pages: 1 }), [(PageRange { start: 7, pages: 1 }, 0)]);
        reserve.mapping.as_mut().unwrap().slice().write_slice(b"ramet", 10).unwrap();
        reserve.grow(100).unwrap();
        let mut read = [0; 5];
        reserve.mapping.as_ref().unwrap().slice().read_slice(&mut read, 10).unwrap();
        assert_eq!(&read, b"ramet");
        let delta = FrozenDelta { reserve: Some(reserve), runs: vec![] }.finish().unwrap();
        assert_eq!(memfd::file_bytes(delta.file.unwrap()).unwrap(), PAGE_BYTES);
    }

    #[test]
    fn a_page_keeps_its_place() {
        let range = |start, pages| PageRange { start, pages };
        let mut reserve = DeltaReserve::new().unwrap();
        assert_eq!(reserve.place(range(10, 4)), [(range(10, 4), 0)]);
        assert_eq!(reserve.place(range(11, 2)), [(range(11, 2), 1)]);
        assert_eq!(reserve.place(range(8, 8)), [(range(8, 2), 4), (range(10, 4), 0), (range(14, 2), 6)]);
        assert_eq!(reserve.placed(range(0, 9)), [(range(8, 1), 4)]);
        assert_eq!((reserve.placed(range(16, 9)), reserve.used()), (vec![], 8));
    }
}
