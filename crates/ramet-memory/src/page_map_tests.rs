//! Maps against a vector with one source per page.

use super::*;
use proptest::prelude::*;

const PAGES: u64 = 48;

fn naive(map: &PageMap) -> Vec<Source> {
    (0..map.pages()).map(|page| map.source_of(page).expect("within the map")).collect()
}

fn well_formed(map: &PageMap) -> bool {
    let merged = |pair: &[Run]| pair[0].source.advanced(pair[0].pages) != pair[1].source;
    map.runs.first().is_some_and(|run| run.start == 0)
        && map.runs.iter().all(|run| run.pages > 0)
        && map.runs.windows(2).all(|pair| pair[0].end() == pair[1].start && merged(pair))
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        4 => (1u64..4, 0u64..20).prop_map(|(layer, first)| Source::Layer { layer: LayerId(layer), first }),
        1 => Just(Source::Zero),
        1 => Just(Source::Absent),
    ]
}

/// Sorted runs with gaps.
fn runs() -> impl Strategy<Value = Vec<Run>> {
    prop::collection::vec((0u64..6, 1u64..8, source()), 0..12).prop_map(|parts| {
        let mut at = 0;
        let mut runs = Vec::new();
        for (gap, pages, source) in parts {
            let start = at + gap;
            if start + pages > PAGES {
                break;
            }
            runs.push(Run { start, pages, source });
            at = start + pages;
        }
        runs
    })
}

fn map() -> impl Strategy<Value = PageMap> {
    prop::collection::vec(runs(), 0..4).prop_map(|layers| {
        let base = PageMap::flat(LayerId(9), PAGES).expect("not empty");
        layers.iter().fold(base, |map, over| map.overlay(over).expect("sorted and within"))
    })
}

fn lay(model: &mut [Source], over: &[Run]) {
    for run in over {
        for offset in 0..run.pages {
            model[(run.start + offset) as usize] = run.source.advanced(offset);
        }
    }
}

proptest! {
    #[test]
    fn overlay_is_page_by_page_replacement(map in map(), over in runs()) {
        let mut model = naive(&map);
        lay(&mut model, &over);
        let result = map.overlay(&over).expect("sorted and within");
        prop_assert!(well_formed(&result));
        prop_assert_eq!(naive(&result), model);
        prop_assert_eq!(result.pages(), PAGES);
    }

    #[test]
    fn rebase_replaces_exactly_the_pages_that_come_from_the_same_place(
        old in map(), over in runs(), replacement in map(),
    ) {
        let new = old.overlay(&over).expect("sorted and within");
        let (old_pages, replaced) = (naive(&old), naive(&replacement));
        let expected: Vec<Source> = naive(&new)
            .into_iter()
            .enumerate()
            .map(|(page, source)| if source == old_pages[page] { replaced[page] } else { source })
            .collect();
        let result = new.rebase(&old, &replacement).expect("one size");
        prop_assert!(well_formed(&result));
        prop_assert_eq!(naive(&result), expected);
    }

    #[test]
    fn layers_are_those_that_show_through(map in map()) {
        let expected: BTreeSet<LayerId> = naive(&map)
            .into_iter()
            .filter_map(|source| match source { Source::Layer { layer, .. } => Some(layer), _ => None })
            .collect();
        prop_assert_eq!(map.layers(), expected);
    }

    #[test]
    fn runs_within_are_the_clipped_runs(map in map(), start in 0u64..PAGES, pages in 0u64..PAGES) {
        let end = (start + pages).min(PAGES);
        let mut seen = Vec::new();
        for run in map.runs_within(start, end) {
            prop_assert_eq!(run.start, start + seen.len() as u64);
            seen.extend((0..run.pages).map(|offset| run.source.advanced(offset)));
        }
        prop_assert_eq!(&seen[..], &naive(&map)[start as usize..end as usize]);
    }

    #[test]
    fn encoding_round_trips(map in map()) {
        let mut bytes = Vec::new();
        ciborium::into_writer(&map, &mut bytes).expect("encodes");
        let back: PageMap = ciborium::from_reader(&bytes[..]).expect("decodes");
        prop_assert_eq!(back, map);
    }

    #[test]
    fn any_encoded_runs_give_a_map_or_an_error(
        encoded in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..6),
        small in prop::collection::vec((0u64..3, 0u64..5, any::<u64>()), 0..6),
    ) {
        for runs in [encoded, small] {
            if let Ok(map) = PageMap::try_from(runs) {
                prop_assert!(well_formed(&map));
                // Must not panic, whatever the files' sizes.
                let _ = map.validate(&|layer| (layer.0 % 2 == 0).then_some(10));
            }
        }
    }

    #[test]
    fn validate_finds_runs_beyond_their_files(map in map(), file_pages in 0u64..60) {
        let within = naive(&map).iter().all(|source| match source {
            Source::Layer { first, .. } => *first < file_pages,
            _ => true,
        });
        prop_assert_eq!(map.validate(&|_| Some(file_pages)).is_ok(), within);
    }
}

#[test]
fn a_hole_hides_what_lies_below_it() {
    let hole = |start, source| Run { start, pages: 2, source };
    let map = PageMap::flat(LayerId(1), 8).unwrap();
    let map = map.overlay(&[hole(1, Source::Zero), hole(5, Source::Absent)]).unwrap();
    assert_eq!(map.source_of(2), Some(Source::Zero));
    assert_eq!(map.source_of(6), Some(Source::Absent));
    assert_eq!(map.source_of(7), Some(Source::Layer { layer: LayerId(1), first: 7 }));
    assert_eq!(map.data_pages(), 4);
}

#[test]
fn a_layer_of_which_nothing_shows_drops_out() {
    let map = PageMap::flat(LayerId(1), 4).unwrap();
    let over = Run { start: 0, pages: 4, source: Source::Layer { layer: LayerId(2), first: 0 } };
    assert_eq!(map.overlay(&[over]).unwrap().layers(), BTreeSet::from([LayerId(2)]));
}

#[test]
fn bad_runs_are_refused() {
    let map = PageMap::zero(8).unwrap();
    let run = |start, pages| Run { start, pages, source: Source::Zero };
    assert_eq!(map.overlay(&[run(4, 1), run(4, 1)]), Err(PageMapError::Order { start: 4, expected: 5 }));
    assert_eq!(map.overlay(&[run(7, 2)]), Err(PageMapError::Beyond { start: 7, pages: 2, limit: 8 }));
    assert_eq!(map.overlay(&[run(3, 0)]), Err(PageMapError::EmptyRun { start: 3 }));
    assert_eq!(PageMap::from_runs(vec![run(1, 2)]), Err(PageMapError::Order { start: 1, expected: 0 }));
    assert_eq!(PageMap::from_runs(vec![]), Err(PageMapError::Empty));
    let far = Run { start: 0, pages: 2, source: Source::Layer { layer: LayerId(1), first: u64::MAX } };
    assert!(map.overlay(&[far]).is_err());
    let unknown = PageMap::flat(LayerId(3), 2).unwrap();
    assert_eq!(unknown.validate(&|_| None), Err(PageMapError::UnknownLayer { start: 0, layer: LayerId(3) }));
}
