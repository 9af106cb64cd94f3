//! The server: it executes calls, and says more than it is asked.

use bytes::Bytes;
use mainstay_mcp::frame::{Kind as MessageKind, Method as McpMethod, Parsed};
use mainstay_session::LinkKey;

use crate::event::{Event, ExecutionStep};
use crate::model::{Execution, Reply};
use crate::received::{tag, text_of};
use crate::script::{CallSpec, End, Engine, Kind, Method, Said};
use crate::world::World;

pub(crate) const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"sim","version":"1"}}"#;

impl World {
    /// A line of a daemon arrives.
    pub(crate) fn line_arrives(&mut self, run: usize, line: Bytes) {
        if !self.runs[run].is_alive {
            return;
        }
        if self.runs[run].does_not_read || !self.runs[run].kept.is_empty() {
            self.runs[run].kept.push(line);
            if self.runs[run].kept.len() >= 2
                && let Some((daemon, link, _)) = self.runs[run].link
                && let Some(server) = self.daemons[daemon].server.as_mut()
            {
                server.link_full(link);
            }
            return;
        }
        self.runs[run].written += 1;
        self.read_line(run, line);
    }

    pub(crate) fn read_again(&mut self, run: usize) {
        self.runs[run].does_not_read = false;
        if !self.runs[run].is_alive {
            return;
        }
        for line in std::mem::take(&mut self.runs[run].kept) {
            if self.runs[run].is_alive {
                self.runs[run].written += 1;
                self.read_line(run, line);
            }
        }
        let now = self.instant();
        if let Some((daemon, link, _)) = self.runs[run].link {
            while self.daemons[daemon]
                .server
                .as_mut()
                .is_some_and(|server| server.link_writable(now, link))
            {}
            self.settle();
        }
    }

    fn read_line(&mut self, run: usize, line: Bytes) {
        let message = Parsed::read(line).expect("daemons write JSON");
        let id = message.id().map(|id| id.get().to_owned());
        match (message.kind(), id) {
            (MessageKind::Request, Some(id)) => {
                if tag(text_of(message.text()), "\"key\":\"").is_some() {
                    self.begin(run, &message, Reply::Line(id));
                } else {
                    let result = self.result_of(&message);
                    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                    let is_initialize =
                        message.method().is_some_and(|method| method.as_str() == "initialize");
                    match self.runs[run].ready_at.saturating_sub(self.now) {
                        wait @ 1.. if is_initialize => self.after(wait, Event::Write { run, line }),
                        _ => self.write(run, line),
                    }
                }
            }
            _ => self.take_message(run, &message),
        }
    }

    /// A message that has no answer.
    pub(crate) fn take_message(&mut self, run: usize, message: &Parsed) {
        match message.kind() {
            MessageKind::Result | MessageKind::Error => {
                let id = message.id().and_then(mainstay_mcp::frame::Id::as_u64);
                let Some(asked) = id.and_then(|id| self.runs[run].asked.remove(&id)) else {
                    // Asked by a run before, or answered again after a redelivery.
                    return;
                };
                if let (Some(key), Some(execution)) =
                    (tag(text_of(message.text()), "\"key\":\""), asked)
                {
                    let call = self.executions[execution].call;
                    assert_eq!(key, self.calls[call].key, "a client answered something else");
                }
                if let Some(execution) = asked {
                    // An error is an answer of Mainstay, and the server was told to forget a call that was cancelled.
                    let is_awaited = !self.executions[execution].is_cancelled;
                    if message.kind() == MessageKind::Result && is_awaited {
                        let call = self.executions[execution].call;
                        self.calls[call].interacted_at.get_or_insert(self.now);
                    }
                    self.executions[execution].awaits_client = false;
                }
            }
            _ if message.method() == Some(&McpMethod::Cancelled) => {
                let Some(place) = message.cancelled_id() else { return };
                let id = message.get(place).to_owned();
                for execution in &mut self.executions {
                    let is_it = matches!(&execution.reply, Reply::Line(it) if *it == id);
                    // Some servers answer nevertheless.
                    let is_obeyed = execution.started.is_multiple_of(2);
                    execution.is_cancelled |= execution.run == run && is_it;
                    execution.is_over |= execution.run == run && is_it && is_obeyed;
                }
            }
            _ => {}
        }
    }

    /// The result of a request of Mainstay itself, or of a list.
    pub(crate) fn result_of(&self, message: &Parsed) -> String {
        let has_cursor = message.cursor().is_some();
        self.result_for(message.method().map_or("", McpMethod::as_str), has_cursor)
    }

