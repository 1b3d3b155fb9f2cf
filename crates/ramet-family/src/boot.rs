//! Booting the founder.

use crate::birth::BearError;
use crate::describe;
use crate::family::Family;
use crate::lifecycle::{Event, Phase};
use crate::member::Ram;
use crate::operation::{Cause, Freeze, Operation, Progress};
use crate::quota::QuotaError;
use ramet_abi::layout::HOLE_END;
use ramet_boot::{LoadError, Loaded, Options, load_elf};
use ramet_memory::{FlatFile, StoreError};
use ramet_state::{BuildPlan, Intent, InterruptMode, NewIdentity, PlanError, VmClass, VmClassError, plan};
use ramet_vmm::protocol::{MemorySource, Order};
use rustix::io::Errno;
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A machine to boot.
#[derive(Clone, Copy, Debug)]
pub struct BootSpec<'a> {
    /// The kernel file's bytes.
    pub kernel: &'a [u8],
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Memory that all of the family shares, in bytes; 0 for none.
    pub family_bytes: u64,
    /// vCPUs.
    pub vcpus: u8,
    /// Interrupt controllers.
    pub interrupts: InterruptMode,
}

/// Why a machine could not be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The family has its founder already.
    #[error("The family has a founder already: fork from it, or start another family")]
    Founded,
    /// Limits.
    #[error("The machine is not admitted")]
    Quota(#[source] QuotaError),
    /// The class.
    #[error("No such machine can be made")]
    Class(#[source] VmClassError),
    /// More memory than the host has.
    #[error("Memory of {bytes} bytes exceeds the host's {available} bytes: give a smaller size")]
    HostMemory {
        /// What was asked for.
        bytes: u64,
        /// What there is.
        available: u64,
    },
    /// The kernel.
    #[error("The kernel cannot be loaded")]
    Load(#[source] LoadError),
    /// A place for its memory.
    #[error("No place for the machine's memory")]
    Store(#[source] StoreError),
    /// Writing the kernel into it.
    #[error("The kernel cannot be written into the machine's memory{}", advise(*.0))]
    Write(#[source] Errno),
    /// The state that the loader made.
    #[error("The loader's machine cannot be planned")]
    Plan(#[source] PlanError),
    /// The process.
    #[error("The machine's process cannot be made")]
    Bear(#[source] BearError),
    /// The machine itself.
    #[error("The machine could not be made: {reason}")]
    Machine {
        /// What its process, or the zygote, says.
        reason: String,
    },
    /// It took too long.
    #[error("The machine was not there after {seconds} s; the host may be overloaded")]
    Timeout {
        /// How long it was waited for.
        seconds: u64,
    },
    /// Randomness.
    #[error("The host has no random bytes to give")]
    Random(#[source] Errno),
}

fn advise(errno: Errno) -> String {
    ramet_process::limits::advise(errno).map(|advice| format!(": {advice}")).unwrap_or_default()
}

/// How long a machine may take to be made.
pub(crate) const MAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// Fresh random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
        })?;
    }
    Ok(bytes)
}

/// Total memory of the host.
fn host_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)))
}

/// Writes go through the file, not through a mapping: a full file system is an error here and not a signal.
fn write_image(file: &FlatFile, loaded: &Loaded) -> Result<(), Errno> {
    for write in &loaded.writes {
        let (mut offset, mut rest) = (write.address, write.bytes.as_slice());
        debug_assert!(offset < HOLE_END, "loaders write below the hole, where address and offset are the same");
        while !rest.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file.writable(), rest, offset))?;
            if written == 0 {
                return Err(Errno::NOSPC);
            }
            offset += written as u64;
            rest = &rest[written..];
        }
    }
    Ok(())
}

