//! A part with all its resources, and the host's end of them.

use ramet_abi::clone_page::ENTROPY_BYTES;
use ramet_abi::layout::{CLONE_PAGE_BASE, PAGE_BYTES};
use ramet_devices::{
    BuildPartError, BuiltPart, Counter, GuestCall, Interrupt, MachineIdentity, PartResources, Resource, build_part,
    role,
};
use ramet_state::{Identity, PartState};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Bytes of RAM in a rig, from address 0.
pub const RAM_BYTES: usize = 256 << 10;

/// Most rounds of events until a part must have come to rest.
const ROUNDS_TO_REST: u32 = 4096;

/// An interrupt that counts.
#[derive(Debug, Default)]
pub struct CountingInterrupt {
    raised: AtomicU64,
}

impl CountingInterrupt {
    /// How often it was raised.
    pub fn count(&self) -> u64 {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Interrupt for CountingInterrupt {
    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything about a rig that its part could change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The part's state.
    pub state: PartState,
    /// RAM, then the clone page.
    pub memory: Vec<u8>,
    /// What waits for the host in the console's socket.
    pub output: Vec<u8>,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Whether the doorbell has been rung.
    pub doorbell: bool,
    /// What the part counts.
    pub counters: Vec<Counter>,
}

/// A part with its resources.
pub struct Rig {
    /// The part.
    pub part: BuiltPart,
    /// Its machine's memory.
    pub memory: GuestMemoryMmap,
    /// Its interrupt.
    pub interrupt: Arc<CountingInterrupt>,
    /// Who its machine is.
    pub identity: MachineIdentity,
    /// Guest calls since they were last taken.
    pub calls: Vec<GuestCall>,
    /// The host's end of its console; `None` after [`Rig::hang_up`].
    host: Option<OwnedFd>,
    doorbell: Arc<OwnedFd>,
}

/// Guest memory: RAM and the clone page, all zero.
pub fn new_memory() -> GuestMemoryMmap {
    let clone_page_bytes = usize::try_from(PAGE_BYTES).expect("a page fits");
    let ranges = [(GuestAddress(0), RAM_BYTES), (GuestAddress(CLONE_PAGE_BASE), clone_page_bytes)];
    GuestMemoryMmap::from_ranges(&ranges).expect("the host has memory for a rig")
}

/// The identity of machine `number`.
pub fn identity(number: u64) -> MachineIdentity {
    let byte = u8::try_from(number % 255).expect("less than 255") + 1;
    MachineIdentity {
        identity: Identity {
            number,
            parent: number.saturating_sub(1),
            depth: u32::try_from(number).unwrap_or(u32::MAX),
            generation: [byte; 16],
            generation_counter: u32::try_from(number).unwrap_or(u32::MAX),
        },
        vcpus: 1,
        wall_offset_ns: -7,
        family_bytes: 0,
        entropy: [byte ^ 0x55; ENTROPY_BYTES],
    }
}

impl Rig {
    /// Builds a part on `memory` with new resources; it is quiesced.
    ///
    /// # Errors
    /// What [`build_part`] says.
    pub fn build(
        state: &PartState,
        memory: GuestMemoryMmap,
        identity: MachineIdentity,
    ) -> Result<Self, BuildPartError> {
        let (host, ours) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)
            .expect("the host has descriptors for a rig");
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let doorbell = Arc::new(eventfd(0, flags).expect("the host has descriptors for a rig"));
        let interrupt = Arc::new(CountingInterrupt::default());
        let resources = PartResources::new(memory.clone())
            .with(role::INTERRUPT, Resource::Interrupt(interrupt.clone()))
            .with(role::DOORBELL, Resource::Doorbell(doorbell.clone()))
            .with(role::CONSOLE, Resource::Stream(Arc::new(ours)))
            .with(role::IDENTITY, Resource::Identity(Box::new(identity.clone())));
        let part = build_part(state, resources)?;
        Ok(Self { part, memory, interrupt, identity, calls: Vec::new(), host: Some(host), doorbell })
    }

    /// A part at power-on, running.
    pub fn boot(state: &PartState) -> Self {
        let mut rig = Self::build(state, new_memory(), identity(0)).expect("a power-on state is valid");
        rig.part.part_mut().resume();
        rig.rest();
        rig
    }

    /// What a fork makes of this rig: the same state and a copy of RAM, everything else new. It is quiesced, and so
    /// must this one be.
    pub fn fork(&self) -> Self {
        let memory = new_memory();
        let ram = self.ram();
        memory.write_slice(&ram, GuestAddress(0)).expect("RAM is as large");
        let identity = identity(self.identity.identity.number + 1);
        Self::build(&self.part.part().save(), memory, identity).expect("a saved state is valid")
    }

    /// A copy of RAM.
    pub fn ram(&self) -> Vec<u8> {
        let mut ram = vec![0; RAM_BYTES];
        self.memory.read_slice(&mut ram, GuestAddress(0)).expect("RAM starts at 0");
        ram
    }

    /// A copy of the clone page.
    pub fn clone_page(&self) -> Vec<u8> {
        let mut page = vec![0; usize::try_from(PAGE_BYTES).expect("a page fits")];
        self.memory.read_slice(&mut page, GuestAddress(CLONE_PAGE_BASE)).expect("a rig has a clone page");
        page
    }

    /// A guest's read of `data.len()` bytes.
    pub fn read_bytes(&mut self, offset: u64, data: &mut [u8]) {
        match &mut self.part {
            BuiltPart::Mmio(part) => part.mmio_read(offset, data),
            BuiltPart::Port(part) => part.port_read((offset & 0xFFFF) as u16, data),
            BuiltPart::GuestPort(part) => self.calls.extend(part.read((offset & 0xFFFF) as u16, data)),
            BuiltPart::ClonePage(_) => {
                let address = GuestAddress(CLONE_PAGE_BASE + offset % PAGE_BYTES);
                // An access across the end of the page goes elsewhere.
                let _ = self.memory.read(data, address);
            }
        }
    }

    /// A guest's write.
    pub fn write_bytes(&mut self, offset: u64, data: &[u8]) {
        match &mut self.part {
            BuiltPart::Mmio(part) => part.mmio_write(offset, data),
            BuiltPart::Port(part) => part.port_write((offset & 0xFFFF) as u16, data),
            BuiltPart::GuestPort(part) => self.calls.extend(part.write((offset & 0xFFFF) as u16, data)),
            BuiltPart::ClonePage(_) => {
                let address = GuestAddress(CLONE_PAGE_BASE + offset % PAGE_BYTES);
                // An access across the end of the page goes elsewhere.
                let _ = self.memory.write(data, address);
            }
        }
    }

    /// A guest's read of 8 bits.
    pub fn read_u8(&mut self, offset: u64) -> u8 {
        let mut data = [0xA5];
        self.read_bytes(offset, &mut data);
        data[0]
    }

    /// A guest's read of 32 bits.
    pub fn read_u32(&mut self, offset: u64) -> u32 {
        let mut data = [0xA5; 4];
        self.read_bytes(offset, &mut data);
        u32::from_le_bytes(data)
    }

    /// A guest's write of 8 bits.
    pub fn write_u8(&mut self, offset: u64, value: u8) {
        self.write_bytes(offset, &[value]);
    }

    /// A guest's write of 32 bits.
    pub fn write_u32(&mut self, offset: u64, value: u32) {
        self.write_bytes(offset, &value.to_le_bytes());
    }

    /// Whether the doorbell has been rung and not answered.
    pub fn is_doorbell_rung(&self) -> bool {
        let mut poll_fds = [PollFd::new(&*self.doorbell, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut poll_fds, Some(&at_once)).expect("a doorbell can be polled") > 0
    }

    /// Rings the doorbell, as the ioeventfd of a notify register does.
    pub fn ring_doorbell(&self) {
        rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes()).expect("a doorbell can be rung");
    }

    /// One event of every source. Those of a socket may be spurious, as in any event loop.
    pub fn step(&mut self) {
        let part = self.part.part_mut();
        let tokens: Vec<(u32, bool)> = part
            .event_sources()
            .iter()
            .map(|source| (source.token, source.fd.as_raw_fd() == self.doorbell.as_raw_fd()))
            .collect();
        for (token, is_doorbell) in tokens {
            if !is_doorbell || self.is_doorbell_rung() {
                self.part.part_mut().on_event(token);
            }
        }
    }

    /// Runs the event loop until the doorbell stays quiet, but not for ever; says whether it did.
    pub fn try_rest(&mut self) -> bool {
        for _ in 0..ROUNDS_TO_REST {
            self.step();
            if !self.is_doorbell_rung() {
                return true;
            }
        }
        false
    }

    /// Runs the event loop until there is nothing more to do.
    ///
    /// # Panics
    /// If the part never comes to rest.
    pub fn rest(&mut self) {
        assert!(self.try_rest(), "{:?} does not come to rest", self.part);
    }

    /// Takes what the part has sent to the host.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.receive(RecvFlags::DONTWAIT)
    }

