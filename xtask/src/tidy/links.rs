//! Relative links in Markdown lead to a file of the repository, and anchors to a heading.
//!
//! Addresses on the web are deliberately not fetched.

use super::{Finding, Repository, Rule};

/// Checks every Markdown file.
pub(crate) fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in targets(text) {
            if let Some(problem) = problem(repository, path, &target) {
                findings.push(Finding::new(path, line, Rule::Links, format!("link to {target}: {problem}")));
            }
        }
    }
    findings
}

fn problem(repository: &Repository, path: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let resolved = if file.is_empty() {
        path.to_owned()
    } else {
        match resolve(path, file) {
            Some(resolved) if repository.has(&resolved) => resolved,
            Some(resolved) => return Some(format!("there is no {resolved}")),
            None => return Some("it leaves the repository".to_owned()),
        }
    };
    let text = repository.text(&resolved).filter(|_| resolved.ends_with(".md"))?;
    let anchor = anchor?;
    let found = prose(text).any(|(_, line)| heading(&line).is_some_and(|heading| slug(heading) == anchor));
    (!found).then(|| format!("{resolved} has no heading #{anchor}"))
}

/// A link's path from the root; none when it climbs above it.
fn resolve(from: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The lines outside of code blocks, with their numbers, without what stands between backticks.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then(|| (index + 1, line.to_owned()))
    })
}

fn without_code(line: &str) -> String {
    line.split('`').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "x" }).collect()
}

/// Every link and image target: `[text](target)`, `[name]: target`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(&line);
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let end = rest.find([')', ' ']).unwrap_or(rest.len());
            targets.push((number, rest[..end].trim_matches(['<', '>']).to_owned()));
        }
        let named = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]:"));
        if let Some(target) = named.and_then(|(_, rest)| rest.split_whitespace().next()) {
            targets.push((number, target.to_owned()));
        }
    }
    targets
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
}

/// The anchor that a forge gives a heading: lower case, spaces to hyphens, other signs dropped.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let other = ("docs/b.md", "# Two words, `code`\n```\n# not one\n```\n");
        let found = check(&Repository::of(&[("docs/a.md", text), other, ("README.md", "")]));
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn good_links_pass() {
        let good = [
            "[a](b.md)",
            "[a](./b.md#two-words-code)",
            "[a](../README.md) and [b](../docs/)",
            "# Here\n[a](#here)",
            "[a](https://example.org/x.md) <mailto:a@b>",
            "`[a](c.md)`\n```\n[a](c.md)\n```",
            "[ref]: b.md",
            "![picture](../README.md \"title\")",
        ];
        for text in good {
            assert_eq!(findings(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn bad_links_fail() {
        for text in ["[a](c.md)", "[a](b.md#not-one)", "[a](#nowhere)", "[a](../../x)", "[ref]: c.md", "![p](p.svg)"] {
            let found = findings(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
        assert!(findings("\n[a](c.md)")[0].starts_with("docs/a.md:2: links: link to c.md: there is no docs/c.md"));
    }
}
