//! How a daemon ends, and how another one takes its place.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long whoever asked for another daemon may take to be told that it comes.
const TOLD: Duration = Duration::from_millis(100);

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Servers stay up, for whichever daemon is next.
    KeepServers,
    /// Servers end too.
    EndServers,
    /// Another daemon goes on at once, with the same listeners.
    GiveWay,
}

/// What clients want of the daemon itself.
#[derive(Debug)]
pub(crate) enum Wish {
    /// That it ends.
    End {
        /// Whether the servers stay up.
        keep_servers: bool,
    },
    /// That another one takes its place.
    Succeed(Succession),
}

/// The wish for another daemon.
#[derive(Debug)]
pub(crate) struct Succession {
    /// Its program; none means the same as this one's.
    pub(crate) exe: Option<PathBuf>,
    /// What takes the place of the program if it does not come up.
    pub(crate) fallback: Option<PathBuf>,
    outcome: oneshot::Sender<Result<(), String>>,
    /// Gone when the one who asked was told.
    told: oneshot::Receiver<()>,
}

impl Succession {
    /// Asks for another daemon; `tell` is given the answer as long as this daemon lives.
    pub(crate) async fn ask(
        wishes: &mpsc::Sender<Wish>,
        exe: Option<PathBuf>,
        fallback: Option<PathBuf>,
        tell: impl AsyncFnOnce(Result<(), ApiError>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let (outcome, decided) = oneshot::channel();
        let (telling, told) = oneshot::channel();
        let wish = Wish::Succeed(Self { exe, fallback, outcome, told });
        let answer = match wishes.send(wish).await {
            Ok(()) => decided.await.unwrap_or_else(|_| Err("the daemon is ending".to_owned())),
            Err(_) => Err("the daemon is ending".to_owned()),
        };
        let answer = answer.map_err(|why| {
            let message = format!("the daemon goes on as it is: {why}");
            ApiError::new(ErrorKind::Unavailable, message)
        });
        let done = tell(answer).await;
        drop(telling);
        done
    }

    /// The other daemon is about to go on. Comes back when that was told.
    pub(crate) async fn grant(self) {
        if self.outcome.send(Ok(())).is_ok() {
            // An error is what is waited for; one who does not read is not.
            drop(timeout(TOLD, self.told).await);
        }
    }

    /// There is no other daemon.
    pub(crate) fn refuse(self, why: &str) {
        // Whoever asked may have gone.
        drop(self.outcome.send(Err(why.to_owned())));
    }
}
