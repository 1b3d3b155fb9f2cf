//! Sizes as people write them.

use std::str::FromStr;

/// A number of bytes, written with an optional K, M, G or T (powers of 1,024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("\"{text}\" is not a size: write a number with K, M, G or T, such as 128M");
        let trimmed = text.trim_end_matches(['B', 'b']).trim_end_matches('i');
        let (digits, shift) = match trimmed.chars().last() {
            Some('K' | 'k') => (&trimmed[..trimmed.len() - 1], 10),
            Some('M' | 'm') => (&trimmed[..trimmed.len() - 1], 20),
            Some('G' | 'g') => (&trimmed[..trimmed.len() - 1], 30),
            Some('T' | 't') => (&trimmed[..trimmed.len() - 1], 40),
            _ => (trimmed, 0),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(wrong)
    }
}

/// Bytes for people: "12.5 MiB".
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 100.0 && value.fract() != 0.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("4096", 4096), ("128M", 128 << 20), ("4g", 4 << 30), ("16MiB", 16 << 20), ("1kB", 1024)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "M", "12X", "-1M", "99999999999T", "1.5G"] {
            assert!(text.parse::<Size>().is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!((human(512), human(1536), human(128 << 20)), ("512 B".into(), "1.5 KiB".into(), "128 MiB".into()));
    }
}
