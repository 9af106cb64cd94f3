//! The head of a request to an engine: what it asks for, and how it is passed on.

/// What a request asks for, as far as faults care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Events,
    Inspect,
    Attach,
    Create,
    Start,
    Other,
}

/// The end of the head in what has been read so far.
pub(super) fn head_end(read: &[u8]) -> Option<usize> {
    read.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The method and the path of a request, without the version of the API and the query.
pub(super) fn line(head: &str) -> String {
    let mut parts = head.split(' ');
    let method = parts.next().unwrap_or_default();
    let path = parts.next().unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let unversioned = path
        .strip_prefix("/v")
        .and_then(|rest| rest.split_once('/'))
        .filter(|(version, _)| version.chars().all(|char| char.is_ascii_digit() || char == '.'))
        .map(|(_, rest)| format!("/{rest}"));
    format!("{method} {}", unversioned.as_deref().unwrap_or(path))
}

pub(super) fn kind(line: &str) -> Kind {
    let parts: Vec<&str> = line.split(['/', ' ']).filter(|part| !part.is_empty()).collect();
    match parts[..] {
        ["GET", "events"] => Kind::Events,
        ["GET", "containers", id, "json"] if id != "json" => Kind::Inspect,
        ["POST", "containers", _, "attach"] => Kind::Attach,
        ["POST", "containers", "create"] => Kind::Create,
        ["POST", "containers", _, "start"] => Kind::Start,
        _ => Kind::Other,
    }
}

/// The head with `Connection: close`, so that each connection carries one
/// request only. One that becomes a plain stream stays as it is.
pub(super) fn alone(head: &str) -> String {
    let is = |line: &str, name: &str| {
        line.split_once(':').is_some_and(|(field, _)| field.eq_ignore_ascii_case(name))
    };
    if head.lines().any(|line| is(line, "upgrade")) {
        return head.to_owned();
    }
    let lines = head.trim_end().split("\r\n").filter(|line| !is(line, "connection"));
    let kept: Vec<&str> = lines.chain(["Connection: close"]).collect();
    kept.join("\r\n") + "\r\n\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_path() {
        let check = |head: &str, expected: (&str, Kind)| {
            let line = line(head);
            assert_eq!((&*line, kind(&line)), expected, "{head}");
        };
        check("GET /v1.41/events?filters=%7B HTTP/1.1\r\n", ("GET /events", Kind::Events));
        check("GET /events HTTP/1.1\r\n", ("GET /events", Kind::Events));
        check("GET /v1.41/containers/a1/json HTTP/1.1", ("GET /containers/a1/json", Kind::Inspect));
        check("GET /containers/json?all=1 HTTP/1.1", ("GET /containers/json", Kind::Other));
        check("POST /containers/a/attach?x HTTP/1.1", ("POST /containers/a/attach", Kind::Attach));
        check("POST /containers/create?name=x HTTP/1.1", ("POST /containers/create", Kind::Create));
        check("POST /containers/a/start HTTP/1.1", ("POST /containers/a/start", Kind::Start));
        check("GET /volumes/x HTTP/1.1", ("GET /volumes/x", Kind::Other));
        check("GET /_ping HTTP/1.1", ("GET /_ping", Kind::Other));
    }

    #[test]
    fn a_connection_carries_one_request() {
        assert_eq!(
            alone("GET / HTTP/1.1\r\nHost: a\r\nconnection: keep-alive\r\n\r\n"),
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        );
        let upgrade = "POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
        assert_eq!(alone(upgrade), upgrade);
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        assert_eq!(head_end(b"GET / HTTP/1.1\r\n\r\nbody"), Some(18));
        assert_eq!(head_end(b"GET / HTTP/1.1\r\n"), None);
    }
}
