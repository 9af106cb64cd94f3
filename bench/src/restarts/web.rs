//! An HTTP client that resumes its streams, as the SDKs do.
//!
//! A request that could not be sent, because the kept connection had been closed before, is sent on
//! another one. A connection that cannot be made is counted and tried again. A stream that breaks is
//! resumed with `Last-Event-ID`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::board::Board;
use super::sse::Events;
use super::tally::Cut;
use super::work::answered_id;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The longest that a client waits before it resumes, whatever it was told.
const MOST_PATIENCE: Duration = Duration::from_millis(50);
/// How long to wait before trying to connect again.
const REST: Duration = Duration::from_millis(10);
/// How long a stream may stay open after its answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Fall {
    Cut(Cut),
    Status(StatusCode),
}

/// What can go wrong on one connection.
#[derive(Debug)]
enum Trouble {
    /// There is none.
    Refused(io::Error),
    /// It had been closed before the request was sent.
    Unsent,
    /// It broke before the headers.
    Broken,
    Status(StatusCode),
}

/// Where a server is.
#[derive(Debug, Clone)]
struct Site {
    address: String,
    host: HeaderValue,
    target: Uri,
}

/// A connection.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    made: Instant,
}

/// One client with its session.
pub(crate) struct Web {
    site: Site,
    session: Option<HeaderValue>,
    /// Whether its connection is kept for the next call.
    keeps: bool,
    line: Option<Line>,
    board: Arc<Board>,
}

impl Web {
    /// A client of the server at a URL; `None` if that has no host or path.
    pub(crate) fn new(url: &str, keeps: bool, board: Arc<Board>) -> Option<Self> {
        let url: Uri = url.parse().ok()?;
        let authority = url.authority()?;
        let site = Site {
            address: authority.to_string(),
            host: HeaderValue::from_str(authority.as_str()).ok()?,
            target: Uri::from(url.path_and_query()?.clone()),
        };
        Some(Self { site, session: None, keeps, line: None, board })
    }

    /// The id of its session, once that is open.
    pub(crate) fn session(&self) -> Option<&str> {
        self.session.as_ref()?.to_str().ok()
    }

    /// Sends a request and returns its answer.
    pub(crate) async fn ask(&mut self, body: Vec<u8>) -> Result<Bytes, Fall> {
        let (response, line) = self.post(body).await?;
        if let Some(id) = response.headers().get(SESSION) {
            self.session.get_or_insert_with(|| id.clone());
        }
        let cut = Cut { made: line.made, streamed: is_stream(&response) };
        if !cut.streamed {
            let body = response.into_body().collect().await.map_err(|_| Fall::Cut(cut))?;
            self.line = self.keeps.then_some(line);
            return Ok(body.to_bytes());
        }
        let mut events = Events::default();
        match self.read_on(response.into_body(), &mut events).await {
            Some(answer) => Ok(answer),
            None => self.resume(&mut events, cut).await,
        }
    }

    /// Sends a notification.
    pub(crate) async fn tell(&mut self, body: &[u8]) -> Result<(), Fall> {
        let (response, line) = self.post(body.to_vec()).await?;
        let cut = Cut { made: line.made, streamed: false };
        response.into_body().collect().await.map_err(|_| Fall::Cut(cut))?;
        self.line = self.keeps.then_some(line);
        Ok(())
    }

    /// Listens on the session's own stream, over as many connections as it takes, and hands on every
    /// message. Returns only if the server refuses.
    pub(super) async fn listen(&mut self, mut hear: impl FnMut(&[u8])) -> Fall {
        let mut events = Events::default();
        loop {
            let begun = Instant::now();
            match self.get(events.last_id()).await {
                Ok((response, _line)) => {
                    let mut body = response.into_body();
                    while let Some(data) = next_data(&mut body).await {
                        events.push(&data).iter().for_each(|message| hear(message));
                    }
                    self.board.note(|tally| tally.counts.resumed += 1);
                }
                Err(Trouble::Status(status)) => return Fall::Status(status),
                Err(Trouble::Refused(error)) => self.refused(&error),
                Err(Trouble::Unsent | Trouble::Broken) => self.broken(begun),
            }
            events.cut();
            sleep(patience(&events)).await;
        }
    }

