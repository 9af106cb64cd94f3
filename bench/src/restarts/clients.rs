//! The clients that call while the daemon comes and goes.

use std::ops::RangeInclusive;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::board::Board;
use super::tally::{Cut, Done, Ending, Route};
use super::web::{Fall, Web};
use super::work::{Call, INITIALIZED, NEWEST, Work, answered_id, initialize, request, tool_call};
use crate::rig::{BenchError, Instance};

/// The server that all clients share.
pub(super) const SERVER: &str = "witness";
/// How long one answer may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a slow call takes, in milliseconds: all are answered on event streams.
const SLOW: RangeInclusive<u64> = 300..=600;
const QUICK: RangeInclusive<u64> = 0..=0;
/// The resource whose changes are listened to.
const RESOURCE: &str = "fixture://greeting";
/// How often it changes.
const TOUCH: Duration = Duration::from_millis(100);
/// How long the last notifications may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(2);

/// How many clients of each route.
const CREW: [(Route, u32); 5] =
    [(Route::Kept, 16), (Route::Fresh, 4), (Route::Slow, 4), (Route::Old, 3), (Route::Connect, 4)];

/// The protocol versions of clients without event ids.
const OLD: [&str; 3] = ["2024-11-05", "2025-03-26", "2025-06-18"];

/// The clients at work.
pub(super) struct Crew {
    board: Arc<Board>,
    callers: JoinSet<Work>,
    toucher: JoinHandle<Touches>,
    listener: JoinHandle<()>,
}

/// What the crew leaves behind.
pub(super) struct Left {
    pub(super) works: Vec<Work>,
    pub(super) touches: Touches,
}

/// How often the resource was changed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Touches {
    pub(super) answered: u64,
    /// Those of which it is not known.
    pub(super) unknown: u64,
}

impl Crew {
    /// Opens all sessions; the clients then call until the board says stop.
    pub(super) async fn start(
        instance: &Instance,
        board: &Arc<Board>,
        pause: Duration,
    ) -> Result<Self, BenchError> {
        let mut callers = JoinSet::new();
        let each =
            CREW.iter().flat_map(|(route, count)| std::iter::repeat_n(*route, *count as usize));
        for (client, route) in (0..).zip(each) {
            let file = instance.folder().join(format!("effects-{client}"));
            let takes = if matches!(route, Route::Slow | Route::Old) { SLOW } else { QUICK };
            let work = Work::new(client, file, takes);
            let board = Arc::clone(board);
            match route {
                Route::Kept | Route::Fresh | Route::Slow | Route::Old => {
                    let old = OLD[client as usize % OLD.len()];
                    let version = if route == Route::Old { old } else { NEWEST };
                    let web = open_web(instance, &board, route != Route::Fresh, version).await?;
                    callers.spawn(call_web(web, route, work, board, pause));
                }
                Route::Connect => {
                    let pipe = Pipe::open(instance).await?;
                    callers.spawn(call_pipe(pipe, work, board, pause));
                }
            }
        }
        let listener = listen(open_web(instance, board, false, NEWEST).await?, board).await?;
        let toucher = touch(open_web(instance, board, true, NEWEST).await?, Arc::clone(board));
        Ok(Self { board: Arc::clone(board), callers, toucher: tokio::spawn(toucher), listener })
    }

    /// Lets all clients finish.
    pub(super) async fn end(mut self) -> Result<Left, BenchError> {
        self.board.stop();
        let mut works = Vec::new();
        while let Some(work) = self.callers.join_next().await {
            works.push(work.map_err(std::io::Error::other).map_err(BenchError::SetUp)?);
        }
        let touches = (&mut self.toucher).await.map_err(std::io::Error::other);
        let touches = touches.map_err(BenchError::SetUp)?;
        // Those that do not arrive are missed, which is told by the figures.
        let _arrived =
            self.board.until(ARRIVAL, |tally| tally.counts.updates >= touches.answered).await;
        Ok(Left { works, touches })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.toucher.abort();
        self.listener.abort();
    }
}

async fn open_web(
    instance: &Instance,
    board: &Arc<Board>,
    keeps: bool,
    version: &str,
) -> Result<Web, BenchError> {
    let url = instance.url(SERVER);
    let mut web = Web::new(&url, keeps, Arc::clone(board)).expect("our URL has a host and a path");
    let opened = async {
        let answer = web.ask(initialize(version)).await.map_err(|fall| format!("{fall:?}"))?;
        answered_id(&answer).ok_or_else(|| String::from_utf8_lossy(&answer).into_owned())?;
        web.tell(INITIALIZED).await.map_err(|fall| format!("{fall:?}"))
    };
    timeout(LIMIT, opened)
        .await
        .unwrap_or_else(|_| Err("no answer".to_owned()))
        .map_err(|why| unopened(&why))?;
    Ok(web)
}

fn unopened(why: &str) -> BenchError {
    BenchError::Wrong(format!("a session could not be opened: {why}"))
}

