//! Randomness, read in one place.

pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
    bytes
}

/// A seed for jitter.
pub(crate) fn seed() -> u64 {
    u64::from_ne_bytes(bytes())
}
