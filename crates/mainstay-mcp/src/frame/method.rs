//! The methods of MCP, for the versions with a handshake.

use std::borrow::Cow;

macro_rules! methods {
    ($($variant:ident $name:literal)*) => {
        /// What a request or notification calls.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Method {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// An unknown one, which is passed on.
            Other(Box<str>),
        }

        impl Method {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(name) => name,
                }
            }
        }

        impl From<Cow<'_, str>> for Method {
            fn from(name: Cow<'_, str>) -> Self {
                match &*name {
                    $($name => Self::$variant,)*
                    _ => Self::Other(name.into()),
                }
            }
        }
    };
}

methods! {
    Initialize "initialize"
    Discover "server/discover"
    Ping "ping"
    ToolsList "tools/list"
    ToolsCall "tools/call"
    PromptsList "prompts/list"
    PromptsGet "prompts/get"
    ResourcesList "resources/list"
    ResourceTemplatesList "resources/templates/list"
    ResourcesRead "resources/read"
    ResourcesSubscribe "resources/subscribe"
    ResourcesUnsubscribe "resources/unsubscribe"
    Complete "completion/complete"
    SetLevel "logging/setLevel"
    TasksGet "tasks/get"
    TasksList "tasks/list"
    TasksResult "tasks/result"
    TasksCancel "tasks/cancel"
    RootsList "roots/list"
    CreateMessage "sampling/createMessage"
    Elicit "elicitation/create"
    Initialized "notifications/initialized"
    Cancelled "notifications/cancelled"
    Progress "notifications/progress"
    LogMessage "notifications/message"
    ToolsChanged "notifications/tools/list_changed"
    PromptsChanged "notifications/prompts/list_changed"
    ResourcesChanged "notifications/resources/list_changed"
    ResourceUpdated "notifications/resources/updated"
    RootsChanged "notifications/roots/list_changed"
    ElicitComplete "notifications/elicitation/complete"
    TaskStatus "notifications/tasks/status"
}

impl Method {
    /// Whether a request of this method can be executed twice without harm, whatever the server does. `None` if that
    /// depends on the tool.
    pub fn is_repeatable(&self) -> Option<bool> {
        match self {
            Self::ToolsCall => None,
            Self::Initialize
            | Self::Ping
            | Self::ToolsList
            | Self::PromptsList
            | Self::PromptsGet
            | Self::ResourcesList
            | Self::ResourceTemplatesList
            | Self::ResourcesRead
            | Self::ResourcesSubscribe
            | Self::ResourcesUnsubscribe
            | Self::Complete
            | Self::SetLevel
            | Self::TasksGet
            | Self::TasksList
            | Self::TasksResult => Some(true),
            _ => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept() {
        for name in ["tools/call", "notifications/progress", "vendor/method", ""] {
            assert_eq!(Method::from(Cow::Borrowed(name)).as_str(), name);
        }
        assert_eq!(Method::from(Cow::Borrowed("tools/call")), Method::ToolsCall);
        assert_eq!(Method::from(Cow::Borrowed("Tools/call")), Method::Other("Tools/call".into()));
    }
}
