//! Which layer holds which page of a frozen node's RAM.
//!
//! A map covers every page of RAM exactly once, so a hole ([`Source::Zero`], [`Source::Absent`]) is said as plainly as
//! data is and never lets an ancestor's page through. Everything here is a function over data; files are elsewhere.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most runs that a map may have: 1 Mi, what 4 GiB in which every page comes from elsewhere needs.
pub const MAX_RUNS: usize = 1 << 20;

/// Names a layer within one store; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LayerId(pub u64);

impl std::fmt::Display for LayerId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Where a run's pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Pages of a layer, one after the other.
    Layer {
        /// Which.
        layer: LayerId,
        /// Page of the layer's file that holds the run's first page.
        first: u64,
    },
    /// Zeros, whatever an ancestor holds there.
    Zero,
    /// Not plugged in: no machine may rely on what is there.
    Absent,
}

impl Source {
    /// The source of the page that lies `pages` further.
    fn advanced(self, pages: u64) -> Source {
        match self {
            Source::Layer { layer, first } => Source::Layer { layer, first: first + pages },
            hole => hole,
        }
    }
}

/// Pages `start .. start + pages` of RAM and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// First page of RAM.
    pub start: u64,
    /// How many; at least 1.
    pub pages: u64,
    /// Where they come from.
    pub source: Source,
}

impl Run {
    /// The page after the last.
    pub fn end(&self) -> u64 {
        self.start + self.pages
    }

    /// The part of it within pages `start .. end`; `None` where they do not meet.
    pub fn clipped(&self, start: u64, end: u64) -> Option<Run> {
        let (from, to) = (self.start.max(start), self.end().min(end));
        (from < to).then(|| Run { start: from, pages: to - from, source: self.source.advanced(from - self.start) })
    }
}

/// Why runs are not a map or do not fit one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageMapError {
    /// A map of nothing.
    #[error("A page map has no pages; a machine has at least one")]
    Empty,
    /// A run of nothing.
    #[error("The run at page {start} is empty; leave it out")]
    EmptyRun {
        /// Its first page.
        start: u64,
    },
    /// A run does not begin where it must.
    #[error("A run begins at page {start}, before page {expected} where the one before it ends; sort and merge them")]
    Order {
        /// Where it begins.
        start: u64,
        /// Where the run before it ends.
        expected: u64,
    },
    /// A run is beyond the end.
    #[error("The run of {pages} pages at page {start} ends beyond the {limit} pages there are")]
    Beyond {
        /// Its first page.
        start: u64,
        /// Its length.
        pages: u64,
        /// Pages there are.
        limit: u64,
    },
    /// Too many runs.
    #[error("A page map has {runs} runs, more than the {MAX_RUNS} it may have; consolidate it")]
    TooMany {
        /// How many.
        runs: usize,
    },
    /// A layer that is not at hand.
    #[error("The run at page {start} names layer {layer}, which is not at hand")]
    UnknownLayer {
        /// Its first page.
        start: u64,
        /// The layer.
        layer: LayerId,
    },
    /// A run is beyond the end of its layer's file.
    #[error("The run at page {start} ends beyond the {file_pages} pages of layer {layer}")]
    BeyondLayer {
        /// Its first page.
        start: u64,
        /// The layer.
        layer: LayerId,
        /// Pages in the layer's file.
        file_pages: u64,
    },
    /// Two maps that must be of one size are not.
    #[error("A page map of {right} pages was put with one of {left} pages")]
    Sizes {
        /// Pages of the first.
        left: u64,
        /// Pages of the other.
        right: u64,
    },
    /// An encoded run has an impossible field.
    #[error("An encoded run has the impossible source {code}")]
    Code {
        /// The field.
        code: u64,
    },
}

/// Which layer holds which page; sorted, without gaps, merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<EncodedRun>", try_from = "Vec<EncodedRun>")]
pub struct PageMap {
    runs: Vec<Run>,
}

/// Pages, source (0 zero, 1 absent, else 2 + layer) and first page in the file: half the bytes of named fields.
type EncodedRun = (u64, u64, u64);

