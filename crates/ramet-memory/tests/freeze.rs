//! Freezing views that were written to: what is found, what stays apart.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machine, PAGE, adopt, data, founder, regions, set, stores};
use ramet_memory::{DeltaContent, DeltaRun, DiscardError, DiscardKind, Frozen, LayerStore, TrackerKind, ViewKind};
use std::io::Write;
use vm_memory::{Bytes, GuestAddress};

const LOW: u64 = 1024;
const HIGH: u64 = 1024;

fn store() -> LayerStore {
    LayerStore::open(Default::default())
}

#[test]
fn a_founders_first_freeze_copies_nothing_and_its_later_writes_stay_away_from_the_layer() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (mut parent, memory) = founder(&store, &regions, |machine| {
            machine.write(3, 33);
            machine.write(LOW + 5, 55);
        });
        assert_eq!(parent.view.kind(), ViewKind::Private);
        assert_eq!((parent.read(3), parent.read(LOW + 5)), (33, 55));
        parent.write(3, 34);
        parent.write(LOW + 6, 66);
        let child = Machine::on(&memory, &regions);
        assert_eq!((child.read(3), child.read(LOW + 5), child.read(LOW + 6)), (33, 55, 0));
        let delta = parent.freeze();
        assert_eq!(data(&delta.runs), set([3, LOW + 6]));
        let second = Machine::on(&adopt(&store, &memory, delta), &regions);
        assert_eq!((second.read(3), second.read(LOW + 5), second.read(LOW + 6)), (34, 55, 66));
    }
}

#[test]
fn three_generations_write_apart() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (first, root) = founder(&store, &regions, |machine| (0..20).for_each(|page| machine.write(page * 7, 1)));
        first.write(0, 10);
        first.write(LOW, 11);
        let mut second = Machine::on(&root, &regions);
        second.write(7, 20);
        let second_node = second.freeze_onto(&store, &root);
        let mut third = Machine::on(&second_node, &regions);
        let sibling = Machine::on(&second_node, &regions);
        third.write(7, 30);
        third.write(14, 31);
        second.write(7, 21);
        sibling.write(21, 40);
        let third_node = third.freeze_onto(&store, &second_node);
        let fourth = Machine::on(&third_node, &regions);
        let seen = |machine: &Machine| [0, 7, 14, 21, 28, LOW].map(|page| machine.read(page));
        assert_eq!(seen(&first), [10, 1, 1, 1, 1, 11]);
        assert_eq!(seen(&second), [1, 21, 1, 1, 1, 0]);
        assert_eq!(seen(&third), [1, 30, 31, 1, 1, 0]);
        assert_eq!(seen(&sibling), [1, 20, 1, 40, 1, 0]);
        assert_eq!(seen(&fourth), [1, 30, 31, 1, 1, 0]);
    }
}

#[test]
fn a_hole_hides_the_ancestors_page() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (_, root) = founder(&store, &regions, |machine| (0..LOW + HIGH).for_each(|page| machine.write(page, 9)));
        let mut parent = Machine::on(&root, &regions);
        assert_eq!(parent.read(100), 9);
        parent.write(101, 10);
        parent.view.discard(100 * PAGE, 3 * PAGE, DiscardKind::Zero).unwrap();
        parent.view.discard(parent.guest_physical(LOW + 8), 8 * PAGE, DiscardKind::Absent).unwrap();
        parent.write(102, 11);
        parent.write(LOW + 9, 12);
        assert_eq!([100, 101, 102, 103].map(|page| parent.read(page)), [0, 0, 11, 9]);
        let delta = parent.freeze();
        let run = |start, pages, content| DeltaRun { start, pages, content };
        let expected = [
            run(100, 2, DeltaContent::Zero),
            run(102, 1, DeltaContent::Data { first: 0 }),
            run(LOW + 8, 8, DeltaContent::Absent),
        ];
        assert_eq!(delta.runs, expected, "what is written to unplugged memory is lost");
        let node = adopt(&store, &root, delta);
        let child = Machine::on(&node, &regions);
        assert_eq!([99, 100, 101, 102, 103].map(|page| child.read(page)), [9, 0, 0, 11, 9]);
        assert_eq!([LOW + 7, LOW + 8, LOW + 9, LOW + 16].map(|page| child.read(page)), [9, 0, 0, 9]);
        assert_eq!(child.view.absent().pages(), 8);
        let after = parent.freeze();
        assert!(after.runs.is_empty() && after.file.is_none(), "holes are told once");
    }
}

