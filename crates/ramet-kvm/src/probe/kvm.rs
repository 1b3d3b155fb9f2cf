//! KVM: the device, what is behind it, and each capability that Ramet uses.

use super::{Check, Status, first_line};
use crate::{API_VERSION, Flavour, HostModel, Kvm, host_cpuid, supported_xcr0};
use kvm_bindings as kvm;

const NEWER: &str = "use a newer Linux kernel";

/// A capability: KVM's number and name, the least value, and what its lack means.
struct Capability {
    number: u32,
    name: &'static str,
    least: i32,
    without: Status,
    lost: &'static str,
    remedy: &'static str,
}

const fn need(number: u32, name: &'static str, lost: &'static str) -> Capability {
    Capability { number, name, least: 1, without: Status::Missing, lost, remedy: NEWER }
}

const fn want(number: u32, name: &'static str, lost: &'static str) -> Capability {
    Capability { number, name, least: 1, without: Status::Degraded, lost, remedy: NEWER }
}

const CAPABILITIES: &[Capability] = &[
    need(kvm::KVM_CAP_USER_MEMORY, "USER_MEMORY", "guest memory"),
    want(kvm::KVM_CAP_READONLY_MEM, "READONLY_MEM", "read-only memory regions"),
    Capability { least: 8, ..need(kvm::KVM_CAP_NR_MEMSLOTS, "NR_MEMSLOTS", "enough memory regions") },
    Capability { least: 8, ..want(kvm::KVM_CAP_MAX_VCPUS, "MAX_VCPUS", "machines of up to 8 vCPUs") },
    need(kvm::KVM_CAP_EXT_CPUID, "EXT_CPUID", "a CPUID for the guest"),
    need(kvm::KVM_CAP_SET_TSS_ADDR, "SET_TSS_ADDR", "machines on VMX hosts"),
    want(
        kvm::KVM_CAP_SPLIT_IRQCHIP,
        "SPLIT_IRQCHIP",
        "unikernel machines with message interrupts only, which are made and ended faster",
    ),
    need(kvm::KVM_CAP_IRQCHIP, "IRQCHIP", "interrupt controllers in the kernel"),
    want(kvm::KVM_CAP_PIT2, "PIT2", "Linux guests that insist on a PIT"),
    need(kvm::KVM_CAP_IRQ_ROUTING, "IRQ_ROUTING", "interrupt lines as messages"),
    need(kvm::KVM_CAP_IRQFD, "IRQFD", "interrupts from device threads"),
    need(kvm::KVM_CAP_IOEVENTFD, "IOEVENTFD", "doorbells"),
    need(kvm::KVM_CAP_IOEVENTFD_ANY_LENGTH, "IOEVENTFD_ANY_LENGTH", "doorbells of any length"),
    need(kvm::KVM_CAP_MP_STATE, "MP_STATE", "saving whether a vCPU runs, halts or waits"),
    need(kvm::KVM_CAP_VCPU_EVENTS, "VCPU_EVENTS", "saving pending exceptions and interrupts"),
    need(kvm::KVM_CAP_DEBUGREGS, "DEBUGREGS", "saving debug registers"),
    need(kvm::KVM_CAP_XSAVE, "XSAVE", "saving floating-point and vector registers"),
    want(kvm::KVM_CAP_XSAVE2, "XSAVE2", "saving extended states beyond 4 KiB"),
    need(kvm::KVM_CAP_XCRS, "XCRS", "saving which extended states are enabled"),
    want(kvm::KVM_CAP_SREGS2, "SREGS2", "saving page-directory pointers of 32-bit PAE guests"),
    need(kvm::KVM_CAP_IMMEDIATE_EXIT, "IMMEDIATE_EXIT", "stopping vCPUs without a race"),
    Capability {
        least: kvm::KVM_SYNC_X86_VALID_FIELDS as i32,
        ..want(kvm::KVM_CAP_SYNC_REGS, "SYNC_REGS", "some microseconds of each save and restore")
    },
    need(kvm::KVM_CAP_ADJUST_CLOCK, "ADJUST_CLOCK", "a kvm-clock that goes on in clones"),
    want(kvm::KVM_CAP_TSC_DEADLINE_TIMER, "TSC_DEADLINE_TIMER", "the local APIC's precise timer mode"),
    Capability {
        remedy: "use a processor with TSC scaling, with VMX or SVM",
        ..want(
            kvm::KVM_CAP_TSC_CONTROL,
            "TSC_CONTROL",
            "restoring on a host with another TSC frequency; forks on one host are not touched",
        )
    },
    want(kvm::KVM_CAP_SYNC_MMU, "SYNC_MMU", "changing memory under a running guest"),
];

