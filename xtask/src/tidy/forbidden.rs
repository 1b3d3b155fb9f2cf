//! Constructs that the project does without, and the documentation that each file begins with.

use super::scan::{Line, Source};
use super::{Finding, Rule};

/// Code that may not appear, and what to do instead. Compared with the line's code without spaces.
const PATTERNS: &[(&str, &str)] = &[
    ("(feature=", "no cargo features: every build is the tested build"),
    (",feature=", "no cargo features: every build is the tested build"),
    ("todo!", "finish it, or return a typed error"),
    ("unimplemented!", "finish it, or return a typed error"),
    ("dbg!", "use tracing"),
    ("#[ignore", "a test runs or does not exist; one that lacks something fails and says what"),
];

/// Checks one source file.
pub(crate) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let first = source.lines.iter().position(|line| !is_blank(line));
    if !first.is_some_and(|at| is_module_doc(&source.lines[at])) {
        findings.push(Finding::new(path, 1, Rule::Docs, "begin the file with `//!`: its purpose, what is absent"));
    }
    for (index, line) in source.lines.iter().enumerate() {
        let squeezed: String = line.code.split_whitespace().collect();
        for (pattern, instead) in PATTERNS {
            if appears(&squeezed, pattern) {
                let message = format!("`{}`: {instead}", pattern.trim_start_matches(['(', ',']));
                findings.push(Finding::new(path, index + 1, Rule::Forbidden, message));
            }
        }
        let words: Vec<_> = line.code.split_whitespace().collect();
        let discards = words.windows(3).any(|w| w[0] == "let" && matches!((w[1], w[2]), ("_", "=") | ("_:", _)));
        // To format into a String cannot fail, and is by far the most frequent.
        let formats = squeezed.contains("let_=write!(") || squeezed.contains("let_=writeln!(");
        if discards && !formats && !source.explained(index + 1, has_words) {
            let message = "`let _ =` without a comment that says why the result does not matter";
            findings.push(Finding::new(path, index + 1, Rule::Forbidden, message));
        }
    }
    findings
}

fn is_blank(line: &Line) -> bool {
    line.code.trim().is_empty() && line.comment.trim().is_empty()
}

fn is_module_doc(line: &Line) -> bool {
    line.code.trim().is_empty() && line.comment.strip_prefix("//!").is_some_and(has_words)
}

fn has_words(comment: &str) -> bool {
    comment.chars().filter(|c| c.is_alphabetic()).count() >= 3
}

/// Whether `pattern` appears in `code` and is not the end of a longer word.
fn appears(code: &str, pattern: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let starts_word = pattern.starts_with(is_word);
    code.match_indices(pattern).any(|(at, _)| !(starts_word && code[..at].ends_with(is_word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        check("a.rs", &Source::scan(text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn good_files_pass() {
        let good = [
            "//! Purpose.\nfn f() {}",
            "\n//! Purpose.\n",
            "//! Purpose.\n// Best effort: the peer may be gone.\nlet _ = f();",
            "//! Purpose.\nlet _ = f(); // the peer may be gone",
            "//! Purpose: no todo!() and no `let _ =`.\nlet a = \"dbg!\"; let _b = c;\n#[cfg(test)] my_todo!();",
            "//! Purpose.\n#![feature(asm)]",
            "//! Purpose.\nlet _ = write!(text, \"\"); let _ = writeln!(text);",
        ];
        for text in good {
            assert_eq!(findings(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn bad_files_fail() {
        let bad = [
            ("fn f() {}", "docs"),
            ("", "docs"),
            ("//!\n", "docs"),
            ("#![no_std]\n//! Purpose.", "docs"),
            ("//! Purpose.\n#[cfg(feature = \"x\")]", "forbidden"),
            ("//! Purpose.\n#[cfg(all(test, feature = \"x\"))]", "forbidden"),
            ("//! Purpose.\ntodo!()", "forbidden"),
            ("//! Purpose.\nunimplemented!(\"x\")", "forbidden"),
            ("//! Purpose.\nf(dbg!(x))", "forbidden"),
            ("//! Purpose.\n#[ignore = \"slow\"]", "forbidden"),
            ("//! Purpose.\nlet _ = ioctl();", "forbidden"),
            ("//! Purpose.\nlet _: Result<()> = ioctl();", "forbidden"),
            ("//! Purpose.\nlet a = 1; // one\nlet _ = ioctl();", "forbidden"),
        ];
        for (text, rule) in bad {
            let found = findings(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains(&format!(": {rule}: ")), "{}", found[0]);
        }
    }
}
