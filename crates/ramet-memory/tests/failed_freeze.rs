//! A freeze that fails after its scan. Alone in its process, because it takes away the right to open files.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machine, data, founder, regions, set};
use ramet_memory::{FreezeError, LayerStore};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn pages_found_by_a_freeze_that_failed_are_in_the_next() {
    let store = LayerStore::open(Default::default());
    let regions = regions(1024, 1024);
    let (mut machine, _) = founder(&store, &regions, |machine| machine.write(0, 1));
    [1, 5, 1030].iter().for_each(|page| machine.write(*page, 2));
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
    // Unprepared, so the delta's file is made only after the scan.
    let failed = machine.view.freeze(None);
    assert!(matches!(failed, Err(FreezeError::Allocate { pages: 3, source: rustix::io::Errno::MFILE })), "{failed:?}");
    machine.write(6, 3);
    assert!(machine.view.freeze(None).is_err());
    setrlimit(Resource::Nofile, limit).unwrap();
    machine.write(5, 4);
    assert_eq!([1, 5, 6, 1030].map(|page| machine.read(page)), [2, 4, 3, 2], "the machine goes on unharmed");
    assert_eq!(data(&machine.freeze().runs), set([1, 5, 6, 1030]));
    assert!(machine.freeze().runs.is_empty());
    drop::<Machine>(machine);
}
