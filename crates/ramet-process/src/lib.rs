//! Processes and descriptors: everything that Ramet asks of Linux about processes.
//!
//! ```text
//! supervisor --Zygote::spawn--> zygote --fork_process--> blank machine process
//!     |                           |                          |
//!     |                     isolate_zygote()          Confinement::apply()
//!     |                     (empty root, own net,     (own uid, no rights, only the
//!     |                      ipc, uts, cgroup)         descriptors it was given)
//!     |                           |                          |
//!     +------ SeqPacket ----------+                   MachineFilter::install_on_all_threads()
//!     +------ SeqPacket (SCM_RIGHTS) -----------------------+
//! ```
//!
//! What is deliberately absent: anything about KVM, guest memory or machines; any policy about when a process is
//! made or ended; asynchronous I/O (a [`SeqPacket`] is a descriptor that any event loop can poll).
//!
//! All `unsafe` code of this crate is in the module `sys`.

pub mod confinement;
pub mod exit;
pub mod fork;
pub mod host;
pub mod inspect;
pub mod isolation;
pub mod limits;
pub mod sealed;
pub mod seccomp;
pub mod signals;
pub mod socket;
mod sys;
pub mod terminal;
pub mod zygote;

pub use confinement::{Confinement, ConfinementError, Credentials};
pub use exit::{Exit, ReapError, Reaped, reap_children, wait_for};
pub use fork::{Child, ForkError, Forked, Namespaces, fork_process};
pub use host::{HostDescriptors, reopen};
pub use isolation::{Isolation, IsolationError, Obtained, RootIsolation, isolate_zygote};
pub use socket::{Limits, Message, Received, RecvError, SendError, SeqPacket};
pub use sys::{exit_now, set_nice_and_slice, use_one_arena};
pub use zygote::{Zygote, ZygoteError, claim_inherited_socket};
