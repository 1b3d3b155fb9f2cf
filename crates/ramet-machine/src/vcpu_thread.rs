//! A vCPU's thread.
//!
//! ```text
//!         Take                   Run                     hold flag + kick
//!   idle -------> parked -------------> in the guest ------------------> parked
//!      ^                                      |      ^                          |
//!      |                             guest call      Answer                   Hold -> Reply::Held
//!      |                                      v      |
//!      +------------- Hold ---------------- in a call
//! ```
//!
//! The thread is told to leave the guest by a flag and a kick; what it then does is told by a command, which it reads
//! from one queue wherever it waits. So a vCPU that waits in a guest call is held like any other.
//!
//! Started before the machine has a state, and before the process's seccomp filter forbids starting threads.

use crate::bus::Bus;
use ramet_devices::GuestCall;
use ramet_kvm::{Exit, Kicker, RunError, SaveError, Vcpu};
use ramet_process::set_nice_and_slice;
use ramet_state::VcpuState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock};

/// How a hold treats a vCPU that waits in a guest call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InCall {
    /// The access completes and reads 0; the call is over.
    Finish,
    /// The access stays undone: whoever is built from the state makes it again, and this vCPU goes on waiting.
    Keep,
}

/// What a vCPU thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// This is your vCPU, restored.
    Take(Box<Vcpu>),
    /// Enter the guest.
    Run,
    /// Report the state and stay out of the guest.
    Hold { save: bool, in_call: InCall },
    /// The guest call returns this; go on.
    Answer(u32),
    /// Set RAX.
    SetRax(u64),
    /// End.
    Quit,
}

/// What a vCPU thread answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The thread has begun to serve: it makes no system call any more that only new threads make.
    Serving,
    Held(Result<Option<Box<VcpuState>>, HoldError>),
    RaxSet(Result<(), RunError>),
}

/// Why a vCPU's state could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// A pending access could not be finished.
    #[error("vCPU {vcpu} could not finish its pending access")]
    Complete {
        /// Which vCPU.
        vcpu: u8,
        /// Why.
        #[source]
        source: RunError,
    },
    /// Its registers could not be read.
    #[error("vCPU {vcpu} could not be saved")]
    Save {
        /// Which vCPU.
        vcpu: u8,
        /// Why.
        #[source]
        source: SaveError,
    },
}

/// What a vCPU thread reports by itself.
#[derive(Debug)]
pub enum VcpuEvent {
    /// The guest calls. Unless it is a mark or a doorbell, the vCPU waits until it is answered or held.
    Call(GuestCall),
    /// The guest cannot go on.
    Failed(GuestFailure),
}

/// Why a guest cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum GuestFailure {
    /// Triple fault or shutdown.
    #[error("Guest ended by a triple fault on vCPU {vcpu}")]
    TripleFault {
        /// Which vCPU.
        vcpu: u8,
    },
    /// It asked for it by a paravirtual interface.
    #[error("Guest ended by system event {kind} on vCPU {vcpu}")]
    SystemEvent {
        /// Which vCPU.
        vcpu: u8,
        /// KVM_SYSTEM_EVENT_*.
        kind: u32,
    },
    /// KVM gave up.
    #[error("KVM cannot go on with vCPU {vcpu}: {what}")]
    Kvm {
        /// Which vCPU.
        vcpu: u8,
        /// What it said.
        what: String,
    },
    /// KVM_RUN failed.
    #[error("vCPU {vcpu} cannot run")]
    Run {
        /// Which vCPU.
        vcpu: u8,
        /// Why.
        #[source]
        source: RunError,
    },
}

/// Wakes the event loop after an event was sent.
pub(crate) trait Wake: Send {
    /// Never blocks.
    fn wake(&self);
}

/// A thread without a vCPU: it starts while the vCPU is being created.
pub(crate) struct Idle {
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) bus: Arc<OnceLock<Bus>>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) replies: SyncSender<Reply>,
    pub(crate) events: SyncSender<(u8, VcpuEvent)>,
    pub(crate) wake: Box<dyn Wake>,
    /// Nice value to take before the guest is entered first.
    pub(crate) nice: i32,
}

