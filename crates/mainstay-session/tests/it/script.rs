//! Scripts: what happens, as data, so that a failing one can be cut down.

use crate::rng::Rng;

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A stdio server that all sessions share.
    Shared,
    /// A stdio server with a run for each session.
    Isolated,
    Http,
}

/// A script, and what holds for all of it.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) kind: Kind,
    /// How long requests are held, in ms.
    pub(crate) hold: u64,
    /// Whether lists have two pages.
    pub(crate) has_pages: bool,
    pub(crate) engine: Engine,
    /// How long the second restart in a row waits, in ms, and how many there are before the server is given up.
    pub(crate) restart_delay: u64,
    pub(crate) restart_max: u32,
    /// How the first runs behave.
    pub(crate) behaviour: Behaviour,
    /// How long the confirmation of a line takes, in ms.
    pub(crate) confirmation: u64,
    /// How long the disk takes, in ms.
    pub(crate) disk: u64,
    /// Whether the server is removed in the end.
    pub(crate) is_removed: bool,
    /// Whether sessions expire instead of being closed.
    pub(crate) expires: bool,
    /// How long calls of tools may take, in ms; 0 means any time.
    pub(crate) call_timeout: u64,
    pub(crate) steps: Vec<Step>,
}

/// Something that happens, some ms after the step before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) after: u64,
    pub(crate) what: What,
}

/// Indices are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A client initializes a session.
    Open {
        version: u8,
        form: Form,
        listens: bool,
    },
    Call {
        client: u8,
        call: CallSpec,
    },
    /// Two calls in a batch, if the client's version has them.
    Batch {
        client: u8,
        calls: [CallSpec; 2],
    },
    /// A client loses the connection of a request, and with it the last messages.
    Leave {
        client: u8,
        lost: u8,
    },
    /// A client continues a request whose connection it has lost.
    Resume {
        client: u8,
    },
    /// A client loses the connection over which it listens, and with it the last messages.
    Unlisten {
        client: u8,
        lost: u8,
    },
    Listen {
        client: u8,
    },
    /// A client cancels a request, or gives it up by its own timeout.
    Cancel {
        client: u8,
        which: u8,
        is_timeout: bool,
    },
    Close {
        client: u8,
    },
    RootsChanged {
        client: u8,
    },
    /// The shared run ends. Lines that have arrived may not be read; `exact` if the number of written lines is known.
    Die {
        exact: bool,
        delay: u8,
    },
    /// The own run of a session ends. Someone may remove its container, too.
    DieOwn {
        client: u8,
        is_removed: bool,
    },
    /// The user stops the server for so many ms.
    Stop {
        ms: u16,
    },
    /// The user restarts the server.
    Restart,
    /// Runs that are started later behave like this.
    Behave(Behaviour),
    /// The next starts fail.
    FailStarts {
        count: u8,
        failure: FailedStart,
    },
    /// The engine of containers does not answer for so many ms.
    EngineAway {
        ms: u16,
        loses_lines: bool,
    },
    /// The shared run reads nothing for so many ms.
    StopReading {
        manner: Manner,
        ms: u16,
    },
    Interrupt {
        loses_lines: bool,
    },
    /// The server sends something outside of calls.
    Say {
        client: u8,
        said: Said,
    },
    /// An HTTP server forgets its sessions.
    Forget,
    /// The disk does not respond for so many ms.
    Stall {
        ms: u16,
    },
    Kill {
        down: u16,
        is_lazy: bool,
    },
    Reload,
    Sweep,
}

/// Where runs live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Process,
    /// A new daemon reads all earlier output of a stdio server.
    Container,
    /// The server runs elsewhere; it speaks HTTP.
    Remote,
}

/// How long a run takes for something, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Behaviour {
    /// Until its process is there.
    pub(crate) start: u16,
    /// Until it answers `initialize`. One that takes too long is ended.
    pub(crate) initialize: u16,
    /// Until it exits when it is asked to. One that takes too long is killed.
    pub(crate) stop: u16,
    /// Until it exits when it is killed. Another attempt is made after a while.
    pub(crate) kill: u16,
    /// From its exit until nothing of it is left.
    pub(crate) gone: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedStart {
    Temporary,
    Permanent,
}

impl Behaviour {
    fn random(rng: &mut Rng) -> Self {
        Self {
            start: rng.pick(&[0, 0, 5, 300, 3000]),
            initialize: rng.pick(&[0, 0, 50, 2000, 15_000]),
            stop: rng.pick(&[0, 3, 400, 20_000]),
            kill: rng.pick(&[0, 0, 1, 7000]),
            gone: rng.pick(&[0, 0, 5, 500, 4000]),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Takes event streams.
    Events,
    /// Takes JSON only.
    Json,
    /// A `mainstay connect`, which sends a request again that was lost.
    Connect,
    /// A command of the user.
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Log,
    ListChanged,
    Updated,
    Invalid,
    Ping,
    Ask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// A tool that only reads.
    Read,
    Write,
    /// A tool that the user allows to be repeated.
    Replayed,
    Prompt,
    Vendor,
    List,
    Subscribe,
    Unsubscribe,
    Level,
    Ping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Answer,
    /// The same answer twice.
    Twice,
    Error,
    /// A line that is not JSON.
    Invalid,
    /// Nothing until the end of the script.
    Silent,
    /// The server exits, the first time or the first two times.
    Exit(u8),
}

/// What a run does that does not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// None of its threads runs.
    #[default]
    Deadlocked,
    Spinning,
    /// It is stopped by a signal.
    Suspended,
}

/// A call, and what the server makes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallSpec {
    pub(crate) method: Method,
    pub(crate) takes: u16,
    pub(crate) progress: u8,
    pub(crate) asks: bool,
    pub(crate) logs: bool,
    pub(crate) end: End,
}

