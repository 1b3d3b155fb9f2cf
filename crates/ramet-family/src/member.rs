//! A machine, as its supervisor knows it.

use crate::family::Terminal;
use crate::lifecycle::{Event, Phase, Refused};
use crate::operation::OperationId;
use ramet_memory::{LayeredMemory, SharedPage, WrittenFlatFile};
use ramet_process::{Exit, SendError, SeqPacket};
use ramet_state::MachineState;
use ramet_vmm::protocol::{BuildStamps, MessageError, Order, to_bytes};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A machine's RAM, as far as it is known.
#[derive(Debug)]
pub(crate) enum Ram {
    /// It runs on a flat layer of its own, which nobody else may see yet.
    Founder(WrittenFlatFile),
    /// It was built on, or was last frozen as, these layers.
    Layered(LayeredMemory),
    /// Not built yet, or dead.
    Nothing,
}

/// Why a member is no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// What its guest gave as exit status.
    pub(crate) status: Option<u32>,
    /// What its process said before it ended.
    pub(crate) failure: Option<String>,
    /// How its process ended.
    pub(crate) exit: Option<Exit>,
}

/// What leads to a machine's process.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) pidfd: Option<OwnedFd>,
    /// Never waits: a machine that does not read its orders is given up.
    pub(crate) control: SeqPacket,
    pub(crate) page: SharedPage,
    /// Interrupts the guest.
    pub(crate) request: OwnedFd,
    /// The guest rings it when it has answered. Never read: its edges are events, and the page says the rest.
    pub(crate) answer: OwnedFd,
    pub(crate) console: OwnedFd,
    pub(crate) serial: OwnedFd,
}

impl Links {
    /// Sends an order.
    pub(crate) fn send(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> Result<(), OrderError> {
        let bytes = to_bytes(order).map_err(OrderError::Message)?;
        self.control.send(&bytes, descriptors).map_err(OrderError::Send)
    }

    /// A terminal's socket.
    pub(crate) fn terminal(&self, terminal: Terminal) -> &OwnedFd {
        match terminal {
            Terminal::Console => &self.console,
            Terminal::Serial => &self.serial,
        }
    }
}

/// Why an order did not go out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error("The order cannot be written")]
    Message(#[source] MessageError),
    #[error("The order cannot be sent")]
    Send(#[source] SendError),
}

/// A machine.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) number: u64,
    pub(crate) parent: u64,
    pub(crate) depth: u32,
    phase: Phase,
    pub(crate) pid: Option<u32>,
    /// `None` when it is dead: what is kept of the dead costs no descriptor.
    pub(crate) links: Option<Links>,
    pub(crate) ram: Ram,
    /// Its state, if it is a template.
    pub(crate) template: Option<Box<MachineState>>,
    /// The operation that makes it, until it is built.
    pub(crate) made_by: Option<OperationId>,
    /// It is to be killed as soon as its process is known.
    pub(crate) doomed: bool,
    /// Calls of its guest that wait for an answer.
    pub(crate) asked: u32,
    /// Why it cannot be forked any more: a freeze of it was refused, so that what it wrote until then is in no layer.
    pub(crate) unforkable: Option<String>,
    /// Operations that have asked it to freeze, in the order in which it will report.
    pub(crate) freezes: VecDeque<OperationId>,
    pub(crate) stamps: Option<BuildStamps>,
    pub(crate) ending: Ending,
}

impl Member {
    pub(crate) fn new(number: u64, parent: u64, depth: u32, links: Links, made_by: OperationId) -> Self {
        Self {
            number,
            parent,
            depth,
            phase: Phase::Bearing,
            pid: None,
            links: Some(links),
            ram: Ram::Nothing,
            template: None,
            made_by: Some(made_by),
            doomed: false,
            asked: 0,
            unforkable: None,
            freezes: VecDeque::new(),
            stamps: None,
            ending: Ending::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The only way in which a phase changes.
    pub(crate) fn apply(&mut self, event: Event) -> Result<(), Refused> {
        self.phase = self.phase.after(event)?;
        Ok(())
    }

    /// Interrupts the guest so that it looks at its clone page.
    pub(crate) fn ring(&self) {
        if let Some(links) = &self.links {
            // A counter that is full has rung already.
            let _already_rung = rustix::io::write(&links.request, &1u64.to_ne_bytes());
        }
    }
}
