//! Sessions over streamable HTTP: one kept-alive connection each.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::call::{INITIALIZED, check_initialize, initialize, is_answer};
use super::drive::Transport;
use super::{CallError, LoadError};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// Where to send requests.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    address: String,
    host: HeaderValue,
    target: Uri,
}

impl Endpoint {
    pub(crate) fn new(url: &Uri) -> Result<Self, LoadError> {
        let wrong = || LoadError::Url(url.clone());
        if url.scheme_str() != Some("http") {
            return Err(wrong());
        }
        let authority = url.authority().ok_or_else(wrong)?;
        let target = url.path_and_query().ok_or_else(wrong)?;
        Ok(Self {
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
            target: Uri::from(target.clone()),
        })
    }

    fn request(&self, method: Method, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.into()));
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

impl Endpoint {
    /// One more connection for a session that is open.
    pub(crate) async fn join(&self, session: &Session) -> Result<Session, CallError> {
        let mut joined = self.connect().await?;
        joined.id.clone_from(&session.id);
        Ok(joined)
    }

    /// Opens the session's own stream, which lasts as long as the returned response is kept.
    pub(crate) async fn listen(
        &self,
        session: &mut Session,
    ) -> Result<Response<Incoming>, CallError> {
        let mut request = self.request(Method::GET, Bytes::new());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        session.send(request).await
    }

    async fn connect(&self) -> Result<Session, CallError> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Session { sender, connection: tokio::spawn(connection), id: None })
    }
}

/// One MCP session on one connection.
pub(crate) struct Session {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
    /// What names the session; a server may do without.
    id: Option<HeaderValue>,
}

impl Transport for Endpoint {
    type Session = Session;

    async fn open(&self) -> Result<Session, CallError> {
        let mut session = self.connect().await?;
        let response = session.send(self.request(Method::POST, initialize())).await?;
        let id = response.headers().get(SESSION).cloned();
        check_initialize(&answer(response).await?)?;
        session.id = id;
        let initialized = self.request(Method::POST, INITIALIZED);
        session.send(initialized).await?.into_body().collect().await?;
        Ok(session)
    }

    async fn call(&self, session: &mut Session, request: Vec<u8>) -> Result<Bytes, CallError> {
        answer(session.send(self.request(Method::POST, request)).await?).await
    }

    async fn close(&self, mut session: Session) {
        // Servers may refuse; the session was ours to end, not theirs to keep.
        session.send(self.request(Method::DELETE, Bytes::new())).await.ok();
    }
}

impl Session {
    /// Whether the other side has closed the connection, as it may when nothing was sent for long.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        if let Some(id) = &self.id {
            request.headers_mut().insert(SESSION, id.clone());
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        match response.status() {
            StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(response),
            status => Err(CallError::Status(status)),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// The answer in a response: its JSON body, or the answer among the events of its stream.
async fn answer(response: Response<Incoming>) -> Result<Bytes, CallError> {
    let streamed = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let body = response.into_body().collect().await?.to_bytes();
    if streamed { answer_event(&body).ok_or(CallError::Closed) } else { Ok(body) }
}

/// The one event of a finished stream that is an answer.
fn answer_event(body: &Bytes) -> Option<Bytes> {
    body.split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .map(<[u8]>::trim_ascii)
        .find(|data| is_answer(data))
        .map(|data| body.slice_ref(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_among_events() {
        let body = "id: 1\nretry: 100\ndata:\n\n: comment\n\nevent: message\r\n\
                    data: {\"method\":\"notifications/message\"}\r\n\r\n\
                    data: {\"id\":1,\"result\":{}}\n\n";
        let found = answer_event(&Bytes::from(body)).unwrap();
        assert_eq!(found, r#"{"id":1,"result":{}}"#);
        assert_eq!(answer_event(&Bytes::from("data: {\"method\":\"x\"}\n\n")), None);
    }

    #[test]
    fn a_url_needs_a_host() {
        let endpoint = Endpoint::new(&"http://127.0.0.1:7433/time/mcp".parse().unwrap()).unwrap();
        assert_eq!(endpoint.address, "127.0.0.1:7433");
        assert_eq!(endpoint.target, "/time/mcp");
        assert!(Endpoint::new(&"/mcp".parse().unwrap()).is_err());
        assert!(Endpoint::new(&"https://example.org/".parse().unwrap()).is_err());
    }
}
