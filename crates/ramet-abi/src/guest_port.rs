//! The guest port: how a guest asks its monitor to fork it, and reports what it is doing.
//!
//! A window of I/O ports, all accessed with 32 bits. Ports, because every guest reaches them: a kernel, a process
//! with `ioperm()`, ring 3 through the I/O bitmap of a task state segment.
//!
//! `fork()`: write the number of children to [`ARGUMENT_0`] and flags to [`ARGUMENT_1`], then read [`FORK`]. Like
//! the system call it returns on both sides: the parent gets the number of its first child (its children are
//! numbered without a gap from there), each child gets 0 and finds its own number in its clone page. A value with
//! [`ERROR_BIT`] set is a refusal: the low bits are one of the `ERROR_*` codes.

/// First port of the window.
pub const BASE: u16 = 0x0520;
/// Ports in the window.
pub const PORTS: u16 = 0x40;

/// Write: first argument of the next command.
pub const ARGUMENT_0: u16 = BASE;
/// Write: second argument of the next command.
pub const ARGUMENT_1: u16 = BASE + 0x04;
/// Read: fork this machine; see the module's text.
pub const FORK: u16 = BASE + 0x08;
/// Read: become a frozen template. Returns 0 in every child that is dispatched from it, never in the template.
pub const READY: u16 = BASE + 0x0C;
/// Write: the job is done, with a status. The machine stops here until its supervisor ends or resets it.
pub const DONE: u16 = BASE + 0x10;
/// Write: a mark with a value, reported with its time. The machine goes on.
pub const MARK: u16 = BASE + 0x14;
/// Write: end this machine, with an exit status (the low 8 bits).
pub const EXIT: u16 = BASE + 0x18;
/// Read: [`SIGNATURE`], so that a guest can tell that it has a guest port.
pub const IDENTIFY: u16 = BASE + 0x1C;
/// Write: raise the clone-page interrupt of the machine with this number in the family; kept for one not yet born.
pub const DOORBELL: u16 = BASE + 0x20;

/// "RMT1", little endian.
pub const SIGNATURE: u32 = u32::from_le_bytes(*b"RMT1");

/// Flag of [`ARGUMENT_1`] for [`FORK`]: children are built but do not run until their supervisor says so.
pub const FORK_PAUSED: u32 = 1;

/// Set in the value that [`FORK`] or [`READY`] returns when it was refused.
pub const ERROR_BIT: u32 = 1 << 31;
/// Fork from inside was not granted to this machine.
pub const ERROR_NOT_PERMITTED: u32 = 1;
/// The family has as many machines as it may have.
pub const ERROR_QUOTA: u32 = 2;
/// The family forks faster than it may; try again later.
pub const ERROR_RATE: u32 = 3;
/// An argument was out of range (0 children, more than 1,024, or an unknown flag).
pub const ERROR_ARGUMENT: u32 = 4;
/// The host could not do it (memory, processes, descriptors); the parent is unharmed.
pub const ERROR_HOST: u32 = 5;
/// Most children of one call.
pub const FORK_MAX_CHILDREN: u32 = 1024;
