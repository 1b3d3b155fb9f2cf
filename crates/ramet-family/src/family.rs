//! The family itself: what it owns, how it starts, its event loop.

use crate::cgroup::Cgroup;
use crate::lifecycle::Phase;
use crate::member::Member;
use crate::operation::{Operation, OperationId};
use crate::quota::{Limits, Quota};
use crate::{ZYGOTE_ARGUMENT, describe};
use ramet_kvm::{HostModel, Kvm, ModelError, OpenError};
use ramet_memory::{LayerStore, StoreConfig};
use ramet_process::limits::raise_descriptor_limit;
use ramet_process::{Exit, SeqPacket, Zygote, ZygoteError};
use ramet_state::{CpuidEntry, VmClass};
use ramet_vmm::protocol::{Model, to_bytes};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a family is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program that is executed as the zygote, with [`ZYGOTE_ARGUMENT`].
    pub program: PathBuf,
    /// How many machines, and what guests may do by themselves.
    pub limits: Limits,
    /// Most bytes that memory layers may take; `None`: as much as the host has.
    pub layer_limit_bytes: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self { program: PathBuf::from("/proc/self/exe"), limits: Limits::default(), layer_limit_bytes: None }
    }
}

/// Why a family could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// KVM.
    #[error("KVM cannot be used: run \"ramet doctor\"")]
    Kvm(#[source] OpenError),
    /// Its CPUID.
    #[error("KVM does not say what guests may see of the processor")]
    Cpuid(#[source] ramet_kvm::CpuidError),
    /// What its vCPUs are like.
    #[error("KVM does not run a machine: run \"ramet doctor\"")]
    Model(#[source] ModelError),
    /// The zygote.
    #[error("The zygote cannot be started")]
    Zygote(#[source] ZygoteError),
    /// The zygote is not as expected.
    #[error("The zygote does not answer as it should: {reason}")]
    Protocol {
        /// What was wrong.
        reason: String,
    },
    /// No epoll.
    #[error("No event queue can be had: raise the limit of open files (ulimit -n)")]
    Epoll(#[source] Errno),
}

/// Where console bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The virtio console.
    Console,
    /// The serial device.
    Serial,
}

/// What a family reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyEvent {
    /// A guest wrote to its console.
    Output {
        /// Machine.
        number: u64,
        /// Which device.
        terminal: Terminal,
        /// What.
        bytes: Vec<u8>,
    },
    /// A guest has forked itself.
    GuestForked {
        /// The parent.
        parent: u64,
        /// Its children, first and count.
        first: u64,
        /// How many.
        children: u32,
    },
    /// A guest's fork was refused.
    GuestForkRefused {
        /// The parent.
        parent: u64,
        /// Why.
        reason: String,
    },
    /// A guest became a template.
    Ready {
        /// Machine.
        number: u64,
    },
    /// A guest said done and is held.
    Done {
        /// Machine.
        number: u64,
        /// Its status.
        status: u32,
    },
    /// A guest set a mark.
    Mark {
        /// Machine.
        number: u64,
        /// Its value.
        value: u32,
        /// Host's time-stamp counter.
        tsc: u64,
    },
    /// A machine ended.
    Ended {
        /// Machine.
        number: u64,
        /// What its guest gave as exit status.
        status: Option<u32>,
        /// What its process said went wrong.
        failure: Option<String>,
        /// How its process ended.
        exit: Option<Exit>,
    },
}

/// What can be known of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Number in the family.
    pub number: u64,
    /// Its parent's; its own for the founder.
    pub parent: u64,
    /// Forks from the founder.
    pub depth: u32,
    /// Its process, if it has one.
    pub pid: Option<u32>,
    /// Where it is in its life.
    pub phase: Phase,
}

/// What an epoll event belongs to: the low 3 bits; the rest is the member's number.
pub(crate) mod token {
    pub(crate) const ZYGOTE: u64 = 0;
    pub(crate) const CONTROL: u64 = 1;
    pub(crate) const ANSWER: u64 = 2;
    pub(crate) const CONSOLE: u64 = 3;
    pub(crate) const SERIAL: u64 = 4;
    pub(crate) const BITS: u32 = 3;
}

/// Doorbells for machines that are not born yet, at most.
pub(crate) const MAX_EARLY_DOORBELLS: u64 = 4096;
/// Events that wait to be taken, at most, and bytes of consoles among them: a guest that talks while nobody listens must
/// not fill the supervisor's memory. What comes beyond is dropped, but for the ends of machines.
pub(crate) const MAX_EVENTS: usize = 1 << 16;
pub(crate) const MAX_OUTPUT_BYTES: usize = 4 << 20;

/// A family of machines.
#[derive(Debug)]
pub struct Family {
    pub(crate) zygote: Zygote,
    pub(crate) cpuid: Vec<CpuidEntry>,
    pub(crate) store: LayerStore,
    pub(crate) quota: Quota,
    pub(crate) members: BTreeMap<u64, Member>,
    /// The founder's, and so everybody's.
    pub(crate) class: Option<Arc<VmClass>>,
    pub(crate) numbers_by_pid: BTreeMap<u32, u64>,
    pub(crate) next_number: u64,
    pub(crate) operations: BTreeMap<OperationId, Operation>,
    pub(crate) next_operation: OperationId,
    pub(crate) events: VecDeque<FamilyEvent>,
    output_bytes: usize,
    /// A descriptor to give up, so that one that the zygote sends always finds room.
    pub(crate) spare: Option<OwnedFd>,
    pub(crate) early_doorbells: BTreeSet<u64>,
    pub(crate) family_memory: Option<OwnedFd>,
    pub(crate) epoll: OwnedFd,
    cgroup: Option<Cgroup>,
    /// Isolations that the host refused; `None` until the zygote has said so.
    pub(crate) missing: Option<Vec<(String, i32)>>,
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn send_model(socket: &SeqPacket, model: HostModel) -> Result<(), StartError> {
    let protocol = |reason: String| StartError::Protocol { reason };
    let bytes = to_bytes(&Model { model }).map_err(|error| protocol(describe(&error)))?;
    socket.send(&bytes, &[]).map_err(|error| protocol(describe(&error)))
}

impl Family {
    /// Starts a family: its zygote, and a place for its layers.
    ///
    /// # Errors
    /// [`StartError`] says what the host lacks and what to do.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let kvm = Kvm::open().map_err(StartError::Kvm)?;
        let zygote = Zygote::spawn(&config.program, &[OsStr::new(ZYGOTE_ARGUMENT)]).map_err(StartError::Zygote)?;
        // Learnt while the zygote starts.
        let cpuid = ramet_kvm::host_cpuid(&kvm).map_err(StartError::Cpuid)?;
        let model = HostModel::learn(&kvm, &cpuid).map_err(StartError::Model)?;
        send_model(&zygote.socket, model)?;
        let nonblocking = |error| StartError::Protocol { reason: describe(&error) };
        zygote.socket.set_nonblocking(true).map_err(nonblocking)?;
        // A low limit is an error only when it is met; the message then says what to do.
        if let Err(error) = raise_descriptor_limit() {
            tracing::warn!(error = describe(&error), "the limit of open files stays low");
        }
        let store = LayerStore::open(StoreConfig { limit_bytes: config.layer_limit_bytes });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(StartError::Epoll)?;
        let data = epoll::EventData::new_u64(token::ZYGOTE);
        epoll::add(&epoll, zygote.socket.as_fd(), data, epoll::EventFlags::IN).map_err(StartError::Epoll)?;
        Ok(Self {
            zygote,
            cpuid,
            store,
            quota: Quota::new(config.limits, now_ns()),
            members: BTreeMap::new(),
            class: None,
            numbers_by_pid: BTreeMap::new(),
            next_number: 0,
            operations: BTreeMap::new(),
            next_operation: 0,
            events: VecDeque::new(),
            output_bytes: 0,
            spare: None,
            early_doorbells: BTreeSet::new(),
            family_memory: None,
            epoll,
            missing: None,
            cgroup: None,
        })
    }

    /// Isolations that the host refused, with their errno; empty where machines are fully isolated. Known once a
    /// machine has been booted.
    pub fn missing_isolations(&self) -> Option<&[(String, i32)]> {
        self.missing.as_deref()
    }

    /// Where layers are kept, and why not in huge pages if they are not.
    pub fn backing(&self) -> ramet_memory::Backing {
        self.store.backing()
    }

    /// All machines that live, and those that died and were not forgotten.
    pub fn members(&self) -> impl Iterator<Item = MemberInfo> + '_ {
        self.members.values().map(|member| MemberInfo {
            number: member.number,
            parent: member.parent,
            depth: member.depth,
            pid: member.pid,
            phase: member.phase(),
        })
    }

    /// Process id of the zygote.
    pub fn zygote_pid(&self) -> u32 {
        self.zygote.process.id()
    }

    /// Makes a control group, in which all machines are born from now on, and which they are charged to. The zygote is
    /// moved into it, for which the kernel waits for an RCU grace period (some 20 ms): later than the founder's boot,
    /// which should not wait for that, and before a first fork.
    ///
    /// # Errors
    /// The errno of what was refused; it takes the right to make control groups, as root has it.
    pub fn join_cgroup(&mut self) -> std::io::Result<()> {
        if self.cgroup.is_none() {
            self.cgroup = Some(Cgroup::new(self.zygote.process.id())?);
        }
        Ok(())
    }

    /// What the zygote and all machines born since [`Self::join_cgroup`] cost together, in bytes, the kernel's share and the layers that they touched
    /// included; `None` where the family has no control group.
    pub fn charged_bytes(&self) -> Option<u64> {
        self.cgroup.as_ref().and_then(Cgroup::usage_bytes)
    }

    /// Directory of the family's control group.
    pub fn cgroup(&self) -> Option<&std::path::Path> {
        self.cgroup.as_ref().map(Cgroup::directory)
    }

    /// A descriptor that is readable when [`Self::step`] has something to do.
    pub fn event_descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The oldest event that was not yet taken. Take them: beyond some thousands, what guests say is dropped.
    pub fn next_event(&mut self) -> Option<FamilyEvent> {
        let event = self.events.pop_front();
        if let Some(FamilyEvent::Output { bytes, .. }) = &event {
            self.output_bytes = self.output_bytes.saturating_sub(bytes.len());
        }
        event
    }

    /// Keeps an event that a guest has caused, if there is room for it.
    pub(crate) fn tell(&mut self, event: FamilyEvent) {
        let bytes = if let FamilyEvent::Output { bytes, .. } = &event { bytes.len() } else { 0 };
        if self.events.len() < MAX_EVENTS && self.output_bytes + bytes <= MAX_OUTPUT_BYTES {
            self.output_bytes += bytes;
            self.events.push_back(event);
        }
    }

    pub(crate) fn alive(&self) -> u32 {
        let alive = self.members.values().filter(|member| member.phase() != Phase::Dead).count();
        u32::try_from(alive).unwrap_or(u32::MAX)
    }

    /// Serves what has happened, or waits for it at most this long. False if nothing happened.
    pub fn step(&mut self, timeout: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut ready = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "events cannot be waited for");
                return false;
            }
        }
        let happened = !ready.is_empty();
        for event in ready {
            let data = event.data.u64();
            let (kind, number) = (data & ((1 << token::BITS) - 1), data >> token::BITS);
            match kind {
                token::ZYGOTE => self.take_zygote_report(),
                token::CONTROL => self.take_report(number),
                // The page says what there is; whoever waits for it looks.
                token::ANSWER => {}
                token::CONSOLE => self.take_output(number, Terminal::Console),
                token::SERIAL => self.take_output(number, Terminal::Serial),
                _ => {}
            }
        }
        happened
    }
}
