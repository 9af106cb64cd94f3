//! Connections of a daemon that was killed.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mainstay_proxy::front::http::{
    ConnectionStore, Interrupted, PassedOn, Pending, StoredConnection,
};
use tokio::net::{TcpListener, TcpStream};

use super::World;
use super::daemons_http::{Door, Wire, answer, call, opens};
use crate::soon;

/// Both ends of a connection that a killed daemon had: the client's, and the one that the next daemon is given.
async fn interrupted(state: Interrupted) -> (Wire, PassedOn) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let passed_on = PassedOn::new(socket.into_std().unwrap(), Pending::Interrupted(state), None);
    (Wire::new(client), passed_on)
}

#[tokio::test]
async fn what_was_not_answered_is_answered() {
    let unknown = [r#""id":7,"#, "its effect is unknown"];
    for (state, [part, end]) in [
        (Interrupted::Answering(Some("7".into())), unknown),
        (Interrupted::Accepted, ["202 Accepted", "\r\n\r\n"]),
    ] {
        let world = World::new();
        let (mut wire, passed_on) = interrupted(state.clone()).await;
        let _door = Door::of(&world, vec![passed_on]).await;
        let response = wire.sees(end).await;
        assert!(response.starts_with("HTTP/1.1 20"), "{state:?}: {response}");
        assert!(response.contains(part), "{state:?}: {response}");
        assert!(response.contains("connection: close"), "{state:?}: {response}");
        wire.sees_end().await;
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_used_again() {
    for state in [Interrupted::Idle, reading(""), Interrupted::Writing] {
        let world = World::new();
        let mut server = world.serves().await;
        let session = opens(&world).await;
        let (mut wire, passed_on) = interrupted(state.clone()).await;
        let _door = Door::of(&world, vec![passed_on]).await;
        wire.sends(&session, "POST", "", &call(9)).await;
        let call = server.reads_call("poke").await;
        server.says(&answer(&call)).await;
        assert!(wire.sees("done").await.contains(r#""id":9,"#), "{state:?}");
    }
}

/// Wherever the reading was interrupted.
#[tokio::test]
async fn a_request_that_was_being_read_is_read_again() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let request = Wire::request(&session, "POST", "", &call(9));
    for read in [0, 1, 40, request.len() - 10, request.len()] {
        let (read, unread) = request.split_at(read);
        let (mut wire, passed_on) = interrupted(reading(read)).await;
        wire.writes(unread).await;
        let _door = Door::of(&world, vec![passed_on]).await;
        let call = server.reads_call("poke").await;
        server.says(&answer(&call)).await;
        assert!(wire.sees("done").await.contains(r#""id":9,"#), "{read}");
    }
}

/// The killed daemon had no time to record that it had answered.
#[tokio::test]
async fn a_client_that_sends_another_request_has_its_response() {
    for state in
        [Interrupted::Answering(Some("7".into())), Interrupted::Accepted, Interrupted::Writing]
    {
        let world = World::new();
        let mut server = world.serves().await;
        let session = opens(&world).await;
        let (mut wire, passed_on) = interrupted(state.clone()).await;
        wire.sends(&session, "POST", "", &call(9)).await;
        let _door = Door::of(&world, vec![passed_on]).await;
        let call = server.reads_call("poke").await;
        server.says(&answer(&call)).await;
        let response = wire.sees("done").await;
        assert!(response.contains(r#""id":9,"#), "{state:?}: {response}");
        assert_eq!(response.matches("HTTP/1.1").count(), 1, "{state:?}: {response}");
    }
}

/// A client that is not given a head may end its session.
#[tokio::test]
async fn a_request_that_cannot_be_answered_gets_a_head() {
    for state in [Interrupted::ReadingLong, Interrupted::Answering(None)] {
        let world = World::new();
        let (mut wire, passed_on) = interrupted(state.clone()).await;
        wire.writes(&call(9)).await;
        let _door = Door::of(&world, vec![passed_on]).await;
        let head = wire.sees("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.0 200 OK"), "{state:?}: {head}");
        wire.sees_end().await;
    }
}

/// Everything that was recorded.
#[derive(Debug, Clone, Default)]
struct Records(Arc<Mutex<Vec<Option<Interrupted>>>>);

#[derive(Debug)]
struct Copy(Records);

impl ConnectionStore for Records {
    fn add(&self, _socket: BorrowedFd<'_>) -> Option<Box<dyn StoredConnection>> {
        Some(Box::new(Copy(self.clone())))
    }
}

impl StoredConnection for Copy {
    fn record(&self, kind: u8, _offset: usize, data: &[u8]) {
        self.0.0.lock().unwrap().push(Interrupted::decode(&[&[kind], data].concat()));
    }

    fn read(
        &self,
        kind: u8,
        offset: usize,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> usize {
        let mut memory = vec![0; len];
        let filled = read(&mut memory);
        let mut records = self.0.0.lock().unwrap();
        let is_reading = |last: &mut _| matches!(last, Some(Interrupted::Reading(_)));
        let before = match records.pop_if(is_reading) {
            Some(Some(Interrupted::Reading(before))) => before,
            _ => Bytes::new(),
        };
        assert_eq!(before.len(), offset);
        records.push(Interrupted::decode(&[&[kind], &before[..], &memory[..filled]].concat()));
        filled
    }

    fn renew(&self, _socket: BorrowedFd<'_>) {}
}

fn reading(bytes: &str) -> Interrupted {
    Interrupted::Reading(bytes.to_owned().into())
}

impl Records {
    /// Waits until exactly this was recorded.
    async fn are(&self, expected: &[Option<Interrupted>]) {
        while *self.0.lock().unwrap() != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.0.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn what_a_connection_does_is_recorded() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let records = Records::default();
    let door = Door::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&door).await;
    soon(records.are(&[reading(""), Interrupted::Idle].map(Some))).await;
    for id in [7, 8] {
        let request = Wire::request(&session, "POST", "", &call(id));
        wire.writes(&request).await;
        let asked = server.reads_call("poke").await;
        let answering = Interrupted::Answering(Some(id.to_string().into()));
        soon(records.are(&[reading(&request), answering].map(Some))).await;
        server.says(&answer(&asked)).await;
        wire.sees("done").await;
        let states = [Interrupted::Writing, reading(""), Interrupted::Idle];
        soon(records.are(&states.map(Some))).await;
    }
}

/// What was read of it is in no record, so its rest must not be taken for a request.
#[tokio::test]
async fn a_connection_with_a_request_before_the_response_is_not_continued() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let records = Records::default();
    let door = Door::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&door).await;
    soon(records.are(&[reading(""), Interrupted::Idle].map(Some))).await;
    let request = Wire::request(&session, "POST", "", &call(7));
    wire.writes(&request).await;
    let asked = server.reads_call("poke").await;
    let answering = Interrupted::Answering(Some("7".into()));
    soon(records.are(&[reading(&request), answering].map(Some))).await;
    let next = Wire::request(&session, "POST", "", &call(8));
    let (half, rest) = next.split_at(next.len() - 20);
    wire.writes(half).await;
    soon(records.are(&[None])).await;
    server.says(&answer(&asked)).await;
    wire.sees("done").await;
    wire.writes(rest).await;
    let asked = server.reads_call("poke").await;
    server.says(&answer(&asked)).await;
    assert!(wire.sees("done").await.contains(r#""id":8,"#));
    soon(records.are(&[])).await;
}
