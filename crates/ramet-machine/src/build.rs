//! The one builder.

use crate::blank::Blank;
use crate::bus::Bus;
use crate::clock::{boottime_ns, kvm_clock_ns, wall_offset_ns};
use crate::machine::{Core, Paused, RunError};
use crate::parts::build_parts;
use crate::resources::{Ram, ram_pages};
use ramet_abi::clone_page::ENTROPY_BYTES;
use ramet_devices::{BuildPartError, MachineIdentity};
use ramet_kvm::{ClockError, RestoreControllerError, RestoreError, Vcpu, Vm, advance_tsc};
use ramet_memory::{AddressSpace, Tracker, View, ViewError};
use ramet_state::{BuildPlan, ClockPlan, MachineState, MemoryRegion, RegionAction, RegionPurpose, memory_regions};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use vm_memory::GuestMemoryMmap;

/// How far a build is, for those who take times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Memory is mapped.
    Mapped,
    /// Parts, vCPUs and clock are restored.
    Restored,
}

/// Why a machine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The blank machine is of another class.
    #[error("The plan is for another class of machine than this blank one")]
    Class,
    /// The plan contradicts itself.
    #[error("The plan says {action:?} for the region at {start:#x}, which its memory does not fit")]
    Region {
        /// First address.
        start: u64,
        /// What the plan says.
        action: RegionAction,
    },
    /// The page map is of another size.
    #[error("The page map has {found} pages for a machine of {expected}")]
    Pages {
        /// Of the map.
        found: u64,
        /// Of the class.
        expected: u64,
    },
    /// No clone page.
    #[error("The class has no clone page")]
    NoClonePage,
    /// The entropy has another length.
    #[error("{found} bytes of entropy came; {ENTROPY_BYTES} are needed")]
    Entropy {
        /// How many came.
        found: usize,
    },
    /// Memory cannot be mapped.
    #[error("Memory cannot be mapped")]
    View(#[source] ViewError),
    /// A part.
    #[error("A device cannot be built")]
    Part(#[source] BuildPartError),
    /// The interrupt controllers.
    #[error("The interrupt controllers cannot be restored")]
    InterruptController(#[source] RestoreControllerError),
    /// kvm-clock.
    #[error("The clock cannot be set")]
    Clock(#[source] ClockError),
    /// vCPUs.
    #[error("A vCPU cannot be restored")]
    Vcpu(#[source] RestoreError),
    /// The TSC.
    #[error("The offset of the guest's time-stamp counter cannot be read")]
    TscOffset(#[source] std::io::Error),
    /// Their threads, and the event queue.
    #[error("The machine cannot be made ready")]
    Ready(#[source] RunError),
    /// No event queue.
    #[error("No event queue can be had: raise the limit of open files (ulimit -n)")]
    Epoll(#[source] Errno),
}

impl Blank {
    /// Makes the machine that the plan describes, stopped before its first instruction.
    ///
    /// # Errors
    /// [`BuildError`]; what there was of the machine is gone.
    pub fn build(
        self,
        plan: BuildPlan,
        ram: Ram,
        entropy: &[u8],
        stamp: &mut dyn FnMut(Stage),
    ) -> Result<Paused, BuildError> {
        if plan.state.class != self.class {
            return Err(BuildError::Class);
        }
        check_regions(&plan, &ram)?;
        let entropy = entropy.try_into().map_err(|_| BuildError::Entropy { found: entropy.len() })?;
        let regions = memory_regions(&self.class);
        let mut view = map_ram(self.space, &regions, ram, self.tracker)?;
        let page = map_shared(&mut view, &regions, &self.clone_page, self.family.as_ref())?;
        stamp(Stage::Mapped);
        let mut state = plan.state;
        let now = boottime_ns();
        let clock_ns = kvm_clock_ns(plan.clock, &state.clock, now);
        let identity = MachineIdentity {
            identity: state.identity.clone(),
            vcpus: self.class.vcpus.into(),
            wall_offset_ns: wall_offset_ns(clock_ns),
            family_bytes: self.class.family_bytes,
            entropy,
        };
        let parts =
            build_parts(&state.parts, view.memory(), &page, &self.wiring, &identity).map_err(BuildError::Part)?;
        let mut attached = Bus::default();
        parts.iter().for_each(|part| attached.attach(part));
        // A blank machine's bus is set here and nowhere else.
        let _first = self.bus.set(attached);
        if let (ClockPlan::Continue, Some(khz)) = (plan.clock, self.tsc) {
            let elapsed = now.saturating_sub(state.clock.host_boottime_ns);
            state.vcpus.iter_mut().for_each(|vcpu| advance_tsc(vcpu, elapsed, khz));
        }
        let mut vcpus = self.vcpus;
        let tsc_offset = restore_processors(&self.vm, &mut vcpus, &state)?;
        let core = Core {
            class: self.class,
            identity: state.identity,
            vm: self.vm,
            view,
            vcpus: self.threads,
            hold: self.hold,
            parts,
            events: self.events,
            backlog: std::collections::VecDeque::new(),
            wake: self.wake,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(BuildError::Epoll)?,
            tsc_offset,
        };
        core.watch().map_err(BuildError::Ready)?;
        core.give(vcpus).map_err(BuildError::Ready)?;
        let late = boottime_ns().saturating_sub(now);
        core.vm.set_clock(clock_ns.saturating_add(late)).map_err(BuildError::Clock)?;
        stamp(Stage::Restored);
        Ok(Paused::built(core))
    }
}

fn map_ram(space: AddressSpace, regions: &[MemoryRegion], ram: Ram, tracker: Tracker) -> Result<View, BuildError> {
    match ram {
        Ram::Founder(file) => View::map_founder(space, regions, file, tracker),
        Ram::Layers { map, layers } => {
            let layers: HashMap<_, _> = layers.into_iter().collect();
            View::map_layers(space, regions, &map, &layers, tracker)
        }
    }
    .map_err(BuildError::View)
}

/// Maps what is shared with others, and returns the clone page.
fn map_shared(
    view: &mut View,
    regions: &[MemoryRegion],
    clone_page: &OwnedFd,
    family: Option<&OwnedFd>,
) -> Result<GuestMemoryMmap, BuildError> {
    let mut page = None;
    for region in regions {
        match (region.purpose, family) {
            (RegionPurpose::ClonePage, _) => {
                page = Some(view.map_shared(region, clone_page.as_fd()).map_err(BuildError::View)?);
            }
            (RegionPurpose::Family, Some(family)) => {
                view.map_shared(region, family.as_fd()).map_err(BuildError::View)?;
            }
            _ => {}
        }
    }
    page.ok_or(BuildError::NoClonePage)
}

/// Restores the interrupt controllers, then the vCPUs; returns the first one's TSC offset.
fn restore_processors(vm: &Vm, vcpus: &mut [Vcpu], state: &MachineState) -> Result<Option<u64>, BuildError> {
    vm.restore_interrupt_controller(&state.interrupt_controller).map_err(BuildError::InterruptController)?;
    // Here and not on their threads: that would take two wake-ups, which cost more than what it does.
    for (vcpu, state) in vcpus.iter_mut().zip(&state.vcpus) {
        vcpu.restore(state).map_err(BuildError::Vcpu)?;
    }
    vcpus.first().map_or(Ok(None), Vcpu::tsc_offset).map_err(BuildError::TscOffset)
}

/// What the plan says of memory must be what came with it.
fn check_regions(plan: &BuildPlan, ram: &Ram) -> Result<(), BuildError> {
    for (region, action) in &plan.regions {
        let fits = match (region.purpose, ram) {
            (RegionPurpose::Ram, Ram::Founder(_)) => *action == RegionAction::Found,
            (RegionPurpose::Ram, Ram::Layers { .. }) => *action == RegionAction::Private,
            (RegionPurpose::ClonePage, _) => *action == RegionAction::Create,
            (RegionPurpose::Family, _) => *action == RegionAction::Share,
        };
        if !fits {
            return Err(BuildError::Region { start: region.start, action: *action });
        }
    }
    if let Ram::Layers { map, .. } = ram {
        let (found, expected) = (map.pages(), ram_pages(&plan.state.class));
        if found != expected {
            return Err(BuildError::Pages { found, expected });
        }
    }
    Ok(())
}
