//! Sessions with servers that speak HTTP, which the next daemon goes on with.

use mainstay_proxy::AttachedRun;
use serde_json::json;

use super::site::{Site, found};
use super::{Client, NAME, World};
use crate::soon;

/// A daemon, its server, and a client that has a session with both.
struct Scene {
    world: World,
    site: Site,
    run: AttachedRun,
    client: Client,
}

impl Scene {
    async fn new() -> Self {
        let (world, site) = (World::new(), Site::new().await);
        let run = world.is_served_by(&site).await;
        let client = world.client().await;
        Self { world, site, run, client }
    }

    /// The daemon is killed, and nobody has found the server yet.
    fn killed(self) -> Self {
        let world = self.world.killed();
        let session = world.servers.session(NAME, self.client.session.id()).unwrap();
        Self { world, client: Client::new(session), ..self }
    }

    /// The next daemon finds the server alive.
    async fn goes_on(self) -> Self {
        let scene = self.killed();
        scene.world.finds_site(&scene.site, &scene.run).await;
        scene
    }

    /// The client calls a tool; the server says in which session.
    async fn calls(&mut self) -> String {
        let asked = self.client.asks_as(json!("c"), "tools/call", &json!({"name": "poke"}));
        let call = self.site.call("poke").await;
        let session = call.session().to_owned();
        assert_eq!(call.header("mcp-protocol-version"), Some("2025-11-25"));
        call.returns("done").await;
        assert_eq!(asked.text().await, "done");
        session
    }

    /// How many sessions the server was asked for.
    fn opened(&self) -> usize {
        self.site.past().iter().filter(|done| done.starts_with("POST initialize")).count()
    }
}

#[tokio::test]
async fn a_session_goes_on_as_the_server_knows_it() {
    let mut scene = Scene::new().await;
    assert_eq!((scene.calls().await.as_str(), scene.opened()), ("s2", 2));
    let mut scene = scene.goes_on().await.goes_on().await;
    assert_eq!((scene.calls().await.as_str(), scene.opened()), ("s2", 2));
    scene.world.proxy.close(scene.client.session.id());
    scene.site.did("DELETE - s2").await;
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_opened_again_and_kept() {
    let mut scene = Scene::new().await.goes_on().await;
    let asked = scene.client.calls("poke");
    scene.site.call("poke").await.responds(404, "", "").await;
    let call = scene.site.call("poke").await;
    assert_eq!(call.session(), "s3");
    call.returns("done").await;
    assert_eq!(asked.text().await, "done");
    let mut scene = scene.goes_on().await;
    assert_eq!((scene.calls().await.as_str(), scene.opened()), ("s3", 3));
}

#[tokio::test]
async fn another_run_knows_nothing_of_the_session() {
    let mut scene = Scene::new().await.killed();
    scene.world.is_served_by(&scene.site).await;
    assert_eq!((scene.calls().await.as_str(), scene.opened()), ("s4", 4));
}

/// Nobody else can tell whether it still knows us.
#[tokio::test]
async fn a_server_elsewhere_is_asked_whether_it_is_there() {
    let (world, mut site) = (World::new(), Site::new().await);
    let run = soon(world.proxy.attach_run(site.remote_link(), world.arrival())).await.unwrap();
    let next = world.killed();
    for (status, body, session) in [
        (200, r#"{"jsonrpc": "2.0", "id": 0, "result": {}}"#, "s1"),
        (200, r#"{"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "?"}}"#, "s1"),
        (404, "", "s2"),
        (400, "who?", "s3"),
    ] {
        let entering = next.proxy.attach_run(site.remote_link(), found(&run));
        let answering = async {
            let ping = site.turn().await;
            assert_eq!((&ping.message["method"], ping.session()), (&json!("ping"), "s1"));
            ping.responds(status, "content-type: application/json\r\n", body).await;
        };
        let (entered, ()) = soon(async { tokio::join!(entering, answering) }).await;
        let entered = entered.unwrap();
        assert_eq!(entered.hello.http_session.as_deref(), Some(session), "{status} {body}");
        assert_eq!(entered.generation, run.generation);
    }
    let link = site.remote_link();
    drop(site);
    let missed = soon(next.proxy.attach_run(link, found(&run))).await.unwrap_err();
    assert!(missed.to_string().starts_with("`ping` cannot be sent"), "{missed}");
}

#[tokio::test]
async fn subscribers_are_told_that_something_may_have_changed() {
    let mut scene = Scene::new().await;
    let asked = scene.client.asks("resources/subscribe", &json!({"uri": "a:"}));
    let turn = scene.site.turn().await;
    let answer = json!({"jsonrpc": "2.0", "id": turn.message["id"], "result": {}});
    turn.says(&answer).await;
    asked.answer().await;
    let mut scene = scene.goes_on().await;
    let told = scene.client.hears().await;
    assert_eq!(told["params"], json!({"uri": "a:"}), "{told}");
    assert_eq!((scene.calls().await.as_str(), scene.opened()), ("s2", 2), "nothing is subscribed");
}
