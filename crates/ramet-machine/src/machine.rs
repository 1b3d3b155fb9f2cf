//! A machine that runs, and one that is stopped.

use crate::bus::{SharedPart, lock};
use crate::freeze::Caller;
use crate::vcpu_thread::{Command, HoldError, InCall, Reply, VcpuEvent, VcpuHandle};
use ramet_devices::{BuiltPart, Interest};
use ramet_kvm::{KickError, Vcpu, Vm};
use ramet_memory::View;
use ramet_state::{Identity, MachineState, VcpuState, VmClass, memory_regions};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Why a machine could not be stopped or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A vCPU cannot be kicked.
    #[error("vCPU {vcpu} cannot be stopped")]
    Kick {
        /// Which vCPU.
        vcpu: usize,
        /// Why.
        #[source]
        source: KickError,
    },
    /// A vCPU cannot be read.
    #[error("A vCPU cannot be held")]
    Hold(#[source] HoldError),
    /// A vCPU's register cannot be set.
    #[error("The result of a guest's call cannot be set")]
    Result(#[source] ramet_kvm::RunError),
    /// A vCPU's thread is gone or answers out of turn.
    #[error("Thread of vCPU {vcpu} does not answer as it should")]
    Thread {
        /// Which vCPU.
        vcpu: usize,
    },
    /// The event queue.
    #[error("Devices' descriptors cannot be waited for")]
    Epoll(#[source] Errno),
}

/// What a machine consists of, running or not.
pub(crate) struct Core {
    pub(crate) class: VmClass,
    pub(crate) identity: Identity,
    pub(crate) vm: Vm,
    pub(crate) view: View,
    pub(crate) vcpus: Vec<VcpuHandle>,
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) parts: Vec<SharedPart>,
    pub(crate) events: Receiver<(u8, VcpuEvent)>,
    /// Reports that were taken while a vCPU's answer was awaited.
    pub(crate) backlog: VecDeque<(u8, VcpuEvent)>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) epoll: OwnedFd,
    /// See [`Paused::tsc_offset`].
    pub(crate) tsc_offset: Option<u64>,
}

/// Token of the vCPU events' eventfd; parts have their index above [`TOKEN_BITS`] bits of their own token.
const WAKE: u64 = u64::MAX;
const TOKEN_BITS: u32 = 32;
/// How long an answer is waited for before reports are looked at.
const REPORTS_TAKEN_EVERY: Duration = Duration::from_millis(2);
/// Device events served before orders are looked at again.
const EVENTS_AT_ONCE: usize = 32;

