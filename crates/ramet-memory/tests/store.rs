//! Layers: that nobody can write to them, what they count, what is refused.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machine, PAGE, clone_page, founder, regions, stores, tracker};
use ramet_memory::{
    AddressSpace, AdoptError, Backing, LayerKind, LayerStore, PublishError, StoreConfig, StoreError, TrackerKind, View,
    ViewError,
};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

const PAGES: u64 = 2048;
const HUGE: u64 = 2 << 20;

fn memfd(pages: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("delta", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, pages * PAGE).unwrap();
    fd
}

#[test]
fn this_host_gives_a_tmpfs_with_huge_pages() {
    // A host that does not is supported, but these tests then miss half of what they are for.
    let backing = LayerStore::open(StoreConfig::default()).backing();
    assert!(matches!(backing, Backing::HugeTmpfs { .. }), "run the tests as root: {backing:?}");
}

#[test]
fn a_published_layer_cannot_be_opened_or_written_by_anybody() {
    for store in stores() {
        let (_machine, memory) = founder(&store, &regions(PAGES, 0), |machine| machine.write(0, 1));
        let layer = memory.layers().next().unwrap();
        let file = File::from(layer.as_fd().try_clone_to_owned().unwrap());
        assert!(file.write_at(b"x", 0).is_err(), "the descriptor is for reading");
        let path = format!("/proc/self/fd/{}", layer.as_fd().as_raw_fd());
        let reopened = File::options().write(true).open(path);
        match store.backing() {
            Backing::HugeTmpfs { read_only_mount: Ok(()) } => {
                assert_eq!(reopened.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            }
            Backing::HugeTmpfs { .. } => {}
            Backing::Memfd { .. } => assert!(reopened.unwrap().write_at(b"x", 0).is_err(), "sealed"),
        }
    }
}

#[test]
fn a_flat_file_that_somebody_can_write_is_not_published() {
    for store in stores() {
        let regions = regions(PAGES, 0);
        let file = store.create_flat(PAGES * PAGE).unwrap();
        let writable = file.writable().try_clone_to_owned().unwrap();
        let space = AddressSpace::claim().unwrap();
        let mut view = View::map_founder(space, &regions, writable, tracker(TrackerKind::WriteProtection)).unwrap();
        let Err(PublishError::StillWritable { file }) = store.publish(file.finish()) else { panic!("still writable") };
        view.freeze(Some(file.read_only())).unwrap();
        store.publish(*file).unwrap();
    }
}

#[test]
fn a_founder_freezes_over_its_own_file_only() {
    let store = LayerStore::open(StoreConfig::default());
    let regions = regions(PAGES, 0);
    let (file, other) = (store.create_flat(PAGES * PAGE).unwrap(), store.create_flat(PAGES * PAGE).unwrap());
    let writable = file.writable().try_clone_to_owned().unwrap();
    let space = AddressSpace::claim().unwrap();
    let mut view = View::map_founder(space, &regions, writable, tracker(TrackerKind::WriteProtection)).unwrap();
    assert!(matches!(view.freeze(None), Err(ramet_memory::FreezeError::FileNeeded)));
    assert!(matches!(view.freeze(Some(other.read_only())), Err(ramet_memory::FreezeError::OtherFile)));
    assert!(view.freeze(Some(file.read_only())).is_ok());
}

#[test]
fn clones_that_touch_holes_do_not_fill_the_layer() {
    for store in stores() {
        let regions = regions(PAGES, PAGES);
        let (parent, memory) = founder(&store, &regions, |machine| machine.write(3, 1));
        let used = store.used_bytes();
        assert!(used <= 2 * HUGE, "{used}");
        let resident = |memory: &ramet_memory::LayeredMemory| {
            rustix::fs::fstat(memory.layers().next().unwrap().as_fd()).unwrap().st_blocks
        };
        let before = resident(&memory);
        let child = Machine::on(&memory, &regions);
        for machine in [&parent, &child] {
            (512..2 * PAGES).for_each(|page| assert_eq!(machine.read(page), 0));
            (512..2 * PAGES).for_each(|page| machine.write(page, 2));
        }
        assert_eq!(resident(&memory), before);
    }
}

#[test]
fn a_delta_must_be_a_memfd_of_its_size_that_nobody_maps_writable() {
    let store = LayerStore::open(StoreConfig::default());
    assert_eq!(store.adopt_delta(memfd(3), 3).unwrap().kind(), LayerKind::Delta);
    assert!(matches!(store.adopt_delta(memfd(3), 4), Err(AdoptError::Size { found: 12288, expected: 16384 })));
    let null = File::open("/dev/null").unwrap().into();
    assert!(matches!(store.adopt_delta(null, 1), Err(AdoptError::NotMemfd)));
    let unsealable = rustix::fs::memfd_create("delta", rustix::fs::MemfdFlags::empty()).unwrap();
    assert!(matches!(store.adopt_delta(unsealable, 0), Err(AdoptError::NotMemfd)));
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert!(matches!(store.adopt_delta(pipe.into(), 0), Err(AdoptError::NotMemfd)));
    // Sealed against sealing, but not against writing.
    let half = memfd(1);
    let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&half, seals).unwrap();
    assert!(store.adopt_delta(half, 1).is_err());

    let (mut machine, _) = founder(&store, &regions(PAGES, 0), |_| ());
    let mapped = memfd(1);
    let refused = machine.view.map_shared(&clone_page(PAGE), mapped.as_fd());
    assert!(matches!(refused, Err(ViewError::Unsealed { .. })), "a peer could truncate it");
    rustix::fs::fcntl_add_seals(&mapped, rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW).unwrap();
    machine.view.map_shared(&clone_page(PAGE), mapped.as_fd()).unwrap();
    let again = mapped.try_clone().unwrap();
    assert!(matches!(store.adopt_delta(mapped, 1), Err(AdoptError::WritableMapping)));
    drop(machine);
    let before = store.used_bytes();
    store.adopt_delta(again, 1).expect("once it is unmapped");
    assert_eq!(store.used_bytes(), before, "what is gone or was refused is not counted");
}

