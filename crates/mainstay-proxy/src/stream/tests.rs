use std::pin::pin;
use std::task::{Context, Poll};

use proptest::prelude::*;

use super::*;

fn message(number: u64) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"m{number}"}}"#).into()
}

/// What a reader gets without waiting: the numbers, then what stopped it.
fn read_all(reader: &mut Reader) -> (Vec<u64>, Poll<()>) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut numbers = Vec::new();
    loop {
        match reader.poll_next(&mut cx) {
            Poll::Ready(Some(item)) => numbers.push(item.number),
            Poll::Ready(None) => return (numbers, Poll::Ready(())),
            Poll::Pending => return (numbers, Poll::Pending),
        }
    }
}

fn is_ready(future: impl Future<Output = ()>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    pin!(future).poll(&mut cx).is_ready()
}

#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let stream = Stream::new();
    let mut reader = stream.reader(Start::Unread);
    let reading = tokio::spawn(async move {
        let first = reader.next().await.unwrap();
        let second = reader.next().await.unwrap();
        (first, second, reader.next().await)
    });
    tokio::task::yield_now().await;
    assert!(stream.push(message(1)));
    tokio::task::yield_now().await;
    stream.finish(Some(message(2)));
    let (first, second, end) = reading.await.unwrap();
    assert_eq!(first, Item { number: 1, message: message(1), is_answer: false });
    assert_eq!(second, Item { number: 2, message: message(2), is_answer: true });
    assert_eq!(end, None);
}

#[test]
fn the_first_thing_is_seen_before_it_is_read() {
    let mut cx = Context::from_waker(Waker::noop());
    let stream = Stream::new();
    let mut reader = stream.reader(Start::Unread);
    assert_eq!(reader.poll_ready(&mut cx), Poll::Pending);
    stream.push(message(1));
    stream.finish(Some(message(2)));
    assert_eq!(reader.poll_ready(&mut cx), Poll::Ready(Ready::Message));
    assert!(reader.poll_next(&mut cx).is_ready());
    assert_eq!(reader.poll_ready(&mut cx), Poll::Ready(Ready::Answer(message(2))));
    assert_eq!(read_all(&mut reader), (vec![2], Poll::Ready(())));
    assert_eq!(reader.poll_ready(&mut cx), Poll::Ready(Ready::End));
}

#[test]
fn the_newest_reader_replaces_the_older() {
    let stream = Stream::general();
    let mut old = stream.reader(Start::Unread);
    stream.push(message(1));
    assert_eq!(read_all(&mut old), (vec![1], Poll::Pending));
    stream.push(message(2));
    let mut new = stream.reader(Start::Unread);
    assert_eq!(read_all(&mut old), (vec![], Poll::Ready(())));
    drop(old);
    assert_eq!(read_all(&mut new), (vec![2], Poll::Pending));
    assert!(!stream.is_closed());
}

#[test]
fn a_stream_closes_with_its_reader_unless_it_may_be_resumed() {
    let stream = Stream::new();
    assert!(!is_ready(stream.closed()));
    drop(stream.reader(Start::Unread));
    assert!(stream.is_closed());
    assert!(is_ready(stream.closed()));
    assert!(!stream.push(message(1)));

    let stream = Stream::new();
    stream.keep();
    drop(stream.reader(Start::Unread));
    assert!(!stream.is_closed());
    stream.cancel();
    assert!(is_ready(stream.closed()));
}

#[test]
fn a_cancelled_stream_ends_for_its_reader() {
    let stream = Stream::new();
    let mut reader = stream.reader(Start::Unread);
    stream.push(message(1));
    stream.cancel();
    assert_eq!(read_all(&mut reader), (vec![], Poll::Ready(())));
}

#[tokio::test]
async fn room_comes_with_reading() {
    let stream = Stream::new();
    let mut reader = stream.reader(Start::Unread);
    for number in 1..=64 {
        assert!(is_ready(stream.room()));
        stream.push(message(number));
    }
    assert!(!is_ready(stream.room()));
    let writer = tokio::spawn({
        let stream = Arc::clone(&stream);
        async move { stream.room().await }
    });
    tokio::task::yield_now().await;
    reader.next().await;
    writer.await.unwrap();
}

#[tokio::test]
async fn nobody_waits_for_room_in_a_closed_stream() {
    let stream = Stream::new();
    for number in 1..=64 {
        stream.push(message(number));
    }
    stream.cancel();
    stream.room().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_forsaken_when_no_reader_comes_back_in_time() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let stream = Stream::new();
    stream.keep();
    let reader = stream.reader(Start::Unread);
    let start = tokio::time::Instant::now();
    let abandoned_for = tokio::spawn({
        let stream = Arc::clone(&stream);
        async move { stream.abandoned_for(PATIENCE).await }
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    drop(reader);
    tokio::time::sleep(Duration::from_secs(29)).await;
    let reader = stream.reader(Start::Unread);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!abandoned_for.is_finished());
    drop(reader);
    abandoned_for.await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(100 + 29 + 100 + 30));
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    Read(usize),
    /// The connection is cut: the client has got all but the last few of what was read.
    Resume {
        lost: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Push),
        2 => (1..5_usize).prop_map(Step::Read),
        1 => (0..4_usize).prop_map(|lost| Step::Resume { lost }),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Whatever the interleaving, a client gets each message once, in order, the answer last.
    #[test]
    fn each_message_arrives_once_and_in_order(steps in steps()) {
        let mut cx = Context::from_waker(Waker::noop());
        let stream = Stream::new();
        stream.keep();
        let mut reader = stream.reader(Start::Unread);
        let (mut pushed, mut got) = (0, Vec::<Item>::new());
        for step in steps {
            match step {
                Step::Push => {
                    pushed += 1;
                    stream.push(message(pushed));
                }
                Step::Read(count) => {
                    for _ in 0..count {
                        if let Poll::Ready(item) = reader.poll_next(&mut cx) {
                            got.extend(item);
                        }
                    }
                }
                Step::Resume { lost } => {
                    got.truncate(got.len().saturating_sub(lost));
                    let last = got.last().map_or(0, |item| item.number);
                    reader = stream.reader(Start::After(last));
                }
            }
        }
        stream.finish(Some(message(pushed + 1)));
        while let Poll::Ready(Some(item)) = reader.poll_next(&mut cx) {
            got.push(item);
        }
        prop_assert_eq!(got.len() as u64, pushed + 1);
        for (item, number) in got.iter().zip(1..) {
            prop_assert_eq!(item.number, number);
            prop_assert_eq!(&item.message, &message(number));
            prop_assert_eq!(item.is_answer, number == pushed + 1);
        }
    }
}
