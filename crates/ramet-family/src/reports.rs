//! What the zygote and the machines report.

use crate::describe;
use crate::family::{Family, FamilyEvent, MAX_EARLY_DOORBELLS, Terminal};
use crate::lifecycle::{Event, Phase};
use crate::operation::{Operation, Progress};
use ramet_process::socket::DESCRIPTORS_MAX;
use ramet_process::{Limits, Message, Received};
use ramet_vmm::protocol::{MAX_MESSAGE_BYTES, Report, ZygoteReport, from_bytes};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Console bytes taken in one step from one machine.
const OUTPUT_BYTES: usize = 4096;

impl Family {
    /// One report of the zygote.
    pub(crate) fn take_zygote_report(&mut self) {
        let message = match self.zygote.socket.recv(Limits { bytes: MAX_MESSAGE_BYTES, descriptors: 1 }) {
            Ok(Received::Message(message)) => message,
            Ok(Received::EndOfStream) => return self.zygote_is_gone("it ended"),
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

    fn take_born(&mut self, number: u64, pid: u32, pidfd: Option<OwnedFd>) {
        self.numbers_by_pid.insert(pid, number);
        match self.members.get_mut(&number) {
            Some(member) => {
                member.pid = Some(pid);
                member.pidfd = pidfd;
                // Given up before its process was known.
                if member.ending.failure.is_some() {
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
        let limits = Limits { bytes: MAX_MESSAGE_BYTES, descriptors: DESCRIPTORS_MAX };
        let message = match member.control.recv(limits) {
            Ok(Received::Message(message)) => message,
            Ok(Received::EndOfStream) => {
                // Its death is reported by the zygote.
                self.unwatch_control(number);
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
            Report::NotFrozen { reason } => self.take_not_frozen(number, &reason),
            Report::AskFork { children, flags } => self.guest_asks_fork(number, children, flags),
            Report::AskReady => self.guest_asks_ready(number),
            Report::Done { status } => {
                self.note(number, Event::SaidDone);
                self.events.push_back(FamilyEvent::Done { number, status });
            }
            Report::Mark { value, tsc } => self.events.push_back(FamilyEvent::Mark { number, value, tsc }),
            Report::Doorbell { number: target } => self.take_doorbell(target),
            Report::Paused => self.note(number, Event::PauseSent),
            Report::Resumed => self.note(number, Event::ResumeSent),
            Report::Exit { status } => {
                if let Some(member) = self.members.get_mut(&number) {
                    member.ending.status = Some(status);
                }
            }
            Report::Failed { stage, reason } => {
                if let Some(member) = self.members.get_mut(&number) {
                    member.ending.failure = Some(format!("{reason} (stage: {stage})"));
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
            None if target >= self.next_number && self.early_doorbells.len() < MAX_EARLY_DOORBELLS => {
                self.early_doorbells.insert(target);
            }
            None => tracing::debug!(target, "a doorbell for a machine that is no more, or too many for later ones"),
        }
    }

    /// Bytes of a console; the rest stays in the socket, which holds the guest back when it is full.
    pub(crate) fn take_output(&mut self, number: u64, terminal: Terminal) {
        let Some(member) = self.members.get(&number) else { return };
        let socket = match terminal {
            Terminal::Console => &member.console,
            Terminal::Serial => &member.serial,
        };
        let mut bytes = vec![0; OUTPUT_BYTES];
        match rustix::io::read(socket, &mut bytes) {
            Ok(0) => self.unwatch_terminal(number, terminal),
            Ok(length) => {
                bytes.truncate(length);
                self.events.push_back(FamilyEvent::Output { number, terminal, bytes });
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
        let Some(member) = self.members.get(&number) else { return 0 };
        let socket = match terminal {
            Terminal::Console => &member.console,
            Terminal::Serial => &member.serial,
        };
        rustix::io::write(socket, bytes).unwrap_or(0)
    }
}
