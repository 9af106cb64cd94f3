//! A client through outages of any length, with paused time and a test in the daemon's place.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use mainstay_api::{ApiError, ErrorKind};
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::time::timeout;

use super::*;

/// No test waits longer for a line, in its own time.
const LIMIT: Duration = Duration::from_secs(600);

/// What is found at the daemon's place, try by try; nobody, when that is used up.
#[derive(Clone, Default)]
struct Place(Rc<RefCell<Found>>);

#[derive(Default)]
struct Found {
    links: VecDeque<Result<Link, CliError>>,
    /// When each try was, and the session it asked for.
    tries: Vec<(Instant, Option<String>)>,
    launches: usize,
    /// What those find who may start a daemon after one died.
    started: VecDeque<Result<Link, CliError>>,
    /// When that was.
    starts: Vec<Instant>,
}

impl Daemon for Place {
    async fn attach(&self, request: &Request) -> Result<Link, CliError> {
        self.0.borrow_mut().launches += 1;
        self.attach_again(request).await
    }

    async fn attach_again(&self, request: &Request) -> Result<Link, CliError> {
        let Request::Connect { session, .. } = request else { panic!("{request:?}") };
        let mut found = self.0.borrow_mut();
        found.tries.push((Instant::now(), session.clone()));
        found.links.pop_front().unwrap_or_else(|| Err(absent()))
    }

    async fn attach_after_death(&self, _: &Request, _: Duration) -> Result<Link, CliError> {
        let mut found = self.0.borrow_mut();
        found.starts.push(Instant::now());
        found.started.pop_front().unwrap_or_else(|| Err(not_started()))
    }
}

impl Place {
    /// Puts a daemon there that gives this session, in which these requests are open.
    fn put(&self, session: &str, pending: &[&str]) -> Peer {
        let (link, peer) = link(session, pending);
        self.0.borrow_mut().links.push_back(Ok(link));
        peer
    }

    fn refuse(&self, error: CliError) {
        self.0.borrow_mut().links.push_back(Err(error));
    }

    fn tries(&self) -> usize {
        self.0.borrow().tries.len()
    }
}

/// A daemon that gives this session, in which these requests are open, and its own end.
fn link(session: &str, pending: &[&str]) -> (Link, Peer) {
    let (near, far) = duplex(1 << 16);
    let (reader, writer) = split(near);
    let pending = pending.iter().map(|&id| id.to_owned()).collect();
    let connected = Connected { session: Some(session.to_owned()), pending };
    let wire = Wire { reader: Box::new(reader), writer: Box::new(writer) };
    ((connected, wire), Peer::over(far))
}

fn absent() -> CliError {
    let source = io::ErrorKind::NotFound.into();
    CliError::Unreachable { socket: "/run/daemon.sock".into(), source }
}

fn not_started() -> CliError {
    CliError::NotStarted { message: "the disk is full".to_owned(), help: None }
}

/// The other end of a stream of lines both ways.
struct Peer {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl Peer {
    fn over(stream: DuplexStream) -> Self {
        let (reader, writer) = split(stream);
        Self { reader: BufReader::new(reader), writer }
    }

    async fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LIMIT, self.reader.read_line(&mut line)).await.expect("a line in time").unwrap();
        line.strip_suffix('\n').expect("a whole line").to_owned()
    }
}

/// A client that has opened its session, and what it is served by.
struct Scene {
    place: Place,
    client: Peer,
    daemon: Peer,
    said: Rc<RefCell<Vec<String>>>,
    served: tokio::task::JoinHandle<Result<(), CliError>>,
}

const INITIALIZE: &str = r#"{"id":0,"method":"initialize"}"#;
const WELCOME: &str = r#"{"id":0,"result":{}}"#;
const LIST: &str = r#"{"id":1,"method":"tools/list"}"#;
const LISTED: &str = r#"{"id":1,"result":{"tools":[]}}"#;
const CALL: &str = r#"{"id":2,"method":"tools/call"}"#;
const CALLED: &str = r#"{"id":2,"result":{"content":[]}}"#;

/// Plays a story in which tasks of one thread share their data.
async fn play<F: Future<Output = ()>>(story: impl FnOnce(Scene) -> F) {
    let local = tokio::task::LocalSet::new();
    local.run_until(async { story(Scene::open().await).await }).await;
}

