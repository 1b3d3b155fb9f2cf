//! Tables that fit a terminal, and a family as a tree.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Widest table, for terminals that do not say how wide they are.
const COLUMNS: usize = 100;

/// Lays out rows in columns; the last column is wrapped at words. The first row is the heading.
pub(crate) fn render(rows: &[Vec<String>], right_aligned: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let before_last: usize = widths.iter().take(count.saturating_sub(1)).map(|width| width + 2).sum();
    let last_width = COLUMNS.saturating_sub(before_last).max(24);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == count {
                for (part, piece) in wrap(cell, last_width).iter().enumerate() {
                    if part > 0 {
                        let _ = write!(line, "\n{:before_last$}", "");
                    }
                    line.push_str(piece);
                }
            } else if right_aligned.contains(&column) {
                let _ = write!(line, "{cell:>width$}  ", width = widths[column]);
            } else {
                let _ = write!(line, "{cell:<width$}  ", width = widths[column]);
            }
        }
        for piece in line.lines() {
            text.push_str(piece.trim_end());
            text.push('\n');
        }
        if number == 0 {
            let rule: usize =
                widths.iter().enumerate().map(|(c, w)| if c + 1 == count { (*w).min(last_width) } else { w + 2 }).sum();
            text.push_str(&"-".repeat(rule));
            text.push('\n');
        }
    }
    text
}

fn wrap(cell: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in cell.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// How many siblings without children are drawn one by one before they are drawn as one line.
const SIBLINGS_SHOWN: usize = 4;

/// Draws a family: `parents` maps each number to its parent, the founder to itself.
pub(crate) fn tree(parents: &BTreeMap<u64, u64>, label: &dyn Fn(u64) -> String) -> String {
    let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut founders = Vec::new();
    for (&number, &parent) in parents {
        if number == parent || !parents.contains_key(&parent) {
            founders.push(number);
        } else {
            children.entry(parent).or_default().push(number);
        }
    }
    let mut text = String::new();
    for founder in founders {
        let _ = writeln!(text, "{}", label(founder));
        branch(founder, &children, label, "", &mut text);
    }
    text
}

/// What a line of the tree stands for.
enum Twig {
    One(u64),
    Many { first: u64, last: u64, count: usize },
}

/// Siblings with children stand alone; long rows of those without are folded.
fn fold(siblings: &[u64], children: &BTreeMap<u64, Vec<u64>>) -> Vec<Twig> {
    let mut twigs = Vec::new();
    for run in siblings.chunk_by(|a, b| !children.contains_key(a) && !children.contains_key(b)) {
        if run.len() > SIBLINGS_SHOWN {
            twigs.push(Twig::Many { first: run[0], last: run[run.len() - 1], count: run.len() });
        } else {
            twigs.extend(run.iter().map(|number| Twig::One(*number)));
        }
    }
    twigs
}

fn branch(
    parent: u64,
    children: &BTreeMap<u64, Vec<u64>>,
    label: &dyn Fn(u64) -> String,
    prefix: &str,
    text: &mut String,
) {
    let Some(siblings) = children.get(&parent) else { return };
    let twigs = fold(siblings, children);
    for (position, twig) in twigs.iter().enumerate() {
        let last = position + 1 == twigs.len();
        let (corner, stem) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        match twig {
            Twig::One(number) => {
                let _ = writeln!(text, "{prefix}{corner}{}", label(*number));
                branch(*number, children, label, &format!("{prefix}{stem}"), text);
            }
            Twig::Many { first, last, count } => {
                let _ = writeln!(text, "{prefix}{corner}{first} to {last}: {count} clones");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_drawn_with_long_rows_folded() {
        let mut parents: BTreeMap<u64, u64> = (1..=10).map(|number| (number, 0)).collect();
        parents.insert(0, 0);
        parents.extend([(11, 10), (12, 10)]);
        let drawn = tree(&parents, &|number| format!("machine {number}"));
        let expected = "machine 0\n├─ 1 to 9: 9 clones\n└─ machine 10\n   ├─ machine 11\n   └─ machine 12\n";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn long_cells_wrap_in_the_last_column() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = render(&[row(["name", "what"]), row(["x", &"word ".repeat(40)])], &[]);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.lines().count() > 3);
    }
}
