//! A machine's process: born blank, it receives a state, runs it, and follows orders.
//!
//! ```text
//!   live --Birth--> Blank (threads, then the filter) --Build--> Running <--> Held
//!                                                                 |            |
//!                                                                 +--> ended <-+
//! ```
//!
//! One thread does everything but run vCPUs: it waits for orders, for devices' descriptors and for vCPU events. The
//! process ends when its control socket does.

use crate::filter::Filter;
use crate::hurry::Hurry;
use crate::protocol::{
    BuildStamps, Frozen, FrozenMemory, MAX_MESSAGE_BYTES, MemorySource, Order, Report, from_bytes, to_bytes,
};
use ramet_abi::guest_port::{ERROR_BIT, ERROR_HOST};
use ramet_devices::GuestCall;
use ramet_kvm::{HostModel, read_tsc};
use ramet_machine::{Blank, BlankResources, Caller, Machine, Paused, Ram, VcpuEvent};
use ramet_memory::{DeltaRun, Tracker};
use ramet_process::socket::DESCRIPTORS_MAX;
use ramet_process::{Limits, Received, SeqPacket, exit_now};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What the zygote leaves to its child.
pub(crate) struct Birthright<'a> {
    pub(crate) kvm: OwnedFd,
    pub(crate) model: &'a HostModel,
    pub(crate) filter: &'a Filter,
    pub(crate) hurry: Hurry,
    pub(crate) tracker: Tracker,
    /// Time stamps.
    pub(crate) born: u64,
    pub(crate) confined: u64,
}

/// Exit status of a process that could not go on and has said so.
const FAILED: i32 = 70;

/// Whatever ends the process.
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

fn send(control: &SeqPacket, report: &Report, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    Ok(control.send(&to_bytes(report)?, descriptors)?)
}

/// Says what went wrong, and gives the exit status.
pub(crate) fn fail(control: &SeqPacket, stage: &str, reason: String) -> i32 {
    // If the supervisor is gone nobody wants to know.
    let _sent = send(control, &Report::Failed { stage: stage.to_owned(), reason }, &[]);
    FAILED
}

fn next_order(control: &SeqPacket) -> Result<Option<(Order, Vec<OwnedFd>)>, Failure> {
    match control.recv(Limits { bytes: MAX_MESSAGE_BYTES, descriptors: DESCRIPTORS_MAX })? {
        Received::Message(message) => Ok(Some((from_bytes(&message.bytes)?, message.descriptors))),
        Received::EndOfStream => Ok(None),
    }
}

/// A panic in any thread ends the machine, and says so: nobody reads its standard error.
fn end_by_panic(control: &Arc<SeqPacket>) {
    let control = Arc::clone(control);
    std::panic::set_hook(Box::new(move |panic| {
        exit_now(fail(&control, "panic", format!("the monitor failed an assertion: {panic}")));
    }));
}

/// The whole life; the exit status.
pub(crate) fn live(control: SeqPacket, birthright: Birthright<'_>) -> i32 {
    let control = Arc::new(control);
    end_by_panic(&control);
    let (born, confined, hurry) = (birthright.born, birthright.confined, birthright.hurry);
    let mut stamps = BuildStamps { born, confined, ..BuildStamps::default() };
    let blank = match be_blank(&control, birthright, &mut stamps) {
        Ok(Some(blank)) => blank,
        Ok(None) => return 0,
        Err(error) => return fail(&control, "create", describe(error.as_ref())),
    };
    match be_built(&control, blank, hurry, stamps) {
        Ok(Some(mut life)) => match life.serve() {
            Ok(status) => status,
            Err(error) => fail(&control, "run", describe(error.as_ref())),
        },
        Ok(None) => 0,
        Err(error) => fail(&control, "build", describe(error.as_ref())),
    }
}

fn be_blank(
    control: &SeqPacket,
    birthright: Birthright<'_>,
    stamps: &mut BuildStamps,
) -> Result<Option<Blank>, Failure> {
    let Some((order, descriptors)) = next_order(control)? else { return Ok(None) };
    let Order::Birth { class } = order else { return Err("the first order is not a birth".into()) };
    let nice = birthright.hurry.ordinary();
    let resources = BlankResources::from_descriptors(&class, descriptors)?;
    let blank = Blank::create(birthright.kvm, birthright.model, class, resources, birthright.tracker, nice)?;
    stamps.created = read_tsc();
    birthright.filter.install()?;
    stamps.blank = read_tsc();
    send(control, &Report::Blank, &[])?;
    Ok(Some(blank))
}

