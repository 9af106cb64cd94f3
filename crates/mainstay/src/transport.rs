//! A transport from its parts: flags or keys of a file.

use clap::ValueEnum;
use mainstay_core::Transport;
use serde::{Deserialize, Serialize};

/// The path of an HTTP endpoint if none is given.
pub(crate) const DEFAULT_PATH: &str = "/mcp";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransportName {
    /// Lines on standard input and output
    #[default]
    Stdio,
    /// HTTP on a loopback port
    StreamableHttp,
}

/// Why parts do not make a transport. The caller knows the names of its flags or keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// A port or a path, but not for HTTP.
    NotHttp,
    /// HTTP without a port.
    NoPort,
}

impl TransportName {
    /// The transport with these parts.
    pub(crate) fn with(self, port: Option<u16>, path: Option<&str>) -> Result<Transport, Mismatch> {
        match (self, port, path) {
            (Self::Stdio, None, None) => Ok(Transport::Stdio),
            (Self::Stdio, _, _) => Err(Mismatch::NotHttp),
            (Self::StreamableHttp, None, _) => Err(Mismatch::NoPort),
            (Self::StreamableHttp, Some(port), path) => {
                let path = path.unwrap_or(DEFAULT_PATH).to_owned();
                Ok(Transport::StreamableHttp { port, path })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_a_path_belong_to_http() {
        let http = |port, path: &str| Ok(Transport::StreamableHttp { port, path: path.to_owned() });
        let (stdio, web) = (TransportName::Stdio, TransportName::StreamableHttp);
        assert_eq!(stdio.with(None, None), Ok(Transport::Stdio));
        assert_eq!(stdio.with(Some(1), None), Err(Mismatch::NotHttp));
        assert_eq!(stdio.with(None, Some("/x")), Err(Mismatch::NotHttp));
        assert_eq!(web.with(None, Some("/x")), Err(Mismatch::NoPort));
        assert_eq!(web.with(Some(1), None), http(1, "/mcp"));
        assert_eq!(web.with(Some(1), Some("/x")), http(1, "/x"));
    }
}
