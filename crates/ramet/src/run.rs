//! `ramet run`: a unikernel of one's own, with its console on the terminal.

use crate::arguments::RunOptions;
use anyhow::{Context, Result};
use ramet_family::{BootSpec, Config, Exit, Family, FamilyEvent, GuestForks, Limits, Phase, Terminal};
use ramet_process::terminal::RawMode;
use ramet_state::InterruptMode;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

/// Ctrl-].
const LEAVE: u8 = 0x1D;
/// Exit status when the guest ended otherwise than by saying so.
const GUEST_FAILED: u8 = 124;
/// Exit status after Ctrl-].
const LEFT: u8 = 0;

fn read_kernel(options: &RunOptions) -> Result<Vec<u8>> {
    let path = options.kernel.display();
    let kernel = std::fs::File::open(&options.kernel).with_context(|| format!("Kernel {path} cannot be opened"))?;
    let mut bytes = Vec::new();
    // One byte more than is accepted tells a file that is too long from one that just fits.
    let limit = ramet_family::MAX_KERNEL_BYTES + 1;
    kernel.take(limit).read_to_end(&mut bytes).with_context(|| format!("Kernel {path} cannot be read"))?;
    Ok(bytes)
}

fn boot(options: &RunOptions) -> Result<Family> {
    let kernel = read_kernel(options)?;
    let guest_forks = options.guest_forks.map(|machines| GuestForks { per_second: options.fork_rate, burst: machines });
    let machines = options.guest_forks.unwrap_or(1);
    let config = Config { limits: Limits { machines, guest_forks }, ..Config::default() };
    let mut family = Family::start(&config).context("The machine's family cannot be started")?;
    let interrupts = match options.interrupts.as_str() {
        "full" => InterruptMode::Full { pit: false },
        "full-pit" => InterruptMode::Full { pit: true },
        _ => InterruptMode::Split,
    };
    let memory_bytes = options.memory.0;
    let spec = BootSpec { kernel: &kernel, memory_bytes, family_bytes: 0, vcpus: options.vcpus, interrupts };
    family.boot(&spec).with_context(|| format!("{} cannot be booted", options.kernel.display()))?;
    Ok(family)
}

/// Runs a kernel until its guest ends or the user leaves.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode> {
    let mut family = boot(options)?;
    let stdin = std::io::stdin();
    let raw = if stdin.is_terminal() {
        eprintln!("Press Ctrl-] to leave.");
        Some(RawMode::enter(&stdin).context("The terminal cannot be switched to raw mode")?)
    } else {
        None
    };
    let status = serve(&mut family);
    drop(raw);
    family.shut_down();
    status
}

/// Moves bytes between terminal and guests until all machines have ended.
fn serve(family: &mut Family) -> Result<ExitCode> {
    let stdin = std::io::stdin();
    let mut input_open = true;
    let mut founder_status = None;
    loop {
        while let Some(event) = family.next_event() {
            if let Some(status) = take_event(event)? {
                founder_status.get_or_insert(status);
            }
        }
        // Templates and children that wait for a word of their supervisor have nobody here to give it.
        let at_rest = |phase| matches!(phase, Phase::Dead | Phase::Done | Phase::Template | Phase::Paused);
        if family.members().all(|member| at_rest(member.phase)) {
            return Ok(ExitCode::from(founder_status.unwrap_or(GUEST_FAILED)));
        }
        let mut wanted = vec![PollFd::from_borrowed_fd(family.event_descriptor(), PollFlags::IN)];
        if input_open {
            wanted.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        match poll(&mut wanted, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("Nothing can be waited for"),
        }
        let typed = wanted.get(1).is_some_and(|input| !input.revents().is_empty());
        drop(wanted);
        if typed {
            let mut bytes = [0; 1024];
            let length = rustix::io::retry_on_intr(|| rustix::io::read(&stdin, &mut bytes))?;
            input_open = length > 0;
            let bytes = &bytes[..length];
            let leave = bytes.iter().position(|byte| *byte == LEAVE && stdin.is_terminal());
            let bytes = &bytes[..leave.unwrap_or(length)];
            // The founder's terminals; what a guest does not read in time is lost, as on a serial line.
            family.type_into(0, Terminal::Console, bytes);
            family.type_into(0, Terminal::Serial, bytes);
            if leave.is_some() {
                return Ok(ExitCode::from(LEFT));
            }
        }
        family.step(Duration::ZERO);
    }
}

/// Shows an event; the exit status if the founder ended by it.
fn take_event(event: FamilyEvent) -> Result<Option<u8>> {
    match event {
        FamilyEvent::Output { bytes, .. } => {
            let mut out = std::io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush()).context("The guest's output cannot be written")?;
        }
        FamilyEvent::GuestForked { parent, first, children } => {
            eprintln!("ramet: machine {parent} forked {children} children, from {first} on\r");
        }
        FamilyEvent::GuestForkRefused { parent, reason } => {
            eprintln!("ramet: machine {parent} may not fork: {reason}\r");
        }
        FamilyEvent::Ready { number } => eprintln!("ramet: machine {number} is a template now\r"),
        FamilyEvent::Done { number, status } => {
            eprintln!("ramet: machine {number} is done with status {status}\r");
            return Ok((number == 0).then(|| status.to_le_bytes()[0]));
        }
        FamilyEvent::Mark { number, value, .. } => eprintln!("ramet: machine {number} marks {value}\r"),
        FamilyEvent::Ended { number, status, failure, exit } => {
            return Ok(ended(number, status, failure.as_deref(), exit));
        }
    }
    Ok(None)
}

fn ended(number: u64, status: Option<u32>, failure: Option<&str>, exit: Option<Exit>) -> Option<u8> {
    let code = match (status, failure, exit) {
        (Some(status), ..) => status.to_le_bytes()[0],
        (None, Some(failure), _) => {
            eprintln!("ramet: machine {number} failed: {failure}\r");
            GUEST_FAILED
        }
        (None, None, Some(exit)) => {
            eprintln!("ramet: machine {number}: its process {exit}\r");
            GUEST_FAILED
        }
        (None, None, None) => GUEST_FAILED,
    };
    (number == 0).then_some(code)
}
