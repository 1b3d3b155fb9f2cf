//! A machine's memory without a machine: what the tests of freezing share.
#![allow(dead_code, clippy::unwrap_used)]

use ramet_memory::{
    AddressSpace, Delta, DeltaContent, DeltaRun, Frozen, LayerStore, LayeredMemory, PageRange, PageSet, Tracker,
    TrackerKind, View,
};
use ramet_state::{CloneRule, MemoryRegion, RegionPurpose};
use std::collections::HashMap;
use std::os::fd::AsFd;
use vm_memory::{Bytes, GuestAddress};

pub(crate) const PAGE: u64 = 4096;

/// RAM in two regions with a hole between them, like that of a machine with more than 3 GiB.
pub(crate) fn regions(low_pages: u64, high_pages: u64) -> Vec<MemoryRegion> {
    let region = |start, pages, ram_offset| MemoryRegion {
        start,
        bytes: pages * PAGE,
        ram_offset,
        purpose: RegionPurpose::Ram,
        rule: CloneRule::Copy,
    };
    let mut regions = vec![region(0, low_pages, 0)];
    if high_pages > 0 {
        regions.push(region(0x1_0000_0000, high_pages, low_pages * PAGE));
    }
    regions
}

/// A region that is not RAM.
pub(crate) fn clone_page(bytes: u64) -> MemoryRegion {
    let (purpose, rule) = (RegionPurpose::ClonePage, CloneRule::ReIdentify);
    MemoryRegion { start: 0xD100_0000, bytes, ram_offset: 0, purpose, rule }
}

pub(crate) fn tracker(kind: TrackerKind) -> Tracker {
    let proc_self = std::fs::File::open("/proc/self").expect("/proc is mounted");
    Tracker::open_kind(proc_self.as_fd(), kind).expect("these tests take Linux 6.7: PAGEMAP_SCAN and userfaultfd")
}

pub(crate) struct Machine {
    pub(crate) view: View,
    pub(crate) regions: Vec<MemoryRegion>,
}

impl Machine {
    /// A clone of a frozen node.
    pub(crate) fn on(memory: &LayeredMemory, regions: &[MemoryRegion]) -> Machine {
        Machine::tracked(memory, regions, TrackerKind::WriteProtection)
    }

    pub(crate) fn tracked(memory: &LayeredMemory, regions: &[MemoryRegion], kind: TrackerKind) -> Machine {
        let layers: HashMap<_, _> = memory.descriptors().collect();
        let space = AddressSpace::claim().unwrap();
        let view = View::map_layers(space, regions, memory.map(), &layers, tracker(kind)).unwrap();
        Machine { view, regions: regions.to_vec() }
    }

    fn address(&self, page: u64) -> GuestAddress {
        let at = page * PAGE;
        let region = self.regions.iter().rev().find(|region| region.ram_offset <= at).unwrap();
        GuestAddress(region.start + at - region.ram_offset)
    }

    pub(crate) fn guest_physical(&self, page: u64) -> u64 {
        self.address(page).0
    }

    pub(crate) fn write(&self, page: u64, value: u64) {
        self.view.memory().write_obj(value, self.address(page)).unwrap();
        self.view.memory().write_obj(!value, GuestAddress(self.address(page).0 + PAGE - 8)).unwrap();
    }

    /// What `write` wrote; 0 for a page of zeros.
    pub(crate) fn read(&self, page: u64) -> u64 {
        let value: u64 = self.view.memory().read_obj(self.address(page)).unwrap();
        let last: u64 = self.view.memory().read_obj(GuestAddress(self.address(page).0 + PAGE - 8)).unwrap();
        assert!(last == !value || (value, last) == (0, 0), "page {page} is torn: {value:#x}, {last:#x}");
        value
    }

    pub(crate) fn freeze(&mut self) -> Delta {
        match self.view.freeze(None).unwrap() {
            Frozen::Delta(frozen) => frozen.finish().unwrap(),
            Frozen::Flat { .. } => panic!("a private view gives a delta"),
        }
    }

    /// Freezes, and adds the delta to the node that the machine was a clone of.
    pub(crate) fn freeze_onto(&mut self, store: &LayerStore, memory: &LayeredMemory) -> LayeredMemory {
        let delta = self.freeze();
        adopt(store, memory, delta)
    }
}

pub(crate) fn adopt(store: &LayerStore, memory: &LayeredMemory, delta: Delta) -> LayeredMemory {
    let layer = delta.file.map(|file| store.adopt_delta(file, delta.pages).unwrap());
    memory.with_delta(layer, &delta.runs).unwrap()
}

/// A founder that is running, and the node it becomes when it is frozen.
pub(crate) fn founder(
    store: &LayerStore,
    regions: &[MemoryRegion],
    write: impl Fn(&Machine),
) -> (Machine, LayeredMemory) {
    let file = store.create_flat(regions.iter().map(|region| region.bytes).sum()).unwrap();
    let space = AddressSpace::claim().unwrap();
    let writable = file.writable().try_clone_to_owned().unwrap();
    let view = View::map_founder(space, regions, writable, tracker(TrackerKind::WriteProtection)).unwrap();
    let mut machine = Machine { view, regions: regions.to_vec() };
    write(&machine);
    let file = file.finish();
    let frozen = machine.view.freeze(Some(file.read_only())).unwrap();
    let Frozen::Flat { holes } = frozen else { panic!("a founder's first freeze is flat") };
    let memory = LayeredMemory::founded(store.publish(file).unwrap(), &holes).unwrap();
    (machine, memory)
}

/// The pages of a delta's runs of data.
pub(crate) fn data(runs: &[DeltaRun]) -> PageSet {
    let mut set = PageSet::new();
    for run in runs.iter().filter(|run| matches!(run.content, DeltaContent::Data { .. })) {
        set.insert(PageRange { start: run.start, pages: run.pages });
    }
    set
}

pub(crate) fn set(pages: impl IntoIterator<Item = u64>) -> PageSet {
    let mut set = PageSet::new();
    for page in pages {
        set.insert(PageRange { start: page, pages: 1 });
    }
    set
}

/// Both kinds of stores.
pub(crate) fn stores() -> [LayerStore; 2] {
    let config = ramet_memory::StoreConfig::default();
    [LayerStore::open(config), LayerStore::on_memfds(config)]
}