impl CallSpec {
    fn random(rng: &mut Rng) -> Self {
        use Method as M;
        let method = rng.pick(&[
            M::Read,
            M::Read,
            M::Write,
            M::Write,
            M::Write,
            M::Replayed,
            M::Prompt,
            M::Vendor,
            M::List,
            M::Subscribe,
            M::Unsubscribe,
            M::Level,
            M::Ping,
        ]);
        let end = match rng.below(16) {
            0 => End::Twice,
            1 => End::Error,
            2 => End::Invalid,
            3 => End::Silent,
            4 => End::Exit(1),
            5 => End::Exit(2),
            _ => End::Answer,
        };
        Self {
            method,
            takes: rng.pick(&[0, 1, 5, 100, 149, 150, 151, 400, 2000, 6000]),
            progress: rng.pick(&[0, 0, 1, 3]),
            asks: rng.one_in(5),
            logs: rng.one_in(4),
            end,
        }
    }
}

impl Script {
    pub(crate) fn random(kind: Kind, has_daemons: bool, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let count = 8 + rng.below(24);
        let mut steps = vec![open(&mut rng)];
        steps.extend((0..count).map(|_| random_step(&mut rng, kind, has_daemons)));
        Self {
            kind,
            hold: rng.pick(&[0, 300, 5000, 5000, 45_000]),
            has_pages: rng.one_in(4),
            engine: match rng.below(8) {
                0..=4 => Engine::Process,
                5 if kind == Kind::Http => Engine::Container,
                _ if kind == Kind::Http => Engine::Remote,
                _ => Engine::Container,
            },
            restart_delay: rng.pick(&[10, 500, 3000]),
            restart_max: rng.pick(&[1, 10, 10, 10]),
            behaviour: if rng.one_in(3) {
                Behaviour::random(&mut rng)
            } else {
                Behaviour::default()
            },
            confirmation: rng.pick(&[0, 0, 3, 500]),
            disk: rng.pick(&[0, 5, 50]),
            is_removed: rng.one_in(8),
            expires: rng.one_in(8),
            call_timeout: rng.pick(&[0, 0, 1000, 5000]),
            steps,
        }
    }
}

fn pause(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0..=3 => rng.below(4),
        4..=6 => rng.below(200),
        7 | 8 => rng.below(2000),
        _ => rng.pick(&[5_000, 10_000, 31_000]),
    }
}

fn open(rng: &mut Rng) -> Step {
    let form = rng.pick(&[
        Form::Events,
        Form::Events,
        Form::Events,
        Form::Json,
        Form::Connect,
        Form::Local,
    ]);
    let what = What::Open { version: rng.byte(4), form, listens: rng.one_in(2) };
    Step { after: pause(rng), what }
}

fn random_step(rng: &mut Rng, kind: Kind, has_daemons: bool) -> Step {
    let client = rng.byte(8);
    let what = match rng.below(108) {
        0..=9 => return open(rng),
        45..=47 => What::Batch { client, calls: [CallSpec::random(rng), CallSpec::random(rng)] },
        48..=53 => What::Leave { client, lost: rng.byte(3) },
        54..=59 => What::Resume { client },
        60..=61 => What::Unlisten { client, lost: rng.byte(3) },
        62..=63 => What::Listen { client },
        64..=67 => What::Cancel { client, which: rng.byte(8), is_timeout: rng.one_in(2) },
        68..=69 => What::Close { client },
        70 => What::RootsChanged { client },
        71..=74 => What::Die { exact: !rng.one_in(4), delay: rng.byte(80) },
        75 | 107 if kind == Kind::Isolated => What::DieOwn { client, is_removed: rng.one_in(3) },
        75 | 76 => What::Restart,
        77 => What::Stop { ms: rng.pick(&[100, 4000, 20_000]) },
        78 | 79 if kind == Kind::Http => What::Forget,
        78 => {
            let manner = rng.pick(&[Manner::Deadlocked, Manner::Spinning, Manner::Suspended]);
            What::StopReading { manner, ms: rng.pick(&[50, 1000, 9000, 30_000]) }
        }
        79 => What::Interrupt { loses_lines: rng.one_in(2) },
        80..=85 => {
            let said = rng.pick(&[
                Said::Log,
                Said::ListChanged,
                Said::Updated,
                Said::Invalid,
                Said::Ping,
                Said::Ask,
            ]);
            What::Say { client, said }
        }
        86 => What::Sweep,
        87..=93 if has_daemons => {
            What::Kill { down: rng.pick(&[0, 20, 1000, 8000]), is_lazy: rng.one_in(3) }
        }
        94..=97 if has_daemons => What::Reload,
        100..=102 => What::Behave(Behaviour::random(rng)),
        103 => {
            let failure = rng.pick(&[FailedStart::Temporary, FailedStart::Permanent]);
            What::FailStarts { count: 1 + rng.byte(2), failure }
        }
        104..=106 => What::EngineAway { ms: rng.pick(&[20, 3000]), loses_lines: rng.one_in(2) },
        98 if has_daemons => What::Stall { ms: rng.pick(&[20, 400, 5000]) },
        _ => What::Call { client, call: CallSpec::random(rng) },
    };
    Step { after: pause(rng), what }
}
