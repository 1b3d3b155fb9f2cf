//! What supervisor, zygote and machine say to each other.
//!
//! Messages are postcard (not the self-describing CBOR of state files: both ends are the same binary, and decoding is on
//! the path of every fork) over SOCK_SEQPACKET sockets, one message a packet, descriptors beside it (SCM_RIGHTS). The
//! supervisor treats what a machine says as hostile: a guest may have taken its monitor over.
//!
//! ```text
//! supervisor --Bear + control socket--> zygote --clone3--> machine
//! supervisor <--Born + pidfd, Died----- zygote
//! supervisor --Birth, Build, Freeze, Permit ...--> machine
//! supervisor <--Blank, Built, Frozen, Ask ... ---- machine
//! ```

use ramet_kvm::HostModel;
use ramet_memory::{DeltaRun, LayerId, PageMap};
use ramet_process::Exit;
use ramet_state::{BuildPlan, MachineState, VmClass};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_bytes::ByteBuf;

/// Longest message in bytes: a state of 8 vCPUs and the runs of a layer of many millions of pages.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// To the zygote, first of all: what is known of this host's KVM.
#[derive(Debug, Serialize, Deserialize)]
pub struct Model {
    /// Learnt by the supervisor, for the CPUID that its machines get.
    pub model: HostModel,
}

/// To the zygote. Beside it travels the machine's end of its control socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bear {
    /// Comes back in the answer.
    pub ticket: u64,
    /// User and group that the machine runs as, where the zygote may choose.
    pub user: u32,
}

/// From the zygote.
#[derive(Debug, Serialize, Deserialize)]
pub enum ZygoteReport {
    /// It is isolated and ready.
    Ready {
        /// Isolations that the host refused: name and errno.
        missing: Vec<(String, i32)>,
    },
    /// It cannot serve.
    Failed {
        /// Why, with advice.
        reason: String,
    },
    /// A process was born; its pidfd travels beside this.
    Born {
        /// From the request.
        ticket: u64,
        /// Process id in the supervisor's namespace.
        pid: u32,
    },
    /// A process could not be born.
    NotBorn {
        /// From the request.
        ticket: u64,
        /// Why, with advice.
        reason: String,
    },
    /// A process ended.
    Died {
        /// Its process id.
        pid: u32,
        /// How.
        exit: Exit,
    },
}

/// Where a machine's RAM comes from.
#[derive(Debug, Serialize, Deserialize)]
pub enum MemorySource {
    /// It founds a family: one writable descriptor, its own flat layer, travels beside the order.
    Founder,
    /// Frozen layers: their read-only descriptors travel beside the order, in the order of `layers`.
    Layers {
        /// What is where.
        map: PageMap,
        /// Which layer each descriptor is.
        layers: Vec<LayerId>,
    },
}

/// To a machine.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// First: make KVM's objects. Beside it: clone page, request eventfd, answer eventfd, console socket, serial
    /// socket, and family memory if the class has some.
    Birth {
        /// What to make.
        class: VmClass,
    },
    /// Become a machine and run. Beside it: see `memory`.
    Build {
        /// What to become.
        plan: Box<BuildPlan>,
        /// Where RAM comes from.
        memory: MemorySource,
        /// 64 bytes that no other machine gets, for the clone page.
        entropy: ByteBuf,
        /// Hold before the first instruction.
        paused: bool,
    },
    /// Freeze what was written, report it and go on; a founder gets a read-only descriptor of its flat layer.
    Freeze,
    /// The guest's fork is granted: freeze, and let it return this number. Descriptor as for `Freeze`.
    Permit {
        /// Which call: from `AskFork` or `AskReady`.
        call: u32,
        /// Number of the first child.
        first: u64,
    },
    /// The guest's call returns this.
    Refuse {
        /// Which call.
        call: u32,
        /// `ramet_abi::guest_port::ERROR_*`.
        code: u32,
    },
    /// What the last freeze handed over was not kept: it belongs to the next one again. A template goes on, and its
    /// guest's call is refused.
    TakeBack,
    /// Hold the vCPUs.
    Pause,
    /// Let them go on.
    Resume,
    /// End the process.
    End,
}

