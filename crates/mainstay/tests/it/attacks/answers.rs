//! Servers that write invalid output between their answers. Their clients get the answers, and clients of
//! other servers notice nothing.

use serde_json::{Value, json};

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture};
use crate::proxy::raw::{BOTH, JSON, Raw, call};

/// A stdio server in shell: a call of tool `N` writes piece `N` of junk before its answer.
const SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
    *'"method":"initialize"'*)
      version=$(printf '%s' "$line" | sed -n 's/.*"protocolVersion":"\([^"]*\)".*/\1/p')
      printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"%s","capabilities":{"tools":{}},"serverInfo":{"name":"junk","version":"1"}}}\n' "$id" "$version" ;;
    *'"method":"tools/list"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[]}}\n' "$id" ;;
    *'"method":"tools/call"'*)
      n=$(printf '%s' "$line" | sed -n 's/.*"name":"junk\([0-9]*\)".*/\1/p')
      cat "junk$n"
      printf '\n{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"answer %s"}]}}\n' "$id" "$n" ;;
  esac
done
"#;

/// Pieces of junk.
fn junk() -> Vec<Vec<u8>> {
    let texts = [
        "hello, I am a log line",
        "\u{feff}{}",
        "{",
        "}",
        "[]",
        "[1,2,3]",
        "null",
        "true",
        "\"text\"",
        "12345678901234567890123456789",
        "{}",
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":99999999,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"text","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":-1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":[1],"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":123456789,"result":{},"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","method":5}"#,
        r#"{"jsonrpc":"2.0","method":""}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/unheard/of","params":"x"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":"much"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"loud","data":null}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x://y"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"unheard/of"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
        r#"[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}}]"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#,
        "{\"jsonrpc\":\"2.0\",\"method\":\"\\ud800\"}",
        "\n\n\n\r\n\r\n",
        "\u{1b}[2J\u{1b}]0;title\u{7}\u{202e}",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "Content-Length: 2\r\n\r\n{}",
    ];
    let mut junk: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    junk.push(vec![0; 4096]);
    junk.push(vec![0xff; 4096]);
    junk.push((0..=255).collect());
    junk.push(b"x".repeat(1 << 20));
    junk.push(b"[".repeat(100_000));
    junk.push(b"{\"a\":".repeat(50_000));
    junk.push(b"\n".repeat(50_000));
    junk.push(
        [b"{\"jsonrpc\":\"2.0\",\"method\":\"".as_slice(), &b"m".repeat(1 << 20), b"\"}"].concat(),
    );
    junk
}

/// The answer to a request. Other messages of the server may be forwarded before it.
fn answer_to(session: &Raw, request: &Value) -> Value {
    let mut response = session.post(BOTH, request);
    if response.header("content-type") == Some(JSON) {
        return response.answer();
    }
    loop {
        let message = response.message().expect("an answer");
        if message["id"] == request["id"] {
            return message;
        }
    }
}

#[test]
fn junk_between_answers_is_ignored() {
    let env = TestEnv::new();
    let junk = junk();
    for (n, bytes) in junk.iter().enumerate() {
        std::fs::write(env.work().join(format!("junk{n}")), bytes).unwrap();
    }
    env.write("server.sh", SERVER);
    env.run_server("fx", &[], &[&fixture()]);
    let server = env.run_server("junk", &[], &["bash", "server.sh"]);
    let mut bystander = Bystander::of(&env, "fx");
    let url = env.server("junk")["url"].as_str().unwrap().to_owned();
    let session = Raw::open(&url);
    for (n, bytes) in (0_u64..).zip(&junk) {
        let junk: String = String::from_utf8_lossy(bytes).chars().take(100).collect();
        let request = call(100 + n, &format!("junk{n}"), &json!({}));
        let case = format!("a server writes {junk:?}");
        let answer = bystander.during(case, || answer_to(&session, &request));
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(*text, format!("answer {n}"), "{junk}");
    }
    assert_eq!(env.server("junk")["pid"], server["pid"], "the server lives");
}
