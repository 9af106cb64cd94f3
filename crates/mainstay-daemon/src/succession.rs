//! How a daemon ends, and how another one takes its place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_api::{ApiError, ErrorKind};
use mainstay_hold::holder::Order;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::held::{Held, Orders};

/// How long whoever asked for another daemon may take to be told that it comes.
const TOLD: Duration = Duration::from_millis(100);

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Servers stay up, for whichever daemon is next.
    KeepServers,
    /// Servers end too.
    EndServers,
    /// Another daemon goes on at once, with the same listeners.
    GiveWay,
}

/// Ends when a signal, a client or the holder says so. A signal leaves the servers up: whoever sends it
/// (a service manager, a shutdown) starts us again or ends them too.
pub(crate) async fn until_told(
    wishes: &mut mpsc::Receiver<Wish>,
    orders: &mut Orders,
    held: &Held,
    exe: &Path,
) -> Ending {
    let listen = |kind| signal(kind).expect("the runtime handles signals");
    let (mut term, mut int) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let mut asked: Option<Succession> = None;
    loop {
        tokio::select! {
            wish = wishes.recv() => match wish {
                None | Some(Wish::End { keep_servers: true }) => return Ending::KeepServers,
                Some(Wish::End { keep_servers: false }) => return Ending::EndServers,
                Some(Wish::Succeed(succession)) => {
                    let exe = succession.exe.as_deref().unwrap_or(exe);
                    match held.replace(exe, succession.fallback.as_deref()) {
                        Ok(()) => asked = Some(succession),
                        Err(error) => succession.refuse(&error.to_string()),
                    }
                }
            },
            order = orders.next() => match order {
                Order::Go => {}
                Order::GiveWay => {
                    if let Some(asked) = asked {
                        asked.grant().await;
                    }
                    return Ending::GiveWay;
                }
                Order::NotReplaced(why) => {
                    tracing::error!(why, "another daemon was to take over, and could not");
                    if let Some(asked) = asked.take() {
                        asked.refuse(&why);
                    }
                }
                Order::HolderGone => {
                    if let Some(asked) = asked.take() {
                        asked.refuse("the holder of the listeners died meanwhile");
                    }
                    let (held, exe) = (held.clone(), exe.to_owned());
                    // It ends by itself, at the latest with this daemon.
                    drop(tokio::spawn(async move { held.replace_holder(&exe).await }));
                }
            },
            _ = term.recv() => return Ending::KeepServers,
            _ = int.recv() => return Ending::KeepServers,
        }
    }
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
