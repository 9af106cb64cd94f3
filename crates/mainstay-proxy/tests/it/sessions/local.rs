//! Requests of our own user.

use std::time::Duration;

use mainstay_proxy::{Identity, Local, UpstreamError};
use serde_json::json;
use serde_json::value::RawValue;

use super::server::tool_result;
use super::{Server, World};
use crate::soon;

async fn local(world: &World) -> Local {
    let identity = Identity { name: "mainstay".to_owned(), version: "0".to_owned() };
    soon(world.proxy.local(&identity)).await.unwrap()
}

fn nothing() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap()
}

/// Calls a tool, while the server does something.
async fn calls(
    local: &mut Local,
    serving: impl Future<Output = Option<Server>>,
) -> Result<String, UpstreamError> {
    let arguments = nothing();
    let (result, _server) =
        soon(async { tokio::join!(local.call("poke", &arguments), serving) }).await;
    result.map(|result| result.get().to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_the_way_of_a_client_and_is_not_kept() {
    let world = World::new();
    let mut server = world.serves().await;
    let mut local = local(&world).await;
    let result = calls(&mut local, async {
        let call = server.reads_call("poke").await;
        // Nobody is there to be asked.
        server.says(&json!({"id": 1, "method": "elicitation/create"})).await;
        assert_eq!(server.reads().await["error"]["code"], -32601);
        server.returns(&call, "done").await;
        None
    });
    assert_eq!(result.await.unwrap(), tool_result("done").to_string());
    assert_eq!((world.proxy.session_count(), world.notes.records().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_ours_is_told_from_what_the_server_says() {
    let world = World::new();
    let mut server = world.serves().await;
    let mut local = local(&world).await;
    let refused = calls(&mut local, async {
        let call = server.reads_call("poke").await;
        server.says(&json!({"id": call["id"], "error": {"code": 7, "message": "no"}})).await;
        Some(server)
    });
    assert!(matches!(refused.await, Err(UpstreamError::Rpc { code: 7, .. })));
    let mut server = world.serves().await;
    let died = calls(&mut local, async {
        server.reads_call("poke").await;
        drop(server);
        None
    });
    assert!(matches!(died.await, Err(UpstreamError::Closed { sent: true, .. })));
    world.is_down();
    let down = calls(&mut local, async { None }).await;
    assert!(matches!(down, Err(UpstreamError::Unavailable(why)) if why.contains("exited 3")));
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_the_tools_are_read() {
    let world = World::new();
    let mut server = world.serves_with(&json!({"tools": {}})).await;
    let serving = tokio::spawn(async move {
        loop {
            let request = server.reads().await;
            let page = match request["params"]["cursor"].as_str() {
                None => json!({"tools": [{"name": "a"}], "nextCursor": "more"}),
                Some(_) => json!({"tools": [{"name": "b"}]}),
            };
            server.answers(&request, &page).await;
        }
    });
    let mut local = local(&world).await;
    let tools = soon(local.tools()).await.unwrap();
    let names = tools.iter().map(|tool| tool.get().to_owned()).collect::<Vec<_>>();
    assert_eq!(names, [r#"{"name":"a"}"#, r#"{"name":"b"}"#]);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_cancelled() {
    let world = World::new();
    let mut server = world.serves().await;
    let mut local = local(&world).await;
    let arguments = nothing();
    let call = tokio::time::timeout(Duration::from_secs(1), local.call("poke", &arguments));
    let (late, call) = tokio::join!(call, server.reads_call("poke"));
    assert!(late.is_err());
    assert_eq!(server.reads().await["params"]["requestId"], call["id"]);
}
