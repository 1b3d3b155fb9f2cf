//! Creating the KVM objects of a machine, in the one order that is fast everywhere.
//!
//! ```text
//!   KVM_CREATE_VM -> TSS and identity map -> every memory slot -> interrupt controllers [-> PIT] [-> routing]
//!     -> vCPUs with their CPUID -> irqfds, ioeventfds
//! ```
//! A change of memory slots after anything was registered on KVM's I/O bus (PIT, ioeventfd) waits milliseconds for a
//! grace period, so the slots come first and never change. They are registered over ranges of addresses where nothing
//! is mapped yet.
//!
//! Deliberately absent: changing or taking away anything (deassigning an ioeventfd costs 7 ms).

use crate::advice::{self, Stage};
use crate::model::vcpu_features;
use crate::{HostModel, Kvm, Vcpu, Vm, cpuid, raw};
use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_PIT_SPEAKER_DUMMY, KvmIrqRouting, kvm_enable_cap,
    kvm_irq_routing_entry, kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::VmFd;
use ramet_abi::layout::{GSI_COUNT, KVM_TSS_BASE, LOCAL_APIC_BASE, PAGE_BYTES, VECTOR_BASE};
use ramet_state::{InterruptMode, MemoryRegion, VmClass, VmClassError};
use std::io;
use std::os::fd::BorrowedFd;

/// Where KVM puts its identity page table on VMX hosts: the page below its task state segment.
const KVM_IDENTITY_MAP_BASE: u64 = KVM_TSS_BASE - PAGE_BYTES;

