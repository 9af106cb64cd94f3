//! The progress of one request, which never falls, also when the request is made a second time.

use std::sync::Mutex;

use crate::frame::{BadParams, Parsed, Span};
use crate::stream::Stream;

/// Where a client wants progress told, and how far it was told.
#[derive(Debug)]
pub(super) struct Progress {
    /// Where the token stands in the client's request.
    place: Span,
    /// The client's token, as it wrote it.
    token: Box<str>,
    last: Mutex<Option<f64>>,
}

impl Progress {
    /// The progress that this request asks for, if it does. If an earlier daemon had the request, what
    /// was told of it counts.
    pub(super) fn of(request: &Parsed, out: &Stream) -> Result<Option<Self>, BadParams> {
        let progress = Self::wanted(request)?;
        if let Some(progress) = progress.as_ref().filter(|_| out.inherited().is_some()) {
            let told = out.messages().into_iter().filter_map(|text| Parsed::read(text).ok());
            for value in told.filter_map(|message| Some(message.progress()?.value)) {
                progress.admits(value);
            }
        }
        Ok(progress)
    }

    fn wanted(request: &Parsed) -> Result<Option<Self>, BadParams> {
        let place = request.progress_token()?;
        Ok(place.map(|place| Self {
            place,
            token: request.get(place).into(),
            last: Mutex::default(),
        }))
    }

    /// Where the token stands in the client's request.
    pub(super) fn place(&self) -> Span {
        self.place
    }

    /// The client's token, as it wrote it.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether the client may be told this: only what is more than all before.
    pub(super) fn admits(&self, value: f64) -> bool {
        let mut last = mainstay_core::lock(&self.last);
        let more = last.is_none_or(|last| value > last);
        if more {
            *last = Some(value);
        }
        more
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
        let progress = Progress::wanted(&request).unwrap().unwrap();
        assert_eq!(progress.token(), r#""t""#);
        let told = [1.0, 2.0, 5.0, 1.0, 2.0, 5.0, 6.0].map(|value| progress.admits(value));
        assert_eq!(told, [true, true, true, false, false, false, true]);
    }
}
