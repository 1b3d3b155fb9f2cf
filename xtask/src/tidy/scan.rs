//! A scanner of Rust text: what is code, what is comment, where functions and `unsafe` are.
//!
//! It knows the lexical rules (nested comments, raw strings, lifetimes against character literals) and braces, and
//! nothing of the grammar. That is enough for tidy's rules and costs milliseconds for the whole repository; a parser
//! would cost a dependency and most of the build time of this program.

/// One line of a source file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The line with comments and the contents of literals replaced by spaces.
    pub(crate) code: String,
    /// The text of the comments on this line, with their markers.
    pub(crate) comment: String,
}

/// A scanned file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Line `n` of the file is `lines[n - 1]`.
    pub(crate) lines: Vec<Line>,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Line of the `fn` keyword, from 1.
    pub(crate) first_line: usize,
    /// Line of the closing brace.
    pub(crate) last_line: usize,
}

impl Function {
    /// Lines from `fn` to the closing brace, both included.
    pub(crate) fn length(&self) -> usize {
        self.last_line - self.first_line + 1
    }
}

/// One word `unsafe` in code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unsafe {
    /// Its line, from 1.
    pub(crate) line: usize,
    /// Whether it opens a block or an `impl`, which claim that something holds (the other uses demand it of others).
    pub(crate) claims: bool,
}

/// A word or a sign of the code, with its line from 1.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

impl Source {
    /// Scans a file's text.
    pub(crate) fn scan(text: &str) -> Self {
        Splitter::new(text).split()
    }

    fn tokens(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            let mut start = None;
            for (at, c) in line.code.char_indices() {
                let in_word = c.is_alphanumeric() || c == '_';
                if in_word {
                    start.get_or_insert(at);
                    continue;
                }
                if let Some(from) = start.take() {
                    tokens.push(Token { line: index + 1, text: &line.code[from..at] });
                }
                if !c.is_whitespace() {
                    tokens.push(Token { line: index + 1, text: &line.code[at..at + c.len_utf8()] });
                }
            }
            if let Some(from) = start {
                tokens.push(Token { line: index + 1, text: &line.code[from..] });
            }
        }
        tokens
    }

    /// Every function that has a body.
    ///
    /// # Errors
    /// The line of a function whose braces do not match.
    pub(crate) fn functions(&self) -> Result<Vec<Function>, usize> {
        let tokens = self.tokens();
        let mut functions = Vec::new();
        for (at, pair) in tokens.windows(2).enumerate() {
            let [keyword, name] = [pair[0], pair[1]];
            let named = name.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            if keyword.text != "fn" || !named {
                continue;
            }
            if let Some(open) = body(&tokens, at + 2) {
                let close = closing(&tokens, open).ok_or(keyword.line)?;
                functions.push(Function {
                    name: name.text.to_owned(),
                    first_line: keyword.line,
                    last_line: tokens[close].line,
                });
            }
        }
        Ok(functions)
    }

    /// Every `unsafe` in code.
    pub(crate) fn unsafes(&self) -> Vec<Unsafe> {
        let tokens = self.tokens();
        let next = |at: usize| tokens.get(at + 1).map_or("", |token| token.text);
        let found = tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe");
        found.map(|(at, token)| Unsafe { line: token.line, claims: matches!(next(at), "{" | "impl") }).collect()
    }

    /// Whether the statement that reaches `line` has a comment that satisfies `accept`: on the line itself, or
    /// directly above any line of the statement. Documentation explains an item, not a statement: it does not count.
    pub(crate) fn explained(&self, line: usize, accept: impl Fn(&str) -> bool) -> bool {
        let is_doc = |comment: &str| ["///", "//!", "/**", "/*!"].iter().any(|doc| comment.starts_with(doc));
        let accept = |comment: &str| !is_doc(comment) && accept(comment);
        let mut at = line - 1;
        if accept(&self.lines[at].comment) {
            return true;
        }
        while at > 0 {
            let above = &self.lines[at - 1];
            let code = above.code.trim();
            if code.is_empty() {
                return !above.comment.is_empty() && self.comment_block_ends(at - 1, accept);
            }
            let attribute = code.starts_with("#[");
            if !attribute && code.ends_with([';', '{', '}']) {
                return false;
            }
            at -= 1;
        }
        false
    }

    /// Whether a line of the run of comment lines that ends at index `last` satisfies `accept`.
    fn comment_block_ends(&self, last: usize, accept: impl Fn(&str) -> bool) -> bool {
        let run = self.lines[..=last].iter().rev();
        run.take_while(|l| l.code.trim().is_empty() && !l.comment.is_empty()).any(|l| accept(&l.comment))
    }
}

