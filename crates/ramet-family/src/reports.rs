//! What the zygote and the machines report.

use crate::describe;
use crate::family::{Family, FamilyEvent, MAX_EARLY_DOORBELLS, Terminal};
use crate::lifecycle::{Event, Phase};
use crate::operation::{Operation, Progress};
use ramet_abi::layout::PAGE_BYTES;
use ramet_process::{Limits, Message, Received, RecvError};
use ramet_vmm::protocol::{MAX_MESSAGE_BYTES, Report, ZygoteReport, from_bytes};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Longest report of the zygote, or of a machine that was not asked to freeze, in bytes.
const MAX_REPORT_BYTES: usize = 64 << 10;
/// What is kept of a machine's own words.
const MAX_REASON_CHARACTERS: usize = 2048;
/// Console bytes taken in one step from one machine.
const OUTPUT_BYTES: usize = 4096;

impl Family {
    /// One report of the zygote.
    pub(crate) fn take_zygote_report(&mut self) {
        // A pidfd that finds no room would be lost, and its machine with it.
        self.spare = None;
        let received = self.zygote.socket.recv(Limits { bytes: MAX_REPORT_BYTES, descriptors: 1 });
        self.spare = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
        let message = match received {
            Ok(Received::Message(message)) => message,
            Err(RecvError::NotReady) => return,
            Ok(Received::EndOfStream) => return self.zygote_is_gone("it ended"),
            Err(error @ RecvError::DescriptorsLost { .. }) => return self.take_lost_birth(&error),
            Err(error) => return self.zygote_is_gone(&describe(&error)),
        };
        let Message { bytes, descriptors } = message;
        match from_bytes::<ZygoteReport>(&bytes) {
            Ok(ZygoteReport::Born { ticket, pid }) => self.take_born(ticket, pid, descriptors.into_iter().next()),
            Ok(ZygoteReport::NotBorn { ticket, reason }) => self.give_up(ticket, &reason),
            Ok(ZygoteReport::Died { pid, exit }) => {
                if let Some(number) = self.numbers_by_pid.remove(&pid) {
                    self.drain_reports(number);
                    self.mark_dead(number, Some(exit));
                }
            }
            Ok(ZygoteReport::Failed { reason }) => self.zygote_is_gone(&reason),
            Ok(ZygoteReport::Ready { missing }) => {
                for (name, errno) in &missing {
                    tracing::warn!(name, errno, "machines do without this isolation: the host refuses it");
                }
                self.missing = Some(missing);
            }
            Err(error) => self.zygote_is_gone(&describe(&error)),
        }
    }

    /// A birth without its pidfd, because there was no room for it: nobody could end such a machine. It ends by itself
    /// without its control socket.
    fn take_lost_birth(&mut self, error: &RecvError) {
        let RecvError::DescriptorsLost { bytes } = error else { return };
        let Ok(ZygoteReport::Born { ticket, pid }) = from_bytes(bytes) else {
            return self.zygote_is_gone(&describe(error));
        };
        self.take_born(ticket, pid, None);
        self.give_up(ticket, &describe(error));
        if let Some(member) = self.members.get_mut(&ticket) {
            member.links = None;
        }
    }

    fn take_born(&mut self, number: u64, pid: u32, pidfd: Option<OwnedFd>) {
        self.numbers_by_pid.insert(pid, number);
        match self.members.get_mut(&number) {
            Some(member) => {
                member.pid = Some(pid);
                if let Some(links) = &mut member.links {
                    links.pidfd = pidfd;
                }
                // Given up before its process was known.
                if member.doomed || member.ending.failure.is_some() {
                    self.kill(number);
                }
            }
            // Forgotten meanwhile: nobody will ever order it to do anything, and it ends with its control socket.
            None => tracing::debug!(number, pid, "a machine was born that nobody waits for"),
        }
    }

    /// All reports that a machine left before it died.
    fn drain_reports(&mut self, number: u64) {
        while self.members.get(&number).is_some_and(|member| member.phase() != Phase::Dead) {
            if !self.take_one_report(number) {
                return;
            }
        }
    }

    pub(crate) fn take_report(&mut self, number: u64) {
        self.take_one_report(number);
    }

