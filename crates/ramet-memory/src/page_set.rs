//! Sets of pages as sorted, merged ranges.
//!
//! What was written, discarded or unplugged is a set of page numbers that mostly lie beside each other; ranges keep it
//! small and give the runs of a delta directly.

use serde::{Deserialize, Serialize};

/// Pages `start .. start + pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageRange {
    /// First page.
    pub start: u64,
    /// How many; at least 1 in a set.
    pub pages: u64,
}

impl PageRange {
    /// Pages `start .. end`.
    pub fn between(start: u64, end: u64) -> PageRange {
        PageRange { start, pages: end.saturating_sub(start) }
    }

    /// The page after the last; saturates.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.pages)
    }
}

/// A set of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    /// Sorted, neither empty nor touching.
    ranges: Vec<PageRange>,
}

impl PageSet {
    /// The empty set.
    pub fn new() -> PageSet {
        PageSet::default()
    }

    /// Its ranges, sorted; no two touch.
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// How many pages are in it.
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|range| range.pages).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds a range. Adding in ascending order takes constant time.
    pub fn insert(&mut self, range: PageRange) {
        if range.pages == 0 {
            return;
        }
        if let Some(last) = self.ranges.last_mut() {
            if range.start > last.end() {
                self.ranges.push(range);
                return;
            }
            if range.start >= last.start {
                *last = PageRange::between(last.start, last.end().max(range.end()));
                return;
            }
        } else {
            self.ranges.push(range);
            return;
        }
        let from = self.ranges.partition_point(|other| other.end() < range.start);
        let to = self.ranges.partition_point(|other| other.start <= range.end());
        let touched = &self.ranges[from..to];
        let start = touched.first().map_or(range.start, |first| first.start.min(range.start));
        let end = touched.last().map_or(range.end(), |last| last.end().max(range.end()));
        self.ranges.splice(from..to, [PageRange::between(start, end)]);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: PageRange) {
        if range.pages == 0 {
            return;
        }
        let from = self.ranges.partition_point(|other| other.end() <= range.start);
        let to = self.ranges.partition_point(|other| other.start < range.end());
        if from >= to {
            return;
        }
        let before = PageRange::between(self.ranges[from].start, range.start);
        let after = PageRange::between(range.end(), self.ranges[to - 1].end());
        self.ranges.splice(from..to, [before, after].into_iter().filter(|rest| rest.pages > 0));
    }

    /// Adds every page of another set.
    pub fn insert_all(&mut self, other: &PageSet) {
        for range in other.ranges() {
            self.insert(*range);
        }
    }

    /// Its pages that are not in `other`, in time linear in the ranges of both.
    pub fn without(&self, other: &PageSet) -> PageSet {
        let mut rest = PageSet::new();
        let mut cut = other.ranges.iter().peekable();
        for range in &self.ranges {
            let mut start = range.start;
            while start < range.end() {
                while cut.next_if(|next| next.end() <= start).is_some() {}
                match cut.peek() {
                    Some(next) if next.start < range.end() => {
                        rest.insert(PageRange::between(start, next.start));
                        start = next.end();
                    }
                    _ => {
                        rest.insert(PageRange::between(start, range.end()));
                        break;
                    }
                }
            }
        }
        rest
    }

    /// Its ranges within another, clipped to it.
    pub fn within(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let from = self.ranges.partition_point(|other| other.end() <= range.start);
        self.ranges[from..]
            .iter()
            .take_while(move |other| other.start < range.end())
            .map(move |other| PageRange::between(other.start.max(range.start), other.end().min(range.end())))
    }

    /// Whether every page of the range is in it.
    pub fn contains(&self, range: PageRange) -> bool {
        let at = self.ranges.partition_point(|other| other.end() <= range.start);
        range.pages == 0
            || self.ranges.get(at).is_some_and(|other| other.start <= range.start && range.end() <= other.end())
    }

    /// Whether any page of the range is in it.
    pub fn intersects(&self, range: PageRange) -> bool {
        let at = self.ranges.partition_point(|other| other.end() <= range.start);
        range.pages > 0 && self.ranges.get(at).is_some_and(|other| other.start < range.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn naive(set: &PageSet) -> BTreeSet<u64> {
        set.ranges().iter().flat_map(|range| range.start..range.end()).collect()
    }

    fn well_formed(set: &PageSet) -> bool {
        set.ranges().iter().all(|range| range.pages > 0)
            && set.ranges().windows(2).all(|pair| pair[0].end() < pair[1].start)
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..60),
            other in prop::collection::vec((0u64..60, 0u64..12), 0..20),
            (at, pages) in (0u64..70, 0u64..8),
        ) {
            let (mut set, mut model) = (PageSet::new(), BTreeSet::new());
            for (add, start, pages) in steps {
                let range = PageRange { start, pages };
                if add {
                    set.insert(range);
                    model.extend(start..start + pages);
                } else {
                    set.remove(range);
                    model.retain(|page| !(start..start + pages).contains(page));
                }
                prop_assert!(well_formed(&set));
                prop_assert_eq!(&naive(&set), &model);
            }
            prop_assert_eq!(set.pages(), model.len() as u64);
            let range = PageRange { start: at, pages };
            prop_assert_eq!(set.contains(range), (at..at + pages).all(|page| model.contains(&page)));
            prop_assert_eq!(set.intersects(range), (at..at + pages).any(|page| model.contains(&page)));

            let within: BTreeSet<u64> = set.within(range).flat_map(|part| part.start..part.end()).collect();
            prop_assert_eq!(within, model.range(at..at + pages).copied().collect::<BTreeSet<_>>());

            let mut cut = PageSet::new();
            for (start, pages) in other {
                cut.insert(PageRange { start, pages });
            }
            let rest = set.without(&cut);
            prop_assert!(well_formed(&rest));
            prop_assert_eq!(naive(&rest), model.difference(&naive(&cut)).copied().collect::<BTreeSet<_>>());
            set.insert_all(&cut);
            prop_assert_eq!(naive(&set), model.union(&naive(&cut)).copied().collect::<BTreeSet<_>>());
        }
    }
}
