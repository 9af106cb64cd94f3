//! `mainstay call`

use std::io::Read as _;
use std::time::Duration;

use mainstay_api::Request;
use mainstay_core::ServerName;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::text::{duration, plain_line};

/// Call a tool of a server and print its result
///
/// Texts are printed as they are (on a terminal without control characters), everything else as JSON. A result that
/// the tool marks as an error goes to standard error, with exit code 1.
///
/// If the result takes longer than 5 s, standard error says what is waited for. Ctrl-C cancels the call at the server.
///
/// Examples: `mainstay call time get_current_time timezone=UTC`,
/// `mainstay call time get_current_time '{"timezone": "UTC"}'`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// Name of the tool, as `mainstay tools` lists it
    tool: String,
    /// Arguments as KEY=VALUE, where VALUE is JSON or text; or one JSON object; `-` reads the object from
    /// standard input
    #[arg(value_name = "KEY=VALUE|JSON")]
    arguments: Vec<String>,
    /// How long to wait for the result
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Print the whole result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let arguments = match &args.arguments[..] {
        [] => arguments("{}")?,
        [one] if one == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(CliError::io("standard input cannot be read"))?;
            arguments(&text)?
        }
        [one] if !is_pair(one) => arguments(one)?,
        given => from_pairs(given)?,
    };
    let waiting = format!("`{}`", plain_line(&args.tool));
    let request = Request::Call { name: args.name.clone(), tool: args.tool, arguments };
    let result: Value = ctx.ask_within(args.timeout, &args.name, &waiting, &request).await?;
    let failed = result.get("isError").and_then(Value::as_bool).unwrap_or_default();
    if args.json {
        ctx.ui.json(&result)?;
    } else if !failed {
        ctx.ui.data(&format!("{}\n", content(&result)))?;
    } else {
        ctx.ui.message(content(&result));
    }
    if failed { Err(CliError::Answered(Exit::Failed)) } else { Ok(()) }
}

/// Whether an argument is `KEY=VALUE` and not JSON.
fn is_pair(argument: &str) -> bool {
    !argument.trim_start().starts_with(['{', '[', '"']) && argument.contains('=')
}

/// The arguments from `KEY=VALUE` pairs. A value is parsed as JSON, or else taken as text.
fn from_pairs(given: &[String]) -> Result<Box<RawValue>, CliError> {
    let mut object = serde_json::Map::new();
    for pair in given {
        let Some((key, value)) = pair.split_once('=').filter(|_| is_pair(pair)) else {
            let help = "give each argument as KEY=VALUE, or all of them as one JSON object";
            return Err(CliError::misuse(format!("`{pair}` is not KEY=VALUE"), help));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        if object.insert(key.to_owned(), value).is_some() {
            return Err(CliError::usage(format!("the argument `{key}` is given twice")));
        }
    }
    serde_json::value::to_raw_value(&object).map_err(|source| CliError::Garbled { source })
}

/// The arguments on one line, otherwise unchanged: numbers and the order of keys may matter to the tool. A line break in
/// JSON is always white space between two tokens.
fn arguments(text: &str) -> Result<Box<RawValue>, CliError> {
    let usage = |problem: String| {
        let message = format!("the arguments must be a JSON object: {problem}");
        CliError::misuse(message, r#"write them like this: '{"city": "Paris"}'"#)
    };
    let line = text.replace(['\n', '\r'], " ");
    // Checked in the original, so that the position in an error is the one in the user's text.
    let value: &RawValue = serde_json::from_str(text).map_err(|error| usage(error.to_string()))?;
    match value.get().as_bytes().first() {
        Some(b'{') => {
            RawValue::from_string(line.trim().to_owned()).map_err(|error| usage(error.to_string()))
        }
        Some(b'[') => Err(usage("they are an array".to_owned())),
        Some(b'"') => Err(usage("they are a string".to_owned())),
        _ => Err(usage(format!("they are `{}`", value.get()))),
    }
}

/// The content of a result: texts as they are, everything else as JSON.
fn content(result: &Value) -> String {
    let blocks = result.get("content").and_then(Value::as_array);
    let Some(blocks) = blocks.filter(|blocks| !blocks.is_empty()) else {
        let rest = result.get("structuredContent").unwrap_or(result);
        return rest.to_string();
    };
    let block = |block: &Value| match (block.get("type").and_then(Value::as_str), &block["text"]) {
        (Some("text"), Value::String(text)) => text.clone(),
        _ => block.to_string(),
    };
    blocks.iter().map(block).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_keep_their_bytes_but_fit_on_a_line() {
        let check = |text: &str, line: &str| assert_eq!(arguments(text).unwrap().get(), line);
        check("{}", "{}");
        check(" {\"n\":\n 1.10,\r\n\"s\":\"a\\nb\"}\n", "{\"n\":  1.10,  \"s\":\"a\\nb\"}");
    }

    #[test]
    fn pairs_make_an_object() {
        let check = |pairs: &[&str], expected: &str| {
            let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
            let made = from_pairs(&pairs).map(|made| made.get().to_owned());
            assert_eq!(made.unwrap_or_else(|error| error.to_string()), expected);
        };
        check(&["city=Paris", "n=5"], r#"{"city":"Paris","n":5}"#);
        check(
            &["a=b=c", "on=true", "ids=[1,2]", r#"s="5""#],
            r#"{"a":"b=c","ids":[1,2],"on":true,"s":"5"}"#,
        );
        check(&["empty="], r#"{"empty":""}"#);
        check(&["a=1", "b"], "`b` is not KEY=VALUE");
        check(&["a=1", "a=2"], "the argument `a` is given twice");
        assert!(!is_pair(r#"{"a": "b=c"}"#) && !is_pair("7") && is_pair("a=1"));
    }

    #[test]
    fn other_json_than_an_object_is_refused() {
        let check = |text: &str, expected: &str| {
            let error = arguments(text).unwrap_err().to_string();
            assert_eq!(error, format!("the arguments must be a JSON object: {expected}"));
        };
        check("[1]", "they are an array");
        check("7", "they are `7`");
        check("\"a\"", "they are a string");
        check("{\"a\": }", "expected value at line 1 column 7");
        check("{\n\"a\" 1}", "expected `:` at line 2 column 5");
        check("", "EOF while parsing a value at line 1 column 0");
        check("{} {}", "trailing characters at line 1 column 4");
    }

    #[test]
    fn texts_are_printed_as_texts() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let result = json!({"content": [{"type": "text", "text": "a\nb"}, image]});
        assert_eq!(content(&result), format!("a\nb\n{image}"));
        assert_eq!(content(&json!({"content": [], "structuredContent": {"n": 1}})), r#"{"n":1}"#);
        assert_eq!(content(&json!({})), "{}");
    }
}
