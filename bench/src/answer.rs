//! The answers of tools, as all measures read them.

use std::borrow::Cow;

use serde::Deserialize;

/// The result of a tool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolResult<'a> {
    #[serde(borrow)]
    content: Vec<Content<'a>>,
    #[serde(default)]
    pub(crate) is_error: bool,
}

#[derive(Debug, Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

impl ToolResult<'_> {
    /// What it says, in order. What is no text is empty.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.content.iter().map(|content| content.text.as_ref())
    }
}

/// Enough of a text to recognize it.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}