impl From<PageMap> for Vec<EncodedRun> {
    fn from(map: PageMap) -> Vec<EncodedRun> {
        let encode = |run: &Run| match run.source {
            Source::Zero => (run.pages, 0, 0),
            Source::Absent => (run.pages, 1, 0),
            Source::Layer { layer, first } => (run.pages, layer.0.saturating_add(2), first),
        };
        map.runs.iter().map(encode).collect()
    }
}

impl TryFrom<Vec<EncodedRun>> for PageMap {
    type Error = PageMapError;

    fn try_from(encoded: Vec<EncodedRun>) -> Result<PageMap, PageMapError> {
        let mut start = 0u64;
        let mut runs = Vec::with_capacity(encoded.len());
        for (pages, code, first) in encoded {
            let source = match code {
                0 => Source::Zero,
                1 => Source::Absent,
                u64::MAX => return Err(PageMapError::Code { code }),
                layer => Source::Layer { layer: LayerId(layer - 2), first },
            };
            runs.push(Run { start, pages, source });
            start = start.checked_add(pages).ok_or(PageMapError::Beyond { start, pages, limit: u64::MAX })?;
        }
        PageMap::from_runs(runs)
    }
}

impl PageMap {
    /// The map of a machine whose RAM is one flat layer.
    pub fn flat(layer: LayerId, pages: u64) -> Result<PageMap, PageMapError> {
        PageMap::from_runs(vec![Run { start: 0, pages, source: Source::Layer { layer, first: 0 } }])
    }

    /// The map of a machine whose RAM is zeros.
    pub fn zero(pages: u64) -> Result<PageMap, PageMapError> {
        PageMap::from_runs(vec![Run { start: 0, pages, source: Source::Zero }])
    }

    /// A map of runs that begin at page 0 and leave no gap.
    pub fn from_runs(runs: Vec<Run>) -> Result<PageMap, PageMapError> {
        let mut builder = Builder::default();
        for run in runs {
            if run.start != builder.end {
                return Err(PageMapError::Order { start: run.start, expected: builder.end });
            }
            check_run(&run, u64::MAX)?;
            builder.push(run);
        }
        builder.finish()
    }

