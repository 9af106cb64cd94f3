//! Futures that catch panics.

use std::pin::Pin;
use std::task::{Context, Poll};

use mainstay_core::panics;

/// Resolves to `None` if the inner future panics. The panic hook has logged the message by then.
#[derive(Debug)]
pub struct CatchPanic<F: ?Sized>(Pin<Box<F>>);

impl<F: Future> CatchPanic<F> {
    pub fn new(task: F) -> Self {
        Self(Box::pin(task))
    }
}

impl<F: Future + ?Sized> From<Pin<Box<F>>> for CatchPanic<F> {
    fn from(task: Pin<Box<F>>) -> Self {
        Self(task)
    }
}

impl<F: Future + ?Sized> Future for CatchPanic<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match panics::catch(|| self.0.as_mut().poll(cx)) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    }
}

/// A future for a task whose executor catches panics, as those of a `JoinSet` do: while it is polled, a panic does not abort
/// the process. It costs less than [`CatchPanic`].
#[derive(Debug)]
pub(crate) struct CaughtByExecutor<F>(Pin<Box<F>>);

impl<F: Future> CaughtByExecutor<F> {
    pub(crate) fn new(task: F) -> Self {
        Self(Box::pin(task))
    }
}

impl<F: Future> Future for CaughtByExecutor<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = panics::CatchScope::enter();
        self.0.as_mut().poll(cx)
    }
}

/// Spawns a detached task. A panic ends only this task.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(CatchPanic::new(task)));
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_panic_after_a_while_is_caught_too() {
        let fails = CatchPanic::new(async {
            yield_now().await;
            assert!(panics::is_caught());
            panic!("as if by a bug");
        });
        assert_eq!(fails.await, None::<()>);
        assert_eq!(CatchPanic::new(async { 7 }).await, Some(7));
        let fails = CaughtByExecutor::new(async {
            yield_now().await;
            assert!(panics::is_caught());
            panic!("as if by a bug");
        });
        assert!(tokio::spawn(fails).await.unwrap_err().is_panic());
        assert_eq!(CaughtByExecutor::new(async { 7 }).await, 7);
        assert!(!panics::is_caught());
    }
}
