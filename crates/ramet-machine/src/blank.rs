//! Blank machines: everything that can be made before a state is known.
//!
//! KVM's objects come from `ramet_kvm::BlankVm` in the one good order. Memory slots lie over addresses where nothing is
//! mapped yet: mapping layers there later is far cheaper than replacing a mapping, and needs no slot change.

use crate::parts::{Transport, Wiring};
use crate::resources::BlankResources;
use crate::vcpu_thread::{Command, Idle, Reply, VcpuEvent, VcpuHandle, Wake};
use ramet_abi::layout::{ANSWER_DOORBELL, CLONE_PAGE_GSI, PAGE_BYTES, SERIAL_GSI, VIRTIO_GSI, VIRTIO_MMIO_BASE};
use ramet_devices::{EventFdInterrupt, Interrupt};
use ramet_kvm::{
    BlankVm, Doorbell, DoorbellLength, HostModel, InstallError, Kvm, Line, OpenError, Vcpu, Vm, WireError,
    install_kick_signal,
};
use ramet_memory::{AddressSpace, AddressSpaceError, Tracker};
use ramet_state::{VmClass, memory_regions};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

/// Register of a virtio-mmio transport that is its doorbell (virtio 1.2, section 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;
/// vCPU events that may wait for the event loop: guests that call faster are held back.
const EVENT_QUEUE: usize = 64;
/// Stack of a vCPU thread in bytes: exits are handled on it.
const VCPU_STACK_BYTES: usize = 256 << 10;