#[test]
fn unplugged_memory_that_is_plugged_in_again_is_zeros() {
    let (store, regions) = (store(), regions(LOW, 0));
    let (_, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 9)));
    let mut machine = Machine::on(&root, &regions);
    machine.view.discard(0, 16 * PAGE, DiscardKind::Absent).unwrap();
    machine.view.discard(0, 8 * PAGE, DiscardKind::Zero).unwrap();
    machine.write(1, 5);
    let node = machine.freeze_onto(&store, &root);
    let child = Machine::on(&node, &regions);
    assert_eq!((child.read(0), child.read(1), child.read(8), child.read(16)), (0, 5, 0, 9));
    assert_eq!(child.view.absent(), &set(8..16));
}

#[test]
fn a_founder_gives_memory_back_and_its_layer_says_what_is_unplugged() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let file = store.create_flat((LOW + HIGH) * PAGE).unwrap();
        let space = ramet_memory::AddressSpace::claim().unwrap();
        let writable = file.writable().try_clone_to_owned().unwrap();
        let tracker = common::tracker(TrackerKind::WriteProtection);
        let view = ramet_memory::View::map_founder(space, &regions, writable, tracker).unwrap();
        let mut machine = Machine { view, regions: regions.clone() };
        (0..LOW + HIGH).for_each(|page| machine.write(page, 9));
        machine.view.discard(0, 512 * PAGE, DiscardKind::Absent).unwrap();
        machine.view.discard(512 * PAGE, PAGE, DiscardKind::Zero).unwrap();
        assert_eq!((machine.read(511), machine.read(512), machine.read(513)), (0, 0, 9));
        let file = file.finish();
        let Frozen::Flat { holes } = machine.view.freeze(Some(file.read_only())).unwrap() else { panic!("flat") };
        let published = store.publish(file).unwrap();
        let node = ramet_memory::LayeredMemory::founded(published, &holes).unwrap();
        let child = Machine::on(&node, &regions);
        assert_eq!((child.read(511), child.read(512), child.read(513)), (0, 0, 9));
        assert_eq!(child.view.absent(), &set(0..512));
    }
}

#[test]
fn the_written_set_is_exact_whoever_writes() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (_, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
        let mut machine = Machine::on(&root, &regions);
        machine.write(40, 2);
        assert_eq!(data(&machine.freeze().runs), set([40]));
        // Reads do not count, of data, of holes or of what was written.
        (0..LOW + HIGH).for_each(|page| _ = machine.read(page));
        assert_eq!(data(&machine.freeze().runs), set([]));
        // Another thread, atomically.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..10).for_each(|page| machine.write(page * 3, 4)));
        });
        // The kernel, on behalf of a read() from a pipe.
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[7; 3 * PAGE as usize]).unwrap();
        let into = GuestAddress(machine.guest_physical(LOW + 3) + 1);
        machine.view.memory().read_exact_volatile_from(into, &mut FdReader(&mut reader), 2 * PAGE as usize).unwrap();
        let expected = set((0..10).map(|page| page * 3).chain(LOW + 3..LOW + 6));
        assert_eq!(data(&machine.freeze().runs), expected);
        assert_eq!(data(&machine.freeze().runs), set([]));
    }
}

/// Reads into guest memory without a buffer between.
struct FdReader<'a>(&'a mut std::io::PipeReader);

impl vm_memory::ReadVolatile for FdReader<'_> {
    fn read_volatile<B: vm_memory::bitmap::BitmapSlice>(
        &mut self,
        into: &mut vm_memory::VolatileSlice<'_, B>,
    ) -> Result<usize, vm_memory::VolatileMemoryError> {
        use std::os::fd::{AsFd, AsRawFd};
        let mut file = std::fs::File::from(self.0.as_fd().try_clone_to_owned().expect("a spare descriptor"));
        assert!(file.as_raw_fd() > 2);
        file.read_volatile(into)
    }
}