    pub(crate) fn result_for(&self, method: &str, has_cursor: bool) -> String {
        const READ: &str =
            r#"{"name":"read","inputSchema":{},"annotations":{"readOnlyHint":true}}"#;
        const REST: &str =
            r#"{"name":"write","inputSchema":{}},{"name":"replayed","inputSchema":{}}"#;
        match method {
            "initialize" => HELLO.to_owned(),
            "tools/list" if has_cursor => format!(r#"{{"tools":[{REST}]}}"#),
            "tools/list" if self.script.has_pages => {
                format!(r#"{{"tools":[{READ}],"nextCursor":"2"}}"#)
            }
            "tools/list" => format!(r#"{{"tools":[{READ},{REST}]}}"#),
            "prompts/list" => r#"{"prompts":[]}"#.to_owned(),
            "resources/list" => r#"{"resources":[]}"#.to_owned(),
            "resources/templates/list" => r#"{"resourceTemplates":[]}"#.to_owned(),
            _ => "{}".to_owned(),
        }
    }

    /// A call is executed.
    pub(crate) fn begin(&mut self, run: usize, message: &Parsed, reply: Reply) {
        let text = text_of(message.text());
        let Some(key) = tag(text, "\"key\":\"") else { return };
        let call = self.call_of(key);
        let it = &mut self.calls[call];
        it.executions += 1;
        // A run that broke off after a daemon was lost may have stopped once only.
        let is_http = self.script.kind == Kind::Http;
        let lost_daemons = if is_http { self.daemons.len() - 1 } else { 0 };
        let lost_daemons = u32::try_from(lost_daemons).expect("there are few");
        let resent = self.responses[it.response].resent + lost_daemons;
        assert!(
            it.executions <= it.limit(resent, self.script.engine == Engine::Remote),
            "{} ({:?}) was executed {} times",
            it.key,
            it.spec.method,
            it.executions
        );
        // What the client has answered cannot be answered again on its behalf.
        let is_late = it.interacted_at.is_some_and(|at| self.now > at + 1);
        let is_again = is_late && self.daemons.len() == 1;
        assert!(!is_again, "{} was executed again after its client was asked", it.key);
        let spec = it.spec;
        let token =
            message.progress_token().ok().flatten().map(|place| message.get(place).to_owned());
        let started = self.now;
        self.executions.push(Execution {
            run,
            call,
            reply,
            token,
            said: 0,
            is_over: false,
            is_muted: false,
            is_cancelled: false,
            awaits_client: false,
            started,
        });
        let execution = self.executions.len() - 1;
        let CallSpec { takes, progress, asks, logs, .. } = spec;
        let takes = u64::from(takes);
        for number in 0..u64::from(progress) {
            let at = takes * number / u64::from(progress);
            self.after(at, Event::Execute { execution, step: ExecutionStep::Progress });
        }
        if logs {
            self.after(takes / 3, Event::Execute { execution, step: ExecutionStep::Log });
        }
        if asks {
            self.after(takes / 2, Event::Execute { execution, step: ExecutionStep::Ask });
        }
        self.after(takes, Event::Execute { execution, step: ExecutionStep::End });
    }

    /// An execution proceeds.
    pub(crate) fn execute(&mut self, execution: usize, step: ExecutionStep) {
        let it = &self.executions[execution];
        let (run, call) = (it.run, it.call);
        if it.is_over || !self.runs[run].is_alive {
            return;
        }
        let key = self.calls[call].key.clone();
        match step {
            ExecutionStep::Progress => {
                let it = &mut self.executions[execution];
                it.said += 1;
                let (said, Some(token)) = (it.said, it.token.clone()) else { return };
                self.reply(execution, format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{said}}}}}"#
                ));
            }
            ExecutionStep::Log => {
                let number = self.next_number();
                self.reply(execution, format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":{{"key":"{key}","number":"{number}"}}}}}}"#
                ));
            }
            ExecutionStep::Ask => {
                let id = self.ask(run, Some(execution));
                self.executions[execution].awaits_client = true;
                self.reply(execution, format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"key":"{key}"}}}}"#
                ));
            }
            ExecutionStep::End => self.end_execution(execution),
        }
    }

    /// Messages are numbered over all servers and sessions.
    fn next_number(&mut self) -> u64 {
        self.messages += 1;
        self.messages
    }

    fn ask(&mut self, run: usize, execution: Option<usize>) -> u64 {
        let run = &mut self.runs[run];
        run.next_id += 1;
        run.asked.insert(run.next_id, execution);
        run.next_id
    }

    fn end_execution(&mut self, execution: usize) {
        let it = &self.executions[execution];
        let (run, call, said) = (it.run, it.call, it.said);
        if it.awaits_client && self.now < it.started + 10_000 && !self.is_ending {
            return self.after(50, Event::Execute { execution, step: ExecutionStep::End });
        }
        let it = &self.calls[call];
        let (spec, key, count) = (it.spec, it.key.clone(), it.executions);
        match spec.end {
            End::Silent if !self.is_ending => return,
            End::Exit(times) if count <= u32::from(times) => {
                return self.kill_run(run, count == 1, u64::from(spec.takes % 70));
            }
            _ => {}
        }
        self.executions[execution].is_over = true;
        let result = match spec.method {
            Method::List => self.result_for("tools/list", false),
            Method::Read | Method::Write | Method::Replayed if spec.progress > 0 => {
                format!(
                    r#"{{"content":[{{"type":"text","text":"done {key}"}},{{"type":"text","text":"after {said}"}}]}}"#
                )
            }
            _ => format!(r#"{{"content":[{{"type":"text","text":"done {key}"}}]}}"#),
        };
        if self.executions[execution].is_muted {
            return;
        }
        match self.executions[execution].reply.clone() {
            Reply::Line(id) => {
                let answer = match spec.end {
                    End::Error => format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"done {key}"}}}}"#
                    ),
                    End::Invalid => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"#),
                    _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
                };
                if spec.end == End::Twice {
                    self.write(run, answer.clone());
                }
                self.write(run, answer);
            }
            Reply::Http { daemon, operation } => {
                let id = self.calls[call].id.clone();
                self.answer_http(daemon, operation, spec.end, &id, &key, &result);
            }
        }
    }

    /// The server says something about a call.
    fn reply(&mut self, execution: usize, text: String) {
        let it = &self.executions[execution];
        if it.is_muted {
            return;
        }
        match it.reply.clone() {
            Reply::Line(_) => self.write(it.run, text),
            Reply::Http { daemon, operation } => {
                self.after(1, Event::HttpMessage { daemon, operation, text: text.into() });
            }
        }
    }

    /// A stdio server writes a line.
    pub(crate) fn write(&mut self, run: usize, line: String) {
        let it = &mut self.runs[run];
        it.out.push(line.into());
        let index = it.out.len() - 1;
        if let Some((daemon, link, _)) = it.link {
            self.after(1, Event::Deliver { daemon, link, run, index });
        }
    }

    pub(crate) fn confirm(&mut self, daemon: usize, link: LinkKey, count: u64) {
        for run in &mut self.runs {
            if let Some((at, to, first)) = run.link
                && (at, to) == (daemon, link)
            {
                let confirmed = first + usize::try_from(count).expect("there are few lines");
                assert!(confirmed <= run.out.len(), "more lines are confirmed than were written");
                run.confirmed = run.confirmed.max(confirmed);
            }
        }
    }

    /// The server says something outside of calls.
    pub(crate) fn say(&mut self, client: u8, said: Said) {
        if self.clients.is_empty() {
            return;
        }
        let client = usize::from(client) % self.clients.len();
        let session = (self.script.kind == Kind::Isolated && !self.is_local(client))
            .then(|| self.clients[client].session.as_str().into());
        let Some(run) = self.live_run(&session) else { return };
        if self.runs[run].hello.is_none() {
            return;
        }
        let owner = if self.script.kind == Kind::Shared
            || session.is_none() && self.script.kind == Kind::Isolated
        {
            String::new()
        } else {
            format!(r#""owner":"c{client}""#)
        };
        let text = match said {
            Said::Log => {
                let number = self.next_number();
                let owner = if owner.is_empty() { owner } else { format!("{owner},") };
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":{{{owner}"number":"{number}"}}}}}}"#
                )
            }
            Said::ListChanged => {
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_owned()
            }
            Said::Updated => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"res:{client}"}}}}"#
            ),
            Said::Invalid => "this is not JSON".to_owned(),
            Said::Ping => r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#.to_owned(),
            Said::Ask => {
                let id = self.ask(run, None);
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{{owner}}}}}"#
                )
            }
        };
        if self.script.kind != Kind::Http {
            return self.write(run, text);
        }
        self.say_http(run, client, said, text);
    }
}
