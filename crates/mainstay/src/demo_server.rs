//! The MCP server inside this program, which `mainstay demo` supervises: two tools, lines of JSON-RPC
//! on standard input and output, until the input ends.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

/// Its newest protocol version. Clients may request an older one.
const NEWEST: &str = "2025-11-25";
const SPOKEN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// Serves standard input and output.
pub(crate) fn main() -> ExitCode {
    match serve(io::stdin().lock(), io::stdout().lock(), std::process::id()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(from: impl BufRead, mut to: impl Write, pid: u32) -> io::Result<()> {
    for line in from.lines() {
        if let Some(answer) = answer(&line?, pid) {
            writeln!(to, "{answer}")?;
            to.flush()?;
        }
    }
    Ok(())
}

/// The answer to a message. None for a notification.
fn answer(line: &str, pid: u32) -> Option<Value> {
    let Ok(message) = serde_json::from_str::<Value>(line) else {
        let error = json!({"code": -32700, "message": "no JSON"});
        return Some(json!({"jsonrpc": "2.0", "id": null, "error": error}));
    };
    let id = message.get("id")?;
    let method = message.get("method")?.as_str().unwrap_or_default();
    let params = message.get("params").unwrap_or(&Value::Null);
    Some(match result(method, params, pid) {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, message)) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    })
}

fn result(method: &str, params: &Value, pid: u32) -> Result<Value, (i32, String)> {
    match method {
        "initialize" => {
            let asked = params["protocolVersion"].as_str();
            let version = asked.filter(|asked| SPOKEN.contains(asked)).unwrap_or(NEWEST);
            Ok(json!({
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "mainstay-demo", "version": env!("CARGO_PKG_VERSION")},
            }))
        }
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({"tools": tools()})),
        "tools/call" => call(params, pid),
        _ => Err((-32601, format!("no method `{method}`"))),
    }
}

fn tools() -> Value {
    let number = json!({"type": "number"});
    json!([
        {
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": {
                "type": "object",
                "properties": {"a": number, "b": number},
                "required": ["a", "b"],
            },
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "pid",
            "description": "Returns the process id of the server.",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true},
        },
    ])
}

fn call(params: &Value, pid: u32) -> Result<Value, (i32, String)> {
    let text = |text: String| json!({"content": [{"type": "text", "text": text}]});
    let number = |key: &str| params["arguments"][key].as_f64();
    match params["name"].as_str() {
        Some("pid") => Ok(text(pid.to_string())),
        Some("add") => {
            let Some((a, b)) = number("a").zip(number("b")) else {
                let mut refusal = text("`a` and `b` must be numbers".to_owned());
                refusal["isError"] = true.into();
                return Ok(refusal);
            };
            Ok(text((a + b).to_string()))
        }
        _ => Err((-32602, format!("no tool `{}`", params["name"].as_str().unwrap_or_default()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &str, expected: &[Value]) {
        let mut written = Vec::new();
        serve(lines.as_bytes(), &mut written, 7).unwrap();
        let answers: Vec<Value> = String::from_utf8(written)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(answers, expected);
    }

    fn ok(id: u32, result: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    #[test]
    fn it_initializes_and_adds() {
        let lines = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":3}}}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"pid","arguments":{}}}
{"jsonrpc":"2.0","id":4,"method":"ping"}
"#;
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "mainstay-demo", "version": env!("CARGO_PKG_VERSION")},
        });
        let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        check(lines, &[ok(1, &hello), ok(2, &text("5")), ok(3, &text("7")), ok(4, &json!({}))]);
    }

    #[test]
    fn an_unknown_protocol_version_gets_the_newest() {
        let answer = answer(
            r#"{"id":1,"method":"initialize","params":{"protocolVersion":"1999-01-01"}}"#,
            7,
        );
        assert_eq!(answer.unwrap()["result"]["protocolVersion"], NEWEST);
    }

    #[test]
    fn invalid_requests_get_an_error() {
        let error = |id: Value, code: i32, message: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}});
        let lines = "what?\n\
            {\"id\":1,\"method\":\"dance\"}\n\
            {\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"x\"}}\n\
            {\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"add\"}}\n";
        let refusal = json!({
            "content": [{"type": "text", "text": "`a` and `b` must be numbers"}],
            "isError": true,
        });
        check(
            lines,
            &[
                error(Value::Null, -32700, "no JSON"),
                error(1.into(), -32601, "no method `dance`"),
                error(2.into(), -32602, "no tool `x`"),
                ok(3, &refusal),
            ],
        );
    }

    #[test]
    fn every_listed_tool_can_be_called() {
        for tool in tools().as_array().unwrap() {
            let params = json!({"name": tool["name"], "arguments": {"a": 1, "b": 1}});
            assert!(call(&params, 7).is_ok(), "{tool}");
        }
    }
}
