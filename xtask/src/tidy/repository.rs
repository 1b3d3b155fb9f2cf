//! The files that are checked: what git tracks or would track, read once.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::scan::Source;

/// A file of the repository.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// Size.
    pub(crate) bytes: usize,
    /// Its text; none where it is not UTF-8.
    pub(crate) text: Option<String>,
}

/// The files of the repository, sorted by path.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The files.
    pub(crate) files: Vec<File>,
}

impl Repository {
    /// Reads what git tracks below `root`, and what it does not ignore: a new file is checked before it is added.
    ///
    /// # Errors
    /// When git is missing or `root` is not in a work tree, or a file cannot be read.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("Could not run git: install it")?;
        ensure!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        let listed = String::from_utf8(output.stdout).context("A path of the repository is not UTF-8")?;
        let mut paths: Vec<_> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let full = root.join(path);
            // Listed but gone: deleted and not yet committed. Not a regular file: a link, whose target is checked.
            if !full.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
                continue;
            }
            let contents = std::fs::read(&full).with_context(|| format!("Could not read {path}"))?;
            let bytes = contents.len();
            files.push(File { path: path.to_owned(), bytes, text: String::from_utf8(contents).ok() });
        }
        Ok(Self { files })
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path)?.text.as_deref()
    }

    /// Whether a path names a file, or a folder with files.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        path.is_empty() || self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// The Rust sources, scanned.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, Source)> {
        let rust = self.texts().filter(|(path, _)| path.ends_with(".rs"));
        rust.map(|(path, text)| (path, Source::scan(text)))
    }

    /// The files that are text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// A repository of the given files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            bytes: text.len(),
            text: Some((*text).to_owned()),
        };
        Self { files: files.iter().map(file).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_when_a_file_is_below_them() {
        let repository = Repository::of(&[("docs/a.md", ""), ("b.rs", "")]);
        for path in ["docs/a.md", "docs", "docs/", "b.rs", ""] {
            assert!(repository.has(path), "{path}");
        }
        for path in ["doc", "a.md", "b"] {
            assert!(!repository.has(path), "{path}");
        }
    }

    #[test]
    fn a_folder_without_git_is_an_error() {
        let folder = std::env::temp_dir().join(format!("xtask-no-git-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let error = Repository::open(&folder).unwrap_err();
        std::fs::remove_dir(&folder).unwrap();
        assert!(error.to_string().contains("git ls-files failed"), "{error}");
    }
}
