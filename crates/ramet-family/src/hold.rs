//! Holding machines and letting them go on.

use crate::boot::MAKE_TIMEOUT;
use crate::describe;
use crate::family::Family;
use crate::lifecycle::Phase;
use ramet_vmm::protocol::Order;
use std::time::Instant;

/// Why a machine was not held, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// No such machine.
    #[error("There is no machine {number}")]
    Unknown {
        /// Asked for.
        number: u64,
    },
    /// It is not where it would have to be.
    #[error("Machine {number} is {phase:?}, not {needed:?}")]
    Phase {
        /// Machine.
        number: u64,
        /// Where it is.
        phase: Phase,
        /// Where it would have to be.
        needed: Phase,
    },
    /// It cannot be told.
    #[error("Machine {number} cannot be told: {reason}")]
    Send {
        /// Machine.
        number: u64,
        /// Why.
        reason: String,
    },
    /// It ended over it.
    #[error("Machine {number} ended: {reason}")]
    Ended {
        /// Machine.
        number: u64,
        /// How.
        reason: String,
    },
    /// It took too long.
    #[error("Machine {number} gave no answer within {seconds} s; the host may be overloaded")]
    Timeout {
        /// Machine.
        number: u64,
        /// How long it was waited for.
        seconds: u64,
    },
}

impl Family {
    /// Stops a running machine's vCPUs.
    ///
    /// # Errors
    /// [`HoldError`] says why it runs on, or that it is gone.
    pub fn pause(&mut self, number: u64) -> Result<(), HoldError> {
        self.change(number, &Order::Pause, Phase::Running, Phase::Paused)
    }

    /// Lets a machine go on that is paused, or was built to be.
    ///
    /// # Errors
    /// [`HoldError`] says why it does not.
    pub fn resume(&mut self, number: u64) -> Result<(), HoldError> {
        self.change(number, &Order::Resume, Phase::Paused, Phase::Running)
    }

    fn change(&mut self, number: u64, order: &Order, from: Phase, to: Phase) -> Result<(), HoldError> {
        let member = self.members.get(&number).ok_or(HoldError::Unknown { number })?;
        if member.phase() != from {
            return Err(HoldError::Phase { number, phase: member.phase(), needed: from });
        }
        let gone = || HoldError::Unknown { number };
        let sent = member.links.as_ref().ok_or_else(gone)?.send(order, &[]);
        sent.map_err(|error| HoldError::Send { number, reason: describe(&error) })?;
        let deadline = Instant::now() + MAKE_TIMEOUT;
        loop {
            match self.members.get(&number).map(crate::member::Member::phase) {
                Some(phase) if phase == to => return Ok(()),
                Some(Phase::Dead) | None => {
                    return Err(HoldError::Ended { number, reason: self.how_it_ended(number) });
                }
                Some(phase @ (Phase::Done | Phase::Template)) => {
                    return Err(HoldError::Phase { number, phase, needed: to });
                }
                Some(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HoldError::Timeout { number, seconds: MAKE_TIMEOUT.as_secs() });
            }
            self.step(left);
        }
    }
}
