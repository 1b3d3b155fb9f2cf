//! What holds for text of every kind: no places of one machine, no large files, manifests that inherit the lints.

use super::{Finding, Repository, Rule};

/// Largest file that is tracked.
const FILE_MAX_BYTES: usize = 1 << 20;

/// Written by cargo or by others, word for word.
const EXEMPT: &[&str] = &["Cargo.lock", "guest/unikernel/Cargo.lock", "fuzz/Cargo.lock", "LICENSE"];

/// Beginnings of absolute paths that exist only on the machine of whoever wrote them.
/// In two pieces each, so that this file does not contain what it looks for.
const PLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Hosts of package registries: clients know them, the repository need not.
const REGISTRIES: &[&str] = &[
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("pypi", ".org"),
    concat!("files.pythonhosted", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("repo1.maven", ".org"),
    concat!("repo.maven.apache", ".org"),
];

/// Checks every file.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.files.iter().filter(|file| file.bytes > FILE_MAX_BYTES) {
        let message = format!("{} bytes: generate it, or keep it elsewhere (at most {FILE_MAX_BYTES})", file.bytes);
        findings.push(Finding::new(&file.path, 1, Rule::Size, message));
    }
    for (path, text) in repository.texts().filter(|(path, _)| !EXEMPT.contains(path)) {
        for (index, line) in text.lines().enumerate() {
            for place in PLACES.iter().filter(|place| names_place(line, place)) {
                let message = format!("absolute path below {place}: make it relative, or a parameter");
                findings.push(Finding::new(path, index + 1, Rule::Places, message));
            }
            for host in REGISTRIES.iter().filter(|host| line.contains(**host)) {
                let message = format!("host {host} of a registry: let the client choose");
                findings.push(Finding::new(path, index + 1, Rule::Places, message));
            }
        }
        if path == "Cargo.toml" || path.ends_with("/Cargo.toml") {
            findings.extend(check_manifest(path, text));
        }
    }
    findings
}

/// Whether `line` has an absolute path that begins with `place`, rather than a relative one or an address with it inside.
fn names_place(line: &str, place: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "._-~})*]/".contains(c);
    line.match_indices(place).any(|(at, _)| !line[..at].ends_with(inside))
}

fn check_manifest(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manifest: toml::Table = match toml::from_str(text) {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(path, 1, Rule::Forbidden, format!("not TOML: {}", error.message()))],
    };
    if manifest.contains_key("features") {
        findings.push(Finding::new(path, 1, Rule::Forbidden, "no cargo features: every build is the tested build"));
    }
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    // A manifest that is its own workspace has no table to inherit and must carry one.
    let own = manifest.contains_key("workspace") && manifest.contains_key("lints");
    if manifest.contains_key("package") && inherits != Some(true) && !own {
        findings.push(Finding::new(path, 1, Rule::Forbidden, "inherit the lints: `[lints] workspace = true`"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<Rule> {
        check(&Repository::of(&[(path, text)])).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn places_are_found() {
        let home = concat!("/ho", "me/");
        for text in [format!("{home}me/x"), format!("path = \"{home}me\""), format!("a\n-I{home}me").replace("-I", ":")]
        {
            assert_eq!(findings("a.sh", &text), [Rule::Places], "{text}");
        }
        for text in [format!("target{home}x"), format!("${{root}}{home}x"), "/tmp/x /proc/self/exe".to_owned()] {
            assert!(findings("a.sh", &text).is_empty(), "{text}");
        }
    }

    #[test]
    fn registries_are_found() {
        assert_eq!(findings("a.sh", concat!("curl https://static.crates", ".io/x")), [Rule::Places]);
        assert!(findings("Cargo.lock", concat!("https://static.crates", ".io/x")).is_empty());
        assert!(findings("a.md", "a crate from crates.io").is_empty());
    }

    #[test]
    fn large_files_are_found() {
        assert!(findings("a", &"a".repeat(FILE_MAX_BYTES)).is_empty());
        assert_eq!(findings("a", &"a".repeat(FILE_MAX_BYTES + 1)), [Rule::Size]);
    }

    #[test]
    fn manifests_inherit_the_lints_and_have_no_features() {
        assert!(findings("a/Cargo.toml", "[package]\n[lints]\nworkspace = true").is_empty());
        assert!(findings("Cargo.toml", "[workspace]").is_empty());
        assert!(findings("a/Cargo.toml", "[package]\n[workspace]\n[lints.rust]\nunsafe_code = \"deny\"").is_empty());
        assert_eq!(findings("a/Cargo.toml", "[package]"), [Rule::Forbidden]);
        assert_eq!(findings("a/Cargo.toml", "[package]\n[features]\n[lints]\nworkspace = true"), [Rule::Forbidden]);
        assert_eq!(findings("a/Cargo.toml", "[package"), [Rule::Forbidden]);
    }
}
