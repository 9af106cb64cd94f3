//! Messages of a server that belong to no call, across daemons.

use std::time::Duration;

use mainstay_proxy::{Found, Settings, Start};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::stdio_client::StdioClient;
use super::{Client, NAME, Server, World, settings};
use crate::soon;

#[tokio::test(start_paused = true)]
async fn the_general_stream_goes_on_after_its_last_event() {
    let world = World::new();
    let server = world.serves().await;
    let client = world.client().await;
    for number in 1..4 {
        server.logs("error", &number.to_string()).await;
        client.hears().await;
    }
    let world = world.killed();
    let session = world.servers.session(NAME, client.session.id()).unwrap();
    let first = session.general_event().unwrap();
    assert_eq!(first.to_string(), client.session.general_event().unwrap().to_string());
    let after = |number| match session.find(&first.at(number)) {
        Found::General(start) => start,
        found => panic!("{found:?}"),
    };
    let mut reader = session.listen(after(1), false).unwrap();
    for number in 2..4 {
        let item = soon(reader.next()).await.unwrap();
        let message: Value = serde_json::from_slice(&item.message).unwrap();
        assert_eq!((item.number, &message["params"]["data"]), (number, &json!(number.to_string())));
    }
    let server = world.serves().await;
    server.logs("error", "4").await;
    assert_eq!(soon(reader.next()).await.unwrap().number, 4);
    assert_eq!(after(9), Start::Unread, "of a time that was forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_client_over_lines_hears_what_is_unread_once() {
    let world = World::new();
    let server = world.serves().await;
    let (mut stdio_client, _) = StdioClient::opens(&world).await;
    server.logs("error", "told").await;
    assert_eq!(stdio_client.reads().await["params"]["data"], "told");
    let world = world.killed();
    let server = world.serves().await;
    server.logs("error", "unread").await;
    soon(async {
        while world.notes.streams()[0].messages.len() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let world = world.killed();
    stdio_client.moves_to(&world).await;
    assert_eq!(stdio_client.reads().await["params"]["data"], "unread");
    assert!(stdio_client.reads_nothing().await);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_memory_is_told_across_daemons_once() {
    let loud = || Settings { quiet_restart: false, ..settings() };
    let world = World::with(loud());
    let mut server = world.serves().await;
    let client = world.client().await;
    assert_eq!(says(&client, &mut server).await, "done");
    assert_eq!(world.notes.records()[0].run, Some(1));
    let same = world.killed_with(loud());
    let mut server = same.finds(&server, &[]).await;
    let client = Client::new(same.servers.session(NAME, client.session.id()).unwrap());
    assert_eq!(says(&client, &mut server).await, "done");
    let next = same.killed_with(loud());
    let mut server = next.serves().await;
    let client = Client::new(next.servers.session(NAME, client.session.id()).unwrap());
    assert!(says(&client, &mut server).await.contains("whatever it kept in memory is lost"));
    assert_eq!(next.notes.records()[0].run, Some(2));
    assert_eq!(says(&client, &mut server).await, "done");
}

async fn says(client: &Client, server: &mut Server) -> String {
    let asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    server.returns(&call, "done").await;
    asked.text().await
}

#[tokio::test(start_paused = true)]
async fn lines_count_as_heard_when_nothing_of_them_can_be_lost() {
    let world = World::new();
    let mut server = world.serves().await;
    // The answer to `initialize`, and nothing else so far.
    server.was_heard(1).await;
    let client = world.client().await;
    let asked = client.calls("poke");
    let call = server.reads_call("poke").await;
    server.logs("error", "noted").await;
    server.was_heard(2).await;
    server.returns(&call, "done").await;
    assert_eq!(asked.text().await, "done");
    server.was_heard(3).await;
}
