//! The zygote: bears blank machine processes, and reports their deaths.
//!
//! One thread, no machine's memory, an empty root, no network. It knows nothing of families: it clones itself when it
//! is told to, and the clone becomes a machine's process that has only its end of a control socket, a /dev/kvm of its
//! own and a tracker of its own memory.
//!
//! ```text
//!   claim socket -> isolate -> Ready -> poll { socket: Bear -> clone3 -> Born | SIGCHLD: reap -> Died }
//! ```

use crate::filter::Filter;
use crate::hurry::Hurry;
use crate::machine_process::{self, Birthright};
use crate::protocol::{Bear, MAX_MESSAGE_BYTES, Model, ZygoteReport, from_bytes, to_bytes};
use ramet_kvm::HostModel;
use ramet_memory::Tracker;
use ramet_process::isolation::Obtained;
use ramet_process::signals::{MaskGuard, SignalFd, own_pidfd};
use ramet_process::{
    Confinement, Credentials, Forked, HostDescriptors, Limits, Namespaces, Received, RecvError, SeqPacket,
    claim_inherited_socket, exit_now, fork_process, isolate_zygote, reap_children, use_one_arena,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

/// Most descriptors of one machine's process (RLIMIT_NOFILE): eventfds of every device, sockets, layers being mapped.
const MACHINE_DESCRIPTORS: u64 = 512;

/// Everything that can stop the zygote; it has nobody to tell but its supervisor.
type Failure = Box<dyn std::error::Error>;

fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The zygote's whole life; the process's main function.
pub fn zygote_main() -> ExitCode {
    use_one_arena();
    let socket = match claim_inherited_socket() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("ramet: {}", describe(&error));
            return ExitCode::FAILURE;
        }
    };
    match serve(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let report = ZygoteReport::Failed { reason: describe(error.as_ref()) };
            // If even this cannot be sent, the supervisor sees the end of the stream.
            let told = to_bytes(&report).map(|bytes| socket.send(&bytes, &[]));
            if told.is_ok_and(|sent| sent.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn report(socket: &SeqPacket, report: &ZygoteReport, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    Ok(socket.send(&to_bytes(report)?, descriptors)?)
}

/// `None` when the supervisor is gone already.
fn receive_model(socket: &SeqPacket) -> Result<Option<HostModel>, Failure> {
    match socket.recv(Limits { bytes: MAX_MESSAGE_BYTES, descriptors: 0 })? {
        Received::Message(message) => Ok(Some(from_bytes::<Model>(&message.bytes)?.model)),
        Received::EndOfStream => Ok(None),
    }
}

/// What every birth needs.
struct Nursery<'a> {
    socket: &'a SeqPacket,
    host: HostDescriptors,
    model: HostModel,
    filter: Filter,
    hurry: Hurry,
    own_pidfd: OwnedFd,
    namespaces: Namespaces,
    /// Whether it may give its children user ids of their own.
    may_change_user: bool,
}

fn serve(socket: &SeqPacket) -> Result<(), Failure> {
    // For good: children do not mind, they have none.
    MaskGuard::block(&[Signal::CHILD])?.keep();
    let signals = SignalFd::new(&[Signal::CHILD])?;
    let (isolation, host) = isolate_zygote()?;
    let hurry = Hurry::begin()?;
    let Some(model) = receive_model(socket)? else { return Ok(()) };
    let nursery = Nursery {
        socket,
        host,
        model,
        filter: Filter::prepare(isolation.child_pid == Obtained::Yes)?,
        hurry,
        own_pidfd: own_pidfd()?,
        namespaces: Namespaces { pid: isolation.child_pid == Obtained::Yes },
        may_change_user: isolation.user == Obtained::NotNeeded,
    };
    let missing = isolation.missing().into_iter().map(|(name, errno)| (name.to_owned(), errno)).collect();
    report(socket, &ZygoteReport::Ready { missing }, &[])?;
    loop {
        let mut wanted =
            [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let (orders, deaths) = (!wanted[0].revents().is_empty(), !wanted[1].revents().is_empty());
        if deaths {
            while signals.next_pending()?.is_some() {}
            for reaped in reap_children()? {
                let pid = reaped.pid.as_raw_nonzero().get().cast_unsigned();
                report(socket, &ZygoteReport::Died { pid, exit: reaped.exit }, &[])?;
            }
        }
        if orders && !nursery.take_order()? {
            return Ok(());
        }
    }
}

impl Nursery<'_> {
    /// False when the supervisor is gone.
    fn take_order(&self) -> Result<bool, Failure> {
        let message = match self.socket.recv(Limits { bytes: MAX_MESSAGE_BYTES, descriptors: 1 }) {
            Ok(Received::Message(message)) => message,
            Ok(Received::EndOfStream) => return Ok(false),
            Err(error) => return self.refuse_order(error),
        };
        let bear: Bear = from_bytes(&message.bytes)?;
        let Some(control) = message.descriptors.into_iter().next() else {
            let reason = "the request came without a control socket".to_owned();
            report(self.socket, &ZygoteReport::NotBorn { ticket: bear.ticket, reason }, &[])?;
            return Ok(true);
        };
        let control = SeqPacket::from_fd(control)?;
        match fork_process(self.namespaces, None) {
            Ok(Forked::Child) => {
                let code = self.become_machine(control, &bear);
                exit_now(code)
            }
            Ok(Forked::Parent(child)) => {
                let pid = child.pid.as_raw_nonzero().get().cast_unsigned();
                report(self.socket, &ZygoteReport::Born { ticket: bear.ticket, pid }, &[child.pidfd.as_fd()])?;
            }
            Err(error) => {
                let reason = describe(&error);
                report(self.socket, &ZygoteReport::NotBorn { ticket: bear.ticket, reason }, &[])?;
            }
        }
        Ok(true)
    }

    /// An order that came without its control socket, because there was no room for it, is refused; any other trouble
    /// with the supervisor is the end.
    fn refuse_order(&self, error: RecvError) -> Result<bool, Failure> {
        let RecvError::DescriptorsLost { bytes } = &error else { return Err(error.into()) };
        let Bear { ticket, .. } = from_bytes(bytes)?;
        report(self.socket, &ZygoteReport::NotBorn { ticket, reason: describe(&error) }, &[])?;
        Ok(true)
    }

    /// In the child: gives everything up, then lives as a machine's process. Returns its exit status.
    fn become_machine(&self, control: SeqPacket, bear: &Bear) -> i32 {
        let born = ramet_kvm::read_tsc();
        match self.confine(&control, bear) {
            Ok((kvm, tracker)) => machine_process::live(
                control,
                Birthright {
                    kvm,
                    model: &self.model,
                    filter: &self.filter,
                    hurry: self.hurry,
                    tracker,
                    born,
                    confined: ramet_kvm::read_tsc(),
                },
            ),
            Err(error) => machine_process::fail(&control, "confine", describe(error.as_ref())),
        }
    }

    fn confine(&self, control: &SeqPacket, bear: &Bear) -> Result<(OwnedFd, Tracker), Failure> {
        let kvm = self.host.open_kvm()?;
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own_directory = rustix::fs::openat(&self.host.proc, "self", directory, Mode::empty())?;
        let tracker = Tracker::open(own_directory.as_fd())?;
        // Confinement closes every descriptor that it is not told of: no owner of one may outlive it.
        drop(own_directory);
        let mut keep = vec![control.as_fd(), kvm.as_fd()];
        keep.extend(tracker.descriptors());
        let credentials = self.may_change_user.then_some(Credentials { uid: bear.user, gid: bear.user });
        Confinement {
            host: &self.host,
            parent: self.own_pidfd.as_fd(),
            credentials,
            keep: &keep,
            descriptor_limit: MACHINE_DESCRIPTORS,
        }
        .apply()?;
        Ok((kvm, tracker))
    }
}
