//! Guest memory: layers, views, freeze and written-page tracking.
//!
//! ```text
//!   supervisor                                      machine process
//!   ----------                                      ---------------
//!   LayerStore::create_flat --- read-write fd ----> View::map_founder      (shared: writes go into the file)
//!                           <-- vCPUs paused ------ View::freeze           (remapped private, nothing copied)
//!   LayerStore::publish -> Arc<Layer>, PageMap
//!        |
//!        +-- PageMap + read-only fds -------------> View::map_layers       (private: a clone)
//!                           <-- delta fd, runs ---- View::freeze           (the pages written since the last one)
//!   LayerStore::adopt_delta, LayeredMemory::with_delta
//!        |
//!        +-- the new node's PageMap + fds --------> the children; the parent goes on with what it has
//! ```
//!
//! - A *layer* ([`Layer`]) is an immutable file of guest pages: *flat* (page `n` of the file is page `n` of RAM) or a
//!   *delta* (dense pages in a memfd).
//! - A [`PageMap`] says for each page of a frozen node's RAM which layer holds it, or that it is a hole. A node's map
//!   is its parent's overlaid with its delta's runs, so holes hide what ancestors hold, and layers of which nothing
//!   shows through any more drop out.
//! - A [`View`] is what a machine runs on, at fixed host addresses ([`AddressSpace`]).
//! - A *freeze* makes a layer of what a running machine wrote since its last one.
//!
//! Pages are 4 KiB ([`ramet_abi::layout::PAGE_BYTES`]); a *page number* counts in RAM without the hole below 4 GiB
//! ([`ramet_state::MemoryRegion::ram_offset`]).
//!
//! Deliberately absent: KVM, sockets, processes, file formats. Who may write what, when vCPUs are paused, and which
//! descriptors go where is decided above.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod account;
mod address_space;
mod delta;
mod memfd;
mod page_map;
mod page_set;
mod shared_page;
mod store;
mod sys;
mod tracker;
mod view;

pub use address_space::{ADDRESS_BASE, AddressSpace, AddressSpaceError, MapError, SPACE_BYTES};
pub use delta::{Delta, DeltaContent, DeltaError, DeltaRun, FinishError, FrozenDelta, place_delta};
pub use memfd::{SealedMemfdError, create_sealed_memfd};
pub use page_map::{LayerId, MAX_RUNS, PageMap, PageMapError, Run, Source};
pub use page_set::{PageRange, PageSet};
pub use shared_page::{SharedPage, SharedPageError};
pub use store::{
    AdoptError, Backing, CombineError, FlatFile, Layer, LayerKind, LayerStore, LayeredMemory, LayeredMemoryError,
    PublishError, Published, StoreConfig, StoreError, WrittenFlatFile,
};
pub use tracker::{TRACKER_IOCTLS, Tracker, TrackerError, TrackerKind};
pub use view::{DiscardError, DiscardKind, FreezeError, Frozen, View, ViewError, ViewKind};
