//! Parts (devices) as data: registers that are always copied, handles that follow a clone rule.

use serde::{Deserialize, Serialize};

/// What becomes of a host resource, or of a region of memory, when its machine is cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CloneRule {
    /// Parent and child use the same one (a read-only disk, family memory).
    Share,
    /// The child gets a copy that starts equal (memory, a writable disk through an overlay).
    Copy,
    /// The child gets a new, empty one (an eventfd, a console's backend).
    Recreate,
    /// The child gets one that carries its own identity (the clone page, a MAC address, a vsock CID).
    ReIdentify,
}

/// A host resource that a part needs, by role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// What the part uses it for; unique within the part.
    pub role: String,
    /// What a clone gets.
    pub rule: CloneRule,
}

/// A device's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// Which device of the machine; unique ("serial", "console0").
    pub id: String,
    /// What it is; selects the constructor ("serial-8250", "virtio-console").
    pub kind: String,
    /// Version of `registers`.
    pub version: u16,
    /// What the guest can see of it, encoded by the device.
    #[serde(with = "serde_bytes")]
    pub registers: Vec<u8>,
    /// Host resources that it needs.
    pub handles: Vec<Handle>,
}