#[test]
fn a_hundred_freezes_find_the_64_pages_written_between_them() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (mut machine, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
        let mut node = root.clone();
        let pages: Vec<u64> = (0..64).map(|index| index * 29 % (LOW + HIGH)).collect();
        for round in 2..102 {
            machine.view.prepare_freeze().unwrap();
            pages.iter().for_each(|page| machine.write(*page, round));
            let delta = machine.freeze();
            assert_eq!(data(&delta.runs), set(pages.iter().copied()), "freeze {round}");
            assert_eq!(delta.pages, 64);
            node = adopt(&store, &node, delta);
            assert!(node.layers().len() <= 2, "superseded deltas drop out");
        }
        let child = Machine::on(&node, &regions);
        pages.iter().for_each(|page| assert_eq!(child.read(*page), 101));
    }
}

#[test]
fn what_is_written_or_discarded_after_the_preparation_is_frozen_as_it_is_at_the_freeze() {
    let (store, regions) = (store(), regions(LOW, HIGH));
    let (mut machine, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
    machine.view.prepare_freeze().unwrap();
    (10..30).for_each(|page| machine.write(page, 2));
    machine.view.prepare_freeze().unwrap();
    (20..40).for_each(|page| machine.write(page, 3));
    machine.view.prepare_freeze().unwrap();
    (5..12).for_each(|page| machine.write(page, 4));
    machine.view.discard(25 * PAGE, 3 * PAGE, DiscardKind::Zero).unwrap();
    machine.write(26, 5);
    let expected: Vec<u64> = (0..LOW).map(|page| machine.read(page)).collect();
    let delta = machine.freeze();
    assert_eq!(data(&delta.runs), set((5..25).chain([26]).chain(28..40)));
    let child = Machine::on(&adopt(&store, &root, delta), &regions);
    assert_eq!((0..LOW).map(|page| child.read(page)).collect::<Vec<_>>(), expected);
    assert!(machine.freeze().runs.is_empty());
}

#[test]
fn a_machine_that_keeps_writing_is_frozen_whole() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (store, regions) = (store(), regions(LOW, HIGH));
    let (machine, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
    let memory = machine.view.memory().clone();
    let (mut machine, mut node) = (machine, root);
    for round in 0..20u64 {
        let paused = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut value = round << 32;
                while !paused.load(Ordering::Relaxed) {
                    for page in 0..200 {
                        let at = page * 5 * PAGE;
                        value += 1;
                        memory.write_obj(value, GuestAddress(at)).unwrap();
                        memory.write_obj(!value, GuestAddress(at + PAGE - 8)).unwrap();
                    }
                }
            });
            (0..5).for_each(|_| machine.view.prepare_freeze().unwrap());
            paused.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            let expected: Vec<u64> = (0..LOW).map(|page| machine.read(page)).collect();
            node = machine.freeze_onto(&store, &node);
            let child = Machine::on(&node, &regions);
            assert_eq!((0..LOW).map(|page| child.read(page)).collect::<Vec<_>>(), expected, "round {round}");
        });
    }
}

