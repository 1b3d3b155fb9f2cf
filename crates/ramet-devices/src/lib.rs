//! Device models.
//!
//! A *part* is a device of one machine. It is built from a state and resources, lives on a bus and in an event
//! loop, and can be saved at any time; nothing in it tells a boot from a fork from a restore, and nothing in it can
//! tell a clone from its parent.
//!
//! ```text
//!  initial_state::serial(id) --+
//!  a saved PartState ----------+--> build_part(state, resources) --> quiesced --resume()--> running
//!                                   the one way to make a part          ^                      |
//!                                                                       +------ quiesce() -----+
//!                                                        save(): a copy of the registers, in either state
//!
//!  bus (vCPU threads)                 the part                          host
//!  MMIO or port access -------> registers, then worker
//!  doorbell (ioeventfd) -event-> worker: owns the queues <--event-- socket, readable or writable again
//!                                interrupt.raise() -----------------> irqfd
//! ```
//!
//! The contracts, in the order of a part's life:
//!
//! 1. **Build.** [`build_part`] picks the constructor from one static table by kind and version. The constructor
//!    validates every field: a state may come from a file or from another process. A part that was just built is
//!    quiesced and silent: it raises no interrupt and touches no socket and no queue (the clone page alone writes
//!    the identity that it was given, because it *is* that page).
//! 2. **Resume.** Treats each queue as kicked and each socket as ready, and raises each pending interrupt again:
//!    a doorbell or an interrupt that was under way when the machine was frozen is lost to its clone.
//! 3. **Run.** All work is done in bounded steps, in [`Part::on_event`] or in a bus access. A part that has more to
//!    do rings its own doorbell, so that one busy device does not starve the others.
//! 4. **Quiesce.** Idempotent. The worker hands its queues back as values; what it had not finished stays where the
//!    guest put it, in its queue, with the position in the registers.
//! 5. **Save.** No side effects; everything that the guest can see, and nothing of the host. What the host needs is
//!    named by role in [`ramet_state::PartState::handles`], each with its clone rule.
//!
//! All that comes from the guest is hostile: no access panics, loops without bound, or reaches beyond guest memory.
//!
//! Deliberately absent: KVM (eventfds are given, see [`role`]), threads (the machine's event loop calls
//! [`Part::on_event`]), files and paths, and any knowledge of forks.
#![forbid(unsafe_code)]

mod backend;
mod clone_page;
mod codec;
mod guest_port;
pub mod initial_state;
mod interrupt;
mod part;
mod resources;
mod serial;
mod table;
mod virtio;

pub use clone_page::{ClonePage, MachineIdentity};
pub use codec::{MAX_REGISTERS_BYTES, RegistersError};
pub use guest_port::{GuestCall, GuestPort};
pub use interrupt::{EventFdInterrupt, Interrupt};
pub use part::{BuiltPart, Counter, EventSource, Interest, MmioPart, Part, PortPart};
pub use resources::{PartResources, Resource, role};
pub use table::{BuildPartError, build_part, kinds};
