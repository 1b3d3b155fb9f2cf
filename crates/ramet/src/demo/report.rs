//! What the demo found, for people and for programs.

use super::clones::{CloneRecord, Clones};
use super::measure::{Boot, Memory, Summary};
use crate::table;
use ramet_family::{BuildStamps, Family};
use std::collections::BTreeMap;

/// The figures.
pub(crate) struct Report {
    boot: Boot,
    pause: Summary,
    first_instruction: Summary,
    first_answer: Summary,
    /// Since the request, stage by stage.
    stages: Vec<(&'static str, Summary)>,
    memory: Memory,
    clones: usize,
    answering: usize,
    distinct_random: usize,
    isolation_ok: bool,
    backing: String,
}

/// What happens in a child's process, in order.
type Stage = (&'static str, fn(&BuildStamps) -> u64);
const STAGES: [Stage; 8] = [
    ("born", |stamps| stamps.born),
    ("confined", |stamps| stamps.confined),
    ("created", |stamps| stamps.created),
    ("blank", |stamps| stamps.blank),
    ("ordered", |stamps| stamps.ordered),
    ("mapped", |stamps| stamps.mapped),
    ("restored", |stamps| stamps.restored),
    ("released", |stamps| stamps.released),
];

fn milliseconds(from: u64, to: u64, ns_per_tick: f64) -> f64 {
    to.wrapping_sub(from).cast_signed() as f64 * ns_per_tick / 1e6
}

impl Report {
    pub(crate) fn new(family: &Family, clones: &Clones, boot: &Boot, memory: &Memory) -> Self {
        let ns = clones.ns_per_tick();
        let records = &clones.records;
        let since_request = |record: &CloneRecord, tsc: u64| milliseconds(record.requested_tsc, tsc, ns);
        let first = |record: &CloneRecord| record.first_instruction_tsc.map(|tsc| since_request(record, tsc));
        Self {
            boot: *boot,
            pause: Summary::of(records.iter().map(|record| record.pause_ns as f64 / 1e6).collect()),
            first_instruction: Summary::of(records.iter().filter_map(first).collect()),
            first_answer: Summary::of(
                records.iter().map(|record| since_request(record, record.answered_tsc)).collect(),
            ),
            stages: STAGES
                .iter()
                .map(|(name, stamp)| {
                    let times = records.iter().map(|record| since_request(record, stamp(&record.stamps)));
                    (*name, Summary::of(times.collect()))
                })
                .collect(),
            memory: *memory,
            clones: records.len(),
            answering: clones.answering(),
            distinct_random: clones.distinct_random(),
            isolation_ok: clones.isolation_ok(),
            backing: format!("{:?}", family.backing()),
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "boot_ms": self.boot.ms,
            "answered_monotonic_ns": self.boot.answered_monotonic_ns,
            "parent_pause_ms": self.pause,
            "fork_first_instruction_ms": self.first_instruction,
            "fork_first_answer_ms": self.first_answer,
            "fork_stages_ms": self.stages.iter().map(|(name, summary)| (*name, summary)).collect::<BTreeMap<_, _>>(),
            "clones": self.clones,
            "clones_answering": self.answering,
            "distinct_random": self.distinct_random,
            "isolation_ok": self.isolation_ok,
            "memory_per_clone_kib": self.memory.all_in_per_clone_kib,
            "memory": self.memory,
            "layers_on": self.backing,
        })
    }

    pub(crate) fn text(&self, family: &Family, clones: &Clones) -> String {
        let row = |what: &str, summary: &Summary| {
            vec![what.to_owned(), summary.n.to_string(), format!("{:.3}", summary.p50), format!("{:.3}", summary.p99)]
        };
        let heading = ["time in ms", "n", "p50", "p99"].map(str::to_owned).to_vec();
        let boot = vec![
            "boot, request to first answer".to_owned(),
            "1".to_owned(),
            format!("{:.3}", self.boot.ms),
            String::new(),
        ];
        let times = table::render(
            &[
                heading,
                boot,
                row("pause of the parent", &self.pause),
                row("fork request to first guest instruction", &self.first_instruction),
                row("fork request to first useful answer", &self.first_answer),
            ],
            &[1, 2, 3],
        );
        let parents: BTreeMap<u64, u64> = family.members().map(|member| (member.number, member.parent)).collect();
        let generations: BTreeMap<u64, u32> =
            clones.records.iter().map(|record| (record.number, record.generation)).collect();
        let label = |number: u64| match generations.get(&number) {
            Some(generation) => format!("clone {number} (generation {generation})"),
            None => format!("machine {number} (booted)"),
        };
        let yes = |good: bool| if good { "yes" } else { "NO" };
        format!(
            "{times}\n{}\n\
             clones that answer as themselves   {} of {}\n\
             distinct random bytes              {} of {}\n\
             isolated from one another          {}\n\
             memory per clone                   {} KiB all in ({}), {} KiB PSS, {} KiB private\n",
            table::tree(&parents, &label),
            self.answering,
            self.clones,
            self.distinct_random,
            self.clones,
            yes(self.isolation_ok),
            self.memory.all_in_per_clone_kib,
            self.memory.measured_by,
            self.memory.pss_per_clone_kib,
            self.memory.private_per_clone_kib,
        )
    }
}