    /// Its runs: sorted, without gaps, merged where they go on.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The runs within pages `start .. end`, clipped to them.
    pub fn runs_within(&self, start: u64, end: u64) -> impl Iterator<Item = Run> + '_ {
        let from = self.runs.partition_point(|run| run.end() <= start);
        self.runs[from..].iter().map_while(move |run| run.clipped(start, end))
    }

    /// Pages of RAM.
    pub fn pages(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Pages that a layer holds.
    pub fn data_pages(&self) -> u64 {
        self.runs.iter().filter(|run| matches!(run.source, Source::Layer { .. })).map(|run| run.pages).sum()
    }

    /// Where a page comes from; `None` beyond the end.
    pub fn source_of(&self, page: u64) -> Option<Source> {
        let at = self.runs.partition_point(|run| run.end() <= page);
        self.runs.get(at).map(|run| run.source.advanced(page - run.start))
    }

    /// This map with `over` laid over it. The runs of `over` are sorted and do not overlap, but may leave gaps.
    pub fn overlay(&self, over: &[Run]) -> Result<PageMap, PageMapError> {
        let mut builder = Builder::with_capacity(self.runs.len() + 2 * over.len());
        let mut below = self.runs.iter();
        let mut current = below.next();
        let limit = self.pages();
        for run in over {
            if run.start < builder.end {
                return Err(PageMapError::Order { start: run.start, expected: builder.end });
            }
            check_run(run, limit)?;
            while let Some(base) = current {
                if let Some(part) = base.clipped(builder.end, run.start) {
                    builder.push(part);
                }
                if base.end() > run.start {
                    break;
                }
                current = below.next();
            }
            builder.push(*run);
        }
        while let Some(base) = current {
            if let Some(part) = base.clipped(builder.end, limit) {
                builder.push(part);
            }
            current = below.next();
        }
        builder.finish()
    }

    /// The layers that something still shows through of.
    pub fn layers(&self) -> BTreeSet<LayerId> {
        let layer = |run: &Run| match run.source {
            Source::Layer { layer, .. } => Some(layer),
            Source::Zero | Source::Absent => None,
        };
        self.runs.iter().filter_map(layer).collect()
    }

    /// Checks that every run lies within its layer's file. `file_pages` gives a layer's pages, `None` if it is not at
    /// hand. A map from another process must pass this before it is mapped: beyond the end of a file is a SIGBUS.
    pub fn validate(&self, file_pages: &dyn Fn(LayerId) -> Option<u64>) -> Result<(), PageMapError> {
        for run in &self.runs {
            let Source::Layer { layer, first } = run.source else { continue };
            let pages = file_pages(layer).ok_or(PageMapError::UnknownLayer { start: run.start, layer })?;
            if first.checked_add(run.pages).is_none_or(|end| end > pages) {
                return Err(PageMapError::BeyondLayer { start: run.start, layer, file_pages: pages });
            }
        }
        Ok(())
    }

    /// This map with each page that it has from where `old` has it taken from where `replacement` has it.
    ///
    /// `old` and `replacement` are two maps of the same contents, one before and one after flattening or
    /// consolidating; a descendant's map is moved off the old layers with this.
    pub fn rebase(&self, old: &PageMap, replacement: &PageMap) -> Result<PageMap, PageMapError> {
        for other in [old, replacement] {
            if other.pages() != self.pages() {
                return Err(PageMapError::Sizes { left: self.pages(), right: other.pages() });
            }
        }
        let mut builder = Builder::with_capacity(self.runs.len());
        let (mut was, mut now) = (old.runs.iter().peekable(), replacement.runs.iter().peekable());
        for run in &self.runs {
            let mut start = run.start;
            while start < run.end() {
                while was.next_if(|other| other.end() <= start).is_some() {}
                while now.next_if(|other| other.end() <= start).is_some() {}
                let (Some(before), Some(after)) = (was.peek(), now.peek()) else { break };
                let end = run.end().min(before.end()).min(after.end());
                let source = run.source.advanced(start - run.start);
                let same = before.source.advanced(start - before.start) == source;
                let source = if same { after.source.advanced(start - after.start) } else { source };
                builder.push(Run { start, pages: end - start, source });
                start = end;
            }
        }
        builder.finish()
    }
}

/// Refuses empty runs and runs that end beyond `limit`.
fn check_run(run: &Run, limit: u64) -> Result<(), PageMapError> {
    let beyond = PageMapError::Beyond { start: run.start, pages: run.pages, limit };
    if run.pages == 0 {
        return Err(PageMapError::EmptyRun { start: run.start });
    }
    if run.start.checked_add(run.pages).is_none_or(|end| end > limit) {
        return Err(beyond);
    }
    match run.source {
        Source::Layer { first, .. } if first.checked_add(run.pages).is_none() => Err(beyond),
        _ => Ok(()),
    }
}

/// Collects adjoining runs and merges those that go on.
#[derive(Default)]
struct Builder {
    runs: Vec<Run>,
    end: u64,
}

impl Builder {
    fn with_capacity(runs: usize) -> Builder {
        Builder { runs: Vec::with_capacity(runs), end: 0 }
    }

    fn push(&mut self, run: Run) {
        self.end = run.end();
        match self.runs.last_mut() {
            Some(last) if last.source.advanced(last.pages) == run.source => last.pages += run.pages,
            _ => self.runs.push(run),
        }
    }

    fn finish(self) -> Result<PageMap, PageMapError> {
        match self.runs.len() {
            0 => Err(PageMapError::Empty),
            runs if runs > MAX_RUNS => Err(PageMapError::TooMany { runs }),
            _ => Ok(PageMap { runs: self.runs }),
        }
    }
}

#[cfg(test)]
#[path = "page_map_tests.rs"]
mod tests;