pub(super) fn checks() -> Vec<Check> {
    let kvm = match Kvm::open() {
        Ok(kvm) => kvm,
        Err(error) => {
            let (found, remedy) = (error.to_string(), "see the message");
            return vec![Check::lacking(Status::Missing, "/dev/kvm", found, "all machines", remedy)];
        }
    };
    let version = kvm.inner().get_api_version();
    let mut checks =
        vec![Check::ok("/dev/kvm", "present, and this user may use it"), api_version(version), kind(), nested()];
    checks.extend(CAPABILITIES.iter().map(|capability| {
        let value = kvm.capability(capability.number);
        let name = format!("KVM_CAP_{}", capability.name);
        if value >= capability.least {
            Check::ok(name, value.to_string())
        } else {
            Check::lacking(capability.without, name, value.to_string(), capability.lost, capability.remedy)
        }
    }));
    checks.push(msr_index_list(&kvm));
    checks.extend(guest(&kvm));
    checks
}

fn api_version(version: i32) -> Check {
    if version == API_VERSION {
        return Check::ok("KVM API version", version.to_string());
    }
    Check::lacking(Status::Missing, "KVM API version", version.to_string(), "all machines", NEWER)
}

fn kind() -> Check {
    const NAME: &str = "kind of KVM";
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(": "))
            .map(|(_, value)| value)
    };
    let processor = field("model name").unwrap_or("unknown processor");
    match Flavour::detect() {
        Flavour::Vmx => Check::ok(NAME, format!("VMX (kvm_intel) on {processor}")),
        Flavour::Svm => Check::ok(NAME, format!("SVM (kvm_amd) on {processor}")),
        Flavour::Software => Check::lacking(
            Status::Degraded,
            NAME,
            format!("software (kvm_pvm) on {processor}"),
            "speed in guests' ring 0, which is emulated; unmodified Linux guests",
            "use a machine that offers VMX or SVM; unikernels that work in ring 3 are not slower here",
        ),
        Flavour::Unknown => Check::lacking(
            Status::Degraded,
            NAME,
            format!("unknown on {processor}: /sys/module names none of its modules"),
            "advice that depends on it",
            "mount /sys",
        ),
    }
}

fn nested() -> Check {
    const NAME: &str = "host is a virtual machine";
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let virtual_host = flags
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
    if !virtual_host {
        return Check::ok(NAME, "no");
    }
    let product = first_line("/sys/class/dmi/id/product_name").unwrap_or_else(|| "of unknown kind".to_owned());
    Check::lacking(
        Status::Degraded,
        NAME,
        format!("yes, {product}"),
        "speed of exits, and comparable measurements",
        "measure on bare metal",
    )
}

fn msr_index_list(kvm: &Kvm) -> Check {
    const NAME: &str = "KVM_GET_MSR_INDEX_LIST";
    match kvm.inner().get_msr_index_list() {
        Ok(list) => Check::ok(NAME, format!("{} model-specific registers", list.as_slice().len())),
        Err(error) => Check::lacking(Status::Missing, NAME, error.to_string(), "saving vCPUs", NEWER),
    }
}

/// What only a running guest shows.
fn guest(kvm: &Kvm) -> Vec<Check> {
    const NAME: &str = "a guest runs";
    let cpuid = match host_cpuid(kvm) {
        Ok(cpuid) => cpuid,
        Err(error) => return vec![Check::lacking(Status::Missing, NAME, error.to_string(), "all machines", NEWER)],
    };
    let model = match HostModel::learn(kvm, &cpuid) {
        Ok(model) => model,
        Err(error) => {
            let found = with_sources(&error);
            return vec![Check::lacking(Status::Missing, NAME, found, "all machines", "see the message")];
        }
    };
    let mut checks = vec![Check::ok(NAME, "yes, in 64-bit user mode")];
    checks.push(if model.cpuid_is_honoured() {
        Check::ok("guests see the CPUID they are given", "yes")
    } else {
        Check::lacking(
            Status::Degraded,
            "guests see the CPUID they are given",
            "no: user mode sees the host's",
            "hiding features from guests; clones that move between unequal hosts",
            "use a host with VMX or SVM, or with CPUID faulting",
        )
    });
    checks.push(if model.tsc_is_virtual() {
        Check::ok("guests have a TSC of their own", "yes")
    } else {
        Check::lacking(
            Status::Degraded,
            "guests have a TSC of their own",
            "no: they read the host's",
            "guests that keep time by the TSC across a restore; kvm-clock is right",
            "use kvm-clock in guests, or a host with VMX or SVM",
        )
    });
    checks.push(vectors(supported_xcr0(&cpuid)));
    checks
}

fn vectors(xcr0: u64) -> Check {
    const NAME: &str = "vector registers of guests";
    let found = |names| format!("{names} (XCR0 {xcr0:#x})");
    match xcr0 {
        0xE7 => Check::ok(NAME, found("SSE, AVX, AVX-512")),
        0x7 => Check::ok(NAME, found("SSE, AVX")),
        _ => Check::lacking(
            Status::Degraded,
            NAME,
            found("no AVX"),
            "guests that need AVX",
            "use a host whose processor and KVM offer it",
        ),
    }
}

/// An error with its causes, on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
