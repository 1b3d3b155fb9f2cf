//! `ramet doctor`: what this host offers.

use crate::arguments::DoctorOptions;
use crate::table;
use anyhow::Result;
use ramet_kvm::probe::{HostReport, Status};
use std::process::ExitCode;

/// Shows the table; success if Ramet can run here.
pub(crate) fn run(options: &DoctorOptions) -> Result<ExitCode> {
    let report = HostReport::gather();
    let can_run = report.can_run();
    if options.json {
        let value = serde_json::json!({ "can_run": can_run, "checks": report.checks });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &HostReport) -> String {
    let mut rows = vec![["", "what", "found"].map(str::to_owned).to_vec()];
    let mut advice = Vec::new();
    for check in &report.checks {
        let mark = match check.status {
            Status::Ok => "ok",
            Status::Degraded => "--",
            Status::Missing => "NO",
        };
        rows.push(vec![mark.to_owned(), check.name.clone(), check.found.clone()]);
        if check.status != Status::Ok {
            advice.push(vec![check.name.clone(), format!("{}. {}", check.lost, check.remedy)]);
        }
    }
    let mut text = table::render(&rows, &[]);
    if !advice.is_empty() {
        let heading = ["what is not as it could be", "what is lost, and how to get it"].map(str::to_owned).to_vec();
        advice.insert(0, heading);
        text = format!("{text}\n{}", table::render(&advice, &[]));
    }
    let verdict = if report.can_run() { "Ramet can run on this host." } else { "Ramet cannot run on this host." };
    format!("{text}\n{verdict}\n")
}
