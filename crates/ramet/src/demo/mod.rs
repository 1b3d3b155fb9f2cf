//! `ramet demo`: boots the embedded unikernel, forks it live many times, and shows that each clone is itself.
//!
//! ```text
//!   boot --> first answer --> (fork --> identity --> write own value) x N --> check all --> memory --> report
//! ```
//! The founder counts in a loop all the while and is never told that it is forked.

mod clones;
mod measure;
mod report;

use crate::arguments::DemoOptions;
use anyhow::{Context, Result, bail};
use clones::{Clones, Settings};
use measure::Boot;
use ramet_abi::request;
use ramet_family::{BootSpec, Config, Family, Limits};
use ramet_state::InterruptMode;
use ramet_unikernel::{ELF, Identity};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a guest may take for an answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Lines about what is going on, for people; silent with --json.
pub(crate) struct Progress {
    shown: bool,
    in_place: bool,
}

impl Progress {
    fn new(json: bool) -> Self {
        Self { shown: !json, in_place: std::io::stderr().is_terminal() }
    }

    fn say(&self, line: &str) {
        if self.shown {
            eprintln!("{line}");
        }
    }

    /// A line that is replaced by the next; only on terminals.
    fn count(&self, what: &str, done: u64, of: u64) {
        if self.shown && self.in_place {
            let bar = usize::try_from(done * 30 / of.max(1)).unwrap_or(0);
            eprint!("\r  {what} [{:<30}] {done}/{of}", "#".repeat(bar));
            if done == of {
                eprintln!();
            }
            // A progress line that cannot be written is no reason to stop.
            let _flushed = std::io::stderr().flush();
        }
    }
}

fn start(options: &DemoOptions) -> Result<(Family, Boot)> {
    let config = Config {
        limits: Limits { machines: options.clones.saturating_add(1), guest_forks: None },
        layer_limit_bytes: options.layer_space.map(|size| size.0),
        ..Config::default()
    };
    let began = Instant::now();
    let mut family = Family::start(&config).context("The family of machines cannot be started")?;
    let spec = BootSpec {
        kernel: ELF,
        memory_bytes: options.memory.0,
        family_bytes: 0,
        vcpus: options.vcpus,
        interrupts: InterruptMode::Split,
    };
    let founder = family.boot(&spec).context("The parent cannot be booted")?;
    let answer = family.request(founder, &Identity::request(), ANSWER_TIMEOUT)?;
    let boot = Boot::answered(began);
    let identity = Identity::parse(&answer)?;
    if identity.number != founder {
        bail!("The parent says that it is machine {}, and is {founder}", identity.number);
    }
    Ok((family, boot))
}

/// Runs the demo.
pub(crate) fn run(options: &DemoOptions) -> Result<ExitCode> {
    let progress = Progress::new(options.json);
    progress.say(&format!(
        "Booting a unikernel with {} of memory and {} vCPU(s), then forking it {} times while it runs.\n\
         This takes a few seconds; nothing is downloaded and nothing stays behind.",
        crate::size::human(options.memory.0),
        options.vcpus,
        options.clones
    ));
    let (mut family, boot) = start(options)?;
    progress.say(&format!("  booted and answering after {:.2} ms", boot.ms));
    // It counts from now on, between requests, and is forked in the middle of it.
    ask(&mut family, 0, &ramet_unikernel::request(request::SPIN, &[1]))?;
    // Without the right to make a control group, memory is measured less exactly; the report says how.
    if let Err(error) = family.join_cgroup() {
        progress.say(&format!("  no control group can be made ({error}): memory is measured by MemAvailable"));
    }
    let before = measure::Before::now(&family);
    let settings = Settings { clones: options.clones, generations: options.generations };
    let mut clones = Clones::new(settings);
    clones.fork_all(&mut family, &progress)?;
    clones.check_all(&mut family, &progress)?;
    let memory = measure::memory(&family, before)?;
    let report = report::Report::new(&family, &clones, &boot, &memory);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        println!("{}", report.text(&family, &clones));
    }
    family.shut_down();
    Ok(if clones.all_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Puts a request and returns what follows the status.
pub(crate) fn ask(family: &mut Family, number: u64, request: &[u8]) -> Result<Vec<u8>> {
    let answer = family.request(number, request, ANSWER_TIMEOUT)?;
    let payload = ramet_unikernel::payload(&answer).with_context(|| format!("Machine {number}"))?;
    Ok(payload.to_vec())
}