#[test]
fn pages_that_were_copied_in_are_not_written() {
    let (store, regions) = (store(), regions(LOW, HIGH));
    let (mut parent, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
    (0..100).for_each(|index| parent.write(index * 10, 2));
    let node = parent.freeze_onto(&store, &root);
    let mut child = Machine::on(&node, &regions);
    (0..100).for_each(|index| assert_eq!((child.read(index * 10), child.read(index * 10 + 1)), (2, 1)));
    assert_eq!(data(&child.freeze().runs), set([]));
    child.write(10, 3);
    child.write(11, 3);
    assert_eq!(data(&child.freeze().runs), set([10, 11]));
}

#[test]
fn thousands_of_runs_are_mapped_without_thousands_of_mappings() {
    let (store, regions) = (store(), regions(16 * LOW, HIGH));
    let (mut parent, root) = founder(&store, &regions, |machine| (0..16 * LOW).for_each(|page| machine.write(page, 1)));
    (0..4 * LOW).for_each(|index| {
        parent.write(index * 4, index + 2);
        parent.write(index * 4 + 1, index + 3);
    });
    let node = parent.freeze_onto(&store, &root);
    assert!(node.map().runs().len() > 8000);
    let before = mappings();
    let mut child = Machine::on(&node, &regions);
    assert!(mappings() - before < 5000);
    (0..4 * LOW).for_each(|index| {
        let seen = [0, 1, 2, 3].map(|offset| child.read(index * 4 + offset));
        assert_eq!(seen, [index + 2, index + 3, 1, 1]);
    });
    assert!(child.freeze().runs.is_empty());
    for combined in [store.flatten(&node).unwrap(), store.consolidate(&node).unwrap()] {
        let child = Machine::on(&combined, &regions);
        (0..4 * LOW).for_each(|index| {
            let seen = [0, 1, 2, 3].map(|offset| child.read(index * 4 + offset));
            assert_eq!(seen, [index + 2, index + 3, 1, 1]);
        });
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn the_fallback_finds_what_the_tracker_finds_at_the_first_freeze() {
    for store in stores() {
        let regions = regions(LOW, HIGH);
        let (_, root) = founder(&store, &regions, |machine| (0..LOW + HIGH).for_each(|page| machine.write(page, 1)));
        let mut machines = [TrackerKind::WriteProtection, TrackerKind::PrivatePages]
            .map(|kind| Machine::tracked(&root, &regions, kind));
        let runs = machines.each_mut().map(|machine| {
            (0..LOW + HIGH).for_each(|page| _ = machine.read(page));
            (0..50).for_each(|index| machine.write(index * 31, 2));
            machine.freeze().runs
        });
        assert_eq!(runs[0], runs[1]);
        // From then on it repeats itself, and stays right.
        machines[1].write(1, 3);
        assert_eq!(data(&machines[1].freeze().runs), set((0..50).map(|index| index * 31).chain([1])));
    }
}

#[test]
fn a_delta_that_came_to_nothing_is_in_the_next() {
    let (store, regions) = (store(), regions(LOW, HIGH));
    let (_, root) = founder(&store, &regions, |machine| (0..LOW).for_each(|page| machine.write(page, 1)));
    let mut machine = Machine::on(&root, &regions);
    machine.write(1, 2);
    machine.write(2, 2);
    machine.view.discard(8 * PAGE, 2 * PAGE, DiscardKind::Zero).unwrap();
    machine.view.discard(16 * PAGE, 2 * PAGE, DiscardKind::Absent).unwrap();
    let lost = machine.freeze();
    machine.view.take_back(&lost.runs);
    machine.write(2, 3);
    machine.write(9, 4);
    machine.view.discard(17 * PAGE, PAGE, DiscardKind::Zero).unwrap();
    let child = Machine::on(&machine.freeze_onto(&store, &root), &regions);
    assert_eq!([0, 1, 2, 8, 9, 10, 16, 17, 18].map(|page| child.read(page)), [1, 2, 3, 0, 4, 1, 0, 0, 1]);
    assert_eq!(child.view.absent(), &set([16]));
}

#[test]
fn only_ram_is_discarded() {
    let (store, regions) = (store(), regions(LOW, HIGH));
    let (mut machine, _) = founder(&store, &regions, |_| ());
    for (start, bytes) in [(0, 0), (1, PAGE), (0, 100), ((LOW - 1) * PAGE, 2 * PAGE), (u64::MAX - 4095, PAGE)] {
        let refused = machine.view.discard(start, bytes, DiscardKind::Zero);
        assert!(matches!(refused, Err(DiscardError::Range { .. })), "{start:#x} {bytes}");
    }
}

#[test]
fn discarding_single_pages_ends_at_a_limit_and_neighbours_merge() {
    let (store, regions) = (store(), regions(16 * LOW, 0));
    let (_, root) = founder(&store, &regions, |machine| (0..16 * LOW).for_each(|page| machine.write(page, 1)));
    let mut machine = Machine::on(&root, &regions);
    (0..8 * LOW).for_each(|page| machine.view.discard(page * PAGE, PAGE, DiscardKind::Zero).unwrap());
    let single = |index: u64| (8 * LOW + index * 2) * PAGE;
    let refused = (0..4 * LOW).find_map(|index| machine.view.discard(single(index), PAGE, DiscardKind::Zero).err());
    assert!(matches!(refused, Some(DiscardError::TooManyMappings { .. })));
}
