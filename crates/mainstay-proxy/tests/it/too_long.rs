//! Lines of which only the two ends were kept.

use crate::fake::{Fake, asks};
use crate::soon;

fn too_long(method: &str) -> String {
    format!("the server answered `{method}` with a line of more than 16777216 bytes")
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_long_fails_its_request_and_no_other() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let first = asks(&upstream, "a");
    fake.reads_request("a").await;
    let second = asks(&upstream, "b");
    let id = fake.reads_request("b").await;
    fake.says(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"xx\nxx\"}}")).await;
    assert_eq!(soon(second).await.unwrap().unwrap_err().to_string(), too_long("b"));
    // Of these, only the last can be an answer.
    for line in ["junk\nmore junk", "{\"method\":\"n\",\"params\":[\n]}", "{\"result\":[\n]}"] {
        fake.says(line).await;
    }
    assert_eq!(soon(first).await.unwrap().unwrap_err().to_string(), too_long("a"));
    for head in ["junk", "{\"method\":\"n\",\"params\":["] {
        assert_eq!(soon(fake.junk.recv()).await.unwrap(), head);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_too_long_for_nobody_knows_whom_is_junk() {
    let (mut fake, upstream) = Fake::resumed(4, 0);
    let requests = ["a", "b"].map(|method| asks(&upstream, method));
    let ids = [fake.reads_request("a").await, fake.reads_request("b").await];
    fake.says("{\"result\":[\n]}").await;
    assert_eq!(soon(fake.junk.recv()).await.unwrap(), "{\"result\":[");
    for (request, id) in requests.into_iter().zip(ids) {
        fake.answers(id, "1").await;
        assert_eq!(soon(request).await.unwrap().unwrap(), "1");
    }
}