impl Scene {
    async fn open() -> Self {
        let place = Place::default();
        let mut daemon = place.put("s1", &[]);
        let (near, far) = duplex(1 << 16);
        let (input, output) = split(near);
        let front = Front::new("time".parse().unwrap(), place.clone());
        let said = Rc::new(RefCell::new(Vec::new()));
        let words = Rc::clone(&said);
        let served = tokio::task::spawn_local(async move {
            let say = |text: &str| words.borrow_mut().push(text.to_owned());
            front.serve(Lines::new(input, MAX_MESSAGE), output, say).await
        });
        let mut client = Peer::over(far);
        client.say(INITIALIZE).await;
        assert_eq!(daemon.line().await, INITIALIZE);
        daemon.say(WELCOME).await;
        assert_eq!(client.line().await, WELCOME);
        Self { place, client, daemon, said, served }
    }

    /// The client asks, and the daemon hears it.
    async fn ask(&mut self, line: &str) {
        self.client.say(line).await;
        assert_eq!(self.daemon.line().await, line);
    }

    /// The daemon goes. Returns when that is noticed.
    async fn leave(&mut self) {
        let tries = self.place.tries();
        self.daemon = Peer::over(duplex(1).0);
        while self.place.tries() == tries {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The client's input ends, and what serves it ends.
    async fn end(mut self) -> Result<(), CliError> {
        self.client.writer.shutdown().await.unwrap();
        self.served.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_an_hour_is_ridden_out() {
    play(|mut scene| async move {
        scene.leave().await;
        sleep(Duration::from_secs(3600)).await;
        let tries = scene.place.tries();
        assert!((1700..1900).contains(&tries), "seldom, but not never: {tries} tries");
        scene.daemon = scene.place.put("s1", &[]);
        scene.ask(LIST).await;
        scene.daemon.say(LISTED).await;
        assert_eq!(scene.client.line().await, LISTED);
        let found = Rc::clone(&scene.place.0);
        assert_eq!(found.borrow().launches, 1, "only the first connection may start a daemon");
        assert_eq!(found.borrow().tries.last().unwrap().1.as_deref(), Some("s1"));
        let said = scene.said.borrow().join("\n");
        let expected = "the connection to the Mainstay daemon broke; connecting again\n\
                        the daemon could not be started: the disk is full; waiting for it";
        assert_eq!(said, expected, "it is told once");
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_was_stopped_is_waited_for() {
    play(|mut scene| async move {
        for _ in 0..100 {
            scene.place.0.borrow_mut().started.push_back(Err(CliError::Stopped));
        }
        scene.leave().await;
        sleep(Duration::from_secs(20)).await;
        let said = scene.said.borrow().join("\n");
        let stopped = "Mainstay is stopped, because of `mainstay daemon stop`; waiting for it";
        assert!(said.ends_with(stopped), "{said}");
        let asked = Instant::now();
        scene.client.say(LIST).await;
        let answer = scene.client.line().await;
        assert!(answer.contains("`mainstay daemon start` starts it"), "{answer}");
        assert!(asked.elapsed().as_millis() < 100, "{:?}", asked.elapsed());
        scene.place.0.borrow_mut().started.clear();
        scene.daemon = scene.place.put("s1", &[]);
        sleep(Duration::from_secs(5)).await;
        scene.ask(LIST).await;
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_died_with_its_holder_is_started_at_once() {
    play(|mut scene| async move {
        let (link, next) = link("s1", &[]);
        scene.place.0.borrow_mut().started.push_back(Ok(link));
        let left = Instant::now();
        scene.leave().await;
        scene.daemon = next;
        scene.ask(LIST).await;
        let starts = scene.place.0.borrow().starts.clone();
        assert_eq!(starts.len(), 1);
        let waited = starts[0] - left;
        assert!(waited.as_millis() < 500, "{waited:?}");
        assert_eq!(scene.said.borrow().len(), 1, "{:?}", scene.said);
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_cannot_be_started_is_tried_every_ten_seconds() {
    play(|mut scene| async move {
        scene.leave().await;
        sleep(Duration::from_secs(605)).await;
        let starts = scene.place.0.borrow().starts.len();
        assert!((55..=61).contains(&starts), "{starts}");
        let said = scene.said.borrow().join("\n");
        assert!(said.ends_with("could not be started: the disk is full; waiting for it"), "{said}");
        scene.daemon = scene.place.put("s1", &[]);
        scene.ask(LIST).await;
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_while_the_daemon_is_away_waits_for_it() {
    play(|mut scene| async move {
        scene.leave().await;
        scene.client.say(CALL).await;
        sleep(Duration::from_secs(30)).await;
        scene.daemon = scene.place.put("s1", &[]);
        assert_eq!(scene.daemon.line().await, CALL);
        scene.daemon.say(CALLED).await;
        assert_eq!(scene.client.line().await, CALLED);
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn it_waits_no_longer_than_the_hold() {
    play(|mut scene| async move {
        scene.leave().await;
        sleep(Duration::from_secs(100)).await;
        let asked = Instant::now();
        scene.client.say(CALL).await;
        let answer = scene.client.line().await;
        assert_eq!(asked.elapsed().as_secs(), 45);
        assert!(answer.contains("the Mainstay daemon is not running"), "{answer}");
        scene.daemon = scene.place.put("s1", &[]);
        scene.ask(LIST).await;
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_waits_eight_seconds_for_its_fate() {
    play(|mut scene| async move {
        scene.ask(CALL).await;
        let asked = Instant::now();
        scene.leave().await;
        let answer = scene.client.line().await;
        assert_eq!(asked.elapsed().as_secs(), 8);
        assert!(answer.contains("its effect is unknown"), "{answer}");
        scene.daemon = scene.place.put("s1", &["2"]);
        scene.daemon.say(CALLED).await;
        scene.ask(LIST).await;
        scene.daemon.say(LISTED).await;
        assert_eq!(scene.client.line().await, LISTED, "a late answer is none");
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_outlived_the_daemon_is_answered_by_its_server() {
    play(|mut scene| async move {
        scene.ask(CALL).await;
        scene.leave().await;
        scene.daemon = scene.place.put("s1", &["2"]);
        scene.daemon.say(CALLED).await;
        assert_eq!(scene.client.line().await, CALLED);
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_daemon_did_not_take_before_it_left_is_made_to_the_next_one() {
    play(|mut scene| async move {
        scene.ask(LIST).await;
        scene.client.say(CALL).await;
        // The opening and the list; what becomes of the call in its buffers is its own affair.
        scene.daemon.say(r#"{"leaving":{"taken":2}}"#).await;
        scene.leave().await;
        scene.daemon = scene.place.put("s1", &["1"]);
        assert_eq!(scene.daemon.line().await, CALL);
        scene.daemon.say(CALLED).await;
        scene.daemon.say(LISTED).await;
        assert_eq!(scene.client.line().await, CALLED, "nothing else was told");
        assert_eq!(scene.client.line().await, LISTED);
        assert_eq!(*scene.said.borrow(), [""; 0], "nothing broke");
        scene.end().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_while_the_daemon_is_away_ends_it() {
    play(|mut scene| async move {
        scene.leave().await;
        let ended = Instant::now();
        scene.end().await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO, "there was nothing to wait for");
    })
    .await;
    play(|mut scene| async move {
        scene.ask(LIST).await;
        scene.leave().await;
        let ended = Instant::now();
        scene.client.writer.shutdown().await.unwrap();
        let answer = scene.client.line().await;
        assert!(answer.contains("asking again is safe"), "{answer}");
        assert_eq!(ended.elapsed(), LAST_ANSWERS);
        scene.served.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_no_waiting_helps_ends_it_with_its_answers_given() {
    let removed = ApiError::new(ErrorKind::NoSuchServer, "there is no server `time`");
    let denied = CliError::Unreachable {
        socket: "/run/daemon.sock".into(),
        source: io::ErrorKind::PermissionDenied.into(),
    };
    let skew = CliError::Skew { daemon: "9.0.0".to_owned(), theirs: 2, ours: 1 };
    for error in [CliError::Api(removed), denied, skew] {
        let text = error.to_string();
        play(|mut scene| async move {
            scene.ask(LIST).await;
            scene.place.refuse(error);
            scene.leave().await;
            let answer = scene.client.line().await;
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer["error"]["message"], text);
            assert_eq!(scene.served.await.unwrap().unwrap_err().to_string(), text);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_is_busy_is_asked_again() {
    play(|mut scene| async move {
        let busy = ApiError::new(ErrorKind::Unavailable, "4096 clients are connected already");
        scene.place.refuse(CliError::Api(busy));
        scene.place.refuse(CliError::Cut { source: None });
        scene.leave().await;
        scene.daemon = scene.place.put("s1", &[]);
        scene.ask(LIST).await;
        scene.end().await.unwrap();
    })
    .await;
}

#[test]
fn a_daemon_is_looked_for_often_at_first() {
    for (away, every) in [(0, 200), (7_999, 200), (8_000, 2_000), (3_600_000, 2_000)] {
        assert_eq!(pause(Duration::from_millis(away)), Duration::from_millis(every));
    }
}
