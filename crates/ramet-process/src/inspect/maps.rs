//! /proc/PID/maps (proc_pid_maps(5)).

use std::ops::Range;

/// One mapping of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Writes reach everybody who maps the same file, rather than a private copy.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device; 0 without a file.
    pub device: (u32, u32),
    /// The file's inode number; 0 without a file.
    pub inode: u64,
    /// The file's name as the kernel shows it, empty for anonymous memory. Bytes: it need not be UTF-8.
    pub path: Vec<u8>,
}

impl Mapping {
    /// Whether its writes can be seen by other processes.
    pub fn is_writable_shared(&self) -> bool {
        self.write && self.shared
    }
}

/// What was not understood in a maps file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Line {number} has an unknown form: {line:?}")]
pub struct ParseMapsError {
    /// The line's number, from 1.
    pub number: usize,
    /// Its text.
    pub line: String,
}

/// Parses the content of a maps file.
pub fn parse_maps(bytes: &[u8]) -> Result<Vec<Mapping>, ParseMapsError> {
    bytes
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            parse_line(line)
                .ok_or_else(|| ParseMapsError { number: index + 1, line: String::from_utf8_lossy(line).into_owned() })
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let permissions = word()?.as_bytes();
    let offset = hexadecimal(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let &[read, write, execute, shared] = permissions else { return None };
    Some(Mapping {
        addresses: hexadecimal(start)?..hexadecimal(end)?,
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: shared == b's',
        offset,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        path: words.next().unwrap_or_default().trim_ascii_start().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_understood() {
        let text = b"7f0000000000-7f0000001000 rw-s 00002000 00:01 1047 /memfd:clone page (deleted)\n\
            7ffc1000-7ffc2000 r-xp 00000000 00:00 0 \n\
            08048000-08056000 ---p 00000000 03:0c 64593      /usr/sbin/gpm\n";
        let maps = parse_maps(text).unwrap();
        assert_eq!(maps.len(), 3);
        assert!(maps[0].is_writable_shared() && !maps[1].is_writable_shared());
        assert_eq!((maps[0].offset, maps[0].device, maps[0].inode), (0x2000, (0, 1), 1047));
        assert_eq!(maps[0].path, b"/memfd:clone page (deleted)");
        assert!(maps[1].execute && maps[1].path.is_empty());
        assert_eq!((maps[2].addresses.clone(), &maps[2].path[..]), (0x804_8000..0x805_6000, &b"/usr/sbin/gpm"[..]));
    }

    #[test]
    fn the_line_that_is_not_understood_is_named() {
        let error = parse_maps(b"7ffc1000-7ffc2000 r-xp 00000000 00:00 0 \nrubbish\n").unwrap_err();
        assert_eq!((error.number, error.line.as_str()), (2, "rubbish"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // That it returns is what is tested.
            let _ = parse_maps(&bytes);
        }
    }
}
