//! A machine, as its supervisor knows it.

use crate::lifecycle::{Event, Phase, Refused};
use crate::operation::OperationId;
use ramet_memory::{LayeredMemory, SharedPage, WrittenFlatFile};
use ramet_process::{Exit, SeqPacket};
use ramet_state::MachineState;
use ramet_vmm::protocol::BuildStamps;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

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

/// A machine.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) number: u64,
    pub(crate) parent: u64,
    pub(crate) depth: u32,
    phase: Phase,
    pub(crate) pid: Option<u32>,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) control: SeqPacket,
    pub(crate) page: SharedPage,
    /// Interrupts the guest.
    pub(crate) request: OwnedFd,
    /// The guest rings it when it has answered.
    pub(crate) answer: OwnedFd,
    pub(crate) console: OwnedFd,
    pub(crate) serial: OwnedFd,
    pub(crate) ram: Ram,
    /// Its state, if it is a template.
    pub(crate) template: Option<Box<MachineState>>,
    /// The operation that makes it, until it is built.
    pub(crate) made_by: Option<OperationId>,
    /// Operations that have asked it to freeze, in the order in which it will report.
    pub(crate) freezes: VecDeque<OperationId>,
    pub(crate) stamps: Option<BuildStamps>,
    pub(crate) ending: Ending,
}

/// What a member is made from.
pub(crate) struct Parts {
    pub(crate) number: u64,
    pub(crate) parent: u64,
    pub(crate) depth: u32,
    pub(crate) control: SeqPacket,
    pub(crate) page: SharedPage,
    pub(crate) request: OwnedFd,
    pub(crate) answer: OwnedFd,
    pub(crate) console: OwnedFd,
    pub(crate) serial: OwnedFd,
    pub(crate) made_by: OperationId,
}

impl Member {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            number: parts.number,
            parent: parts.parent,
            depth: parts.depth,
            phase: Phase::Bearing,
            pid: None,
            pidfd: None,
            control: parts.control,
            page: parts.page,
            request: parts.request,
            answer: parts.answer,
            console: parts.console,
            serial: parts.serial,
            ram: Ram::Nothing,
            template: None,
            made_by: Some(parts.made_by),
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
        // A counter that is full has rung already.
        let _already_rung = rustix::io::write(&self.request, &1u64.to_ne_bytes());
    }
}
