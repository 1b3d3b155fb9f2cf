//! Running a command: its output goes on to ours line by line while it is read.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command, shows each line of its standard output and gives it to `read`; fails when the command does.
///
/// # Errors
/// When the command cannot be started, or ends with another status than 0.
pub(super) fn run(command: &mut Command, mut read: impl FnMut(&str)) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("Could not start {name}"))?;
    let output = child.stdout.take().context("The standard output is piped")?;
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).with_context(|| format!("Could not read from {name}"))? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        std::io::stdout().flush().context("Could not write")?;
        read(text.trim_end());
        line.clear();
    }
    let status = child.wait().with_context(|| format!("Could not wait for {name}"))?;
    if !status.success() {
        bail!("{name}: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_failures_told() {
        let mut lines = Vec::new();
        run(Command::new("sh").args(["-c", "printf 'a\\nb'"]), |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["a", "b"]);
        let error = run(Command::new("sh").args(["-c", "exit 3"]), |_| {}).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert!(run(&mut Command::new("no-such-program"), |_| {}).is_err());
    }
}
