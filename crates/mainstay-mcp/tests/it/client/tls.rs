//! Servers with certificates.

use std::sync::Arc;

use mainstay_mcp::client::{Client, SendError, Target, Trust};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::join;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::server::TlsStream;

use super::{HELLO, Host, call, chain, post, request, sends};
use crate::soon;

/// An authority, and a server with its certificate.
struct Site {
    host: Host,
    authority: Vec<u8>,
    acceptor: TlsAcceptor,
}

impl Site {
    async fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("the authority of {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self { host: Host::new().await, authority: authority.der().to_vec(), acceptor }
    }

    fn client(&self, trust: Trust) -> Client {
        let url = format!("https://localhost:{}/mcp", self.host.addr().port());
        Client::trusting(Target::remote(&url, []).unwrap(), trust)
    }

    fn trust(&self) -> Trust {
        Trust::only([self.authority.clone()])
    }

    async fn answers(&self) -> TlsStream<TcpStream> {
        let stream = self.host.accept().await;
        let mut stream = soon(self.acceptor.accept(stream)).await.unwrap();
        answers(&mut stream).await;
        stream
    }

    /// Waits for a client that does not believe us.
    async fn is_doubted(&self) {
        let stream = self.host.accept().await;
        assert!(soon(self.acceptor.accept(stream)).await.is_err());
    }
}

async fn answers(stream: &mut TlsStream<TcpStream>) {
    request(stream).await;
    soon(stream.write_all(HELLO.as_bytes())).await.unwrap();
    soon(stream.flush()).await.unwrap();
}

#[tokio::test]
async fn a_secure_connection_is_used_again() {
    let site = Site::new("localhost").await;
    let client = site.client(site.trust());
    let (mut stream, answer) = join!(site.answers(), call(&client));
    assert_eq!(answer, (200, "hello".into()));
    let ((), answer) = join!(answers(&mut stream), call(&client));
    assert_eq!(answer, (200, "hello".into()));
    drop(client);
    assert!(matches!(soon(stream.read(&mut [0; 1])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_secure_connection_that_the_server_closed_is_not_used() {
    let site = Site::new("localhost").await;
    let client = site.client(site.trust());
    for _ in 0..2 {
        let (mut stream, answer) = join!(site.answers(), call(&client));
        assert_eq!(answer, (200, "hello".into()));
        soon(stream.shutdown()).await.unwrap();
    }
}

#[tokio::test]
async fn long_bodies_go_through_a_secure_connection() {
    let site = Site::new("localhost").await;
    let client = site.client(site.trust());
    let body = vec![b'x'; 1 << 20];
    let (_stream, response) = join!(site.answers(), sends(&client, post(&body)));
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn a_server_that_cannot_prove_its_name_gets_nothing() {
    let (site, other) = (Site::new("localhost").await, Site::new("other.example").await);
    for (site, trust, expected) in [
        (&site, other.trust(), "UnknownIssuer"),
        (&site, Trust::machine(), "UnknownIssuer"),
        (&other, other.trust(), "not valid for name"),
    ] {
        let client = site.client(trust);
        let ((), answer) = join!(site.is_doubted(), sends(&client, post(b"{}")));
        let error = answer.unwrap_err();
        assert!(matches!(&error, SendError::Tls { name, .. } if name == "localhost"), "{error:?}");
        assert!(!error.sent());
        let text = chain(&error);
        assert!(text.starts_with("no secure connection to `localhost`: "), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn a_server_without_tls_gets_nothing_readable() {
    let host = Host::new().await;
    let url = format!("https://localhost:{}/mcp", host.addr().port());
    let client = Client::trusting(Target::remote(&url, []).unwrap(), Trust::only([]));
    let serve = async {
        let mut stream = host.accept().await;
        soon(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await.unwrap();
        stream
    };
    let (_stream, answer) = join!(serve, sends(&client, post(b"{}")));
    let error = answer.unwrap_err();
    assert!(matches!(error, SendError::Tls { .. }) && !error.sent(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_silent_is_not_waited_for_for_ever() {
    let host = Host::new().await;
    let url = format!("https://{}/mcp", host.addr());
    let client = Client::trusting(Target::remote(&url, []).unwrap(), Trust::only([]));
    let (_stream, answer) = join!(host.accept(), sends(&client, post(b"{}")));
    let error = answer.unwrap_err();
    assert!(chain(&error).ends_with("no answer in time"), "{error:?}");
    assert!(!error.sent());
}
