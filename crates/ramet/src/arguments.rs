//! The command line.

use crate::size::Size;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Boots a machine once, then forks it while it runs.
#[derive(Debug, Parser)]
#[command(name = "ramet", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Boot the embedded unikernel and fork it live, many times; show that each clone is itself, and the times
    Demo(DemoOptions),
    /// Show what this host offers to Ramet, what is lost without it, and how to get it
    Doctor(DoctorOptions),
    /// Run a unikernel of your own: a 64-bit ELF, started at its entry or by its PVH note
    Run(RunOptions),
}

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// How many clones to fork
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) clones: u32,
    /// Memory of the machine, such as 128M or 4G
    #[arg(long, default_value = "128M", value_name = "SIZE")]
    pub(crate) memory: Size,
    /// Generations of forks: the clones of each are forked from the first clone of the one before
    #[arg(long, default_value_t = 1, value_name = "G", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) generations: u32,
    /// vCPUs of the machine
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) vcpus: u8,
    /// Most bytes that memory layers may take on the host, such as 1G; all of them share it
    #[arg(long, value_name = "SIZE")]
    pub(crate) layer_space: Option<Size>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The kernel: an uncompressed x86-64 ELF executable
    #[arg(value_name = "KERNEL")]
    pub(crate) kernel: PathBuf,
    /// Memory of the machine, such as 128M or 4G
    #[arg(long, default_value = "128M", value_name = "SIZE")]
    pub(crate) memory: Size,
    /// vCPUs of the machine
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=255))]
    pub(crate) vcpus: u8,
    /// Interrupt controllers: none but the local APICs ("split"), or all of a PC's ("full")
    #[arg(long, default_value = "split", value_name = "MODE", value_parser = ["split", "full", "full-pit"])]
    pub(crate) interrupts: String,
    /// Let the guest fork itself, and make at most this many machines of it
    #[arg(long, value_name = "MACHINES", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) guest_forks: Option<u32>,
    /// Children that guests may make per second, on average
    #[arg(long, default_value_t = 1000, value_name = "N", requires = "guest_forks",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) fork_rate: u32,
}