impl Core {
    /// Puts all descriptors of parts, and the vCPU events' eventfd, into the event queue; once.
    pub(crate) fn watch(&self) -> Result<(), RunError> {
        let add = |fd: BorrowedFd<'_>, data, flags| {
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(data), flags).map_err(RunError::Epoll)
        };
        add(self.wake.as_fd(), WAKE, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        for (index, part) in (0u64..).zip(&self.parts) {
            for source in lock(part).part().event_sources() {
                let interest = match source.interest {
                    Interest::Readable => epoll::EventFlags::IN,
                    Interest::ReadableAndWritable => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                };
                add(source.fd, index << TOKEN_BITS | u64::from(source.token), interest | epoll::EventFlags::ET)?;
            }
        }
        Ok(())
    }

    fn tell(&self, vcpu: usize, command: Command) -> Result<(), RunError> {
        self.vcpus[vcpu].commands.send(command).map_err(|_| RunError::Thread { vcpu })
    }

    fn reply(&self, vcpu: usize) -> Result<Reply, RunError> {
        self.vcpus[vcpu].replies.recv().map_err(|_| RunError::Thread { vcpu })
    }

    /// As [`Self::reply`], of a vCPU that may be in the guest: until it answers, what vCPUs report is taken, since one
    /// that waits for room in the queue of reports would never answer.
    fn held_reply(&mut self, vcpu: usize) -> Result<Reply, RunError> {
        loop {
            match self.vcpus[vcpu].replies.recv_timeout(REPORTS_TAKEN_EVERY) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(RunError::Thread { vcpu }),
                Err(RecvTimeoutError::Timeout) => self.backlog.extend(self.events.try_iter()),
            }
        }
    }

    /// Gives each vCPU to its thread.
    pub(crate) fn give(&self, vcpus: Vec<Vcpu>) -> Result<(), RunError> {
        vcpus.into_iter().enumerate().try_for_each(|(number, vcpu)| self.tell(number, Command::Take(Box::new(vcpu))))
    }

    /// Stops all vCPUs; each reads its own state if `save`. A call that waits in `finish` is over by it.
    fn stop(&mut self, save: bool, finish: Option<u8>) -> Result<Vec<Option<Box<VcpuState>>>, RunError> {
        self.hold.store(true, Ordering::SeqCst);
        for (vcpu, handle) in self.vcpus.iter().enumerate() {
            handle.kicker.kick().map_err(|source| RunError::Kick { vcpu, source })?;
            let in_call = if finish.map(usize::from) == Some(vcpu) { InCall::Finish } else { InCall::Keep };
            self.tell(vcpu, Command::Hold { save, in_call })?;
        }
        let mut states = Vec::with_capacity(self.vcpus.len());
        let mut failed = None;
        // All answers are awaited, also after a failure: nobody runs when this returns.
        for vcpu in 0..self.vcpus.len() {
            match self.held_reply(vcpu)? {
                Reply::Held(Ok(state)) => states.push(state),
                Reply::Held(Err(error)) => failed = Some(RunError::Hold(error)),
                Reply::Serving | Reply::RaxSet(_) => return Err(RunError::Thread { vcpu }),
            }
        }
        failed.map_or(Ok(states), Err)
    }

    fn set_rax(&self, vcpu: u8, value: u32) -> Result<(), RunError> {
        let vcpu = usize::from(vcpu);
        self.tell(vcpu, Command::SetRax(value.into()))?;
        match self.reply(vcpu)? {
            Reply::RaxSet(outcome) => outcome.map_err(RunError::Result),
            Reply::Serving | Reply::Held(_) => Err(RunError::Thread { vcpu }),
        }
    }

    fn release(&self) -> Result<(), RunError> {
        self.hold.store(false, Ordering::SeqCst);
        (0..self.vcpus.len()).try_for_each(|vcpu| self.tell(vcpu, Command::Run))
    }
}

/// A machine whose vCPUs run.
pub struct Machine {
    pub(crate) core: Core,
}

/// A machine whose vCPUs are stopped and whose parts are quiet. Dropping it ends the machine; let it
/// [`resume`](Paused::resume) for it to go on.
#[must_use = "a machine that is dropped is gone"]
pub struct Paused {
    pub(crate) core: Core,
    states: Vec<Option<Box<VcpuState>>>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Machine").field("identity", &self.core.identity).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Paused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Paused").field("identity", &self.core.identity).finish_non_exhaustive()
    }
}

