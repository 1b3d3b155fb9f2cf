//! Regions of guest-physical memory and their clone rules.

use crate::{CloneRule, VmClass};
use ramet_abi::layout::{CLONE_PAGE_BASE, FAMILY_BASE, HOLE_END, PAGE_BYTES, split_ram};
use serde::{Deserialize, Serialize};

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RegionPurpose {
    /// RAM.
    Ram,
    /// The clone page.
    ClonePage,
    /// Memory that a whole family shares.
    Family,
}

/// A region of guest-physical memory; each is one KVM memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryRegion {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Offset of its first byte in RAM's address space without the hole: what layers count in. 0 for other regions.
    pub ram_offset: u64,
    /// What it is for.
    pub purpose: RegionPurpose,
    /// What a clone gets.
    pub rule: CloneRule,
}

/// The regions of a machine of this class, in the order of their slots.
pub fn memory_regions(class: &VmClass) -> Vec<MemoryRegion> {
    let (low, high) = split_ram(class.memory_bytes);
    let region = |start, bytes, ram_offset, purpose, rule| MemoryRegion { start, bytes, ram_offset, purpose, rule };
    let mut regions = vec![region(0, low, 0, RegionPurpose::Ram, CloneRule::Copy)];
    if high > 0 {
        regions.push(region(HOLE_END, high, low, RegionPurpose::Ram, CloneRule::Copy));
    }
    regions.push(region(CLONE_PAGE_BASE, PAGE_BYTES, 0, RegionPurpose::ClonePage, CloneRule::ReIdentify));
    if class.family_bytes > 0 {
        regions.push(region(FAMILY_BASE, class.family_bytes, 0, RegionPurpose::Family, CloneRule::Share));
    }
    regions
}
