//! A message with the places of its parts.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem;
use serde_json::value::RawValue;

use super::write::{json, text_item};
use super::{Edit, Frame, FrameError, Id, Method, Outcome, Span, members, scan, splice, string};

/// One message and the places of its parts in it. It owns its text, so it can be kept and passed on;
/// clones share the text.
#[derive(Debug, Clone)]
pub struct Parsed {
    text: Bytes,
    kind: Kind,
    id: Option<Span>,
    method: Option<Method>,
    payload: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call that wants an answer.
    Request,
    /// A call that wants none.
    Notification,
    /// An answer with a result.
    Result,
    /// An answer with an error.
    Error,
}

/// The parameters of `notifications/progress`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Where the token is that identifies its request.
    pub token: Span,
    /// How far it is.
    pub value: f64,
    /// Where that is.
    pub place: Span,
}

/// The parameters of a message cannot be read where the proxy has to read them.
#[derive(Debug, thiserror::Error)]
#[error("the parameters cannot be read")]
pub struct BadParams(#[from] serde_json::Error);

impl Parsed {
    /// Finds the parts of one message.
    pub fn read(text: Bytes) -> Result<Self, FrameError> {
        let place = |part: &str| Span::of(part.as_bytes(), &text);
        let raw = |part: &RawValue| place(part.get());
        let (kind, id, method, payload) = match scan(&text)? {
            Frame::Request { id, method, params } => {
                (Kind::Request, Some(id), Some(method.into()), params.map(raw))
            }
            Frame::Notification { method, params } => {
                (Kind::Notification, None, Some(method.into()), params.map(raw))
            }
            Frame::Response { id, outcome: Outcome::Ok(result) } => {
                (Kind::Result, id, None, Some(raw(result)))
            }
            Frame::Response { id, outcome: Outcome::Error(error) } => {
                (Kind::Error, id, None, Some(raw(error)))
            }
        };
        let id = id.map(|id| place(id.get()));
        Ok(Self { text, kind, id, method, payload })
    }

    /// The message as it was written.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The message as it was written, taken out.
    pub fn into_text(self) -> Bytes {
        self.text
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The id of a request, or of the request that this answers.
    pub fn id(&self) -> Option<Id<'_>> {
        self.id.map(|span| Id(self.get(span)))
    }

    /// The method of a request or notification.
    pub fn method(&self) -> Option<&Method> {
        self.method.as_ref()
    }

    /// The parameters of a request or notification, as JSON.
    pub fn params(&self) -> Option<&[u8]> {
        self.method.as_ref().and_then(|_| self.payload())
    }

    /// The result that an answer carries, as JSON.
    pub fn result(&self) -> Option<&[u8]> {
        self.payload().filter(|_| self.kind == Kind::Result)
    }

    /// The error object that an answer carries, as JSON.
    pub fn error(&self) -> Option<&[u8]> {
        self.payload().filter(|_| self.kind == Kind::Error)
    }

    /// The text at a place that a method of this message named.
    ///
    /// # Panics
    ///
    /// If the place is of another message.
    pub fn get(&self, span: Span) -> &str {
        str::from_utf8(&self.text[span.range()]).expect("the message is UTF-8 and tokens are whole")
    }

    /// The same message under another id, which is given as JSON. One without an id stays as it is.
    pub fn with_id(&self, id: &str) -> Bytes {
        match self.id {
            Some(span) => splice(&self.text, &mut [Edit(span, id)]),
            None => self.text.clone(),
        }
    }

    /// The same message under another id and progress token, both given as JSON.
    pub fn with_id_and_token(&self, id: &str, token: Span, new_token: &str) -> Bytes {
        let token = Edit(token, new_token);
        match self.id {
            Some(span) => splice(&self.text, &mut [Edit(span, id), token]),
            None => splice(&self.text, &mut [token]),
        }
    }

    /// The same `notifications/progress` under another token, which is given as JSON, and with another value.
    pub fn with_progress(&self, reported: Progress, token: &str, value: f64) -> Bytes {
        let value = value.to_string();
        splice(&self.text, &mut [Edit(reported.token, token), Edit(reported.place, &value)])
    }

    /// The same message with another text at a place that a method of it named.
    pub fn with(&self, span: Span, new: &str) -> Bytes {
        splice(&self.text, &mut [Edit(span, new)])
    }

    /// Where a request has the token under which it wants progress. An error if that is not
    /// certain: then the server might use a token that belongs to another session.
    pub fn progress_token(&self) -> Result<Option<Span>, BadParams> {
        let Some(params) = self.params().filter(|params| may_have_progress_token(params)) else {
            return Ok(None);
        };
        let [Some(meta)] = members(params, ["_meta"])? else { return Ok(None) };
        if meta.get() == "null" {
            return Ok(None);
        }
        let [token] = members(meta.get().as_bytes(), ["progressToken"])?;
        Ok(token.and_then(|token| self.place_of_id(token)))
    }

    /// The parameters of `notifications/progress`, if they are valid.
    pub fn progress(&self) -> Option<Progress> {
        let [token, value] = members(self.params()?, ["progressToken", "progress"]).ok()?;
        let (token, value) = (self.place_of_id(token?)?, value?.get());
        let place = Span::of(value.as_bytes(), &self.text);
        Some(Progress { token, value: value.parse().ok()?, place })
    }

    /// Where `notifications/cancelled` has the id of its request.
    pub fn cancelled_id(&self) -> Option<Span> {
        let [id] = members(self.params()?, ["requestId"]).ok()?;
        self.place_of_id(id?)
    }

    /// Why `notifications/cancelled` cancels its request, if it says so.
    pub fn cancel_reason(&self) -> Option<Cow<'_, str>> {
        self.param("reason")
    }

    /// The tool that `tools/call` calls, or the prompt that `prompts/get` gets.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        self.param("name")
    }

    /// The resource that `resources/read`, `subscribe`, `unsubscribe` or `updated` is about.
    pub fn uri(&self) -> Option<Cow<'_, str>> {
        self.param("uri")
    }

    /// The level that `logging/setLevel` sets or `notifications/message` has.
    pub fn level(&self) -> Option<Cow<'_, str>> {
        self.param("level")
    }

    /// From where a list is to continue.
    pub fn cursor(&self) -> Option<Cow<'_, str>> {
        self.param("cursor")
    }

    /// The answer to `tools/call` with a text added to its content. An answer without such content
    /// stays as it is.
    pub fn with_note(&self, note: &str) -> Bytes {
        let Some((end, empty)) = self.end_of_content() else { return self.text.clone() };
        let item = text_item(note);
        if empty { self.with(end, &item) } else { self.with(end, &[",", &item].concat()) }
    }

    /// The answer to `tools/call` with a text before its content, and a member of `_meta`, whose value is given as JSON. What
    /// an answer does not have room for is left out: an error has neither, and a result may be without content.
    pub fn with_first_note(&self, note: &str, key: &str, value: &str) -> Bytes {
        let Some(result) = self.result() else { return self.text.clone() };
        let Ok([content, meta]) = members(result, ["content", "_meta"]) else {
            return self.text.clone();
        };
        let inside = |part: &str, open: char| {
            let rest = part.strip_prefix(open)?;
            let is_empty = rest.trim_ascii_start().len() == 1;
            Some((Span::at(Span::of(rest.as_bytes(), &self.text).range().start), is_empty))
        };
        let first = |text: &str, is_empty| [text, if is_empty { "" } else { "," }].concat();
        let member = [&json(key), ":", value].concat();
        let meta = match meta.map(|meta| inside(meta.get(), '{')) {
            Some(Some((place, is_empty))) => Some((place, first(&member, is_empty))),
            Some(None) => None,
            None => str::from_utf8(result).ok().and_then(|result| {
                let (place, is_empty) = inside(result, '{')?;
                Some((place, first(&["\"_meta\":{", &member, "}"].concat(), is_empty)))
            }),
        };
        let content = content.and_then(|content| inside(content.get(), '['));
        let item = content.map(|(place, is_empty)| (place, first(&text_item(note), is_empty)));
        let added: Vec<_> = [meta, item].into_iter().flatten().collect();
        let mut edits: Vec<_> = added.iter().map(|(place, text)| Edit(*place, text)).collect();
        splice(&self.text, &mut edits)
    }

    /// The place before the bracket that ends `result.content`, and whether nothing is in it yet.
    fn end_of_content(&self) -> Option<(Span, bool)> {
        let [content] = members(self.result()?, ["content"]).ok()?;
        let items = content?.get().strip_prefix('[')?.strip_suffix(']')?;
        let end = Span::at(Span::of(items.as_bytes(), &self.text).range().end);
        Some((end, items.trim_ascii().is_empty()))
    }

    fn param(&self, name: &'static str) -> Option<Cow<'_, str>> {
        let [value] = members(self.params()?, [name]).ok()?;
        string(value?)
    }

    fn payload(&self) -> Option<&[u8]> {
        self.payload.map(|span| &self.text[span.range()])
    }

    fn place_of_id(&self, value: &RawValue) -> Option<Span> {
        Id::new(value.get()).map(|id| Span::of(id.get().as_bytes(), &self.text))
    }
}

/// Whether a progress token can be in the text at all. Its key may be written with escapes.
fn may_have_progress_token(text: &[u8]) -> bool {
    // Made once, because that takes longer than to search a short text.
    static KEY: LazyLock<memmem::Finder<'static>> =
        LazyLock::new(|| memmem::Finder::new(b"progressToken"));
    let has_escape = |at: usize| memmem::find(&text[at..], br"\u").is_some();
    KEY.find(text).is_some() || memchr::memchr(b'\\', text).is_some_and(has_escape)
}
