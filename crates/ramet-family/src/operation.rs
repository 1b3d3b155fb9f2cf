//! Operations: what is under way in a family, and what it waits for.
//!
//! ```text
//!              children blank?                  parent frozen?
//!   begun ------------------------+---------------------+------> each child: plan, build --> all built or dead: over
//!    outside: freeze is sent at once; a child's plan is sent as soon as the parent is frozen
//!    guest:   permit is sent when all children are blank; refused if one cannot be had
//! ```

use ramet_memory::LayeredMemory;
use ramet_state::MachineState;
use std::collections::BTreeMap;

/// Names an operation.
pub(crate) type OperationId = u64;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The supervisor's owner.
    Outside,
    /// The parent's guest, by its call of this number.
    GuestFork { call: u32 },
    /// A guest that becomes a template, by its call of this number.
    GuestReady { call: u32 },
}

impl Cause {
    /// Whether a guest waits for it.
    pub(crate) fn is_guest(self) -> bool {
        self != Self::Outside
    }
}

/// How far a child is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its process is being born.
    Bearing,
    /// It waits for a state.
    Blank,
    /// It was sent one.
    Building,
    /// It runs, or is held as it should be.
    Built,
    /// It will not be.
    Failed(String),
}

/// A frozen machine that children can be made of.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) state: Box<MachineState>,
    pub(crate) memory: LayeredMemory,
}

/// What is known of the parent's freeze.
#[derive(Clone, Debug)]
pub(crate) enum Freeze {
    /// Not yet asked for (a guest's fork that is not yet permitted).
    NotYet,
    /// Asked for.
    Awaited,
    /// It is there.
    Done(Source),
    /// It will not be.
    Failed(String),
}

/// A fork under way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) parent: u64,
    pub(crate) cause: Cause,
    /// Children are held before their first instruction.
    pub(crate) paused: bool,
    pub(crate) children: BTreeMap<u64, Progress>,
    pub(crate) freeze: Freeze,
    pub(crate) pause_ns: u64,
}

impl Operation {
    /// Whether there is nothing left to wait for.
    pub(crate) fn is_over(&self) -> bool {
        let settled = |progress: &Progress| matches!(progress, Progress::Built | Progress::Failed(_));
        match self.freeze {
            Freeze::NotYet | Freeze::Awaited => false,
            Freeze::Failed(_) | Freeze::Done(_) => self.children.values().all(settled),
        }
    }

    /// Whether a child was not sent its plan yet. One that is still being born finds it when it is.
    pub(crate) fn awaits_plan(&self, number: u64) -> bool {
        matches!(self.children.get(&number), Some(Progress::Bearing | Progress::Blank))
    }

    /// Whether every child is blank, so that a guest's fork can be permitted.
    pub(crate) fn all_blank(&self) -> bool {
        self.children.values().all(|progress| *progress == Progress::Blank)
    }

    /// The first child that cannot be had.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        self.children.values().find_map(|progress| match progress {
            Progress::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
    }
}
