//! docs/hosts.md shows what docs/hosts.toml says.
//!
//! Tests read the TOML file (what a host declares must work, what it lacks must be lacking); people read the table
//! that is rendered from it between two marks. `cargo xtask hosts` renders it.

use serde::Deserialize;
use toml::Value;

use super::{Finding, Repository, Rule};

const SOURCE: &str = "docs/hosts.toml";
const TABLE: &str = "docs/hosts.md";
const BEGIN: &str = "<!-- begin: rendered from hosts.toml by `cargo xtask hosts` -->\n";
const END: &str = "<!-- end -->\n";

#[derive(Debug, Deserialize)]
struct Hosts {
    /// What is asked of each host, with what it means.
    field: Vec<Field>,
    host: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Field {
    name: String,
    meaning: String,
}

#[derive(Debug, Deserialize)]
struct Host {
    id: String,
    name: String,
    /// The module that backs /dev/kvm, and the processor's vendor: what tests recognise the host by.
    module: String,
    vendor: String,
    can: toml::Table,
}

/// Checks that both files are there and agree.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let finding = |path: &str, message: String| vec![Finding::new(path, 1, Rule::HostsTable, message)];
    match (repository.text(SOURCE), repository.text(TABLE)) {
        (None, None) => Vec::new(),
        (Some(source), Some(document)) => match render_into(document, source) {
            Err(problem) => finding(SOURCE, problem),
            Ok(rendered) if rendered != document => finding(TABLE, "out of date: run `cargo xtask hosts`".to_owned()),
            Ok(_) => Vec::new(),
        },
        _ => finding(SOURCE, format!("{SOURCE} and {TABLE} belong together")),
    }
}

/// `document` with its table rendered from `source`.
///
/// # Errors
/// What is wrong with either.
pub(crate) fn render_into(document: &str, source: &str) -> Result<String, String> {
    let hosts: Hosts = toml::from_str(source).map_err(|error| format!("not as expected: {}", error.message()))?;
    let marks = format!("{TABLE} needs the lines {} and {}", BEGIN.trim_end(), END.trim_end());
    let (before, rest) = document.split_once(BEGIN).ok_or_else(|| marks.clone())?;
    let (_, after) = rest.split_once(END).ok_or(marks)?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", render(&hosts)?))
}

fn render(hosts: &Hosts) -> Result<String, String> {
    for (at, host) in hosts.host.iter().enumerate() {
        let alike = |other: &&Host| (&other.module, &other.vendor) == (&host.module, &host.vendor);
        if let Some(other) = hosts.host[..at].iter().find(alike) {
            return Err(format!("hosts {} and {} have the same module and vendor", other.id, host.id));
        }
        let asked = |name: &String| hosts.field.iter().any(|field| field.name == *name);
        if let Some(stray) = host.can.keys().find(|name| !asked(name)) {
            return Err(format!("host {} answers {stray}, which no [[field]] asks", host.id));
        }
    }
    let ids: String = hosts.host.iter().map(|host| format!(" {} |", host.name)).collect();
    let mut table = format!("| field | meaning |{ids}\n|---|---|{}\n", "---|".repeat(hosts.host.len()));
    for field in &hosts.field {
        table += &format!("| `{}` | {} |", field.name, field.meaning);
        for host in &hosts.host {
            let answer = host.can.get(&field.name).ok_or(format!("host {} does not answer {}", host.id, field.name))?;
            table += &format!(" {} |", show(answer).ok_or(format!("host {}: {}: odd value", host.id, field.name))?);
        }
        table.push('\n');
    }
    Ok(table)
}

fn show(answer: &Value) -> Option<&str> {
    match answer {
        Value::Boolean(true) => Some("yes"),
        Value::Boolean(false) => Some("no"),
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = "field = [{name = \"avx\", meaning = \"AVX\"}]\n[[host]]\nid = \"a\"\nname = \"A\"\n\
                         module = \"m\"\nvendor = \"v\"\n";

    fn source(can: &str) -> String {
        format!("{HOSTS}can = {{{can}}}\n")
    }

    fn document(table: &str) -> String {
        format!("before\n{BEGIN}{table}{END}after\n")
    }

    #[test]
    fn the_table_is_rendered_between_the_marks() {
        let rendered = render_into(&document("old\n"), &source("avx = true")).unwrap();
        assert_eq!(rendered, document("| field | meaning | A |\n|---|---|---|\n| `avx` | AVX | yes |\n"));
        assert_eq!(render_into(&rendered, &source("avx = true")).unwrap(), rendered);
    }

    #[test]
    fn every_host_answers_what_is_asked() {
        for can in ["", "avx = true, sse = true", "avx = 1"] {
            assert!(render_into(&document(""), &source(can)).is_err(), "{can}");
        }
        let twice = source("avx = true")
            + "[[host]]\nid = \"b\"\nname = \"B\"\nmodule = \"m\"\nvendor = \"v\"\ncan = {avx = true}";
        assert!(render_into(&document(""), &twice).unwrap_err().contains("hosts a and b"));
        assert!(render_into("no marks", &source("avx = true")).is_err());
    }

    #[test]
    fn stale_tables_are_found() {
        let fresh = render_into(&document(""), &source("avx = true")).unwrap();
        let found = |files: &[(&str, &str)]| check(&Repository::of(files)).len();
        assert_eq!(found(&[(SOURCE, &source("avx = true")), (TABLE, &fresh)]), 0);
        assert_eq!(found(&[(SOURCE, &source("avx = false")), (TABLE, &fresh)]), 1);
        assert_eq!(found(&[(TABLE, &fresh)]), 1);
    }
}