/// Time stamps of a build, as the host's time-stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildStamps {
    /// The process began.
    pub born: u64,
    /// It was confined (user, rights, descriptors).
    pub confined: u64,
    /// KVM's objects existed.
    pub created: u64,
    /// The filter was on and it waited for orders.
    pub blank: u64,
    /// The order to build was received.
    pub ordered: u64,
    /// Memory was mapped.
    pub mapped: u64,
    /// Devices and vCPUs were restored.
    pub restored: u64,
    /// The vCPUs were let go.
    pub released: u64,
    /// What the guest reads is the host's counter plus this (modulo 2^64); `None` if the host does not tell.
    pub tsc_offset: Option<u64>,
}

/// What a freeze found in memory.
#[derive(Debug, Serialize, Deserialize)]
pub enum FrozenMemory {
    /// The founder's flat layer is complete; nothing was copied.
    Flat {
        /// What it has given back since it was booted.
        holes: Vec<DeltaRun>,
    },
    /// What was written since the last freeze; the delta's descriptor travels beside this.
    Delta {
        /// Pages in the delta.
        pages: u64,
        /// What is where.
        runs: Vec<DeltaRun>,
    },
}

/// A frozen machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frozen {
    /// Its state.
    pub state: Box<MachineState>,
    /// What it wrote.
    pub memory: FrozenMemory,
    /// From the first vCPU stopping to the last going on again, in nanoseconds.
    pub pause_ns: u64,
}

/// From a machine.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// KVM's objects exist; it waits for `Build`.
    Blank,
    /// It runs, or is held before its first instruction.
    Built {
        /// When what was done.
        stamps: BuildStamps,
    },
    /// A freeze succeeded.
    Frozen(Frozen),
    /// A freeze failed; the machine goes on unharmed.
    NotFrozen {
        /// Why.
        reason: String,
    },
    /// The guest calls fork().
    AskFork {
        /// Numbers the machine's calls.
        call: u32,
        /// How many children.
        children: u32,
        /// `ramet_abi::guest_port::FORK_*`.
        flags: u32,
    },
    /// The guest is about to become a template: needs the founder's descriptor as for `Order::Freeze`.
    AskReady {
        /// Numbers the machine's calls.
        call: u32,
    },
    /// The guest said done; it is held.
    Done {
        /// Its status.
        status: u32,
    },
    /// The guest set a mark.
    Mark {
        /// Its value.
        value: u32,
        /// Host's time-stamp counter when it did.
        tsc: u64,
    },
    /// The guest rang for another machine.
    Doorbell {
        /// That machine's number.
        number: u64,
    },
    /// The vCPUs are held.
    Paused,
    /// The vCPUs go on.
    Resumed,
    /// The guest asked to end; the process ends after this.
    Exit {
        /// Its status.
        status: u32,
    },
    /// The machine cannot go on; the process ends after this.
    Failed {
        /// What was being done ("create", "build", "run").
        stage: String,
        /// What went wrong and what to do.
        reason: String,
    },
}

/// Why a message could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// It cannot be serialised.
    #[error("Message cannot be encoded: {0}")]
    Encode(String),
    /// It is not a message.
    #[error("Message of {bytes} bytes cannot be decoded: {reason}")]
    Decode {
        /// Its length.
        bytes: usize,
        /// In the decoder's words.
        reason: String,
    },
}

/// Encodes a message.
///
/// # Errors
/// [`MessageError::Encode`].
pub fn to_bytes<T: Serialize>(message: &T) -> Result<Vec<u8>, MessageError> {
    postcard::to_stdvec(message).map_err(|error| MessageError::Encode(error.to_string()))
}

/// Decodes a message.
///
/// # Errors
/// [`MessageError::Decode`].
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let failed = |reason: String| MessageError::Decode { bytes: bytes.len(), reason };
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|error| failed(error.to_string()))?;
    if rest.is_empty() { Ok(message) } else { Err(failed(format!("{} bytes are left over", rest.len()))) }
}
