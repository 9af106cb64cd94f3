use mainstay_core::RunId;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};

use super::super::log_writer::LogWriter;
use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// A pump, and the engine's end of what it is connected to.
struct Scene {
    dir: TempDir,
    logs: LogWriter,
    _tasks: Tasks,
    pump: Pump,
    losses: watch::Receiver<usize>,
}

/// The engine's end of a connection.
struct Line {
    output: mpsc::Sender<Frame>,
    input: DuplexStream,
}

impl Scene {
    fn new(stdout: Stdout) -> Self {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), Tasks::default());
        let logs = LogWriter::start(dir.path().to_owned(), 100_000, 1).unwrap();
        let log = logs.log(&"time".parse().unwrap());
        let (count, losses) = watch::channel(0);
        let lost = move || count.send_modify(|count| *count += 1);
        let pump = Pump::start(&tasks, stdout, log, StreamTails::default(), lost);
        Self { dir, logs, _tasks: tasks, pump, losses }
    }

    /// Connects it, to a server that reads so many bytes before it is asked to.
    async fn connect(&self, room: usize, missed: Option<LoggedOutput>) -> Line {
        let (output, frames) = mpsc::channel(64);
        let (input, theirs) = duplex(room);
        let output_end = futures_util::stream::unfold(frames, async |mut frames| {
            frames.recv().await.map(|frame| (frame, frames))
        });
        let ends = AttachContainerResults { output: Box::pin(output_end), input: Box::pin(theirs) };
        self.pump.connect(ends, missed).await;
        Line { output, input }
    }

    /// Hangs up, and waits until that was noticed.
    async fn cut(&mut self, line: Line) {
        drop(line);
        timeout(LIMIT, self.losses.changed()).await.unwrap().unwrap();
    }

    async fn attach(&self) -> Stdio {
        let key = RunKey::new("time".parse().unwrap(), RunId::new(1));
        self.pump.attach(&key).await.unwrap()
    }

    async fn log(&self) -> String {
        self.logs.flush().await;
        std::fs::read_to_string(self.dir.path().join("time.log")).unwrap_or_default()
    }
}

impl Line {
    async fn says(&self, text: &'static str) {
        let message = Bytes::from_static(text.as_bytes());
        self.output.send(Ok(LogOutput::StdOut { message })).await.unwrap();
    }

    async fn mutters(&self, text: &'static str) {
        let message = Bytes::from_static(text.as_bytes());
        self.output.send(Ok(LogOutput::StdErr { message })).await.unwrap();
    }

    async fn hears(&mut self, expected: &str) {
        let mut read = vec![0; expected.len()];
        timeout(LIMIT, self.input.read_exact(&mut read)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), expected);
    }
}

async fn next_line(stdio: &mut Stdio) -> Option<String> {
    let line = timeout(LIMIT, stdio.from_server.recv()).await.expect("it comes in time");
    line.map(|line| String::from_utf8(line.to_vec()).unwrap())
}

async fn expect_lines(stdio: &mut Stdio, expected: &[&str]) {
    for line in expected {
        assert_eq!(next_line(stdio).await.as_deref(), Some(*line));
    }
}