    fn receive(&self, flags: RecvFlags) -> Vec<u8> {
        let mut output = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        let Some(host) = &self.host else { return output };
        while let Ok((count, _)) = recv(host, &mut buffer[..], flags) {
            output.extend_from_slice(&buffer[..count]);
            if count == 0 || flags.contains(RecvFlags::PEEK) {
                break;
            }
        }
        output
    }

    /// Sends to the part; returns how much the socket took.
    pub fn send_input(&mut self, bytes: &[u8]) -> usize {
        let host = self.host.as_ref().expect("the host has not hung up");
        send(host, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0)
    }

    /// Closes the host's end of the console.
    pub fn hang_up(&mut self) {
        self.host = None;
    }

    /// One of the part's counters.
    ///
    /// # Panics
    /// If it has none of this name.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.part.part().counters();
        counters.iter().find(|counter| counter.name == name).expect("the part has this counter").value
    }

    /// Everything that the part could have changed.
    pub fn observe(&self) -> Observation {
        let mut memory = self.ram();
        memory.extend(self.clone_page());
        Observation {
            state: self.part.part().save(),
            memory,
            output: self.receive(RecvFlags::DONTWAIT | RecvFlags::PEEK),
            interrupts: self.interrupt.count(),
            doorbell: self.is_doorbell_rung(),
            counters: self.part.part().counters(),
        }
    }
}
