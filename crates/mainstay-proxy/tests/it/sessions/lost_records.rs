//! The records of sessions are lost, and their clients come back.

use std::sync::Arc;

use mainstay_proxy::Lookup;
use mainstay_proxy::Session;
use mainstay_proxy::front::ProtocolVersion;

use super::{Client, NAME, Notes, World, settings};
use crate::soon;

const VERSION: ProtocolVersion = ProtocolVersion::V2025_06_18;

/// Another daemon, which has nothing of what was kept.
fn without_records(world: &World) -> World {
    let notes = Notes { era: world.notes.era + 1, ..Notes::default() };
    World::on(Arc::new(notes), settings(), None)
}

async fn returns(world: &World, session: &str) -> Result<Session, Lookup> {
    soon(world.servers.find(NAME, session, Some(VERSION))).await
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_without_its_record_and_its_client_is_told() {
    let world = World::new();
    let _server = world.serves().await;
    let id = world.client().await.leaves();

    let world = without_records(&world);
    let mut server = world.serves().await;
    let lines = soon(world.servers.find(NAME, &id, None)).await;
    assert_eq!(lines.unwrap_err(), Lookup::NoSuchSession, "who can initialize again does so");
    let session = returns(&world, &id).await.unwrap();
    assert_eq!((session.id(), session.version()), (&*id, Some(VERSION)));
    let client = Client::new(session);
    let asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    assert_eq!(world.notes.causes(), ["session-lost"]);
    let told = client.hears().await;
    assert_eq!(told["method"], "notifications/message");
    assert!(told["params"]["data"].as_str().unwrap().contains("lost the record"), "{told}");

    assert!(returns(&world, &id).await.is_ok());
    assert_eq!(world.notes.causes(), ["session-lost"], "once");
    let next = world.killed();
    assert!(returns(&next, &id).await.is_ok(), "there is a record again");
}

#[tokio::test(start_paused = true)]
async fn what_ended_stays_ended_as_far_as_records_go() {
    let world = World::new();
    let _server = world.serves().await;
    let id = world.client().await.leaves();
    let ended = world.client().await.leaves();
    world.servers.close(NAME, &ended).unwrap();
    assert_eq!(returns(&world, &ended).await.unwrap_err(), Lookup::NoSuchSession);

    let world = without_records(&world);
    returns(&world, &id).await.unwrap();
    world.servers.close(NAME, &id).unwrap();
    assert_eq!(returns(&world, &id).await.unwrap_err(), Lookup::NoSuchSession);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_we_did_not_issue_is_unknown() {
    let world = World::new();
    let _server = world.serves().await;
    let id = world.client().await.leaves();
    let world = without_records(&world);
    let forged = format!("{}{}", &id[..71], if id.ends_with('0') { '1' } else { '0' });
    for foreign in [&*forged, &id[..32], &"0".repeat(72), "none of ours"] {
        assert_eq!(returns(&world, foreign).await.unwrap_err(), Lookup::NoSuchSession, "{foreign}");
    }
    let other = soon(world.servers.find("other", &id, Some(VERSION))).await;
    assert_eq!(other.unwrap_err(), Lookup::NoSuchServer);
    // As in the files of earlier versions.
    let _server = world.serves().await;
    world.client().await;
    let mut record = world.notes.records().pop().unwrap();
    record.id = "0".repeat(32);
    world.proxy.restore(record.clone(), |_| false);
    assert!(returns(&world, &record.id).await.is_ok());
}
