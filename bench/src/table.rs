//! A report as a table that fits a terminal.

use std::fmt::Write;

use crate::report::{Report, Row};

/// Narrowest and widest table.
const WIDTH: std::ops::RangeInclusive<usize> = 80..=120;
/// Columns after the params: n, min, p50, p99, unit, and the spaces between them.
const NUMBERS_WIDTH: usize = 1 + 6 + 3 * 9 + 5;

/// The terminal's width within bounds, as the shell tells it; 100 where it does not.
pub(crate) fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.unwrap_or(100usize).clamp(*WIDTH.start(), *WIDTH.end())
}

/// The report, no line longer than `width` unless a single name or parameter is.
pub(crate) fn render(report: &Report, width: usize) -> String {
    let mut text = String::new();
    let host = &report.host;
    let head = [
        format!("{} at {}", report.bench, report.commit),
        format!("{}, {} cores, {} MiB", host.cpu, host.cores, host.memory_mib),
        format!("Linux {}, KVM: {}", host.kernel, host.kvm),
    ];
    let load = host.load_before.map(|load| format!("load before: {load}"));
    let guest = report.guest.as_ref().map(|guest| format!("guest: {guest}"));
    for line in head.iter().chain(&load).chain(&guest) {
        text += &format!("{line}\n");
    }
    let name_width = report.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    let params_width = width.saturating_sub(name_width + 1 + NUMBERS_WIDTH).max(8);
    let line = |text: &mut String, name: &str, params: &str, rest: [&str; 5]| {
        let [n, min, p50, p99, unit] = rest;
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:<name_width$} {params:<params_width$} {n:>6}{min:>9}{p50:>9}{p99:>9} {unit}");
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(&mut text, "name", "params", ["n", "min", "p50", "p99", "unit"]);
    for row in &report.rows {
        let mut params = wrap(row, params_width).into_iter();
        let numbers = [row.n.to_string(), number(row.min), number(row.p50), number(row.p99)];
        let [n, min, p50, p99] = numbers.each_ref().map(String::as_str);
        line(&mut text, &row.name, &params.next().unwrap_or_default(), [n, min, p50, p99, &row.unit]);
        for more in params {
            line(&mut text, "", &more, [""; 5]);
        }
    }
    text
}

/// The params of a row as `a=1 b=2`, in lines of at most `width`.
fn wrap(row: &Row, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in &row.params {
        let pair = format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        match lines.last_mut().filter(|line| line.len() + 1 + pair.len() <= width) {
            Some(line) => *line += &format!(" {pair}"),
            None => lines.push(pair),
        }
    }
    lines
}

/// Four significant digits, without an exponent.
pub(crate) fn number(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = usize::try_from((3 - magnitude).clamp(0, 6)).unwrap_or(0);
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::params;

    fn report() -> Report {
        let row = |name: &str, pairs| Row {
            name: name.to_owned(),
            params: pairs,
            n: 100,
            min: 0.012_345,
            p50: 12.345,
            p99: 123_456.0,
            unit: "us".to_owned(),
        };
        let many = params([
            ("backing", "tmpfs-huge".into()),
            ("dirty_pages", 1000.into()),
            ("resident_mib", 2048.into()),
            ("slot_mib", 4096.into()),
            ("vcpus", 2.into()),
        ]);
        let rows = vec![row("fork_first_instruction", many), row("parent_pause", params([]))];
        Report { guest: Some("unikernel".to_owned()), ..Report::new("fork", rows) }
    }

    #[test]
    fn tables_fit() {
        for width in [80, 100, 120] {
            let text = render(&report(), width);
            let rows = text.lines().skip_while(|line| !line.starts_with("name"));
            for line in rows {
                assert!(line.len() <= width, "{width}: {line}");
            }
            for part in ["slot_mib=4096", "backing=tmpfs-huge", "0.01235", "12.35", "123456", "guest: unikernel"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn numbers_have_four_digits() {
        let shown = [0.0, 0.000_123_4, 1.0, 99.999, 1234.5, 123_456.7].map(number);
        assert_eq!(shown, ["0.000", "0.000123", "1.000", "100.00", "1234", "123457"]);
    }
}