fn be_built<'a>(
    control: &'a SeqPacket,
    blank: Blank,
    hurry: Hurry,
    mut stamps: BuildStamps,
) -> Result<Option<Life<'a>>, Failure> {
    let (plan, memory, entropy, paused, descriptors) = match next_order(control)? {
        None | Some((Order::End, _)) => return Ok(None),
        Some((Order::Build { plan, memory, entropy, paused }, descriptors)) => {
            (plan, memory, entropy, paused, descriptors)
        }
        Some(_) => return Err("the second order is not to build".into()),
    };
    stamps.ordered = read_tsc();
    let ram = match memory {
        MemorySource::Founder => Ram::founder(descriptors)?,
        MemorySource::Layers { map, layers } => Ram::layers(map, layers, descriptors)?,
    };
    let machine = blank.build(*plan, ram, &entropy, &mut |stage| match stage {
        ramet_machine::Stage::Mapped => stamps.mapped = read_tsc(),
        ramet_machine::Stage::Restored => stamps.restored = read_tsc(),
    })?;
    stamps.tsc_offset = machine.tsc_offset();
    let state = if paused {
        State::Held(machine)
    } else {
        stamps.released = read_tsc();
        State::Running(machine.resume()?)
    };
    send(control, &Report::Built { stamps }, &[])?;
    // vCPU threads did so before they entered the guest.
    hurry.end()?;
    Ok(Some(Life {
        control,
        state,
        asked: BTreeMap::new(),
        next_call: 0,
        handed_over: Vec::new(),
        template: None,
        done: false,
    }))
}

/// Where a built machine is.
enum State {
    Running(Machine),
    Held(Paused),
    /// Only while one becomes the other.
    Changing,
}

/// A guest's call that waits for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    vcpu: u8,
    call: GuestCall,
}

/// How far the guest's events were taken.
enum Taken {
    /// There are none left.
    All,
    /// There may be more.
    Some,
    /// The machine ends by one, with this exit status.
    End(i32),
}

/// Guest events between two looks at orders.
const GUEST_EVENTS_AT_ONCE: usize = 64;

/// A built machine and its orders.
struct Life<'a> {
    control: &'a SeqPacket,
    state: State,
    /// Calls that wait for the supervisor, by number.
    asked: BTreeMap<u32, Asked>,
    next_call: u32,
    /// What the last freeze found, should it have to be taken back.
    handed_over: Vec<DeltaRun>,
    /// The call by which the machine became a template.
    template: Option<Caller>,
    /// The guest has said done or exit: nothing lets it run again.
    done: bool,
}