#[test]
fn memory_that_outlives_its_view_stays_mapped() {
    use vm_memory::{Bytes, GuestAddress};
    let store = LayerStore::open(StoreConfig::default());
    for keep_ram in [true, false] {
        let (mut machine, _) = founder(&store, &regions(PAGES, 0), |machine| machine.write(0, 7));
        let file = ramet_memory::create_sealed_memfd(PAGE).unwrap();
        let shared = machine.view.map_shared(&clone_page(PAGE), file.as_fd()).unwrap();
        let ram = machine.view.memory().clone();
        let (ram, shared) = if keep_ram { (Some(ram), None) } else { (None, Some(shared)) };
        drop(machine);
        if let Some(ram) = ram {
            assert_eq!(ram.read_obj::<u64>(GuestAddress(0)).unwrap(), 7);
        }
        if let Some(shared) = shared {
            assert_eq!(shared.read_obj::<u64>(GuestAddress(0xD100_0000)).unwrap(), 0);
        }
    }
}

#[test]
fn a_store_that_is_full_says_so() {
    let limit_bytes = Some(4 * HUGE);
    for store in [LayerStore::open(StoreConfig { limit_bytes }), LayerStore::on_memfds(StoreConfig { limit_bytes })] {
        let refused = store.create_flat(5 * HUGE);
        assert!(matches!(refused, Err(StoreError::OutOfSpace { wanted: 10_485_760, used: 0, limit: 8_388_608 })));
        let (mut machine, memory) =
            founder(&store, &regions(PAGES, 0), |machine| (0..PAGES / 2).for_each(|page| machine.write(page, 1)));
        assert_eq!(store.used_bytes(), 2 * HUGE, "what was not written is not counted once it is frozen");
        (0..PAGES).for_each(|page| machine.write(page, 2));
        let delta = machine.freeze();
        let refused = store.adopt_delta(delta.file.unwrap(), delta.pages);
        assert!(matches!(refused, Err(AdoptError::Store(StoreError::OutOfSpace { .. }))));
        assert!(store.flatten(&memory).is_err());
        drop(memory);
        assert_eq!(store.used_bytes(), 0);
        assert!(store.create_flat(4 * HUGE).is_ok());
    }
    let store = LayerStore::open(StoreConfig::default());
    for bytes in [0, 1, PAGE + 1, u64::MAX] {
        assert!(matches!(store.create_flat(bytes), Err(StoreError::Size { .. })));
    }
}