impl Machine {
    /// A descriptor that is readable when [`Self::serve_devices`] or [`Self::next_event`] has something to do.
    pub fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.core.epoll.as_fd()
    }

    /// Lets parts do what their descriptors ask for.
    ///
    /// # Errors
    /// [`RunError::Epoll`].
    pub fn serve_devices(&mut self) -> Result<(), RunError> {
        let mut ready = Vec::with_capacity(EVENTS_AT_ONCE);
        let zero = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.core.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&zero)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(RunError::Epoll(error)),
        }
        for event in ready {
            let data = event.data.u64();
            if data == WAKE {
                continue;
            }
            let index = usize::try_from(data >> TOKEN_BITS).unwrap_or(usize::MAX);
            let token = u32::try_from(data & u64::from(u32::MAX)).unwrap_or(0);
            if let Some(part) = self.core.parts.get(index) {
                lock(part).part_mut().on_event(token);
            }
        }
        Ok(())
    }

    /// What a vCPU has reported: its number and what.
    pub fn next_event(&mut self) -> Option<(u8, VcpuEvent)> {
        self.core.backlog.pop_front().or_else(|| self.core.events.try_recv().ok())
    }

    /// Lets a guest's call return `value`.
    ///
    /// # Errors
    /// [`RunError::Thread`].
    pub fn answer(&mut self, vcpu: u8, value: u32) -> Result<(), RunError> {
        self.core.tell(usize::from(vcpu), Command::Answer(value))
    }

    /// Stops the machine.
    ///
    /// # Errors
    /// [`RunError`]; the machine is lost.
    pub fn pause(self) -> Result<Paused, RunError> {
        self.stop(false, None)
    }

    pub(crate) fn stop(mut self, save: bool, finish: Option<u8>) -> Result<Paused, RunError> {
        let states = self.core.stop(save, finish)?;
        for part in &self.core.parts {
            lock(part).part_mut().quiesce();
        }
        Ok(Paused { core: self.core, states })
    }
}

impl Paused {
    /// A machine that has just been built.
    pub(crate) fn built(core: Core) -> Self {
        Self { core, states: Vec::new() }
    }

    /// What its guest reads as time-stamp counter was, when it was built, the host's plus this (modulo 2^64). `None`
    /// if the host does not tell.
    pub fn tsc_offset(&self) -> Option<u64> {
        self.core.tsc_offset
    }

    /// Lets the machine go on.
    ///
    /// # Errors
    /// [`RunError::Thread`].
    pub fn resume(self) -> Result<Machine, RunError> {
        for part in &self.core.parts {
            lock(part).part_mut().resume();
        }
        self.core.release()?;
        Ok(Machine { core: self.core })
    }

    /// Lets a guest's call return `value` when the machine goes on.
    ///
    /// # Errors
    /// [`RunError::Thread`].
    pub fn answer(&mut self, vcpu: u8, value: u32) -> Result<(), RunError> {
        self.core.tell(usize::from(vcpu), Command::Answer(value))
    }

    /// Lets the machine go on, with `value` as the result of the call that was finished by stopping it.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn resume_caller(self, caller: Caller, value: u32) -> Result<Machine, RunError> {
        if let Some(vcpu) = caller.vcpu() {
            self.core.set_rax(vcpu, value)?;
        }
        self.resume()
    }

    /// Puts the state together; `None` unless it was stopped for that.
    pub(crate) fn take_state(&mut self, caller: Option<u8>) -> Result<Option<MachineState>, crate::FreezeError> {
        let states = std::mem::take(&mut self.states);
        let count = states.len();
        let vcpus: Vec<VcpuState> = states.into_iter().flatten().map(|state| *state).collect();
        if vcpus.len() != count {
            return Ok(None);
        }
        let core = &self.core;
        let interrupt_controller =
            core.vm.save_interrupt_controller().map_err(crate::FreezeError::InterruptController)?;
        let clock = core.vm.clock().map_err(crate::FreezeError::Clock)?;
        Ok(Some(MachineState {
            class: core.class.clone(),
            identity: core.identity.clone(),
            vcpus,
            interrupt_controller,
            clock,
            memory: memory_regions(&core.class),
            parts: core.parts.iter().map(|part| lock(part).part().save()).collect(),
            caller,
        }))
    }

    /// Raises the clone page's interrupt: somebody wants the guest to look.
    pub fn ring(&self) {
        for part in &self.core.parts {
            if let BuiltPart::ClonePage(page) = &*lock(part) {
                page.raise();
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.hold.store(true, Ordering::SeqCst);
        for handle in &self.vcpus {
            // A thread that is gone needs neither; the process ends next.
            let _kicked = handle.kicker.kick();
            let _told = handle.commands.try_send(Command::Quit);
        }
    }
}
