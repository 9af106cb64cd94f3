//! Finds out from its output whether a server that should use stdio uses HTTP.

/// Texts before the address of a listener.
const SIGNS: [&str; 2] = ["listening", "http://"];

/// The end of a sentence with the flags for a server that should use stdio, but logs that it listens. Empty if it does
/// not.
pub(super) fn instead_of_stdio(stderr: &[String]) -> String {
    let Some(address) = stderr.iter().rev().find_map(|line| address(line)) else {
        return String::new();
    };
    let port = port(&address).map_or("PORT".to_owned(), |port| port.to_string());
    format!(", or, if it uses HTTP, give `--transport streamable-http --target-port {port}`")
}

/// The rest of a line from where it seems to contain an address.
fn address(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    let (at, sign) = SIGNS.iter().find_map(|sign| Some((line.find(sign)?, sign)))?;
    let rest = &line[at + sign.len()..];
    // A URL without a port is more often used than served.
    (*sign == "listening" || port(rest).is_some()).then(|| rest.to_owned())
}

/// The first port in a text: a number after a colon or after `port`.
fn port(text: &str) -> Option<u16> {
    text.char_indices().find_map(|(at, _)| {
        let rest = &text[at..];
        let named =
            || rest.strip_prefix("port").map(|rest| rest.trim_start_matches([' ', '=', ':']));
        number(rest.strip_prefix(':').or_else(named)?)
    })
}

/// The number that a text begins with, unless it is part of an address or a time of day.
fn number(text: &str) -> Option<u16> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    digits.parse().ok().filter(|port| *port > 0 && !rest.starts_with([']', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, port: Option<&str>) {
        let given = instead_of_stdio(&["starting".to_owned(), line.to_owned(), "bye".to_owned()]);
        match port {
            Some(port) => assert!(given.contains(&format!("--target-port {port}`")), "{given}"),
            None => assert_eq!(given, "", "{line}"),
        }
    }

    #[test]
    fn a_port_is_found_in_common_log_lines() {
        check("INFO: Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", Some("8000"));
        check("12:30:45 Listening on 127.0.0.1:3001 since 12:30:44", Some("3001"));
        check("MCP server listening on port 8080", Some("8080"));
        check("listening on http://[::1]:3000/mcp", Some("3000"));
        check("server is listening, port=9000", Some("9000"));
        check("Listening on :::3000", Some("3000"));
        check("listening for connections", Some("PORT"));
    }

    #[test]
    fn other_output_gives_no_advice() {
        check("see http://example.com/docs for help", None);
        check("error: no module named mcp", None);
        check("connecting to postgres://db:5432/x", None);
        assert_eq!(instead_of_stdio(&[]), "");
    }
}