    async fn post(&mut self, body: Vec<u8>) -> Result<(Response<Incoming>, Line), Fall> {
        let body = Bytes::from(body);
        loop {
            let (mut line, kept) = match self.line.take() {
                Some(line) => (line, true),
                None => match self.site.connect().await {
                    Ok(line) => (line, false),
                    Err(error) => {
                        self.refused(&error);
                        sleep(REST).await;
                        continue;
                    }
                },
            };
            let request = self.site.request(Method::POST, body.clone());
            match line.send(request, self.session.as_ref()).await {
                Ok(response) => return Ok((response, line)),
                Err(Trouble::Unsent) if kept => {}
                Err(Trouble::Status(status)) => return Err(Fall::Status(status)),
                Err(Trouble::Refused(_) | Trouble::Unsent | Trouble::Broken) => {
                    return Err(Fall::Cut(Cut { made: line.made, streamed: false }));
                }
            }
        }
    }

    async fn get(&self, last_id: Option<&str>) -> Result<(Response<Incoming>, Line), Trouble> {
        let mut line = self.site.connect().await.map_err(Trouble::Refused)?;
        let mut request = self.site.request(Method::GET, Bytes::new());
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        Ok((line.send(request, self.session.as_ref()).await?, line))
    }

    /// Takes up a stream that broke, until it has brought its answer.
    async fn resume(&self, events: &mut Events, cut: Cut) -> Result<Bytes, Fall> {
        loop {
            events.cut();
            if events.last_id().is_none() {
                return Err(Fall::Cut(cut));
            }
            sleep(patience(events)).await;
            let begun = Instant::now();
            match self.get(events.last_id()).await {
                Ok((response, _line)) => {
                    self.board.note(|tally| tally.counts.resumed += 1);
                    if let Some(answer) = self.read_on(response.into_body(), events).await {
                        return Ok(answer);
                    }
                }
                Err(Trouble::Status(status)) => return Err(Fall::Status(status)),
                Err(Trouble::Refused(error)) => self.refused(&error),
                Err(Trouble::Unsent | Trouble::Broken) => self.broken(begun),
            }
        }
    }

    /// The answer on a stream; `None` if the stream ends before it.
    async fn read_on(&self, mut body: Incoming, events: &mut Events) -> Option<Bytes> {
        loop {
            let data = next_data(&mut body).await?;
            let mut answers =
                events.push(&data).into_iter().filter(|data| answered_id(data).is_some());
            if let Some(answer) = answers.next() {
                let more = answers.count();
                self.end_of(body, events, more).await;
                return Some(answer.into());
            }
        }
    }

    /// Reads a stream to its end: nothing more is to be answered.
    async fn end_of(&self, mut body: Incoming, events: &mut Events, mut more: usize) {
        let rest = async {
            while let Some(data) = next_data(&mut body).await {
                let answers = events.push(&data);
                more += answers.iter().filter(|data| answered_id(data).is_some()).count();
            }
        };
        // One that stays open has said all it has to say.
        timeout(FAREWELL, rest).await.ok();
        if more > 0 {
            self.board.note(|tally| tally.counts.answered_twice += more as u64);
        }
    }

    /// A connection that was made after this broke before its stream had begun.
    fn broken(&self, begun: Instant) {
        self.board.note(|tally| tally.broken(begun));
    }

    fn refused(&self, error: &io::Error) {
        self.board.note(|tally| tally.refused(&error.to_string()));
    }
}

impl Site {
    async fn connect(&self) -> io::Result<Line> {
        // The kernel makes it at once; we may hear of it later.
        let made = Instant::now();
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // How it ends is told to whoever waits for a response.
        let driver = tokio::spawn(async { drop(connection.await) });
        Ok(Line { sender, driver, made })
    }

    fn request(&self, method: Method, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, accept);
        request
    }
}

impl Line {
    async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
        session: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Trouble> {
        if let Some(id) = session {
            request.headers_mut().insert(SESSION, id.clone());
        }
        self.sender.ready().await.map_err(|_| Trouble::Unsent)?;
        let response =
            self.sender.send_request(request).await.map_err(|error| {
                if error.is_canceled() { Trouble::Unsent } else { Trouble::Broken }
            })?;
        match response.status() {
            StatusCode::OK | StatusCode::ACCEPTED => Ok(response),
            status => Err(Trouble::Status(status)),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn patience(events: &Events) -> Duration {
    events.retry().unwrap_or(MOST_PATIENCE).clamp(Duration::from_millis(1), MOST_PATIENCE)
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The next bytes of a body; `None` at its end, and when it breaks.
async fn next_data(body: &mut Incoming) -> Option<Bytes> {
    loop {
        match body.frame().await?.ok()?.into_data() {
            Ok(data) => return Some(data),
            Err(_trailers) => {}
        }
    }
}
