//! The holder's copies of connections, as the HTTP front uses them.

use std::os::fd::BorrowedFd;

use mainstay_hold::holder::{
    CLOSE, ConnectionStore, IDLE, MAX_DATA, Place, RESPONSE, StoredConnection,
};
use mainstay_proxy::front::http;

const _: () = assert!(http::MAX_DATA <= MAX_DATA);
const _: () = assert!(http::STREAMING == CLOSE && http::IDLE == IDLE && http::RESPONSE == RESPONSE);

/// The store, for the connections of one listener.
#[derive(Debug)]
pub(super) struct ListenerConnectionStore {
    store: ConnectionStore,
    place: Place,
}

impl ListenerConnectionStore {
    pub(super) fn new(store: &ConnectionStore, place: Place) -> Self {
        Self { store: store.clone(), place }
    }
}

impl http::ConnectionStore for ListenerConnectionStore {
    fn add(&self, socket: BorrowedFd<'_>) -> Option<Box<dyn http::StoredConnection>> {
        Some(HeldConnection::boxed(self.store.add(&self.place, socket)?, &self.place))
    }
}

/// A connection that is stored.
#[derive(Debug)]
pub(super) struct HeldConnection {
    connection: StoredConnection,
    place: Place,
}

impl HeldConnection {
    pub(super) fn boxed(
        connection: StoredConnection,
        place: &Place,
    ) -> Box<dyn http::StoredConnection> {
        Box::new(Self { connection, place: place.clone() })
    }
}

impl http::StoredConnection for HeldConnection {
    fn record(&self, kind: u8, offset: usize, data: &[u8]) {
        self.connection.record(kind, offset, data);
    }

    fn read(
        &self,
        kind: u8,
        offset: usize,
        len: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> usize {
        self.connection.read(kind, offset, len, read)
    }

    fn renew(&self, socket: BorrowedFd<'_>) {
        self.connection.renew(&self.place, socket);
    }
}