impl Family {
    /// Boots the family's founder and waits until it runs; it is machine 0.
    ///
    /// # Errors
    /// [`BootError`] says what is wrong with the kernel, the machine or the host.
    pub fn boot(&mut self, spec: &BootSpec<'_>) -> Result<u64, BootError> {
        if !self.members.is_empty() {
            return Err(BootError::Founded);
        }
        self.quota.admit(0, 1).map_err(BootError::Quota)?;
        let (parts, virtio_devices) = ramet_vmm::initial_parts();
        let class = VmClass {
            memory_bytes: spec.memory_bytes,
            family_bytes: spec.family_bytes,
            vcpus: spec.vcpus,
            interrupts: spec.interrupts,
            cpuid: self.cpuid.clone(),
            virtio_devices,
        };
        class.validate().map_err(BootError::Class)?;
        let available = host_memory_bytes();
        if class.memory_bytes > available {
            return Err(BootError::HostMemory { bytes: class.memory_bytes, available });
        }
        let number = self.next_number;
        if spec.family_bytes > 0 {
            let memory = ramet_memory::create_sealed_memfd(spec.family_bytes)
                .map_err(|error| BootError::Machine { reason: describe(&error) })?;
            self.family_memory = Some(memory);
        }
        let operation = self.new_operation(Operation {
            parent: number,
            cause: Cause::Outside,
            paused: false,
            children: BTreeMap::from([(number, Progress::Bearing)]),
            freeze: Freeze::Awaited,
            pause_ns: 0,
        });
        self.class = Some(Arc::new(class.clone()));
        // The process is born while the kernel is loaded.
        self.next_number += 1;
        let outcome = self.bear(number, number, 0, &class, operation).map_err(BootError::Bear);
        let outcome = outcome.and_then(|()| self.load_and_build(number, spec, class, parts));
        self.operations.remove(&operation);
        if outcome.is_err() {
            self.forget_unfounded(number);
        }
        outcome.map(|()| number)
    }

    fn load_and_build(
        &mut self,
        number: u64,
        spec: &BootSpec<'_>,
        class: VmClass,
        parts: Vec<ramet_state::PartState>,
    ) -> Result<(), BootError> {
        let xcr0 = ramet_kvm::supported_xcr0(&self.cpuid);
        let loaded = load_elf(spec.kernel, Options { class: &class, xcr0, parts }).map_err(BootError::Load)?;
        let file = self.store.create_flat(class.memory_bytes).map_err(BootError::Store)?;
        write_image(&file, &loaded).map_err(BootError::Write)?;
        let generation = random().map_err(BootError::Random)?;
        let intent = Intent::Boot(NewIdentity { number, generation });
        let built = plan(&loaded.state, &intent).map_err(BootError::Plan)?;
        self.send_founder(number, built, &file)?;
        if let Some(member) = self.members.get_mut(&number) {
            member.ram = Ram::Founder(file.finish());
        }
        self.await_phase(number, Phase::Running)
    }

    fn send_founder(&mut self, number: u64, plan: BuildPlan, file: &FlatFile) -> Result<(), BootError> {
        let entropy: [u8; 64] = random().map_err(BootError::Random)?;
        let order = Order::Build {
            plan: Box::new(plan),
            memory: MemorySource::Founder,
            entropy: ByteBuf::from(entropy),
            paused: false,
        };
        let reason = |reason: String| BootError::Machine { reason };
        let links = self.members.get(&number).and_then(|member| member.links.as_ref());
        let links = links.ok_or_else(|| reason(self.how_it_ended(number)))?;
        links.send(&order, &[file.writable()]).map_err(|error| reason(describe(&error)))?;
        self.note(number, Event::BuildSent);
        Ok(())
    }

    fn await_phase(&mut self, number: u64, phase: Phase) -> Result<(), BootError> {
        let deadline = Instant::now() + MAKE_TIMEOUT;
        loop {
            let Some(member) = self.members.get(&number) else {
                return Err(BootError::Machine { reason: "it is gone".to_owned() });
            };
            if member.phase() == phase {
                return Ok(());
            }
            if member.phase() == Phase::Dead || member.ending.failure.is_some() {
                return Err(BootError::Machine { reason: self.how_it_ended(number) });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BootError::Timeout { seconds: MAKE_TIMEOUT.as_secs() });
            }
            self.step(left);
        }
    }
}
