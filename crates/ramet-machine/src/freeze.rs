//! Freezing a running machine: the first half of a fork.

use crate::machine::{Machine, Paused, RunError};
use ramet_kvm::{ClockError, SaveControllerError};
use ramet_memory::{Delta, DeltaRun, FinishError, Frozen};
use ramet_state::MachineState;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Whose call the freeze is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nobody's in the guest.
    None,
    /// A guest's fork, which will return `first` in the parent and 0 in its children.
    Fork {
        /// The vCPU that called.
        vcpu: u8,
        /// Number of the first child.
        first: u64,
    },
    /// A guest's ready, which returns in its children only.
    Ready {
        /// The vCPU that called.
        vcpu: u8,
    },
}

impl Caller {
    /// The vCPU that called.
    pub fn vcpu(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Fork { vcpu, .. } | Self::Ready { vcpu } => Some(vcpu),
        }
    }
}

/// Why a machine could not be frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// Its memory.
    #[error("Memory cannot be frozen")]
    Memory(#[source] ramet_memory::FreezeError),
    /// The interrupt controllers.
    #[error("The interrupt controllers cannot be saved")]
    InterruptController(#[source] SaveControllerError),
    /// kvm-clock.
    #[error("The clock cannot be read")]
    Clock(#[source] ClockError),
    /// A vCPU did not give its state.
    #[error("A vCPU did not give its state")]
    Incomplete,
}

/// A machine's state and what it wrote, taken while it was stopped.
#[derive(Debug)]
pub struct FrozenMachine {
    state: Box<MachineState>,
    memory: Frozen,
    began: Instant,
}

/// What a freeze hands on.
#[derive(Debug)]
pub enum FrozenMemory {
    /// A founder's flat layer is complete.
    Flat {
        /// What it has given back.
        holes: Vec<DeltaRun>,
    },
    /// What was written since the last freeze.
    Delta(Delta),
}

impl FrozenMachine {
    /// Since the first vCPU was told to stop.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The state and the memory, ready to be handed on; done when the machine goes on already.
    ///
    /// # Errors
    /// [`FinishError`].
    pub fn finish(self) -> Result<(Box<MachineState>, FrozenMemory), FinishError> {
        let memory = match self.memory {
            Frozen::Flat { holes } => FrozenMemory::Flat { holes },
            Frozen::Delta(delta) => FrozenMemory::Delta(delta.finish()?),
        };
        Ok((self.state, memory))
    }
}

impl Machine {
    /// What a freeze handed over came to nothing: the next has it again.
    pub fn take_back(&mut self, runs: &[DeltaRun]) {
        self.core.view.take_back(runs);
    }

    /// Stops the machine and takes its state and what it wrote since it was frozen last. Whether it goes on is the
    /// caller's to say; a freeze that failed has changed nothing. `founder` is the read-only descriptor of its flat
    /// layer, for a founder's first freeze.
    ///
    /// # Errors
    /// [`RunError`] if the machine is lost; [`FreezeError`] within, if only the freeze is.
    pub fn freeze(
        mut self,
        caller: Caller,
        founder: Option<OwnedFd>,
    ) -> Result<(Paused, Result<FrozenMachine, FreezeError>), RunError> {
        // Whatever can be done while it runs. What this cannot do, the freeze itself will find as an error again.
        if let Err(error) = self.core.view.prepare_freeze() {
            tracing::warn!(%error, "a freeze cannot be prepared");
        }
        let began = Instant::now();
        let mut paused = self.stop(true, caller.vcpu())?;
        let outcome = paused.take_frozen(caller, founder, began);
        Ok((paused, outcome))
    }
}

impl Paused {
    /// What a freeze handed over came to nothing: the next has it again.
    pub fn take_back(&mut self, runs: &[DeltaRun]) {
        self.core.view.take_back(runs);
    }

    fn take_frozen(
        &mut self,
        caller: Caller,
        founder: Option<OwnedFd>,
        began: Instant,
    ) -> Result<FrozenMachine, FreezeError> {
        let state = self.take_state(caller.vcpu())?.ok_or(FreezeError::Incomplete)?;
        // Memory last: reading vCPUs and quieting parts may write to it.
        let memory = self.core.view.freeze(founder.as_ref().map(AsFd::as_fd)).map_err(FreezeError::Memory)?;
        Ok(FrozenMachine { state: Box::new(state), memory, began })
    }
}
