//! `mainstay tools`

use std::time::Duration;

use mainstay_api::{Request, StatusReport};
use mainstay_core::ServerName;
use serde_json::Value;

use crate::context::Context;
use crate::error::CliError;
use crate::text::{Cell, clip, columns, plain_line};
use crate::ui::paint;

/// A server that takes longer to list its tools has stopped answering. The daemon itself waits for one that is
/// starting, at most as long as the longest hold.
const LIMIT: Duration = Duration::from_secs(11 * 60);

/// List the tools that a server offers, or show one with its parameters
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// Only this tool, with its description and parameters
    tool: Option<String>,
    /// Print the tools as the server describes them, as a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Tools { name: args.name.clone() };
    let tools: Vec<Value> =
        ctx.ask_within(LIMIT, &args.name, "the list of tools", &request).await?;
    if let Some(name) = &args.tool {
        let found =
            tools.iter().find(|tool| tool.get("name").and_then(Value::as_str) == Some(name));
        let Some(tool) = found else {
            let message = format!("{} offers no tool `{}`", args.name, plain_line(name));
            return Err(CliError::failed(
                message,
                format!("`mainstay tools {}` lists them", args.name),
            ));
        };
        return ctx.ui.answer(args.json, tool, details);
    }
    if tools.is_empty() && !args.json {
        ctx.ui.message(format!("{} offers no tools", args.name));
    }
    let server: StatusReport =
        ctx.ask("asking the daemon", &Request::Status { name: args.name.clone() }).await?;
    if !server.server.status.is_up() {
        ctx.ui.message(format!(
            "{} is {}: this is the list of its last run",
            args.name, server.server.status
        ));
    }
    let width = ctx.ui.width();
    ctx.ui.answer(args.json, &tools, |tools| page(tools, width))
}

/// A line per tool, each cut to the terminal's width if there is one.
fn page(tools: &[Value], width: Option<usize>) -> String {
    let text = |tool: &Value, key: &str| {
        let text = tool.get(key).and_then(Value::as_str).unwrap_or_default();
        plain_line(text.lines().next().unwrap_or_default())
    };
    let read_only = |tool: &Value| {
        tool.pointer("/annotations/readOnlyHint").and_then(Value::as_bool).unwrap_or_default()
    };
    let names: Vec<String> =
        tools.iter().map(|tool| text(tool, "name") + &parameters(tool)).collect();
    let taken = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) + 2 + 9 + 2;
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(taken).max(20));
    let rows = tools.iter().zip(names).map(|(tool, name)| {
        let mark = if read_only(tool) { "read-only" } else { "" };
        vec![
            Cell::painted(name, paint::strong),
            Cell::painted(mark, paint::good),
            Cell::new(clip(&text(tool, "description"), room)),
        ]
    });
    columns(None, rows)
}

/// One tool: its description, and a line per parameter.
fn details(tool: &Value) -> String {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let description = text(tool, "description");
    let mut lines = vec![paint::strong(&plain_line(&text(tool, "name")))];
    lines.extend(description.lines().map(plain_line));
    let page = lines.join("\n");
    let Some(all) = tool.pointer("/inputSchema/properties").and_then(Value::as_object) else {
        return page + "\n\nit takes no parameters";
    };
    let rows = all.iter().map(|(name, schema)| {
        let kind = match schema.get("enum").and_then(Value::as_array) {
            Some(values) => values.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"),
            None => text(schema, "type"),
        };
        let description = text(schema, "description");
        vec![
            Cell::painted(format!("  {}", plain_line(name)), paint::strong),
            Cell::new(plain_line(&kind)),
            Cell::new(if is_required(tool, name) { "required" } else { "" }),
            Cell::new(plain_line(&description.lines().collect::<Vec<_>>().join(" "))),
        ]
    });
    page + "\n\n" + &columns(None, rows)
}

fn is_required(tool: &Value, parameter: &str) -> bool {
    let required = tool.pointer("/inputSchema/required").and_then(Value::as_array);
    required.is_some_and(|names| names.iter().any(|name| name == parameter))
}

/// The required parameters of a tool, and the optional ones in brackets.
fn parameters(tool: &Value) -> String {
    let Some(all) = tool.pointer("/inputSchema/properties").and_then(Value::as_object) else {
        return String::new();
    };
    let (required, optional): (Vec<&String>, Vec<&String>) =
        all.keys().partition(|name| is_required(tool, name));
    let optional = optional.into_iter().map(|name| format!("[{}]", plain_line(name)));
    let list: Vec<String> =
        required.into_iter().map(|name| plain_line(name)).chain(optional).collect();
    if list.is_empty() { String::new() } else { format!("({})", list.join(", ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_tool_is_shown_with_its_parameters() {
        let tool = json!({"name": "add", "description": "Adds two numbers.\nReally.",
            "inputSchema": {"required": ["a"], "properties": {
                "a": {"type": "number", "description": "the first\none"},
                "unit": {"enum": ["m", "s"]}}}});
        let show = |tool| anstream::adapter::strip_str(&details(tool)).to_string();
        insta::assert_snapshot!(show(&tool), @r#"
        add
        Adds two numbers.
        Really.

          a     number   required  the first one
          unit  "m"|"s"
        "#);
        assert_eq!(show(&json!({"name": "bare"})), "bare\n\nit takes no parameters");
    }

    #[test]
    fn a_tool_is_a_line() {
        let tools = [
            json!({"name": "add", "description": "Adds two numbers.\nReally.",
                   "annotations": {"readOnlyHint": true},
                   "inputSchema": {"properties": {"a": {}, "unit": {}, "b": {}},
                                   "required": ["a", "b"]}}),
            json!({"name": "delete-everything", "description": "Deletes everything there is."}),
            json!({"name": "bare"}),
        ];
        let show = |width| anstream::adapter::strip_str(&page(&tools, width)).to_string();
        insta::assert_snapshot!(show(None), @"
        add(a, b, [unit])  read-only  Adds two numbers.
        delete-everything             Deletes everything there is.
        bare
        ");
        insta::assert_snapshot!(show(Some(50)), @"
        add(a, b, [unit])  read-only  Adds two numbers.
        delete-everything             Deletes everything …
        bare
        ");
    }
}