    /// One report of a machine; false at the end of the stream.
    fn take_one_report(&mut self, number: u64) -> bool {
        let Some(member) = self.members.get(&number) else { return false };
        let Some(links) = &member.links else { return false };
        // Only who was asked to freeze has much to say: all runs of its RAM at most.
        let pages = self.class.as_ref().map_or(0, |class| class.memory_bytes / PAGE_BYTES);
        let bytes = match member.freezes.is_empty() {
            true => MAX_REPORT_BYTES,
            false => (1 << 20) + usize::try_from(pages.saturating_mul(16)).unwrap_or(MAX_MESSAGE_BYTES),
        };
        let limits = Limits { bytes: bytes.min(MAX_MESSAGE_BYTES), descriptors: 1 };
        let message = match links.control.recv(limits) {
            Ok(Received::Message(message)) => message,
            // Only a freeze hands one over.
            Err(error @ RecvError::DescriptorsLost { .. }) => {
                self.lose_freeze(number, &describe(&error));
                return true;
            }
            Err(RecvError::NotReady) => return false,
            Ok(Received::EndOfStream) => {
                // Its death is reported by the zygote; one that only closed its socket is helped to it.
                self.unwatch_control(number);
                self.kill(number);
                return false;
            }
            Err(error) => {
                self.unwatch_control(number);
                self.give_up(number, &format!("its control socket fails: {}", describe(&error)));
                return false;
            }
        };
        match from_bytes::<Report>(&message.bytes) {
            Ok(report) => self.handle(number, report, message.descriptors.into_iter().next()),
            Err(error) => self.give_up(number, &format!("its process talks nonsense: {}", describe(&error))),
        }
        true
    }

    fn handle(&mut self, number: u64, report: Report, descriptor: Option<OwnedFd>) {
        match report {
            Report::Blank => self.take_blank(number),
            Report::Built { stamps } => self.take_built(number, stamps),
            Report::Frozen(frozen) => self.take_frozen(number, frozen, descriptor),
            Report::NotFrozen { reason } => self.take_not_frozen(number, &tame(&reason)),
            Report::AskFork { call, children, flags } => self.guest_asks_fork(number, call, children, flags),
            Report::AskReady { call } => self.guest_asks_ready(number, call),
            Report::Done { status } => {
                self.note(number, Event::SaidDone);
                self.tell(FamilyEvent::Done { number, status });
            }
            Report::Mark { value, tsc } => self.tell(FamilyEvent::Mark { number, value, tsc }),
            Report::Doorbell { number: target } => self.take_doorbell(target),
            Report::Paused => self.note(number, Event::PauseSent),
            Report::Resumed => self.note(number, Event::ResumeSent),
            Report::Exit { status } => {
                if let Some(member) = self.members.get_mut(&number) {
                    member.ending.status = Some(status);
                }
            }
            Report::Failed { stage, reason } => {
                if let Some(member) = self.members.get_mut(&number)
                    && member.ending.failure.is_none()
                {
                    member.ending.failure = Some(format!("{} (stage: {})", tame(&reason), tame(&stage)));
                }
            }
        }
    }

    fn take_blank(&mut self, number: u64) {
        // Its plan may have been sent ahead.
        if self.members.get(&number).is_none_or(|member| member.phase() != Phase::Bearing) {
            return;
        }
        self.note(number, Event::BornBlank);
        if let Some(operation) = self.members.get(&number).and_then(|member| member.made_by) {
            self.child_progressed(operation, number, Progress::Blank);
        }
    }

    fn take_built(&mut self, number: u64, stamps: ramet_vmm::protocol::BuildStamps) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.stamps = Some(stamps);
        let operation = member.made_by.take();
        let paused = operation
            .and_then(|operation| self.operations.get(&operation))
            .is_some_and(|Operation { paused, .. }| *paused);
        self.note(number, Event::Built { paused });
        if let Some(operation) = operation {
            self.settle_ram(number, operation);
            self.child_progressed(operation, number, Progress::Built);
        }
    }

    /// Rings another machine of the family, now or when it is born.
    fn take_doorbell(&mut self, target: u64) {
        match self.members.get(&target) {
            Some(member) => member.ring(),
            None if (self.next_number..self.next_number + MAX_EARLY_DOORBELLS).contains(&target) => {
                self.early_doorbells.insert(target);
            }
            None => tracing::debug!(target, "a doorbell for a machine that is no more, or far from being born"),
        }
    }

    /// Bytes of a console; the rest stays in the socket, which holds the guest back when it is full.
    pub(crate) fn take_output(&mut self, number: u64, terminal: Terminal) {
        let Some(member) = self.members.get(&number) else { return };
        let Some(links) = &member.links else { return };
        let mut buffer = [0; OUTPUT_BYTES];
        match rustix::io::read(links.terminal(terminal), &mut buffer) {
            Ok(0) => self.unwatch_terminal(number, terminal),
            Ok(length) => {
                let bytes = buffer[..length].to_vec();
                self.tell(FamilyEvent::Output { number, terminal, bytes });
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => {
                tracing::debug!(number, %error, "a console is gone");
                self.unwatch_terminal(number, terminal);
            }
        }
    }

    /// Types into a machine's console or serial device; how many bytes were taken.
    pub fn type_into(&self, number: u64, terminal: Terminal, bytes: &[u8]) -> usize {
        let links = self.members.get(&number).and_then(|member| member.links.as_ref());
        links.map_or(0, |links| rustix::io::write(links.terminal(terminal), bytes).unwrap_or(0))
    }
}

/// What a machine's process says, made fit for a terminal and a log.
fn tame(text: &str) -> String {
    text.chars().take(MAX_REASON_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