#[test]
fn maps_that_do_not_fit_are_refused_before_anything_is_mapped() {
    let store = LayerStore::open(StoreConfig::default());
    let regions = regions(PAGES, 0);
    let (_machine, memory) = founder(&store, &regions, |machine| machine.write(0, 1));
    let map = |map: &ramet_memory::PageMap, regions: &[ramet_state::MemoryRegion]| {
        let layers: std::collections::HashMap<_, _> = memory.descriptors().collect();
        let space = AddressSpace::claim().unwrap();
        View::map_layers(space, regions, map, &layers, tracker(TrackerKind::WriteProtection)).err()
    };
    let short = common::regions(PAGES / 2, 0);
    assert!(matches!(map(memory.map(), &short), Some(ViewError::MapSize { found: 2048, expected: 1024 })));
    let unknown = ramet_memory::PageMap::flat(ramet_memory::LayerId(77), PAGES).unwrap();
    assert!(matches!(map(&unknown, &regions), Some(ViewError::Map(_))));
    let id = memory.layers().next().unwrap().id();
    let beyond = ramet_memory::PageMap::flat(id, 2 * PAGES).unwrap();
    assert!(matches!(map(&beyond, &common::regions(PAGES, PAGES)), Some(ViewError::Map(_))));
    assert!(matches!(map(memory.map(), &[]), Some(ViewError::NoRam)));
    assert!(map(memory.map(), &regions).is_none());
}

#[test]
fn flattening_and_consolidating_keep_every_page_and_descendants_follow() {
    for store in stores() {
        let regions = regions(PAGES, PAGES);
        let (mut machine, mut node) =
            founder(&store, &regions, |machine| (0..PAGES).for_each(|page| machine.write(page, 1)));
        for round in 0..5 {
            (0..300).for_each(|index| machine.write(index * 13 % (2 * PAGES) / (round + 1), 10 + index));
            let at = machine.guest_physical(200 * round);
            machine.view.discard(at, 3 * PAGE, ramet_memory::DiscardKind::Zero).unwrap();
            node = machine.freeze_onto(&store, &node);
        }
        machine.write(7, 999);
        machine.view.discard(machine.guest_physical(PAGES), 5 * PAGE, ramet_memory::DiscardKind::Absent).unwrap();
        let younger = machine.freeze_onto(&store, &node);
        let contents = |node: &ramet_memory::LayeredMemory| {
            let machine = Machine::on(node, &regions);
            (0..2 * PAGES).map(|page| machine.read(page)).collect::<Vec<_>>()
        };
        let (flat, one) = (store.flatten(&node).unwrap(), store.consolidate(&node).unwrap());
        assert!(node.layers().len() > 3);
        assert_eq!((flat.layers().len(), one.layers().len()), (1, 2));
        for combined in [flat, one] {
            assert_eq!(contents(&combined), contents(&node));
            let moved = younger.rebase(&node, &combined).unwrap();
            assert!(moved.layers().len() < younger.layers().len());
            assert_eq!(contents(&moved), contents(&younger));
            assert_eq!(moved.map().source_of(PAGES), Some(ramet_memory::Source::Absent));
        }
    }
}
