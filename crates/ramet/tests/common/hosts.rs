//! What docs/hosts.toml says about the host at hand.

use std::path::Path;

const HOSTS: &str = include_str!("../../../../docs/hosts.toml");

fn processor_vendor() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let line = cpuinfo.lines().find(|line| line.starts_with("vendor_id")).expect("/proc/cpuinfo names the vendor");
    line.split(':').nth(1).unwrap().trim().to_owned()
}

/// What this host can, by its entry; a host without one fails the test that asks.
pub struct Host(toml::Table);

impl Host {
    pub fn at_hand() -> Self {
        let table: toml::Table = HOSTS.parse().unwrap();
        let vendor = processor_vendor();
        let text = |host: &toml::Value, field: &str| host[field].as_str().unwrap().to_owned();
        let fits = |host: &&toml::Value| {
            Path::new("/sys/module").join(text(host, "module")).exists() && text(host, "vendor") == vendor
        };
        let host = table["host"].as_array().unwrap().iter().find(fits);
        let host = host.unwrap_or_else(|| panic!("docs/hosts.toml has no entry for this host ({vendor}): add one"));
        Self(host["can"].as_table().unwrap().clone())
    }

    /// Whether the host declares it.
    pub fn can(&self, field: &str) -> bool {
        let answer = &self.0[field];
        answer.as_bool().unwrap_or_else(|| panic!("{field} is {answer:?} for this host, neither true nor false"))
    }
}
