//! Why clients cancel requests.

use mainstay_mcp::frame::Parsed;

/// Whether a client cancels a request because its own timeout has passed. These are the reasons that clients were seen to
/// send; anything else may be a decision of the user.
pub(crate) fn is_timeout(cancellation: &Parsed) -> bool {
    let Some(reason) = cancellation.cancel_reason() else { return false };
    match &*reason {
        // The TypeScript SDK, versions 1 and 2.
        "McpError: MCP error -32001: Request timed out"
        | "SdkError: Request timed out"
        // The same, with `AbortSignal.timeout()`.
        | "TimeoutError: The operation was aborted due to timeout"
        // The Rust SDK.
        | "request timeout" => true,
        // The Python SDK, version 2: `timed out after 60.0s`.
        other => other.strip_prefix("timed out after ").and_then(|rest| rest.strip_suffix('s'))
            .is_some_and(|seconds| seconds.starts_with(|first: char| first.is_ascii_digit())
                && seconds.parse::<f64>().is_ok()),
    }
}
