//! Modules and functions have a size that fits a head.

use super::scan::Source;
use super::{Finding, Rule};

/// Most lines of a module, tests included: longer tests get a file of their own.
const MODULE_MAX_LINES: usize = 600;
/// Most lines of a function, from `fn` to the closing brace.
const FUNCTION_MAX_LINES: usize = 70;

/// Checks one source file.
pub(crate) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let length = source.lines.iter().rposition(|line| *line != Default::default()).map_or(0, |last| last + 1);
    if length > MODULE_MAX_LINES {
        let message = format!("module of {length} lines: split it (at most {MODULE_MAX_LINES})");
        findings.push(Finding::new(path, 1, Rule::Length, message));
    }
    match source.functions() {
        Ok(functions) => {
            for function in functions.iter().filter(|function| function.length() > FUNCTION_MAX_LINES) {
                let (name, length) = (&function.name, function.length());
                let message = format!("function {name} of {length} lines: split it (at most {FUNCTION_MAX_LINES})");
                findings.push(Finding::new(path, function.first_line, Rule::Length, message));
            }
        }
        Err(line) => findings.push(Finding::new(path, line, Rule::Length, "braces of this function do not match")),
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        check("a.rs", &Source::scan(text))
    }

    #[test]
    fn limits_are_inclusive() {
        assert!(findings(&format!("fn f() {{{}}}", "\n".repeat(FUNCTION_MAX_LINES - 1))).is_empty());
        assert!(findings(&"// a\n".repeat(MODULE_MAX_LINES)).is_empty());
    }

    #[test]
    fn long_functions_fail() {
        let found = findings(&format!("\nfn f() {{{}}}", "\n".repeat(FUNCTION_MAX_LINES)));
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn long_modules_fail() {
        assert_eq!(findings(&"// a\n".repeat(MODULE_MAX_LINES + 1)).len(), 1);
    }
}