async fn call_web(
    mut web: Web,
    route: Route,
    mut work: Work,
    board: Arc<Board>,
    pause: Duration,
) -> Work {
    while !board.stopped() {
        let call = work.next();
        let begun = Instant::now();
        let ending = match timeout(LIMIT, web.ask(call.body.clone())).await {
            Ok(Ok(answer)) => call.check(&answer),
            Ok(Err(fall)) => fallen(&fall),
            Err(_) => Ending::Unanswered,
        };
        work.ended(&ending);
        let done = Done { route, begun, ended: Instant::now(), ending };
        board.note(|tally| tally.learn(&done));
        sleep(pause).await;
    }
    work
}

fn fallen(fall: &Fall) -> Ending {
    match fall {
        Fall::Cut(cut) => Ending::Cut(*cut),
        Fall::Status(hyper::StatusCode::NOT_FOUND) => Ending::SessionLost,
        Fall::Status(status) => Ending::Told(format!("HTTP status {status}")),
    }
}

/// Subscribes to the resource and counts what is told of it.
async fn listen(mut web: Web, board: &Arc<Board>) -> Result<JoinHandle<()>, BenchError> {
    let subscribe = request(1, "resources/subscribe", &json!({"uri": RESOURCE}));
    let subscribed = timeout(LIMIT, web.ask(subscribe)).await;
    if !matches!(subscribed, Ok(Ok(_))) {
        return Err(unopened(&format!("{subscribed:?}")));
    }
    let board = Arc::clone(board);
    Ok(tokio::spawn(async move {
        let hear = |message: &[u8]| {
            if is_update(message) {
                board.note(|tally| tally.counts.updates += 1);
            }
        };
        let begun = Instant::now();
        let ending = fallen(&web.listen(hear).await);
        let done = Done { route: Route::Slow, begun, ended: Instant::now(), ending };
        board.note(|tally| tally.learn(&done));
    }))
}

fn is_update(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Notification {
        method: String,
    }
    serde_json::from_slice::<Notification>(message)
        .is_ok_and(|notification| notification.method == "notifications/resources/updated")
}

async fn touch(mut web: Web, board: Arc<Board>) -> Touches {
    let mut touches = Touches::default();
    let mut id = 0;
    while !board.stopped() {
        id += 1;
        let call = tool_call(id, "touch", &json!({"uri": RESOURCE}));
        match timeout(LIMIT, web.ask(call)).await {
            Ok(Ok(answer)) if is_executed(&answer) => touches.answered += 1,
            Ok(Ok(_) | Err(_)) | Err(_) => touches.unknown += 1,
        }
        sleep(TOUCH).await;
    }
    touches
}

/// Whether a call was executed. After a kill, the answer may say that this is not known.
fn is_executed(answer: &[u8]) -> bool {
    !String::from_utf8_lossy(answer).contains("effect is unknown")
}

/// `mainstay connect` as an AI client runs it; killed when dropped.
struct Pipe {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    opened: Instant,
}

impl Pipe {
    async fn open(instance: &Instance) -> Result<Self, BenchError> {
        let mut command = instance.command(&["connect", SERVER]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| BenchError::Start {
                program: "mainstay connect".to_owned(),
                source,
            })?;
        let stdin = child.stdin.take().expect("stdin was asked for as a pipe");
        let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
        let lines = BufReader::new(stdout).lines();
        let mut pipe = Self { _child: child, stdin, lines, opened: Instant::now() };
        let opened = async {
            pipe.send(&initialize(NEWEST)).await?;
            pipe.next_answer().await?;
            pipe.send(INITIALIZED).await
        };
        match timeout(LIMIT, opened).await {
            Ok(Some(())) => Ok(pipe),
            Ok(None) | Err(_) => Err(unopened("`mainstay connect` does not answer")),
        }
    }

    /// `None` if the other end is gone.
    async fn send(&mut self, message: &[u8]) -> Option<()> {
        self.stdin.write_all(&[message, b"\n"].concat()).await.ok()
    }

    /// The next answer with its id; `None` if the other end is gone.
    async fn next_answer(&mut self) -> Option<(u64, String)> {
        loop {
            let line = self.lines.next_line().await.ok()??;
            if let Some(id) = answered_id(line.as_bytes()) {
                return Some((id, line));
            }
        }
    }

    /// Calls, and counts answers to earlier calls.
    async fn ask(&mut self, call: &Call, board: &Board) -> Option<String> {
        self.send(&call.body).await?;
        loop {
            let (id, answer) = self.next_answer().await?;
            if id >= call.id {
                return Some(answer);
            }
            board.note(|tally| tally.counts.answered_twice += 1);
        }
    }
}

async fn call_pipe(mut pipe: Pipe, mut work: Work, board: Arc<Board>, pause: Duration) -> Work {
    while !board.stopped() {
        let call = work.next();
        let begun = Instant::now();
        let (ending, goes_on) = match timeout(LIMIT, pipe.ask(&call, &board)).await {
            Ok(Some(answer)) => (call.check(answer.as_bytes()), true),
            Ok(None) => (Ending::Cut(Cut { made: pipe.opened, streamed: false }), false),
            Err(_) => (Ending::Unanswered, true),
        };
        work.ended(&ending);
        let done = Done { route: Route::Connect, begun, ended: Instant::now(), ending };
        board.note(|tally| tally.learn(&done));
        if !goes_on {
            break;
        }
        sleep(pause).await;
    }
    work
}
