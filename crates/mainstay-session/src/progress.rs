//! The progress of one request, which never falls, also when the request is sent a second time.

use bytes::Bytes;
use mainstay_mcp::frame::{BadParams, Parsed, Span};

/// Where a client wants progress reported, and how far it was.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The place of the token in the client's request.
    pub(crate) place: Span,
    /// The client's token, as JSON.
    pub(crate) token: Box<str>,
    last: Option<f64>,
}

impl Progress {
    /// The progress that this request asks for, if it does. `reported` are the messages that an earlier daemon has sent
    /// to the client.
    pub(crate) fn of<'a>(
        request: &Parsed,
        reported: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Option<Self>, BadParams> {
        let Some(place) = request.progress_token()? else { return Ok(None) };
        let mut progress = Self { place, token: request.get(place).into(), last: None };
        for message in reported.filter_map(|text| Parsed::read(text.clone()).ok()) {
            if let Some(reported) = message.progress() {
                progress.admits(reported.value);
            }
        }
        Ok(Some(progress))
    }

    /// Whether the client may be sent this value: only one that is higher than all before.
    pub(crate) fn admits(&mut self, value: f64) -> bool {
        let is_higher = self.last.is_none_or(|last| value > last);
        if is_higher {
            self.last = Some(value);
        }
        is_higher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_falls() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call",
            "params":{"name":"a","_meta":{"progressToken":"t"}}}"#;
        let request = Parsed::read(text.into()).unwrap();
        let mut progress = Progress::of(&request, [].iter()).unwrap().unwrap();
        assert_eq!(&*progress.token, r#""t""#);
        let sent = [1.0, 2.0, 5.0, 1.0, 2.0, 5.0, 6.0].map(|value| progress.admits(value));
        assert_eq!(sent, [true, true, true, false, false, false, true]);
    }
}
