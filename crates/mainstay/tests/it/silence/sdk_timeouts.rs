//! Clients of the SDKs that give up by their own timeout while a server is silent.

use std::process::{Command, Stdio};

use super::Setup;
use crate::env::until;
use crate::real_servers::tool;

const NAME: &str = super::NAME;

/// Calls a tool that does not answer, with a timeout or the default one, and then waits for its input to close before the next
/// call, or repeats the call.
const TYPESCRIPT: &str = r"
import { createRequire } from 'node:module';
const [installed, timeout, ...command] = process.argv.slice(2);
const sdk = createRequire(`${installed}/`);
const { Client } = sdk('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = sdk('@modelcontextprotocol/sdk/client/stdio.js');
const client = new Client({ name: 'impatient', version: '1' });
const env = { ...process.env };
await client.connect(new StdioClientTransport({ command: command[0], args: command.slice(1), env }));
const options = timeout === 'default' ? undefined : { timeout: Number(timeout) };
try {
  await client.callTool({ name: 'wait', arguments: {} }, undefined, options);
} catch (error) {
  console.log('gave up:', error.code);
}
const again = timeout === 'default' ? client.callTool({ name: 'wait', arguments: {} }) : undefined;
process.stdin.resume();
await new Promise((resolve) => process.stdin.on('end', resolve));
const result = await (again ?? client.callTool({ name: 'append', arguments: {} }));
console.log(result.content.at(-1).text);
await client.close();
";

const PYTHON: &str = r#"
import asyncio, datetime, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
async def main():
    command = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        try:
            await session.call_tool("wait", {}, read_timeout_seconds=datetime.timedelta(seconds=3))
        except Exception as error:
            print("gave up:", error.error.code, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        result = await session.call_tool("append", {})
        print(result.content[0].text, flush=True)
asyncio.run(main())
"#;

/// The client gives up, the server goes on, and the session can be used when the server reads again.
fn check(program: &[&str], code: &str, then: &str) {
    let setup = Setup::new(&["--hang-after", "60s"], &[]);
    let ours = setup.env.command(["connect", NAME]);
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(ours.get_program()).args(ours.get_args()).env_clear();
    command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(setup.env.work()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut output = std::io::BufReader::new(client.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        line
    };
    assert_eq!(line(), format!("gave up: {code}\n"));
    if then == "waited" {
        until("the repeat waits for the first call", || {
            let requests = setup.env.events_called(NAME, "request");
            requests.iter().any(|event| event["cause"] == "joined").then_some(())
        });
    }
    setup.release();
    drop(client.stdin.take());
    assert_eq!(line(), format!("{then}\n"));
    let status = until("the client ended", || client.try_wait().unwrap());
    assert!(status.success(), "{status}");
    setup.assert_never_killed();
}

#[test]
fn a_typescript_client_gives_up_and_its_session_goes_on() {
    let env = crate::env::TestEnv::new();
    let script = env.write("client.mjs", TYPESCRIPT);
    check(&["node", script.to_str().unwrap(), &tool("ts"), "3000"], "-32001", "appended");
}

/// Its timeout is a minute. It does not ask for progress, so that nothing keeps it waiting.
#[test]
fn a_typescript_client_gives_up_by_default_and_its_repeat_gets_the_result() {
    let env = crate::env::TestEnv::new();
    let script = env.write("client.mjs", TYPESCRIPT);
    check(&["node", script.to_str().unwrap(), &tool("ts"), "default"], "-32001", "waited");
}

#[test]
fn a_python_client_gives_up_and_its_session_goes_on() {
    let env = crate::env::TestEnv::new();
    let script = env.write("client.py", PYTHON);
    check(&[&tool("py1/bin/python"), script.to_str().unwrap()], "408", "appended");
}