/// A thread with its vCPU.
struct Context {
    vcpu: Vcpu,
    idle: Idle,
}

/// The event loop's end of a vCPU thread.
#[derive(Debug)]
pub(crate) struct VcpuHandle {
    pub(crate) kicker: Kicker,
    pub(crate) commands: SyncSender<Command>,
    pub(crate) replies: Receiver<Reply>,
}

/// What made the run loop end.
enum Left {
    /// The hold flag.
    Held,
    /// A command said quit, or the event loop is gone.
    Quit,
    /// The guest cannot go on; reported.
    Failed,
}

/// What an exit asks for.
enum Handled {
    Done,
    Call(GuestCall),
    Failed(GuestFailure),
}

/// One access at a time, as the ports are accessed; the last call wins, there is at most one in practice.
fn port_read(bus: &Bus, port: u16, size: u8, data: &mut [u8]) -> Option<GuestCall> {
    data.chunks_mut(usize::from(size.max(1))).fold(None, |call, access| bus.port_read(port, access).or(call))
}

fn port_write(bus: &Bus, port: u16, size: u8, data: &[u8]) -> Option<GuestCall> {
    data.chunks(usize::from(size.max(1))).fold(None, |call, access| bus.port_write(port, access).or(call))
}

fn handle(vcpu: u8, bus: &Bus, exit: Exit<'_>) -> Handled {
    let call = match exit {
        Exit::PortRead { port, size, data } => port_read(bus, port, size, data),
        Exit::PortWrite { port, size, data } => port_write(bus, port, size, data),
        Exit::MmioRead { address, data } => {
            bus.mmio_read(address, data);
            None
        }
        Exit::MmioWrite { address, data } => {
            bus.mmio_write(address, data);
            None
        }
        Exit::Interrupted | Exit::Halted => None,
        Exit::Shutdown => return Handled::Failed(GuestFailure::TripleFault { vcpu }),
        Exit::SystemEvent { kind } => return Handled::Failed(GuestFailure::SystemEvent { vcpu, kind }),
        other => return Handled::Failed(GuestFailure::Kvm { vcpu, what: format!("{other:x?}") }),
    };
    call.map_or(Handled::Done, Handled::Call)
}

impl Idle {
    /// The thread's body.
    pub(crate) fn serve(self) {
        if self.replies.send(Reply::Serving).is_err() {
            return;
        }
        // Anything else before a vCPU is there is the end of the machine.
        if let Ok(Command::Take(vcpu)) = self.commands.recv() {
            // Guests compute as everybody else does: no better priority, no short slices.
            if let Err(error) = set_nice_and_slice(self.nice, 0) {
                tracing::warn!(%error, nice = self.nice, "a vCPU keeps the priority of its birth");
            }
            Context { vcpu: *vcpu, idle: self }.serve();
        }
    }
}

impl Context {
    fn serve(mut self) {
        while let Ok(command) = self.idle.commands.recv() {
            let reply = match command {
                Command::SetRax(value) => Reply::RaxSet(self.vcpu.edit_registers(|registers| registers.rax = value)),
                Command::Hold { save, .. } => Reply::Held(self.save_if(save)),
                // An answer to a call that a hold has finished meanwhile; a second vCPU is never given.
                Command::Answer(_) | Command::Take(_) => continue,
                Command::Run => match self.run() {
                    Left::Held | Left::Failed => continue,
                    Left::Quit => return,
                },
                Command::Quit => return,
            };
            if self.idle.replies.send(reply).is_err() {
                return;
            }
        }
    }

    fn save_if(&mut self, save: bool) -> Result<Option<Box<VcpuState>>, HoldError> {
        let vcpu = self.vcpu.number();
        let saved = save.then(|| self.vcpu.save().map(Box::new)).transpose();
        saved.map_err(|source| HoldError::Save { vcpu, source })
    }