impl Life<'_> {
    /// Serves until the machine ends; the exit status.
    fn serve(&mut self) -> Result<i32, Failure> {
        let mut more = false;
        loop {
            let (orders, devices) = self.wait(more)?;
            if devices && let State::Running(machine) = &mut self.state {
                machine.serve_devices()?;
            }
            more = false;
            match self.take_guest_events()? {
                Taken::All => {}
                Taken::Some => more = true,
                Taken::End(status) => return Ok(status),
            }
            if orders {
                if !self.take_order()? {
                    return Ok(0);
                }
                // Reports may have been taken on the way, which wake nobody any more.
                more = true;
            }
        }
    }

    /// Waits for an order or for the machine, or only looks if there is `more` to do; which of them there is.
    fn wait(&self, more: bool) -> Result<(bool, bool), Failure> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = more.then_some(&zero);
        let control = PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN);
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        match &self.state {
            State::Running(machine) => {
                let mut wanted = [control, PollFd::from_borrowed_fd(machine.wake_descriptor(), PollFlags::IN)];
                match poll(&mut wanted, timeout) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => Ok((ready(&wanted[0]), ready(&wanted[1]))),
                    Err(error) => Err(error.into()),
                }
            }
            State::Held(_) | State::Changing => {
                let mut wanted = [control];
                match poll(&mut wanted, timeout) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => Ok((ready(&wanted[0]), false)),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// What vCPUs have to say, some of it at a time: orders must not wait for a guest that never stops talking.
    fn take_guest_events(&mut self) -> Result<Taken, Failure> {
        for _ in 0..GUEST_EVENTS_AT_ONCE {
            let State::Running(machine) = &mut self.state else { return Ok(Taken::All) };
            let Some((vcpu, event)) = machine.next_event() else { return Ok(Taken::All) };
            match event {
                VcpuEvent::Call(call) => {
                    if let Some(status) = self.take_call(vcpu, call)? {
                        return Ok(Taken::End(status));
                    }
                }
                VcpuEvent::Failed(failure) => return Err(Box::new(failure)),
            }
        }
        Ok(Taken::Some)
    }

    fn ask(&mut self, vcpu: u8, call: GuestCall) -> u32 {
        let number = self.next_call;
        self.next_call = self.next_call.wrapping_add(1);
        self.asked.insert(number, Asked { vcpu, call });
        number
    }

    fn take_call(&mut self, vcpu: u8, call: GuestCall) -> Result<Option<i32>, Failure> {
        match call {
            GuestCall::Fork { children, flags } => {
                let call = self.ask(vcpu, call);
                send(self.control, &Report::AskFork { call, children, flags }, &[])?;
            }
            GuestCall::Ready => {
                let call = self.ask(vcpu, call);
                send(self.control, &Report::AskReady { call }, &[])?;
            }
            GuestCall::Mark(value) => send(self.control, &Report::Mark { value, tsc: read_tsc() }, &[])?,
            GuestCall::Doorbell(number) => {
                send(self.control, &Report::Doorbell { number: number.into() }, &[])?;
            }
            GuestCall::Done(status) => {
                self.hold()?;
                self.done = true;
                send(self.control, &Report::Done { status }, &[])?;
            }
            GuestCall::Exit(status) => {
                send(self.control, &Report::Exit { status: status.into() }, &[])?;
                return Ok(Some(0));
            }
        }
        Ok(None)
    }

    /// Lets a guest's call return, now or when the machine goes on.
    fn answer(&mut self, vcpu: u8, value: u32) -> Result<(), Failure> {
        match &mut self.state {
            State::Running(machine) => machine.answer(vcpu, value)?,
            State::Held(machine) => machine.answer(vcpu, value)?,
            State::Changing => {}
        }
        Ok(())
    }

    fn hold(&mut self) -> Result<(), Failure> {
        self.state = match std::mem::replace(&mut self.state, State::Changing) {
            State::Running(machine) => State::Held(machine.pause()?),
            other => other,
        };
        Ok(())
    }

    /// False when the machine shall end.
    fn take_order(&mut self) -> Result<bool, Failure> {
        let Some((order, descriptors)) = next_order(self.control)? else { return Ok(false) };
        let founder = descriptors.into_iter().next();
        match order {
            Order::Freeze => self.freeze(Caller::None, founder)?,
            Order::Permit { call, first } => match self.asked.remove(&call) {
                Some(Asked { vcpu, call: GuestCall::Fork { .. } }) => {
                    self.freeze(Caller::Fork { vcpu, first }, founder)?;
                }
                Some(Asked { vcpu, .. }) => self.freeze(Caller::Ready { vcpu }, founder)?,
                None => return Err(format!("a permit came for call {call}, which nobody made").into()),
            },
            Order::Refuse { call, code } => {
                if let Some(asked) = self.asked.remove(&call) {
                    self.answer(asked.vcpu, ERROR_BIT | code)?;
                }
            }
            Order::TakeBack => self.take_back()?,
            Order::Pause => {
                self.hold()?;
                send(self.control, &Report::Paused, &[])?;
            }
            Order::Resume if self.done => return Err("a machine that is done cannot be resumed".into()),
            Order::Resume => {
                self.state = match std::mem::replace(&mut self.state, State::Changing) {
                    State::Held(machine) => State::Running(machine.resume()?),
                    other => other,
                };
                send(self.control, &Report::Resumed, &[])?;
            }
            Order::End => return Ok(false),
            Order::Birth { .. } | Order::Build { .. } => return Err("a machine is built only once".into()),
        }
        Ok(true)
    }

    fn take_back(&mut self) -> Result<(), Failure> {
        let runs = std::mem::take(&mut self.handed_over);
        self.state = match (std::mem::replace(&mut self.state, State::Changing), self.template.take()) {
            (State::Held(mut machine), Some(caller)) => {
                machine.take_back(&runs);
                State::Running(machine.resume_caller(caller, ERROR_BIT | ERROR_HOST)?)
            }
            (State::Held(mut machine), None) => {
                machine.take_back(&runs);
                State::Held(machine)
            }
            (State::Running(mut machine), _) => {
                machine.take_back(&runs);
                State::Running(machine)
            }
            (State::Changing, _) => State::Changing,
        };
        Ok(())
    }

    fn freeze(&mut self, caller: Caller, founder: Option<OwnedFd>) -> Result<(), Failure> {
        let machine = match std::mem::replace(&mut self.state, State::Changing) {
            State::Running(machine) => machine,
            other => {
                self.state = other;
                if let Some(vcpu) = caller.vcpu() {
                    self.answer(vcpu, ERROR_BIT | ERROR_HOST)?;
                }
                let reason = "the machine is held: it is paused, done or a template".to_owned();
                return send(self.control, &Report::NotFrozen { reason }, &[]);
            }
        };
        self.handed_over.clear();
        let (paused, outcome) = machine.freeze(caller, founder)?;
        let refused = outcome.is_err();
        let stays = matches!(caller, Caller::Ready { .. }) && !refused;
        self.template = stays.then_some(caller);
        self.state = if stays {
            State::Held(paused)
        } else {
            let value = match caller {
                Caller::Fork { first, .. } if !refused => u32::try_from(first).unwrap_or(ERROR_BIT | ERROR_HOST),
                _ => ERROR_BIT | ERROR_HOST,
            };
            State::Running(paused.resume_caller(caller, value)?)
        };
        let frozen = match outcome {
            Ok(frozen) => frozen,
            Err(error) => return send(self.control, &Report::NotFrozen { reason: describe(&error) }, &[]),
        };
        let pause_ns = u64::try_from(frozen.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (state, memory) = frozen.finish()?;
        let (memory, delta) = match memory {
            ramet_machine::FrozenMemory::Flat { holes } => (FrozenMemory::Flat { holes }, None),
            ramet_machine::FrozenMemory::Delta(delta) => {
                self.handed_over.clone_from(&delta.runs);
                (FrozenMemory::Delta { pages: delta.pages, runs: delta.runs }, delta.file)
            }
        };
        let report = Report::Frozen(Frozen { state, memory, pause_ns });
        let descriptors: Vec<_> = delta.iter().map(AsFd::as_fd).collect();
        send(self.control, &report, &descriptors)
    }
}