/// Index of the brace that opens the body of the function whose signature goes on at `from`; none for a declaration.
fn body(tokens: &[Token<'_>], from: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.text {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return None,
            "{" if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// Index of the brace that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Splits text into code and comments.
struct Splitter<'a> {
    text: &'a str,
    at: usize,
    lines: Vec<Line>,
    line: Line,
}

impl<'a> Splitter<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, lines: Vec::new(), line: Line::default() }
    }

    fn split(mut self) -> Source {
        while let Some(c) = self.rest().chars().next() {
            if self.rest().starts_with("//") {
                self.line_comment();
            } else if self.rest().starts_with("/*") {
                self.block_comment();
            } else if let Some(hashes) = self.raw_string_opens() {
                self.raw_string(hashes);
            } else if c == '"' {
                self.string();
            } else if c == '\'' && self.is_character() {
                self.character();
            } else if c.is_alphanumeric() || c == '_' {
                self.word();
            } else {
                self.take_code(c);
            }
        }
        self.lines.push(self.line);
        Source { lines: self.lines }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn end_line(&mut self) {
        self.lines.push(std::mem::take(&mut self.line));
    }

    fn take_code(&mut self, c: char) {
        self.at += c.len_utf8();
        if c == '\n' { self.end_line() } else { self.line.code.push(c) }
    }

    /// Takes a character of a literal: it leaves a space, so that columns and lines stay what they were.
    fn blank(&mut self, c: char) {
        self.at += c.len_utf8();
        if c == '\n' { self.end_line() } else { self.line.code.push(' ') }
    }

    fn take_comment(&mut self, c: char) {
        self.at += c.len_utf8();
        if c == '\n' { self.end_line() } else { self.line.comment.push(c) }
    }

    fn word(&mut self) {
        let end = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest().len());
        self.line.code.push_str(&self.rest()[..end]);
        self.at += end;
    }

    fn line_comment(&mut self) {
        while let Some(c) = self.rest().chars().next().filter(|c| *c != '\n') {
            self.take_comment(c);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0usize;
        while let Some(c) = self.rest().chars().next() {
            if self.rest().starts_with("/*") {
                depth += 1;
            } else if self.rest().starts_with("*/") {
                depth -= 1;
            } else {
                self.take_comment(c);
                continue;
            }
            self.line.comment.push_str(&self.rest()[..2]);
            self.at += 2;
            if depth == 0 {
                return;
            }
        }
    }

    /// The number of `#` of the raw string that starts here, if one does: `r"`, `br#"`, `cr##"`.
    fn raw_string_opens(&self) -> Option<usize> {
        let rest = self.rest();
        let after = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
        let hashes = after.bytes().take_while(|b| *b == b'#').count();
        after[hashes..].starts_with('"').then_some(hashes)
    }

    fn raw_string(&mut self, hashes: usize) {
        let opening = self.rest().find('"').map_or(0, |at| at + 1);
        let end = format!("\"{}", "#".repeat(hashes));
        let length = self.rest()[opening..].find(&end).map_or(self.rest().len(), |at| opening + at + end.len());
        for c in self.rest()[..length].chars() {
            self.blank(c);
        }
    }

    fn string(&mut self) {
        self.blank('"');
        while let Some(c) = self.rest().chars().next() {
            self.blank(c);
            match c {
                '"' => return,
                '\\' => {
                    if let Some(escaped) = self.rest().chars().next() {
                        self.blank(escaped);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether the quote here opens a character literal rather than a lifetime: `'a'` or `'\n'` against `'a`.
    fn is_character(&self) -> bool {
        let mut after = self.rest().chars().skip(1);
        match after.next() {
            Some('\\') => true,
            Some(_) => after.next() == Some('\''),
            None => false,
        }
    }

    fn character(&mut self) {
        self.blank('\'');
        while let Some(c) = self.rest().chars().next() {
            self.blank(c);
            match c {
                '\'' | '\n' => return,
                '\\' => {
                    if let Some(escaped) = self.rest().chars().next() {
                        self.blank(escaped);
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        Source::scan(text).lines.into_iter().map(|line| line.code.trim_end().to_owned()).collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // b\nc /* d /* e */\nf */ g"), ["a", "c", " g"].map(str::to_owned));
        let source = Source::scan("a // b\n/* c\nd */ e");
        let comments: Vec<_> = source.lines.iter().map(|line| line.comment.as_str()).collect();
        assert_eq!(comments, ["// b", "/* c", "d */"]);
    }

    #[test]
    fn strings_are_not_code() {
        let text = r####"let a = "unsafe { // \" }"; let b = r#"}"{"#; let c = b"}"; let d = br##""#{"##; e()"####;
        let line = code(text).join("");
        assert!(!line.contains(['{', '}', '/']), "{line}");
        assert!(!line.contains("unsafe"), "{line}");
        assert!(line.ends_with("e()"), "{line}");
        assert_eq!(line.len(), text.len());
    }

    #[test]
    fn a_string_may_span_lines() {
        assert_eq!(code("a(\"{\n{\n\") b").len(), 3);
        assert_eq!(code("a(\"{\n{\n\") b")[2], " ) b");
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(
            code("fn f<'a>(x: &'a u8) { '{' ; '\\'' ; b'}' ; 'outer: loop {} }").join("").matches('{').count(),
            2
        );
        assert_eq!(code("&'_ T<'static> {"), ["&'_ T<'static> {"]);
        assert_eq!(code("'\\u{7b}' {").join("").matches('{').count(), 1);
    }

    #[test]
    fn raw_identifiers_are_words() {
        assert_eq!(code("r#fn { bar\"}\" }"), ["r#fn { bar    }"]);
    }

    #[test]
    fn functions_have_their_lines() {
        let text = "fn a() {\n  if x { y(\"}\") }\n}\ntrait T { fn b(&self); fn c() -> [u8; 2] { [0; 2] } }\n\
                    fn d<F: Fn(u8)>(f: fn(u8) -> u8)\nwhere\n  F: X,\n{\n}\n";
        let functions = Source::scan(text).functions().unwrap();
        let seen: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.first_line, f.length())).collect();
        assert_eq!(seen, [("a", 1, 3), ("c", 4, 1), ("d", 5, 5)]);
    }

    #[test]
    fn nested_functions_count_for_both() {
        let functions = Source::scan("fn a() {\n fn b() {\n }\n}").functions().unwrap();
        assert_eq!(functions.iter().map(Function::length).collect::<Vec<_>>(), [4, 2]);
    }

    #[test]
    fn unmatched_braces_are_reported() {
        assert_eq!(Source::scan("\nfn a() { {\n}").functions(), Err(2));
    }

    #[test]
    fn unsafe_uses_are_told_apart() {
        let text = "unsafe { x }\nunsafe impl Send for X {}\nunsafe fn f() {}\n#![allow(unsafe_code)]\n// unsafe\n\
                    #[unsafe(no_mangle)]\nunsafe\n{ }";
        let seen: Vec<_> = Source::scan(text).unsafes().into_iter().map(|u| (u.line, u.claims)).collect();
        assert_eq!(seen, [(1, true), (2, true), (3, false), (6, false), (7, true)]);
    }

    #[test]
    fn explanations_are_found_above_the_statement() {
        let accept = |comment: &str| comment.contains("SAFETY:");
        let good = [
            ("// SAFETY: a\nunsafe { x }", 2),
            ("// SAFETY: a\n// and b\nunsafe { x }", 3),
            ("// SAFETY: a\nlet r =\n    unsafe { x };", 3),
            ("// SAFETY: a\nf(\n  a,\n  unsafe { x },\n)", 4),
            ("unsafe { x } // SAFETY: a", 1),
            ("// SAFETY: a\n#[allow(x)]\nunsafe { x }", 3),
        ];
        for (text, line) in good {
            assert!(Source::scan(text).explained(line, accept), "{text}");
        }
        let bad = [
            ("unsafe { x }", 1),
            ("// SAFETY: a\nlet y = 1;\nunsafe { x }", 3),
            ("// SAFETY: a\n\nunsafe { x }", 3),
            ("// because\nunsafe { x }", 2),
        ];
        for (text, line) in bad {
            assert!(!Source::scan(text).explained(line, accept), "{text}");
        }
    }
}