/// Why a blank machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// /dev/kvm is none.
    #[error("KVM cannot be used")]
    Open(#[source] OpenError),
    /// Kicks cannot be received.
    #[error("The kick signal cannot be handled")]
    Kick(#[source] InstallError),
    /// No place for guest memory.
    #[error("No host addresses for guest memory")]
    Addresses(#[source] AddressSpaceError),
    /// KVM's objects.
    #[error("The virtual machine cannot be created")]
    Kvm(#[source] ramet_kvm::CreateError),
    /// Lines and doorbells.
    #[error("Interrupt lines and doorbells cannot be connected")]
    Wire(#[source] WireError),
    /// The TSC's frequency.
    #[error("The frequency of the time-stamp counter cannot be read")]
    Tsc(#[source] std::io::Error),
    /// An eventfd.
    #[error("No eventfd can be had: raise the limit of open files (ulimit -n)")]
    Eventfd(#[source] Errno),
    /// A thread.
    #[error("Thread of vCPU {vcpu} cannot be started: raise the limit of processes (ulimit -u, pids cgroup)")]
    Thread {
        /// Which vCPU.
        vcpu: u8,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Rings an eventfd.
struct EventfdWake(Arc<OwnedFd>);

impl Wake for EventfdWake {
    fn wake(&self) {
        // A full counter means that the loop has been woken many times already.
        let _already_awake = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A machine without memory and state, waiting in its process.
pub struct Blank {
    pub(crate) class: VmClass,
    pub(crate) vm: Vm,
    pub(crate) space: AddressSpace,
    pub(crate) tracker: Tracker,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) threads: Vec<VcpuHandle>,
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) bus: Arc<OnceLock<crate::bus::Bus>>,
    pub(crate) events: Receiver<(u8, VcpuEvent)>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) wiring: Wiring,
    pub(crate) clone_page: OwnedFd,
    pub(crate) family: Option<OwnedFd>,
    /// Frequency in kHz of a TSC that is the machine's own; `None` where guests see the host's.
    pub(crate) tsc: Option<u32>,
}

fn new_eventfd() -> Result<OwnedFd, CreateError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(CreateError::Eventfd)
}

/// Eventfds before they are irqfds and ioeventfds.
struct Wires {
    /// Doorbell and line of each transport.
    transports: Vec<(OwnedFd, OwnedFd)>,
    serial: OwnedFd,
    request: OwnedFd,
    answer: OwnedFd,
}

impl Wires {
    fn new(class: &VmClass, request: OwnedFd, answer: OwnedFd) -> Result<Self, CreateError> {
        let transports = (0..class.virtio_devices).map(|_| Ok((new_eventfd()?, new_eventfd()?)));
        Ok(Self {
            transports: transports.collect::<Result<_, CreateError>>()?,
            serial: new_eventfd()?,
            request,
            answer,
        })
    }

    /// irqfds and ioeventfds: last of all ioctls, and never changed again.
    fn connect(&self, blank: &mut BlankVm) -> Result<(), WireError> {
        let mut lines = vec![line(SERIAL_GSI, &self.serial), line(CLONE_PAGE_GSI, &self.request)];
        let mut doorbells = vec![doorbell(ANSWER_DOORBELL, &self.answer)];
        for (number, (notify, interrupt)) in (0u32..).zip(&self.transports) {
            lines.push(line(VIRTIO_GSI + number, interrupt));
            doorbells.push(doorbell(VIRTIO_MMIO_BASE + u64::from(number) * PAGE_BYTES + QUEUE_NOTIFY, notify));
        }
        blank.wire(&lines, &doorbells)
    }

    fn into_wiring(self, console: OwnedFd, serial: OwnedFd) -> Wiring {
        let transport = |(doorbell, line)| Transport { doorbell: Arc::new(doorbell), interrupt: interrupt(line) };
        Wiring {
            transports: self.transports.into_iter().map(transport).collect(),
            serial_interrupt: interrupt(self.serial),
            request: interrupt(self.request),
            console: Arc::new(console),
            serial: Arc::new(serial),
        }
    }
}

fn line(gsi: u32, event: &OwnedFd) -> Line<'_> {
    Line { gsi, event: event.as_fd() }
}

fn doorbell(address: u64, event: &OwnedFd) -> Doorbell<'_> {
    Doorbell { address, length: DoorbellLength::Four, event: event.as_fd() }
}

fn interrupt(eventfd: OwnedFd) -> Arc<dyn Interrupt> {
    Arc::new(EventFdInterrupt::new(eventfd))
}

impl Blank {
    /// Makes KVM's objects and starts the vCPU threads, which take the nice value `nice` before they enter the guest.
    ///
    /// # Errors
    /// [`CreateError`] says what the host refused.
    pub fn create(
        kvm: OwnedFd,
        model: &HostModel,
        class: VmClass,
        resources: BlankResources,
        tracker: Tracker,
        nice: i32,
    ) -> Result<Self, CreateError> {
        install_kick_signal().map_err(CreateError::Kick)?;
        // Threads first: they start while KVM's objects are made.
        let shared = Shared::new(nice)?;
        let (sender, events) = sync_channel(EVENT_QUEUE);
        let ends =
            (0..class.vcpus).map(|number| shared.start_thread(number, &sender)).collect::<Result<Vec<_>, _>>()?;
        let kvm = Kvm::from_fd(kvm).map_err(CreateError::Open)?;
        let space = AddressSpace::claim().map_err(CreateError::Addresses)?;
        let slots = memory_regions(&class)
            .into_iter()
            .map(|region| Ok((region, space.host_address(&region)?)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(CreateError::Addresses)?;
        let BlankResources { clone_page, request, answer, console, serial, family } = resources;
        let wires = Wires::new(&class, request, answer)?;
        let mut blank = BlankVm::create(&kvm, model, &class, &slots).map_err(CreateError::Kvm)?;
        wires.connect(&mut blank).map_err(CreateError::Wire)?;
        let (vm, vcpus) = blank.into_parts();
        let tsc = match vcpus.first() {
            Some(vcpu) if model.tsc_is_virtual() => Some(vcpu.tsc_khz().map_err(CreateError::Tsc)?),
            _ => None,
        };
        let mut threads = Vec::with_capacity(vcpus.len());
        for (vcpu, (commands, replies)) in vcpus.iter().zip(ends) {
            // The filter that comes next forbids what starting threads do.
            match replies.recv() {
                Ok(Reply::Serving) => threads.push(VcpuHandle { kicker: vcpu.kicker(), commands, replies }),
                _ => {
                    let source = std::io::ErrorKind::Other.into();
                    return Err(CreateError::Thread { vcpu: vcpu.number(), source });
                }
            }
        }
        let wiring = wires.into_wiring(console, serial);
        let Shared { hold, bus, wake, .. } = shared;
        Ok(Self { class, vm, space, tracker, vcpus, threads, hold, bus, events, wake, wiring, clone_page, family, tsc })
    }
}

/// What all vCPU threads share.
struct Shared {
    hold: Arc<AtomicBool>,
    bus: Arc<OnceLock<crate::bus::Bus>>,
    wake: Arc<OwnedFd>,
    nice: i32,
}

/// The event loop's ends of a thread's two queues.
type Ends = (SyncSender<Command>, Receiver<Reply>);

impl Shared {
    fn new(nice: i32) -> Result<Self, CreateError> {
        let (hold, bus) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
        Ok(Self { hold, bus, wake: Arc::new(new_eventfd()?), nice })
    }

    fn start_thread(&self, number: u8, events: &SyncSender<(u8, VcpuEvent)>) -> Result<Ends, CreateError> {
        // One command and one reply are under way at most, but for an answer that a hold overtook.
        let (command_sender, commands) = sync_channel(4);
        let (replies, reply_receiver) = sync_channel(4);
        let idle = Idle {
            hold: Arc::clone(&self.hold),
            bus: Arc::clone(&self.bus),
            commands,
            replies,
            events: events.clone(),
            wake: Box::new(EventfdWake(Arc::clone(&self.wake))),
            nice: self.nice,
        };
        std::thread::Builder::new()
            .name(format!("vcpu{number}"))
            .stack_size(VCPU_STACK_BYTES)
            .spawn(move || idle.serve())
            .map_err(|source| CreateError::Thread { vcpu: number, source })?;
        Ok((command_sender, reply_receiver))
    }
}
