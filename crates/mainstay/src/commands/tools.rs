//! `mainstay tools`

use mainstay_api::Request;
use mainstay_core::ServerName;
use serde_json::Value;

use crate::context::Context;
use crate::error::CliError;
use crate::text::{Cell, clip, columns, tame};
use crate::ui::paint;

/// List the tools that a server offers
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// Print the tools as the server describes them, as a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Tools { name: args.name.clone() };
    let tools: Vec<Value> = ctx.ask("asking the server", &request).await?;
    if tools.is_empty() && !args.json {
        ctx.ui.say(format!("{} offers no tools", args.name));
    }
    let width = ctx.ui.width();
    ctx.ui.answer(args.json, &tools, |tools| page(tools, width))
}

/// A line per tool, each cut to the terminal's width if there is one.
fn page(tools: &[Value], width: Option<usize>) -> String {
    let text = |tool: &Value, key: &str| {
        let text = tool.get(key).and_then(Value::as_str).unwrap_or_default();
        tame(text.lines().next().unwrap_or_default())
    };
    let read_only = |tool: &Value| {
        tool.pointer("/annotations/readOnlyHint").and_then(Value::as_bool).unwrap_or_default()
    };
    let names: Vec<String> = tools.iter().map(|tool| text(tool, "name")).collect();
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
    columns(&rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_is_a_line() {
        let tools = [
            json!({"name": "add", "description": "Adds two numbers.\nReally.",
                   "annotations": {"readOnlyHint": true}}),
            json!({"name": "delete-everything", "description": "Deletes everything there is."}),
            json!({"name": "bare"}),
        ];
        let show = |width| anstream::adapter::strip_str(&page(&tools, width)).to_string();
        insta::assert_snapshot!(show(None), @"
        add                read-only  Adds two numbers.
        delete-everything             Deletes everything there is.
        bare
        ");
        insta::assert_snapshot!(show(Some(50)), @"
        add                read-only  Adds two numbers.
        delete-everything             Deletes everything …
        bare
        ");
    }
}
