//! One process per case, and what the cases share.

use std::panic::AssertUnwindSafe;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use ramet_process::{Child, Forked, Limits, Namespaces, Received, SeqPacket, exit_now, fork_process};

/// A case's name and body, which panics when it fails.
pub(crate) type Case = (&'static str, fn());

const CASE: &str = "RAMET_PROCESS_TEST_CASE";
/// The user that cases without rights run as: "nobody".
pub(crate) const NOBODY: u32 = 65534;

pub(crate) fn main(cases: &[Case]) -> ExitCode {
    if let Ok(name) = std::env::var(CASE) {
        let (_, body) = cases.iter().find(|(known, _)| *known == name).expect("the case is known");
        body();
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let exact = arguments.iter().any(|argument| argument == "--exact");
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| if exact { *filter == name } else { name.contains(*filter) })
    };
    let chosen: Vec<&Case> = cases.iter().filter(|(name, _)| wanted(name)).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let failures: Vec<(&str, String)> = chosen.iter().filter_map(|(name, _)| run(name)).collect();
    for (name, output) in &failures {
        println!("\n---- {name} ----\n{output}");
    }
    let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out\n",
        chosen.len() - failures.len(),
        failures.len(),
        cases.len() - chosen.len()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(name: &'static str) -> Option<(&'static str, String)> {
    let output = Command::new("/proc/self/exe").env(CASE, name).output().expect("this program can be run again");
    let passed = output.status.success();
    println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    let text = [output.stdout, output.stderr].concat();
    (!passed).then(|| (name, format!("{}{}", String::from_utf8_lossy(&text), output.status)))
}

/// Runs another case of this program without rights, and fails with its output if it fails.
pub(crate) fn run_as_nobody(name: &str) {
    use std::os::unix::process::CommandExt;
    require_root();
    let mut command = Command::new("/proc/self/exe");
    let output = command.env(CASE, name).uid(NOBODY).gid(NOBODY).output().expect("this program can be run by nobody");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stderr), output.status);
}

pub(crate) fn require_root() {
    assert!(rustix::process::getuid().is_root(), "this test must be run as root");
}

/// Forks a child that runs `body` and ends with status 0, or 101 if it panics.
pub(crate) fn fork(namespaces: Namespaces, body: impl FnOnce()) -> Child {
    match fork_process(namespaces, None).unwrap() {
        Forked::Parent(child) => child,
        Forked::Child => {
            let result = std::panic::catch_unwind(AssertUnwindSafe(body));
            exit_now(if result.is_ok() { 0 } else { 101 })
        }
    }
}

/// Like [`fork`], with a socket on each side; a panic in the child arrives as a message, since its standard error may
/// be closed by then.
pub(crate) fn fork_with_socket(namespaces: Namespaces, body: impl FnOnce(&SeqPacket)) -> (Child, SeqPacket) {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let (mut ours, theirs) = (Some(ours), Arc::new(theirs));
    let child = fork(namespaces, || {
        drop(ours.take());
        let reporter = Arc::clone(&theirs);
        std::panic::set_hook(Box::new(move |information| {
            // Nobody may be left to read it: the exit status tells too.
            let _ = reporter.send(format!("The child panicked: {information}").as_bytes(), &[]);
        }));
        body(&theirs);
    });
    (child, ours.expect("only the child closed it"))
}

/// The next message as text; empty at the end of the stream.
pub(crate) fn recv_text(socket: &SeqPacket) -> String {
    match socket.recv(Limits::default()).unwrap() {
        Received::Message(message) => String::from_utf8(message.bytes).unwrap(),
        Received::EndOfStream => String::new(),
    }
}

/// Waits in a child until the parent closes its end.
pub(crate) fn until_closed(socket: &SeqPacket) {
    while let Received::Message(_) = socket.recv(Limits::default()).unwrap() {}
}
