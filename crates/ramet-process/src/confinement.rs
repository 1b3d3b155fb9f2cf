//! Taking every right from a fresh machine process, before it makes its KVM objects.
//!
//! The order is forced by the kernel: files are reopened while the process still may; the bounding set is emptied
//! while it has CAP_SETPCAP; the ids change before the capabilities go; a change of ids resets the parent-death signal
//! and the dumpable flag, so these come last.
//!
//! Deliberately absent: the system call filter ([`crate::seccomp`]), which comes when the vCPU threads exist.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::host::HostDescriptors;
use crate::sys::{self, MaskChange, SignalSet};

/// The ids that a machine process changes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// User id; not 0, and used by nothing else on the host.
    pub uid: u32,
    /// Group id; not 0.
    pub gid: u32,
}

/// What a machine process keeps; it loses everything else.
#[derive(Debug, Clone, Copy)]
pub struct Confinement<'a> {
    /// The host's files, for reopening /dev/null; closed with the rest unless kept.
    pub host: &'a HostDescriptors,
    /// The pidfd of the zygote: when it ends, even before this call, the machine is killed.
    pub parent: BorrowedFd<'a>,
    /// The ids to change to; `None` keeps the present ones, where the process has no right to change them.
    pub credentials: Option<Credentials>,
    /// The descriptors that stay open. All others are closed, whoever in this process owns them.
    pub keep: &'a [BorrowedFd<'a>],
    /// The most descriptors that the machine may have open (RLIMIT_NOFILE), unless it may have fewer already.
    pub descriptor_limit: u64,
}

/// A step of [`Confinement::apply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Standard input, output and error become /dev/null.
    StandardDescriptors,
    /// Other descriptors are closed.
    CloseDescriptors,
    /// Signals are unblocked.
    SignalMask,
    /// Resource limits.
    ResourceLimits,
    /// The capability bounding and ambient sets are emptied.
    BoundingSet,
    /// Supplementary groups, group and user ids.
    Ids,
    /// The effective, permitted and inheritable capabilities go.
    Capabilities,
    /// no_new_privs.
    NoNewPrivileges,
    /// The machine dies with the zygote.
    ParentDeath,
    /// No core dump, no tracing by the same user.
    NotDumpable,
}

/// Why a process could not be confined. It must not go on: end it.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// A step was refused.
    #[error("Confining the machine process failed at the step {step:?}")]
    Step {
        /// The step.
        step: Step,
        /// Its error.
        source: Errno,
    },
    /// Running a machine as root is not confinement.
    #[error("A machine process cannot run with uid {uid} and gid {gid}: neither may be 0")]
    Root {
        /// The uid asked for.
        uid: u32,
        /// The gid asked for.
        gid: u32,
    },
    /// The zygote was already gone.
    #[error("The zygote ended before its machine was confined")]
    ParentGone,
}

fn at(step: Step) -> impl FnOnce(Errno) -> ConfinementError {
    move |source| ConfinementError::Step { step, source }
}

impl Confinement<'_> {
    /// Confines the calling process, a fresh child of the zygote with one thread.
    ///
    /// Afterwards only 0, 1, 2 (/dev/null) and `keep` are open. Values that own other descriptors must not be used or
    /// dropped any more; a child that never returns from its fork and ends by [`crate::exit_now`] drops none.
    pub fn apply(&self) -> Result<(), ConfinementError> {
        if let Some(Credentials { uid, gid }) = self.credentials
            && (uid == 0 || gid == 0)
        {
            return Err(ConfinementError::Root { uid, gid });
        }
        self.replace_standard_descriptors().map_err(at(Step::StandardDescriptors))?;
        let parent = self.parent.as_raw_fd();
        sys::close_all_except(self.keep.iter().map(|fd| fd.as_raw_fd()).chain([parent]))
            .map_err(at(Step::CloseDescriptors))?;
        umask(rustix::fs::Mode::from_raw_mode(0o077));
        sys::change_signal_mask(MaskChange::Set, &SignalSet::new(&[])).map_err(at(Step::SignalMask))?;
        self.set_resource_limits().map_err(at(Step::ResourceLimits))?;
        empty_bounding_and_ambient_sets().map_err(at(Step::BoundingSet))?;
        self.change_ids().map_err(at(Step::Ids))?;
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .map_err(at(Step::Capabilities))?;
        set_no_new_privs(true).map_err(at(Step::NoNewPrivileges))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at(Step::NotDumpable))?;
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::ParentDeath))?;
        // The signal is sent only for a death that comes after the request for it.
        if crate::signals::has_ended(self.parent).map_err(at(Step::ParentDeath))? {
            return Err(ConfinementError::ParentGone);
        }
        if self.keep.iter().any(|fd| fd.as_raw_fd() == parent) {
            return Ok(());
        }
        sys::close_one(parent).map_err(at(Step::CloseDescriptors))
    }

    fn replace_standard_descriptors(&self) -> Result<(), Errno> {
        let null = self.host.open_null()?;
        for target in 0..=2 {
            sys::replace_standard_descriptor(null.as_fd(), target)?;
        }
        // Where a standard descriptor was closed, `null` may itself be one now: leave it open then.
        if null.as_raw_fd() <= 2 {
            std::mem::forget(null);
        }
        Ok(())
    }

    fn set_resource_limits(&self) -> Result<(), Errno> {
        let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(Resource::Core, both(0))?;
        setrlimit(Resource::Msgqueue, both(0))?;
        match setrlimit(Resource::Nofile, both(self.descriptor_limit)) {
            // What the process was given is less than that, and stays.
            Err(Errno::PERM) => match getrlimit(Resource::Nofile).maximum {
                Some(hard) if hard < self.descriptor_limit => setrlimit(Resource::Nofile, both(hard)),
                _ => Err(Errno::PERM),
            },
            outcome => outcome,
        }
    }

    fn change_ids(&self) -> Result<(), Errno> {
        let Some(Credentials { uid, gid }) = self.credentials else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }
}

/// EPERM means that the process never had CAP_SETPCAP: its bounding set can then only matter at an exec, which
/// no_new_privs makes harmless.
fn empty_bounding_and_ambient_sets() -> Result<(), Errno> {
    clear_ambient_capability_set()?;
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
