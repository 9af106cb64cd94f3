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
use super::daemons_http::{TestListener, Wire, answer, call, opens};
use crate::soon;

/// Both ends of a connection that a killed daemon had: the client's, and the one that the next daemon is given.
async fn interrupted(state: Interrupted) -> (Wire, PassedOn) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let passed_on =
        PassedOn::new(socket.into_std().unwrap().into(), Pending::Interrupted(state), 0);
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
        let _door = TestListener::of(&world, vec![passed_on]).await;
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
        let _door = TestListener::of(&world, vec![passed_on]).await;
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
        let _door = TestListener::of(&world, vec![passed_on]).await;
        let call = server.reads_call("poke").await;
        server.says(&answer(&call)).await;
        assert!(wire.sees("done").await.contains(r#""id":9,"#), "{read}");
    }
}

/// Nothing was written, so the next request comes too early.
#[tokio::test]
async fn what_was_not_answered_is_answered_before_a_request_behind_it() {
    let world = World::new();
    let _server = world.serves().await;
    let session = opens(&world).await;
    let (mut wire, passed_on) = interrupted(Interrupted::Answering(Some("7".into()))).await;
    wire.sends(&session, "POST", "", &call(9)).await;
    let _door = TestListener::of(&world, vec![passed_on]).await;
    let response = wire.sees("its effect is unknown").await;
    assert!(response.contains(r#""id":7,"#), "{response}");
    wire.sees_end().await;
}

/// A client that is not given a head may end its session.
#[tokio::test]
async fn a_request_that_cannot_be_answered_gets_a_head() {
    for state in [Interrupted::ReadingLong, Interrupted::Answering(None)] {
        let world = World::new();
        let (mut wire, passed_on) = interrupted(state.clone()).await;
        wire.writes(&call(9)).await;
        let _door = TestListener::of(&world, vec![passed_on]).await;
        let head = wire.sees("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.0 200 OK"), "{state:?}: {head}");
        wire.sees_end().await;
    }
}

/// Everything that was recorded, and the last state as bytes.
#[derive(Debug, Clone, Default)]
struct Records(Arc<Mutex<Vec<Option<Interrupted>>>>, Arc<Mutex<Vec<u8>>>);

#[derive(Debug)]
struct Copy(Records);

impl ConnectionStore for Records {
    fn add(&self, _socket: BorrowedFd<'_>) -> Option<Box<dyn StoredConnection>> {
        Some(Box::new(Copy(self.clone())))
    }
}

impl StoredConnection for Copy {
    fn record(&self, kind: u8, _offset: usize, data: &[u8]) {
        let state = [&[kind], data].concat();
        self.0.0.lock().unwrap().push(decode(&state));
        *self.0.1.lock().unwrap() = state;
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
        records.push(decode(&[&[kind], &before[..], &memory[..filled]].concat()));
        filled
    }

    fn renew(&self, _socket: BorrowedFd<'_>) {}
}

/// As if nothing was written since.
fn decode(state: &[u8]) -> Option<Interrupted> {
    let written = state.get(1..9).and_then(|bytes| bytes.try_into().ok());
    Interrupted::decode(state, u64::from_le_bytes(written.unwrap_or_default()))
}

fn reading(bytes: &str) -> Interrupted {
    Interrupted::Reading(bytes.to_owned().into())
}

impl Records {
    /// Waits until the last state is this one.
    async fn become_last(&self, is_it: impl Fn(Option<Pending>) -> bool) {
        while !is_it(Pending::decode(&self.1.lock().unwrap(), 0)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

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
    let intake_gate =
        TestListener::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&intake_gate).await;
    soon(records.are(&[reading(""), Interrupted::Idle].map(Some))).await;
    for id in [7, 8] {
        let request = Wire::request(&session, "POST", "", &call(id));
        wire.writes(&request).await;
        let asked = server.reads_call("poke").await;
        let answering = Interrupted::Answering(Some(id.to_string().into()));
        soon(records.are(&[reading(&request), answering].map(Some))).await;
        server.says(&answer(&asked)).await;
        wire.sees("done").await;
        let states = [Interrupted::Writing, Interrupted::Idle];
        soon(records.are(&states.map(Some))).await;
    }
}

/// The next daemon goes on where this one was killed.
#[tokio::test]
async fn what_is_left_of_a_streamed_response_is_recorded_while_it_waits() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let records = Records::default();
    let intake_gate =
        TestListener::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&intake_gate).await;
    wire.sends(&session, "POST", "", &call(7)).await;
    let asked = server.reads_call("poke").await;
    wire.sees("data: ").await;
    soon(records.become_last(|state| matches!(state, Some(Pending::Response(_))))).await;
    server.says(&answer(&asked)).await;
    wire.sees("done").await;
    let idle = |state| matches!(state, Some(Pending::Interrupted(Interrupted::Idle)));
    soon(records.become_last(idle)).await;
}

/// What was read of it is in no record, so its rest must not be taken for a request.
#[tokio::test]
async fn a_connection_with_a_request_before_the_response_is_not_continued() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let records = Records::default();
    let intake_gate =
        TestListener::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&intake_gate).await;
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

/// The same, if it came together with the request before.
#[tokio::test]
async fn a_connection_with_the_start_of_another_request_is_not_continued() {
    let world = World::new();
    let mut server = world.serves().await;
    let session = opens(&world).await;
    let records = Records::default();
    let intake_gate =
        TestListener::storing(&world, Vec::new(), Some(Arc::new(records.clone()))).await;
    let mut wire = Wire::to(&intake_gate).await;
    soon(records.are(&[reading(""), Interrupted::Idle].map(Some))).await;
    let request = Wire::request(&session, "POST", "", &call(7));
    let next = Wire::request(&session, "POST", "", &call(8));
    let (half, rest) = next.split_at(30);
    let both = format!("{request}{half}");
    wire.writes(&both).await;
    let asked = server.reads_call("poke").await;
    soon(records.are(&[Some(reading(&both)), None])).await;
    server.says(&answer(&asked)).await;
    wire.sees("done").await;
    wire.writes(rest).await;
    let asked = server.reads_call("poke").await;
    server.says(&answer(&asked)).await;
    assert!(wire.sees("done").await.contains(r#""id":8,"#));
    soon(records.are(&[])).await;
}