/// Why a machine's KVM objects could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The class is out of range.
    #[error(transparent)]
    Class(#[from] VmClassError),
    /// KVM_CREATE_VM.
    #[error("KVM_CREATE_VM failed: {advice}")]
    Vm {
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM_SET_TSS_ADDR or KVM_SET_IDENTITY_MAP_ADDR.
    #[error("{ioctl} with address {address:#x} failed")]
    Address {
        /// The ioctl.
        ioctl: &'static str,
        /// Its argument.
        address: u64,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM_SET_USER_MEMORY_REGION.
    #[error(
        "KVM_SET_USER_MEMORY_REGION refused slot {slot} ({bytes} bytes at guest {guest:#x}, host {host:#x}): {advice}"
    )]
    Slot {
        /// Number of the slot.
        slot: u32,
        /// First guest-physical address.
        guest: u64,
        /// Its bytes.
        bytes: u64,
        /// Host address.
        host: u64,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// Interrupt controllers.
    #[error("{ioctl} for interrupt mode {mode:?} failed: {advice}")]
    Interrupts {
        /// The ioctl.
        ioctl: &'static str,
        /// The class's mode.
        mode: InterruptMode,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM_CREATE_VCPU or mapping what it shares.
    #[error("KVM_CREATE_VCPU of vCPU {vcpu} failed: {advice}")]
    Vcpu {
        /// Which vCPU.
        vcpu: u8,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM_SET_CPUID2.
    #[error("KVM_SET_CPUID2 refused the class's {entries} entries for vCPU {vcpu}: {advice}")]
    Cpuid {
        /// Which vCPU.
        vcpu: u8,
        /// Entries in the class.
        entries: usize,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
}

/// Why doorbells or lines could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// KVM_IRQFD.
    #[error("KVM_IRQFD of interrupt line {gsi} failed: {advice}")]
    Line {
        /// The line.
        gsi: u32,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
    /// KVM_IOEVENTFD.
    #[error("KVM_IOEVENTFD at {address:#x} for {length:?} failed: {advice}")]
    Doorbell {
        /// Guest-physical address.
        address: u64,
        /// Which writes.
        length: DoorbellLength,
        /// What to do.
        advice: &'static str,
        #[source]
        #[expect(missing_docs, reason = "the errno")]
        source: io::Error,
    },
}

/// Which writes ring a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellLength {
    /// Writes of any length (KVM_CAP_IOEVENTFD_ANY_LENGTH).
    Any,
    /// Writes of 4 bytes.
    Four,
}

/// An address whose writes signal an eventfd.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    /// Guest-physical address.
    pub address: u64,
    /// Which writes.
    pub length: DoorbellLength,
    /// The eventfd.
    pub event: BorrowedFd<'a>,
}

/// An interrupt line that an eventfd raises.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The line.
    pub gsi: u32,
    /// The eventfd.
    pub event: BorrowedFd<'a>,
}

/// The KVM objects of a machine that has no state yet.
#[derive(Debug)]
pub struct BlankVm {
    vm: Vm,
    vcpus: Vec<Vcpu>,
}

impl BlankVm {
    /// Creates everything that the class decides. `slots` are the machine's regions with the host addresses at which
    /// they are or will be mapped: they must belong to guest memory for as long as the machine lives, since the guest
    /// can write to whatever is mapped there.
    ///
    /// # Errors
    /// [`CreateError`] names the ioctl, its argument and what to do.
    pub fn create(
        kvm: &Kvm,
        model: &HostModel,
        class: &VmClass,
        slots: &[(MemoryRegion, u64)],
    ) -> Result<Self, CreateError> {
        class.validate()?;
        let fd = create_vm(kvm)?;
        set_addresses(kvm, &fd)?;
        for (slot, &(region, host)) in (0..).zip(slots) {
            register_slot(&fd, slot, region, host)?;
        }
        create_controllers(&fd, class.interrupts)?;
        let features = vcpu_features(kvm);
        let mut vcpus = Vec::with_capacity(class.vcpus.into());
        for number in 0..class.vcpus {
            let failed = |source: io::Error| {
                let advice = advice::for_error(Stage::Vcpu, &source);
                CreateError::Vcpu { vcpu: number, advice, source }
            };
            let vcpu = fd.create_vcpu(number.into()).map_err(|error| failed(error.into()))?;
            set_cpuid(&vcpu, class, number)?;
            let mut vcpu = Vcpu::new(number, vcpu, fd.run_size(), features, model).map_err(failed)?;
            if let Some(fresh) = model.fresh(number, &class.cpuid) {
                vcpu.assume_fresh(fresh);
            }
            vcpus.push(vcpu);
        }
        Ok(Self { vm: Vm::new(fd, class.interrupts), vcpus })
    }

    /// Connects interrupt lines and doorbells. Last, since nothing may change after it.
    ///
    /// # Errors
    /// [`WireError`] names the line or address.
    pub fn wire(&mut self, lines: &[Line<'_>], doorbells: &[Doorbell<'_>]) -> Result<(), WireError> {
        for &Line { gsi, event } in lines {
            raw::assign_irqfd(self.vm.fd(), gsi, event).map_err(|source| {
                let advice = advice::for_error(Stage::Line, &source);
                WireError::Line { gsi, advice, source }
            })?;
        }
        for &Doorbell { address, length, event } in doorbells {
            let bytes = match length {
                DoorbellLength::Any => 0,
                DoorbellLength::Four => 4,
            };
            raw::assign_ioeventfd(self.vm.fd(), address, bytes, event).map_err(|source| {
                let advice = advice::for_error(Stage::Doorbell, &source);
                WireError::Doorbell { address, length, advice, source }
            })?;
        }
        Ok(())
    }

    /// The machine and its vCPUs, each to be moved to its thread.
    pub fn into_parts(self) -> (Vm, Vec<Vcpu>) {
        (self.vm, self.vcpus)
    }
}

fn create_vm(kvm: &Kvm) -> Result<VmFd, CreateError> {
    loop {
        match kvm.inner().create_vm() {
            Ok(fd) => return Ok(fd),
            // The kernel starts helper threads here and lets a signal interrupt that.
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => {
                let source = io::Error::from(error);
                return Err(CreateError::Vm { advice: advice::for_error(Stage::Vm, &source), source });
            }
        }
    }
}

fn set_addresses(kvm: &Kvm, fd: &VmFd) -> Result<(), CreateError> {
    let failed =
        |ioctl, address| move |error: kvm_ioctls::Error| CreateError::Address { ioctl, address, source: error.into() };
    // Only VMX without "unrestricted guest" uses them; everywhere else they cost half a microsecond.
    if kvm.capability(kvm_bindings::KVM_CAP_SET_TSS_ADDR) > 0 {
        let offset = usize::try_from(KVM_TSS_BASE).unwrap_or(usize::MAX);
        fd.set_tss_address(offset).map_err(failed("KVM_SET_TSS_ADDR", KVM_TSS_BASE))?;
    }
    if kvm.capability(kvm_bindings::KVM_CAP_SET_IDENTITY_MAP_ADDR) > 0 {
        let address = KVM_IDENTITY_MAP_BASE;
        fd.set_identity_map_address(address).map_err(failed("KVM_SET_IDENTITY_MAP_ADDR", address))?;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn register_slot(fd: &VmFd, slot: u32, region: MemoryRegion, host: u64) -> Result<(), CreateError> {
    let MemoryRegion { start, bytes, .. } = region;
    let argument = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: start,
        memory_size: bytes,
        userspace_addr: host,
    };
    // SAFETY: the caller of `BlankVm::create` vouches that the addresses hold guest memory or nothing as long as the
    // machine lives; KVM follows every change of the mappings there. The kernel refuses overlapping slots and
    // addresses that are not the process's.
    let result = unsafe { fd.set_user_memory_region(argument) };
    result.map_err(|error| {
        let source = io::Error::from(error);
        let advice = advice::for_error(Stage::Slot, &source);
        CreateError::Slot { slot, guest: start, bytes, host, advice, source }
    })
}

fn create_controllers(fd: &VmFd, mode: InterruptMode) -> Result<(), CreateError> {
    let failed = |ioctl| {
        move |error: kvm_ioctls::Error| {
            let source = io::Error::from(error);
            CreateError::Interrupts { ioctl, mode, advice: advice::for_error(Stage::Interrupts, &source), source }
        }
    };
    match mode {
        InterruptMode::Split => {
            let mut split = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, ..Default::default() };
            split.args[0] = GSI_COUNT.into();
            fd.enable_cap(&split).map_err(failed("KVM_ENABLE_CAP(KVM_CAP_SPLIT_IRQCHIP)"))?;
            let routing = KvmIrqRouting::from_entries(&message_routes())
                .expect("there are far fewer lines than KVM has room for routes");
            fd.set_gsi_routing(&routing).map_err(failed("KVM_SET_GSI_ROUTING"))
        }
        InterruptMode::Full { pit } => {
            fd.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
            if pit {
                let config = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
                fd.create_pit2(config).map_err(failed("KVM_CREATE_PIT2"))?;
            }
            Ok(())
        }
    }
}

/// Line n as a message to the first vCPU's local APIC: physical destination 0, fixed delivery, edge (SDM volume 3,
/// section 11.11).
fn message_routes() -> Vec<kvm_irq_routing_entry> {
    (0..GSI_COUNT)
        .map(|gsi| {
            let mut route = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
            route.u.msi.address_lo = LOCAL_APIC_BASE as u32;
            route.u.msi.data = u32::from(VECTOR_BASE) + gsi;
            route
        })
        .collect()
}

fn set_cpuid(vcpu: &kvm_ioctls::VcpuFd, class: &VmClass, number: u8) -> Result<(), CreateError> {
    let entries = class.cpuid.len();
    let failed = |source: io::Error| {
        let advice = advice::for_error(Stage::Cpuid, &source);
        CreateError::Cpuid { vcpu: number, entries, advice, source }
    };
    let cpuid = cpuid::for_vcpu(&class.cpuid, number, class.vcpus)
        .ok_or_else(|| failed(io::Error::from_raw_os_error(libc::E2BIG)))?;
    vcpu.set_cpuid2(&cpuid).map_err(|error| failed(error.into()))
}
