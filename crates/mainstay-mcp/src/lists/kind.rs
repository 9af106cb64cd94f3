//! What the four lists are called in the protocol.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame::{self, Method};

/// One of the lists that a server may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
    ResourceTemplates,
}

impl ListKind {
    pub const ALL: [Self; 4] =
        [Self::Tools, Self::Prompts, Self::Resources, Self::ResourceTemplates];

    /// The list that a method asks for, if it does.
    pub fn of(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method.as_str())
    }

    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
        }
    }

    /// The member of the result that holds the items.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resourceTemplates",
        }
    }

    /// The member of an item that identifies it.
    pub fn name_key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::ResourceTemplates => "uriTemplate",
        }
    }

    /// The capability of a server that has such a list.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::ResourceTemplates => "resources",
        }
    }

    /// The notification that it changed. Resources and their templates share one.
    pub fn changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::ResourceTemplates => "notifications/resources/list_changed",
        }
    }

    /// Writes the notification that it changed.
    pub fn changed_message(self) -> Bytes {
        frame::notification(self.changed(), None)
    }

    /// Its place in [`ListKind::ALL`].
    pub(super) fn place(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn kinds_are_found_by_their_method() {
        for (place, kind) in ListKind::ALL.into_iter().enumerate() {
            assert_eq!(ListKind::of(&Cow::Borrowed(kind.method()).into()), Some(kind));
            assert_eq!(kind.place(), place);
        }
        assert_eq!(ListKind::of(&Method::ToolsCall), None);
        assert_eq!(
            ListKind::ResourceTemplates.changed_message(),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
        );
    }
}
