//! Sizes and rates as people write and read them.

use crate::failure::{Failure, Result};

/// Reads `8G`, `512M`, `64KiB`, `4096`: powers of 1024.
pub fn parse(text: &str) -> Result<u64> {
    let bad = || {
        Failure::new(format!("{text:?} is no size")).help("write for example 8G, 512M or 1048576")
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// The same for clap.
pub fn parse_argument(text: &str) -> std::result::Result<u64, String> {
    parse(text).map_err(|failure| failure.to_string())
}

/// `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let tenths = u128::from(bytes) * 10 / (1 << shift);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("0", 0),
            ("8G", 8 << 30),
            ("64KiB", 65536),
            ("1t", 1 << 40),
            ("7b", 7),
        ] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
        for text in ["", "G", "8X", "-1", "1.5G", "99999999999G", "8 G"] {
            parse(text).expect_err(text);
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(8 << 30), "8.0 GiB");
        assert_eq!(show(u64::MAX), "16777215.9 TiB");
    }
}
