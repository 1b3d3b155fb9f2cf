//! A node's memory: its map, with the layers that the map needs.

use super::{Layer, Published};
use crate::delta::{DeltaError, DeltaRun, place_delta};
use crate::page_map::{LayerId, PageMap, PageMapError};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Why maps and layers do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayeredMemoryError {
    /// The delta and its file do not.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// The map and its layers do not.
    #[error(transparent)]
    Map(#[from] PageMapError),
    /// A delta with data came without a layer.
    #[error("The delta's run at page {start} has data, but no file came with the delta")]
    NoLayer {
        /// First page of RAM.
        start: u64,
    },
}

/// A frozen node's memory. Clones share the layers; a layer of which nothing shows through is let go.
#[derive(Clone, Debug)]
pub struct LayeredMemory {
    map: PageMap,
    layers: BTreeMap<LayerId, Arc<Layer>>,
}

impl LayeredMemory {
    /// A node of this map, with those of `layers` that it needs. Fails where one is missing or too short.
    pub fn new(
        map: PageMap,
        layers: impl IntoIterator<Item = Arc<Layer>>,
    ) -> Result<LayeredMemory, LayeredMemoryError> {
        let needed = map.layers();
        let layers: BTreeMap<LayerId, Arc<Layer>> =
            layers.into_iter().filter(|layer| needed.contains(&layer.id())).map(|layer| (layer.id(), layer)).collect();
        map.validate(&|id| layers.get(&id).map(|layer| layer.file_pages()))?;
        Ok(LayeredMemory { map, layers })
    }

    /// The node that a founder's first freeze makes; `holes` are the runs that came with it.
    pub fn founded(published: Published, holes: &[DeltaRun]) -> Result<LayeredMemory, LayeredMemoryError> {
        let founded = LayeredMemory::new(published.map, [published.layer])?;
        founded.with_delta(None, holes)
    }

    /// The node that a freeze of a machine on this one makes: its delta over this map. `layer` is the adopted delta's,
    /// and may be left out when nothing was written. The runs may come from a hostile process.
    pub fn with_delta(
        &self,
        layer: Option<Arc<Layer>>,
        runs: &[DeltaRun],
    ) -> Result<LayeredMemory, LayeredMemoryError> {
        let over = match &layer {
            Some(layer) => place_delta(runs, layer.id(), layer.file_pages())?,
            None => place_delta(runs, LayerId(0), 0)
                .map_err(|DeltaError::BeyondFile { start, .. }| LayeredMemoryError::NoLayer { start })?,
        };
        let map = self.map.overlay(&over)?;
        LayeredMemory::new(map, self.layers.values().cloned().chain(layer))
    }

    /// This node moved from the layers of `old` to those of `replacement`, two nodes of the same contents.
    pub fn rebase(
        &self,
        old: &LayeredMemory,
        replacement: &LayeredMemory,
    ) -> Result<LayeredMemory, LayeredMemoryError> {
        let map = self.map.rebase(&old.map, &replacement.map)?;
        LayeredMemory::new(map, self.layers.values().chain(replacement.layers.values()).cloned())
    }

    /// Which layer holds which page.
    pub fn map(&self) -> &PageMap {
        &self.map
    }

    /// The layers it needs.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &Arc<Layer>> {
        self.layers.values()
    }

    /// One of its layers.
    pub fn layer(&self, id: LayerId) -> Option<&Arc<Layer>> {
        self.layers.get(&id)
    }

    /// The read-only descriptors that a machine on it needs, by layer.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = (LayerId, BorrowedFd<'_>)> {
        self.layers.iter().map(|(id, layer)| (*id, layer.as_fd()))
    }
}
