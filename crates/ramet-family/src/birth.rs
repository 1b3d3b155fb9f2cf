//! Bearing machines: a blank process with its descriptors.

use crate::boot::MAKE_TIMEOUT;
use crate::family::{Family, token};
use crate::lifecycle::Event;
use crate::member::{Links, Member, OrderError};
use crate::operation::OperationId;
use ramet_abi::layout::PAGE_BYTES;
use ramet_memory::{SealedMemfdError, SharedPage, SharedPageError, create_sealed_memfd};
use ramet_process::{SendError, SeqPacket};
use ramet_state::VmClass;
use ramet_vmm::protocol::{Bear, MessageError, Order, to_bytes};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// First user id of machines; machine n of any family runs as this plus n modulo [`USERS`].
const FIRST_USER: u32 = 0x5241_0000;
/// How many user ids there are.
const USERS: u64 = 0x1_0000;

/// Why a machine could not be borne.
#[derive(Debug, thiserror::Error)]
pub enum BearError {
    /// A socket or eventfd of the supervisor.
    #[error("No descriptor left for machine {number}{}", advice(*source))]
    Descriptor {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Its control socket.
    #[error("No control socket for machine {number}: raise the limit of open files (ulimit -n)")]
    Control {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: ramet_process::socket::SocketError,
    },
    /// Its clone page.
    #[error("No clone page for machine {number}")]
    PageMemory {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: SealedMemfdError,
    },
    /// Its clone page cannot be mapped.
    #[error("The clone page of machine {number} cannot be mapped")]
    PageMapping {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: SharedPageError,
    },
    /// The zygote or the machine cannot be told.
    #[error("Machine {number} cannot be asked for")]
    Send {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: SendError,
    },
    /// A message.
    #[error("The request for machine {number} cannot be written")]
    Message {
        /// Machine.
        number: u64,
        /// Why.
        #[source]
        source: MessageError,
    },
}

fn advice(errno: Errno) -> String {
    ramet_process::limits::advise(errno).map(|advice| format!(": {advice}")).unwrap_or_default()
}

/// The machine's ends of what it shares with its supervisor.
struct Theirs {
    page: OwnedFd,
    console: OwnedFd,
    serial: OwnedFd,
}

fn stream() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn new_eventfd() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

impl Family {
    /// Sends for a blank machine and registers it as a member that is being born.
    pub(crate) fn bear(
        &mut self,
        number: u64,
        parent: u64,
        depth: u32,
        class: &VmClass,
        made_by: OperationId,
    ) -> Result<(), BearError> {
        let descriptor = |source| BearError::Descriptor { number, source };
        let (control, machine_control) = SeqPacket::pair().map_err(|source| BearError::Control { number, source })?;
        control.set_nonblocking(true).map_err(|source| BearError::Control { number, source })?;
        // The process is born while the rest is made; should that fail, it ends with its control socket.
        self.ask_zygote(number, machine_control)?;
        let page = create_sealed_memfd(PAGE_BYTES).map_err(|source| BearError::PageMemory { number, source })?;
        let mapped =
            SharedPage::map(page.as_fd(), PAGE_BYTES).map_err(|source| BearError::PageMapping { number, source })?;
        let (console, machine_console) = stream().map_err(descriptor)?;
        let (serial, machine_serial) = stream().map_err(descriptor)?;
        let (request, answer) = (new_eventfd().map_err(descriptor)?, new_eventfd().map_err(descriptor)?);
        let links = Links { pidfd: None, control, page: mapped, request, answer, console, serial };
        let theirs = Theirs { page, console: machine_console, serial: machine_serial };
        self.send_birth(number, &links, class, &theirs)?;
        self.watch(number, &links).map_err(descriptor)?;
        let member = Member::new(number, parent, depth, links, made_by);
        if self.early_doorbells.remove(&number) {
            member.ring();
        }
        self.members.insert(number, member);
        Ok(())
    }

    /// The zygote reads one request at a time and reports each birth: while its queue is full, its reports are taken.
    fn ask_zygote(&mut self, number: u64, machine_control: SeqPacket) -> Result<(), BearError> {
        let user = FIRST_USER + u32::try_from(number % USERS).unwrap_or(0);
        let bytes = to_bytes(&Bear { ticket: number, user }).map_err(|source| BearError::Message { number, source })?;
        let control = machine_control.into_fd();
        let deadline = Instant::now() + MAKE_TIMEOUT;
        loop {
            match self.zygote.socket.send(&bytes, &[control.as_fd()]) {
                Ok(()) => return Ok(()),
                Err(SendError::NotReady) if Instant::now() < deadline => {
                    self.take_zygote_report();
                    std::thread::yield_now();
                }
                Err(source) => return Err(BearError::Send { number, source }),
            }
        }
    }

    /// Goes out before the process exists: it finds the order when it begins to read.
    fn send_birth(&self, number: u64, links: &Links, class: &VmClass, theirs: &Theirs) -> Result<(), BearError> {
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![
            theirs.page.as_fd(),
            links.request.as_fd(),
            links.answer.as_fd(),
            theirs.console.as_fd(),
            theirs.serial.as_fd(),
        ];
        if class.family_bytes > 0
            && let Some(memory) = &self.family_memory
        {
            descriptors.push(memory.as_fd());
        }
        let order = Order::Birth { class: class.clone() };
        match links.send(&order, &descriptors) {
            // It could not be born, or has died already: the zygote's report is on its way, and says why.
            Ok(()) | Err(OrderError::Send(SendError::PeerGone(_))) => Ok(()),
            Err(OrderError::Message(source)) => Err(BearError::Message { number, source }),
            Err(OrderError::Send(source)) => Err(BearError::Send { number, source }),
        }
    }

    fn watch(&self, number: u64, links: &Links) -> Result<(), Errno> {
        let level = epoll::EventFlags::IN;
        let watched = [
            (token::CONTROL, links.control.as_fd(), level),
            (token::ANSWER, links.answer.as_fd(), level | epoll::EventFlags::ET),
            (token::CONSOLE, links.console.as_fd(), level),
            (token::SERIAL, links.serial.as_fd(), level),
        ];
        for (kind, descriptor, flags) in watched {
            let data = epoll::EventData::new_u64(number << token::BITS | kind);
            epoll::add(&self.epoll, descriptor, data, flags)?;
        }
        Ok(())
    }

    /// A child that will not be: whoever waits for it is told, and what there is of it ends.
    pub(crate) fn give_up(&mut self, number: u64, reason: &str) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if member.ending.failure.is_none() {
            member.ending.failure = Some(reason.to_owned());
        }
        let made_by = member.made_by.take();
        self.kill(number);
        if member_is_unborn(self.members.get(&number)) {
            self.mark_dead(number, None);
        }
        if let Some(operation) = made_by {
            self.child_failed(operation, number, reason);
        }
    }

    /// The event of a phase that this supervisor has brought about itself.
    pub(crate) fn note(&mut self, number: u64, event: Event) {
        if let Some(member) = self.members.get_mut(&number)
            && let Err(refused) = member.apply(event)
        {
            tracing::warn!(number, %refused, "a machine is out of step");
        }
    }
}

/// Without a process there is no death to wait for.
fn member_is_unborn(member: Option<&Member>) -> bool {
    member.is_some_and(|member| member.pid.is_none())
}