    fn report(&self, event: VcpuEvent) {
        // The event loop is gone only when the process ends.
        if self.idle.events.send((self.vcpu.number(), event)).is_ok() {
            self.idle.wake.wake();
        }
    }

    fn run(&mut self) -> Left {
        let bus = Arc::clone(&self.idle.bus);
        let Some(bus) = bus.get() else { return Left::Failed };
        let number = self.vcpu.number();
        loop {
            self.vcpu.clear_kick();
            if self.idle.hold.load(Ordering::SeqCst) {
                return self.leave();
            }
            let handled = match self.vcpu.run() {
                Ok(exit) => handle(number, bus, exit),
                Err(source) => Handled::Failed(GuestFailure::Run { vcpu: number, source }),
            };
            match handled {
                Handled::Done => {}
                Handled::Call(call @ (GuestCall::Mark(_) | GuestCall::Doorbell(_))) => {
                    self.report(VcpuEvent::Call(call));
                }
                Handled::Call(call) => {
                    self.report(VcpuEvent::Call(call));
                    if let Some(left) = self.wait_in_call() {
                        return left;
                    }
                }
                Handled::Failed(failure) => {
                    self.report(VcpuEvent::Failed(failure));
                    return Left::Failed;
                }
            }
        }
    }

    /// Leaves the guest with consistent registers. A call that is made by the access itself is reported by the
    /// caller of `complete_pending` only if it needs no answer; fork and ready never get here, since they wait.
    fn leave(&mut self) -> Left {
        match self.complete() {
            Ok(()) => Left::Held,
            Err(source) => {
                self.report(VcpuEvent::Failed(GuestFailure::Run { vcpu: self.vcpu.number(), source }));
                Left::Failed
            }
        }
    }

    fn complete(&mut self) -> Result<(), RunError> {
        let bus = Arc::clone(&self.idle.bus);
        let Some(bus) = bus.get() else { return Ok(()) };
        let (number, mut seen) = (self.vcpu.number(), Vec::new());
        let result = self.vcpu.complete_pending(&mut |exit| match handle(number, bus, exit) {
            Handled::Done => {}
            Handled::Call(call) => seen.push(VcpuEvent::Call(call)),
            Handled::Failed(failure) => seen.push(VcpuEvent::Failed(failure)),
        });
        for event in seen {
            self.report(event);
        }
        result
    }

    /// Waits until the call is answered; `Some` if the run loop ends here instead.
    fn wait_in_call(&mut self) -> Option<Left> {
        let vcpu = self.vcpu.number();
        loop {
            let reply = match self.idle.commands.recv() {
                Ok(Command::Answer(value)) => {
                    // The access reads 0; what the guest gets is an edit of the completed register.
                    let done = self
                        .complete()
                        .and_then(|()| self.vcpu.edit_registers(|registers| registers.rax = u64::from(value)));
                    return match done {
                        Ok(()) => None,
                        Err(source) => {
                            self.report(VcpuEvent::Failed(GuestFailure::Run { vcpu, source }));
                            Some(Left::Failed)
                        }
                    };
                }
                Ok(Command::Hold { save, in_call: InCall::Finish }) => {
                    let held = self.complete().map_err(|source| HoldError::Complete { vcpu, source });
                    let held = held.and_then(|()| self.save_if(save));
                    return match self.idle.replies.send(Reply::Held(held)) {
                        Ok(()) => Some(Left::Held),
                        Err(_) => Some(Left::Quit),
                    };
                }
                Ok(Command::Hold { save, in_call: InCall::Keep }) => Reply::Held(self.save_if(save)),
                // Let go after a hold that kept the call: it still waits.
                Ok(Command::Run | Command::Take(_)) => continue,
                Ok(Command::SetRax(_)) => Reply::RaxSet(Ok(())),
                Ok(Command::Quit) | Err(_) => return Some(Left::Quit),
            };
            if self.idle.replies.send(reply).is_err() {
                return Some(Left::Quit);
            }
        }
    }
}
