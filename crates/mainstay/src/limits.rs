//! Limits of containers as users write them, with flags or in a file: `512m`, `none`, `net_admin`.

use mainstay_core::{Limits, human_bytes};

/// The value that lifts a limit.
pub(crate) const NONE: &str = "none";

/// The units of sizes, each also with `ib` after it; largest first.
const UNITS: [(char, u32); 3] = [('g', 30), ('m', 20), ('k', 10)];

/// A limit, or none. An alias, because clap reads `Option<Option<T>>` as an option with an optional value.
pub(crate) type Limit<T> = Option<T>;

/// Reads how much memory a container may use.
pub(crate) fn memory(text: &str) -> Result<Limit<u64>, String> {
    if text == NONE {
        return Ok(None);
    }
    let bytes = bytes(text).ok_or("write a size as `512m` or `2g`, or `none` for no limit")?;
    Ok(Some(bytes))
}

/// Reads how many processes a container may have.
pub(crate) fn pids(text: &str) -> Result<Limit<u32>, String> {
    if text == NONE {
        return Ok(None);
    }
    let pids = text.parse().map_err(|_| "write a number, or `none` for no limit")?;
    Ok(Some(pids))
}

/// Reads the name of a capability, and writes it as engines do: `cap_net_admin` is `NET_ADMIN`.
pub(crate) fn capability(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
        return Err("write a capability like NET_ADMIN".to_owned());
    }
    Ok(name.to_owned())
}

/// A limit of memory as [`memory`] reads it.
pub(crate) fn memory_text(limit: Option<u64>) -> String {
    let Some(bytes) = limit else { return NONE.to_owned() };
    let fits = |&(_, shift): &(char, u32)| bytes > 0 && bytes.trailing_zeros() >= shift;
    match UNITS.into_iter().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// The limits of a container as text.
pub(crate) fn limits_text(limits: &Limits) -> String {
    let mut words = vec![
        limits
            .memory
            .map_or("any memory".to_owned(), |bytes| format!("memory {}", human_bytes(bytes))),
        limits
            .pids
            .map_or("any number of processes".to_owned(), |pids| format!("{pids} processes")),
    ];
    words.extend(limits.read_only.then(|| "its own files are read-only".to_owned()));
    words.extend((!limits.init).then(|| "no init".to_owned()));
    words.join(", ")
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.to_ascii_lowercase();
    let short = unit.strip_suffix("ib").unwrap_or(&unit);
    let shift = match short {
        "" | "b" if short == unit => 0,
        _ => UNITS.into_iter().find(|(name, _)| short.chars().eq([*name]))?.1,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_of_1024() {
        let check = |text: &str, bytes| assert_eq!(memory(text), Ok(bytes), "{text}");
        check("none", None);
        check("7", Some(7));
        check("7b", Some(7));
        check("512k", Some(512 << 10));
        check("512m", Some(512 << 20));
        check("2G", Some(2 << 30));
        check("3KiB", Some(3 << 10));
        check("3MiB", Some(3 << 20));
        check("3gib", Some(3 << 30));
        for text in ["", "m", "1.5g", "-1", "1 g", "1ib", "1t", "1mm", "99999999999g", "None"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_is_written_as_it_is_read() {
        for text in ["none", "0", "7", "1000", "3k", "512m", "1536m", "2g"] {
            assert_eq!(memory_text(memory(text).unwrap()), text);
        }
    }

    #[test]
    fn processes_are_counted() {
        assert_eq!(pids("none"), Ok(None));
        assert_eq!(pids("64"), Ok(Some(64)));
        assert!(pids("-1").is_err() && pids("many").is_err());
    }

    #[test]
    fn a_capability_has_one_name() {
        for text in ["NET_ADMIN", "net_admin", "CAP_NET_ADMIN", "cap_net_admin"] {
            assert_eq!(capability(text).as_deref(), Ok("NET_ADMIN"));
        }
        for text in ["", "CAP_", "net-admin", "net admin", "é"] {
            assert!(capability(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_are_described() {
        assert_eq!(limits_text(&Limits::default()), "memory 512 MiB, 256 processes");
        let limits =
            Limits { memory: None, pids: None, read_only: true, init: false, ..Limits::default() };
        let expected = "any memory, any number of processes, its own files are read-only, no init";
        assert_eq!(limits_text(&limits), expected);
    }
}