fn log_of(lines: &[&'static str]) -> LoggedOutput {
    let lines = lines.iter().map(|line| Bytes::from_static(line.as_bytes()));
    LoggedOutput { stdout: lines.collect(), ..LoggedOutput::default() }
}

#[tokio::test]
async fn lines_pass_in_both_directions_and_stderr_goes_to_the_log() {
    let scene = Scene::new(Stdout::Protocol);
    let mut line = scene.connect(1024, None).await;
    line.says("early\nha").await;
    let mut stdio = scene.attach().await;
    line.says("lf\n").await;
    expect_lines(&mut stdio, &["early", "half"]).await;
    stdio.to_server.send("ask".into()).await.unwrap();
    line.hears("ask\n").await;
    stdio.written.wait_for(|written| *written == 1).await.unwrap();
    line.mutters("warning\n").await;
    stdio.junk.send("junk".into()).await.unwrap();
    line.says("end\n").await;
    expect_lines(&mut stdio, &["end"]).await;
    drop(line);
    scene.pump.finish(LIMIT).await;
    assert_eq!(next_line(&mut stdio).await, None);
    assert_eq!(scene.pump.stderr(), b"warning\n");
    assert!(scene.log().await.contains("warning\n"), "{}", scene.log().await);
}

#[tokio::test]
async fn earlier_output_is_delivered_once_and_separately() {
    let scene = Scene::new(Stdout::Protocol);
    scene.pump.set_earlier_output(log_of(&["old", "both"]).stdout);
    let line = scene.connect(1024, None).await;
    line.says("both\nnew\n").await;
    let mut stdio = scene.attach().await;
    assert_eq!(stdio.earlier_output.clone().unwrap(), ["old", "both"]);
    expect_lines(&mut stdio, &["both", "new"]).await;
    assert_eq!(scene.attach().await.earlier_output.unwrap(), [""; 0]);
}

#[tokio::test]
async fn output_without_a_connection_is_delivered_once_and_in_order() {
    let mut scene = Scene::new(Stdout::Protocol);
    let line = scene.connect(1024, None).await;
    let mut stdio = scene.attach().await;
    line.says("a\nb\ncut o").await;
    expect_lines(&mut stdio, &["a", "b"]).await;
    scene.cut(line).await;
    let line = scene.connect(1024, Some(log_of(&["a", "b", "cut off", "c"]))).await;
    line.says("c\nd\n").await;
    expect_lines(&mut stdio, &["cut off", "c", "d"]).await;
    // A line that looks like one of the log is delivered when nothing follows it.
    scene.cut(line).await;
    let line = scene.connect(1024, Some(log_of(&["a", "b", "cut off", "c", "d"]))).await;
    line.says("a\n").await;
    expect_lines(&mut stdio, &["a"]).await;
}

#[tokio::test]
async fn lines_to_the_server_wait_for_a_connection() {
    let scene = Scene::new(Stdout::Protocol);
    let stdio = scene.attach().await;
    stdio.to_server.send("one".into()).await.unwrap();
    stdio.to_server.send("two".into()).await.unwrap();
    assert_eq!(*stdio.written.borrow(), 0);
    let mut line = scene.connect(1024, None).await;
    line.hears("one\ntwo\n").await;
}

#[tokio::test]
async fn a_line_that_was_cut_off_is_written_again_whole() {
    let scene = Scene::new(Stdout::Protocol);
    let mut line = scene.connect(4, None).await;
    let mut stdio = scene.attach().await;
    stdio.to_server.send("a long line".into()).await.unwrap();
    line.hears("a long").await;
    drop(line);
    let mut line = scene.connect(1024, Some(log_of(&[]))).await;
    line.hears("\na long line\n").await;
    stdio.written.wait_for(|written| *written == 1).await.unwrap();
}

#[tokio::test]
async fn an_interruption_is_reported_with_the_lines_written_before_it() {
    let mut scene = Scene::new(Stdout::Protocol);
    let mut line = scene.connect(1024, None).await;
    let stdio = scene.attach().await;
    let mut interruptions = stdio.interruptions.clone().unwrap();
    stdio.to_server.send("one".into()).await.unwrap();
    line.hears("one\n").await;
    assert!(!interruptions.has_changed().unwrap(), "the first connection interrupts nothing");
    scene.cut(line).await;
    let _line = scene.connect(1024, Some(log_of(&[]))).await;
    let interruption =
        timeout(LIMIT, interruptions.wait_for(|interruption| interruption.written > 0)).await;
    assert_eq!(interruption.unwrap().unwrap().written, 1);
}

#[tokio::test]
async fn the_last_lines_wait_for_a_consumer() {
    let scene = Scene::new(Stdout::Protocol);
    let line = scene.connect(1024, None).await;
    let mut stdio = scene.attach().await;
    for _ in 0..MAX_QUEUED {
        line.says("more\nmore\n").await;
    }
    drop(line);
    for _ in 0..2 * MAX_QUEUED {
        expect_lines(&mut stdio, &["more"]).await;
    }
    scene.pump.finish(LIMIT).await;
    assert_eq!(next_line(&mut stdio).await, None);
}

#[tokio::test]
async fn stdout_of_an_http_container_goes_to_its_log() {
    let scene = Scene::new(Stdout::Log);
    let line = scene.connect(1024, None).await;
    line.says("listening\n").await;
    drop(line);
    scene.pump.finish(LIMIT).await;
    assert!(scene.log().await.ends_with("Z listening\n"), "{}", scene.log().await);
    assert_eq!(scene.pump.stderr(), b"listening\n");
}
