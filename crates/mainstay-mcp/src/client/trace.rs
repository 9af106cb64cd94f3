//! What was sent last, and over which connection: by this, evidence about a server that does not answer is matched with
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// The last request of an exchange. Noting it costs one store.
#[derive(Debug, Default)]
pub struct Trace(
    /// The local port in the upper 16 bits, and the length of the request below; 0 if nothing is being sent.
    AtomicU64,
);

const LENGTH: u64 = (1 << 48) - 1;

impl Trace {
    pub(super) fn set(&self, port: u16, bytes: usize) {
        let bytes = (bytes as u64).min(LENGTH);
        self.0.store(u64::from(port) << 48 | bytes, Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The local port of the connection, and the length of the request with its head. None if nothing was sent, or not by a
    /// plain TCP connection.
    pub fn get(&self) -> Option<(u16, u64)> {
        let both = self.0.load(Ordering::Relaxed);
        let port = u16::try_from(both >> 48).ok().filter(|port| *port != 0)?;
        Some((port, both & LENGTH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_the_port_and_the_length() {
        let trace = Trace::default();
        assert_eq!(trace.get(), None);
        trace.set(65_535, 700);
        assert_eq!(trace.get(), Some((65_535, 700)));
        trace.set(0, 700);
        assert_eq!(trace.get(), None, "a connection through TLS or a unix socket");
        trace.set(1, usize::MAX);
        assert_eq!(trace.get(), Some((1, LENGTH)));
        trace.clear();
        assert_eq!(trace.get(), None);
    }
}
