//! What a machine has outside of its vCPUs: interrupt controllers and the clock.

use crate::raw::Plain;
use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip, kvm_pit_state2,
};
use kvm_ioctls::VmFd;
use ramet_state::{ClockState, InterruptControllerState, InterruptMode};
use serde_bytes::ByteBuf;
use std::io;

/// PIC master, PIC slave, I/O APIC: the order of [`InterruptControllerState::chips`].
const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// Interrupt controllers could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{ioctl} failed while saving the interrupt controllers")]
pub struct SaveControllerError {
    /// The ioctl.
    ioctl: &'static str,
    #[source]
    source: io::Error,
}

/// Interrupt controllers could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreControllerError {
    /// The state is of a machine with other controllers.
    #[error("The state has {found} interrupt controllers where a machine in mode {mode:?} has {expected}")]
    Chips {
        /// In the state.
        found: usize,
        /// Wanted.
        expected: usize,
        /// The class's mode.
        mode: InterruptMode,
    },
    /// A controller's bytes are not a controller's.
    #[error("Interrupt controller {chip} has {found} bytes or another controller's number: {expected} bytes wanted")]
    Chip {
        /// Its position: 0 and 1 for the PICs, 2 for the I/O APIC, 3 for the PIT.
        chip: u32,
        /// Bytes in the state.
        found: usize,
        /// Bytes wanted.
        expected: usize,
    },
    /// KVM refused.
    #[error("{ioctl} of interrupt controller {chip} failed")]
    Ioctl {
        /// The ioctl.
        ioctl: &'static str,
        /// Its position: 0 and 1 for the PICs, 2 for the I/O APIC, 3 for the PIT.
        chip: u32,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
}

/// The clock could not be read or set.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct ClockError {
    /// KVM_GET_CLOCK, KVM_SET_CLOCK or clock_gettime.
    call: &'static str,
    #[source]
    source: io::Error,
}

/// A machine without its vCPUs.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    interrupts: InterruptMode,
}

impl Vm {
    pub(crate) fn new(fd: VmFd, interrupts: InterruptMode) -> Self {
        Self { fd, interrupts }
    }

    pub(crate) fn fd(&self) -> &VmFd {
        &self.fd
    }

    /// Saves PICs, I/O APIC and PIT; nothing in split mode. No vCPU may be in the guest.
    ///
    /// # Errors
    /// [`SaveControllerError`] names the ioctl.
    pub fn save_interrupt_controller(&self) -> Result<InterruptControllerState, SaveControllerError> {
        let InterruptMode::Full { pit } = self.interrupts else { return Ok(InterruptControllerState::default()) };
        let mut state = InterruptControllerState::default();
        for chip_id in CHIPS {
            let mut chip = kvm_irqchip { chip_id, ..Default::default() };
            let failed =
                |error: kvm_ioctls::Error| SaveControllerError { ioctl: "KVM_GET_IRQCHIP", source: error.into() };
            self.fd.get_irqchip(&mut chip).map_err(failed)?;
            state.chips.push(ByteBuf::from(chip.as_bytes()));
        }
        if pit {
            let pit = self.fd.get_pit2();
            let pit = pit.map_err(|error| SaveControllerError { ioctl: "KVM_GET_PIT2", source: error.into() })?;
            state.pit = pit.as_bytes().to_vec();
        }
        Ok(state)
    }

    /// Restores what [`Self::save_interrupt_controller`] gave; an empty state leaves them as created.
    ///
    /// # Errors
    /// [`RestoreControllerError`] for a state of other controllers, wrong lengths, or what KVM refuses.
    pub fn restore_interrupt_controller(&self, state: &InterruptControllerState) -> Result<(), RestoreControllerError> {
        let (expected, pit_allowed) = match self.interrupts {
            InterruptMode::Split => (0, false),
            InterruptMode::Full { pit } => (CHIPS.len(), pit),
        };
        let found = state.chips.len();
        if (found != 0 && found != expected) || (!state.pit.is_empty() && !pit_allowed) {
            let found = found + usize::from(!state.pit.is_empty());
            let expected = expected + usize::from(pit_allowed);
            return Err(RestoreControllerError::Chips { found, expected, mode: self.interrupts });
        }
        for (chip_id, bytes) in CHIPS.into_iter().zip(&state.chips) {
            let chip = kvm_irqchip::from_bytes(bytes).filter(|chip| chip.chip_id == chip_id).ok_or(
                RestoreControllerError::Chip { chip: chip_id, found: bytes.len(), expected: kvm_irqchip::BYTES },
            )?;
            self.fd.set_irqchip(&chip).map_err(|error| RestoreControllerError::Ioctl {
                ioctl: "KVM_SET_IRQCHIP",
                chip: chip_id,
                source: error.into(),
            })?;
        }
        if state.pit.is_empty() {
            return Ok(());
        }
        let (found, expected) = (state.pit.len(), kvm_pit_state2::BYTES);
        let pit =
            kvm_pit_state2::from_bytes(&state.pit).ok_or(RestoreControllerError::Chip { chip: 3, found, expected })?;
        self.fd.set_pit2(&pit).map_err(|error| RestoreControllerError::Ioctl {
            ioctl: "KVM_SET_PIT2",
            chip: 3,
            source: error.into(),
        })
    }

    /// kvm-clock and CLOCK_BOOTTIME, read within a microsecond of one another.
    ///
    /// # Errors
    /// [`ClockError`] names the call.
    pub fn clock(&self) -> Result<ClockState, ClockError> {
        let before = boottime_ns()?;
        let clock = self.fd.get_clock();
        let clock = clock.map_err(|error| ClockError { call: "KVM_GET_CLOCK", source: error.into() })?;
        let after = boottime_ns()?;
        Ok(ClockState { kvm_clock_ns: clock.clock, host_boottime_ns: before.midpoint(after) })
    }

    /// Sets kvm-clock, in nanoseconds.
    ///
    /// # Errors
    /// [`ClockError`] with the errno of KVM_SET_CLOCK.
    pub fn set_clock(&self, kvm_clock_ns: u64) -> Result<(), ClockError> {
        let clock = kvm_clock_data { clock: kvm_clock_ns, ..Default::default() };
        self.fd.set_clock(&clock).map_err(|error| ClockError { call: "KVM_SET_CLOCK", source: error.into() })
    }

    /// Sets kvm-clock to what `saved` has become by now: the time since it was read has passed for the guest too. On
    /// the same boot of the same host only; a clock that never ran starts at its own value.
    ///
    /// # Errors
    /// [`ClockError`] names the call.
    pub fn continue_clock(&self, saved: &ClockState) -> Result<(), ClockError> {
        let passed = match saved.host_boottime_ns {
            0 => 0,
            then => boottime_ns()?.saturating_sub(then),
        };
        self.set_clock(saved.kvm_clock_ns.saturating_add(passed))
    }
}

/// CLOCK_BOOTTIME in nanoseconds.
fn boottime_ns() -> Result<u64, ClockError> {
    let now = rustix::time::clock_gettime_dynamic(rustix::time::DynamicClockId::Boottime)
        .map_err(|errno| ClockError { call: "clock_gettime(CLOCK_BOOTTIME)", source: errno.into() })?;
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    Ok(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}
