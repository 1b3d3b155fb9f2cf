//! How machines and families end.

use crate::family::{Family, FamilyEvent, Terminal};
use crate::lifecycle::{Event, Phase};
use crate::member::Ram;
use ramet_process::Exit;
use ramet_process::signals::send_signal;
use ramet_vmm::protocol::Order;
use rustix::event::epoll;
use rustix::process::Signal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long machines may take to end by themselves before they are killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

impl Family {
    /// Kills a machine's process; its death is reported as any other.
    pub fn kill(&mut self, number: u64) {
        let Some(member) = self.members.get_mut(&number) else { return };
        let Some(links) = &member.links else { return };
        match &links.pidfd {
            // It may answer before the zygote has reported its birth.
            None => member.doomed = true,
            Some(pidfd) => {
                if let Err(error) = send_signal(pidfd, Signal::KILL) {
                    tracing::debug!(number, %error, "a machine that shall be killed is gone already");
                }
            }
        }
    }

    /// Ends a machine and waits until it is gone; its children live on. False if it would not end in time.
    pub fn end(&mut self, number: u64) -> bool {
        let Some(member) = self.members.get(&number) else { return true };
        let told = member.links.as_ref().is_some_and(|links| links.send(&Order::End, &[]).is_ok());
        if !told {
            self.kill(number);
        }
        if self.await_death(number, END_TIMEOUT) {
            return true;
        }
        self.kill(number);
        self.await_death(number, END_TIMEOUT)
    }

    /// Waits until a machine is dead.
    pub fn await_death(&mut self, number: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.members.get(&number).is_some_and(|member| member.phase() != Phase::Dead) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.step(left);
        }
        true
    }

    /// Forgets a dead machine.
    pub fn forget(&mut self, number: u64) {
        if self.members.get(&number).is_some_and(|member| member.phase() == Phase::Dead) {
            self.members.remove(&number);
        }
    }

    /// A founder that did not come to life: nothing of it stays, and another may be booted.
    pub(crate) fn forget_unfounded(&mut self, number: u64) {
        self.kill(number);
        if self.members.get(&number).is_some_and(|member| member.pid.is_none()) {
            // Its process may be on its way still; it ends with its control socket.
            self.mark_dead(number, None);
        } else {
            self.await_death(number, END_TIMEOUT);
        }
        self.members.remove(&number);
        self.class = None;
        self.family_memory = None;
    }

    /// One line about how a machine ended.
    pub(crate) fn how_it_ended(&self, number: u64) -> String {
        let Some(member) = self.members.get(&number) else { return "it is gone".to_owned() };
        match (&member.ending.failure, member.ending.exit) {
            (Some(failure), _) => failure.clone(),
            (None, Some(exit)) => format!("its process {exit}"),
            (None, None) => "its process could not be made".to_owned(),
        }
    }

    /// A machine is no more. Its layers stay as long as anybody uses them.
    pub(crate) fn mark_dead(&mut self, number: u64, exit: Option<Exit>) {
        for terminal in [Terminal::Console, Terminal::Serial] {
            self.drain_output(number, terminal);
        }
        let Some(member) = self.members.get_mut(&number) else { return };
        if member.apply(Event::Died).is_err() {
            return;
        }
        member.ending.exit = exit;
        member.ram = Ram::Nothing;
        member.template = None;
        let ending = member.ending.clone();
        let (made_by, freezes) = (member.made_by.take(), std::mem::take(&mut member.freezes));
        // What is kept of the dead is how they ended.
        member.links = None;
        let reason = self.how_it_ended(number);
        for operation in freezes {
            self.freeze_failed(operation, &format!("machine {number} ended: {reason}"));
        }
        if let Some(operation) = made_by {
            self.child_failed(operation, number, &reason);
        }
        let (status, failure) = (ending.status, ending.failure);
        self.events.push_back(FamilyEvent::Ended { number, status, failure, exit });
    }

    /// What a dead machine's guest wrote before it died.
    fn drain_output(&mut self, number: u64, terminal: Terminal) {
        // The socket's buffer bounds this; the count is against a surprise.
        for _ in 0..1024 {
            let before = self.events.len();
            self.take_output(number, terminal);
            if self.events.len() == before {
                return;
            }
        }
    }

    fn delete_watch(&self, descriptor: std::os::fd::BorrowedFd<'_>) {
        if let Err(error) = epoll::delete(&self.epoll, descriptor)
            && error != rustix::io::Errno::NOENT
        {
            tracing::warn!(%error, "a descriptor cannot be taken out of the event queue");
        }
    }

    pub(crate) fn unwatch_control(&self, number: u64) {
        if let Some(links) = self.members.get(&number).and_then(|member| member.links.as_ref()) {
            self.delete_watch(links.control.as_fd());
        }
    }

    pub(crate) fn unwatch_terminal(&self, number: u64, terminal: Terminal) {
        if let Some(links) = self.members.get(&number).and_then(|member| member.links.as_ref()) {
            self.delete_watch(links.terminal(terminal).as_fd());
        }
    }

    /// Without a zygote nothing can be born, and machines die with it.
    pub(crate) fn zygote_is_gone(&mut self, reason: &str) {
        tracing::error!(reason, "the zygote is gone, and all machines with it");
        self.delete_watch(self.zygote.socket.as_fd());
        // Machines die with it: none may live on uncounted.
        if let Err(error) = self.zygote.process.kill() {
            tracing::debug!(%error, "the zygote has ended already");
        }
        let numbers: Vec<u64> = self.members.keys().copied().collect();
        for number in numbers {
            if let Some(member) = self.members.get_mut(&number)
                && member.ending.failure.is_none()
                && member.phase() != Phase::Dead
            {
                member.ending.failure = Some(format!("the zygote is gone: {reason}"));
            }
            self.mark_dead(number, None);
        }
    }

    /// Ends all machines and the zygote, and waits for their deaths.
    pub fn shut_down(mut self) {
        let numbers: Vec<u64> = self.members.keys().copied().collect();
        for number in &numbers {
            self.kill(*number);
        }
        let deadline = Instant::now() + END_TIMEOUT;
        while self.alive() > 0 && Instant::now() < deadline {
            self.step(Duration::from_millis(100));
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // The zygote ends with its socket, and its machines with it; waiting leaves no zombie behind.
        if let Err(error) = self.zygote.process.kill() {
            tracing::debug!(%error, "the zygote has ended already");
        }
        if let Err(error) = self.zygote.process.wait() {
            tracing::warn!(%error, "the zygote cannot be waited for");
        }
    }
}
