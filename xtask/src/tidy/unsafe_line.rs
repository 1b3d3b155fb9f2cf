//! `unsafe` only where it is meant to be, each block with its reason.
//!
//! clippy's `undocumented_unsafe_blocks` checks the reasons too, but sees only what is compiled for one target.

use super::scan::Source;
use super::{Finding, Repository, Rule};

/// Crates, and the named layer of the unikernel, that may contain `unsafe`.
const ALLOWED: &[&str] = &[
    "crates/ramet-memory/",
    "crates/ramet-kvm/",
    "crates/ramet-process/",
    "guest/unikernel/src/ring0.rs",
    "guest/unikernel/src/runtime/",
];

/// Checks one source file.
pub(crate) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let allowed = ALLOWED.iter().any(|prefix| path.starts_with(prefix));
    let mut findings = Vec::new();
    for found in source.unsafes() {
        if !allowed {
            let message = format!("`unsafe` outside of {}: use what they offer, or add it there", ALLOWED.join(", "));
            findings.push(Finding::new(path, found.line, Rule::UnsafeLine, message));
        } else if found.claims && !source.explained(found.line, |comment| comment.contains("SAFETY:")) {
            let message = "`unsafe` without a `// SAFETY:` comment above it that names the invariant";
            findings.push(Finding::new(path, found.line, Rule::Safety, message));
        }
    }
    findings
}

/// Checks that the root of every crate that does without `unsafe` says so.
pub(crate) fn check_roots(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in repository.rust() {
        let folder = ["src/lib.rs", "src/main.rs"].iter().find_map(|root| path.strip_suffix(root));
        let Some(folder) = folder.filter(|folder| repository.has(&format!("{folder}Cargo.toml"))) else { continue };
        let says = |attribute: &str| source.lines.iter().any(|line| line.code.trim() == attribute);
        // The others are denied it by the lints that they inherit, and allow it module by module.
        let without = !ALLOWED.iter().any(|prefix| prefix.starts_with(folder));
        if without && !says("#![forbid(unsafe_code)]") {
            findings.push(Finding::new(path, 1, Rule::UnsafeLine, "say `#![forbid(unsafe_code)]`"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASON: &str = "// SAFETY: the mapping outlives the slice.\nunsafe { f() }";

    #[test]
    fn unsafe_is_where_it_is_meant_to_be() {
        let source = Source::scan(REASON);
        assert!(check("crates/ramet-memory/src/view.rs", &source).is_empty());
        assert_eq!(check("crates/ramet-devices/src/lib.rs", &source)[0].rule, Rule::UnsafeLine);
        assert_eq!(check("guest/unikernel/src/app/request.rs", &source)[0].rule, Rule::UnsafeLine);
        assert!(
            check("crates/ramet-devices/src/lib.rs", &Source::scan("// unsafe\n#![forbid(unsafe_code)]")).is_empty()
        );
    }

    #[test]
    fn unsafe_has_its_reason() {
        let found = check("crates/ramet-kvm/src/vm.rs", &Source::scan("let a = 1;\nunsafe { f() }"));
        assert_eq!((found.len(), found[0].rule, found[0].line), (1, Rule::Safety, 2));
    }

    fn roots(path: &str, text: &str) -> usize {
        let manifest = path.replace("src/lib.rs", "Cargo.toml").replace("src/main.rs", "Cargo.toml");
        check_roots(&Repository::of(&[(path, text), (&manifest, "")])).len()
    }

    #[test]
    fn roots_say_where_they_stand() {
        assert_eq!(roots("crates/a/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(roots("crates/a/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n"), 1);
        assert_eq!(roots("crates/a/src/main.rs", "//! A.\n// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(roots("crates/ramet-kvm/src/lib.rs", "//! A.\n"), 0);
        assert_eq!(roots("guest/unikernel/src/main.rs", "//! A.\n"), 0);
        assert_eq!(roots("crates/ramet/src/main.rs", "//! A.\n"), 1);
    }
}
