//! Finds out which process listens on the port of a server that speaks HTTP.
//!
//! All processes of a machine share its ports, so a server that listens where another one should would get
//! its calls. Three rules prevent that:
//!
//! * Of the servers of one daemon, a port belongs to the one that was started first, until its run is gone.
//! * A run is not started while something listens on its port.
//! * A run is reached only at addresses where all sockets that accept connections belong to its own process tree.
//!   A listener in the tree of another server is an error. One that belongs to no server, as with
//!   `docker run -p` or `ssh -L`, is used, and its owner is shown.
//!
//! [`decide`] is pure; the facts are gathered on a blocking thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::ServerName;
use mainstay_hold::listeners::{self, Listener};
use mainstay_hold::{record, tree};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::command::MARK;
use super::{Active, LOOPBACK, Shared};
use crate::error::is_shortage;
use crate::tasks::blocking;
use crate::{Endpoint, EngineError, RunKey, StartError};

/// How long a start waits for a listener on its port to close.
const CLOSING: Duration = Duration::from_secs(1);

/// The interval between two inspections of a port.
const INTERVAL: Duration = Duration::from_millis(20);

/// Every 25th inspection also tries to connect, because a firewall rule may forward to a server without a listener here.
const CONNECT_EVERY: u32 = 25;

/// The time limit of that connection.
const CONNECT: Duration = Duration::from_secs(1);

/// Who listens on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortOwner {
    /// A process of another server.
    Server {
        /// The name of the server.
        name: String,
        /// Whether another instance of Mainstay runs it.
        elsewhere: bool,
        /// The process, once it is known.
        pid: Option<u32>,
    },
    /// A process that belongs to no server.
    Process {
        /// The process.
        pid: u32,
        /// The name of its program, if it can be read.
        program: Option<String>,
    },
    /// A process that this user cannot see.
    Hidden {
        /// The user who created the listener; none if there is no listener on this machine.
        uid: Option<u32>,
    },
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { name, elsewhere, pid } => {
                write!(f, "the server `{name}`")?;
                f.write_str(if *elsewhere { " of another Mainstay instance" } else { "" })?;
                pid.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
            }
            Self::Process { pid, program: Some(program) } => write!(f, "`{program}` (pid {pid})"),
            Self::Process { pid, program: None } => write!(f, "another program (pid {pid})"),
            Self::Hidden { uid: Some(uid) } => write!(f, "another program (of user id {uid})"),
            Self::Hidden { uid: None } => f.write_str("another program"),
        }
    }
}

/// Whether a run can be reached.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    NotListening,
    /// The owner is present if it is not the run itself.
    Reachable {
        addrs: Vec<SocketAddr>,
        owner: Option<PortOwner>,
    },
    /// Another server listens.
    Taken(PortOwner),
}

/// Who has each listening socket open, by inode. None stands for the run itself.
type Owners = BTreeMap<u64, Option<PortOwner>>;

/// Decides where a run is reached, from the sockets that listen on its port.
fn decide(port: u16, all: &[Listener], owners: &Owners) -> Verdict {
    let (mut own, mut outside) = (Vec::new(), Vec::new());
    let (mut server, mut other) = (None, None);
    for ip in LOOPBACK {
        let accepting = Listener::accepting(all, ip);
        let others: Vec<PortOwner> = accepting
            .iter()
            .filter_map(|listener| match owners.get(&listener.inode) {
                Some(owner) => owner.clone(),
                None => Some(PortOwner::Hidden { uid: Some(listener.uid) }),
            })
            .collect();
        let of_server = others.iter().find(|owner| matches!(owner, PortOwner::Server { .. }));
        let addr = SocketAddr::new(ip, port);
        match (of_server, others.first()) {
            _ if accepting.is_empty() => {}
            (Some(owner), _) => server = server.or_else(|| Some(owner.clone())),
            (None, Some(owner)) => {
                outside.push(addr);
                other = other.or_else(|| Some(owner.clone()));
            }
            (None, None) => own.push(addr),
        }
    }
    match (own.is_empty(), server, other) {
        (false, _, _) => Verdict::Reachable { addrs: own, owner: None },
        (true, Some(owner), _) => Verdict::Taken(owner),
        (true, None, owner @ Some(_)) => Verdict::Reachable { addrs: outside, owner },
        (true, None, None) => Verdict::NotListening,
    }
}

impl Shared {
    /// Enters a run that is being started in the table. Waits a moment if something listens on its port, and fails
    /// if it still does then.
    pub(super) async fn claim_port(
        self: &Arc<Self>,
        key: &RunKey,
        port: Option<u16>,
    ) -> Result<(), StartError> {
        let starting = Active::new(None, Instant::now(), port);
        let Some(port) = port else {
            self.active().insert(key.clone(), starting);
            return Ok(());
        };
        let give_up = Instant::now() + CLOSING;
        loop {
            match self.try_claim_port(key, port, starting.clone()).await {
                Err(StartError::PortTaken { .. } | StartError::PortReserved { .. })
                    if Instant::now() < give_up => {}
                entered => return entered,
            }
            sleep(INTERVAL).await;
        }
    }

    /// Enters a run that is being started in the table, unless something listens on its port, or another server has
    /// reserved it.
    async fn try_claim_port(
        self: &Arc<Self>,
        key: &RunKey,
        port: u16,
        starting: Active,
    ) -> Result<(), StartError> {
        let reserved = self.reserve(key, port, starting);
        match self.inspect_port(key, port).await {
            Ok(Verdict::Taken(owner) | Verdict::Reachable { owner: Some(owner), .. }) => {
                return Err(StartError::PortTaken { port, owner });
            }
            Err(source) if is_shortage(&source) => {
                return Err(StartError::Shortage {
                    what: format!("looking at port {port}"),
                    source,
                });
            }
            // A run that does not exist yet has no listener. Some sandboxes do not list sockets.
            Ok(Verdict::NotListening | Verdict::Reachable { owner: None, .. }) | Err(_) => {}
        }
        match reserved {
            Some(server) => Err(StartError::PortReserved { port, server }),
            None => Ok(()),
        }
    }

    /// Where a run answers, once something listens there.
    pub(super) async fn reach(
        self: &Arc<Self>,
        key: &RunKey,
        port: u16,
    ) -> Result<Endpoint, EngineError> {
        if let Some(active) = self.active().get_mut(key) {
            active.port = Some(port);
        }
        let mut seen = None;
        let mut attempts = 0;
        loop {
            let verdict = match self.inspect_port(key, port).await {
                Err(error) if is_shortage(&error) => {
                    return Err(EngineError::io("looking at its port")(error));
                }
                Err(error) => {
                    tracing::debug!(server = %key.server, %error, "cannot find out which process listens");
                    return Ok(LOOPBACK.map(|ip| SocketAddr::new(ip, port)).to_vec().into());
                }
                Ok(Verdict::NotListening) if attempts % CONNECT_EVERY == CONNECT_EVERY - 1 => {
                    match connect(port).await {
                        Some(addr) => {
                            let owner = Some(PortOwner::Hidden { uid: None });
                            Verdict::Reachable { addrs: vec![addr], owner }
                        }
                        None => Verdict::NotListening,
                    }
                }
                Ok(verdict) => verdict,
            };
            match &verdict {
                Verdict::Taken(owner) => {
                    return Err(EngineError::PortTaken { port, owner: owner.clone() });
                }
                // A process that has just forked or ended may be missing in the list, so another owner must be found twice.
                Verdict::Reachable { addrs, owner }
                    if owner.is_none() || seen.as_ref() == Some(&verdict) =>
                {
                    return Ok(Endpoint { addrs: addrs.clone(), owner: owner.clone() });
                }
                Verdict::Reachable { .. } | Verdict::NotListening => {}
            }
            attempts += 1;
            // It has no listener here, so the next inspection connects again.
            if matches!(
                &verdict,
                Verdict::Reachable { owner: Some(PortOwner::Hidden { uid: None }), .. }
            ) {
                attempts = CONNECT_EVERY - 1;
            }
            seen = Some(verdict);
            sleep(INTERVAL).await;
        }
    }

    /// Whether the run itself listens on its port, and no other process.
    pub(super) async fn listens_itself(self: &Arc<Self>, key: &RunKey, port: u16) -> bool {
        matches!(self.inspect_port(key, port).await, Ok(Verdict::Reachable { owner: None, .. }))
    }

    /// Enters a run in the table, unless its port belongs to the server that is returned.
    fn reserve(&self, key: &RunKey, port: u16, starting: Active) -> Option<ServerName> {
        let mut active = self.active();
        let mut others = active.iter().filter(|(other, _)| other.server != key.server);
        let other = others.find(|(_, active)| active.port == Some(port));
        let server = other.map(|(other, _)| other.server.clone());
        if server.is_none() {
            active.insert(key.clone(), starting);
        }
        server
    }

    async fn inspect_port(self: &Arc<Self>, key: &RunKey, port: u16) -> io::Result<Verdict> {
        let (shared, key) = (Arc::clone(self), key.clone());
        blocking(move || {
            let all = listeners::at_port(port)?;
            let owners = shared.owners(&key, &all)?;
            Ok(decide(port, &all, &owners))
        })
        .await
    }

    /// The owners of these sockets, as far as this user can see them.
    fn owners(&self, key: &RunKey, all: &[Listener]) -> io::Result<Owners> {
        let accepts = |ip: IpAddr| Listener::accepting(all, ip).into_iter();
        let mut open: BTreeSet<u64> =
            LOOPBACK.into_iter().flat_map(accepts).map(|listener| listener.inode).collect();
        let mut owners = BTreeMap::new();
        if open.is_empty() {
            return Ok(owners);
        }
        if let Some(shim) = record::shim_alive(&self.dirs.path(key))? {
            for process in tree::living_descendants(shim.pid)? {
                // One that has ended meanwhile, or that another user runs, cannot be read.
                let sockets = listeners::sockets_of(process.pid).unwrap_or_default();
                owners.extend(open.intersection(&sockets).map(|inode| (*inode, None)));
            }
            open.retain(|inode| !owners.contains_key(inode));
        }
        if open.is_empty() {
            return Ok(owners);
        }
        let shims = self.shims_except(&key.server);
        for pid in listeners::owners(&open)? {
            let sockets = listeners::sockets_of(pid).unwrap_or_default();
            let owner = self.owner(&key.server, pid, &shims);
            for inode in open.intersection(&sockets) {
                let known = owners.entry(*inode).or_insert_with(|| Some(owner.clone()));
                if matches!(owner, PortOwner::Server { .. }) {
                    *known = Some(owner.clone());
                }
            }
        }
        Ok(owners)
    }

    /// The server that a process belongs to, if it is another one than `server`, or the process itself.
    fn owner(&self, server: &ServerName, pid: u32, shims: &BTreeMap<u32, ServerName>) -> PortOwner {
        let by_tree = tree::ancestors(pid).iter().find_map(|ancestor| shims.get(ancestor).cloned());
        if let Some(name) = by_tree {
            return PortOwner::Server { name: name.to_string(), elsewhere: false, pid: Some(pid) };
        }
        let mark = tree::variable_of(pid, MARK).and_then(|mark| String::from_utf8(mark).ok());
        match mark.as_deref().and_then(|mark| marked(mark, &self.config.instance, server)) {
            Some((name, elsewhere)) => PortOwner::Server { name, elsewhere, pid: Some(pid) },
            None => PortOwner::Process { pid, program: tree::program_of(pid) },
        }
    }

    /// The shims of the other servers of this instance.
    fn shims_except(&self, server: &ServerName) -> BTreeMap<u32, ServerName> {
        let runs = self.dirs.list().unwrap_or_default().into_iter();
        let others = runs.filter(|key| key.server != *server);
        let alive = others.filter_map(|key| {
            let shim = record::shim_alive(&self.dirs.path(&key)).ok()??;
            Some((shim.pid, key.server))
        });
        alive.collect()
    }
}

/// The other server that a mark (`INSTANCE/SERVER/RUN`) names, and whether another instance runs it.
fn marked(mark: &str, instance: &str, server: &ServerName) -> Option<(String, bool)> {
    let mut parts = mark.splitn(3, '/');
    let (theirs, name, _run) = (parts.next()?, parts.next()?, parts.next()?);
    let name: ServerName = name.parse().ok()?;
    let elsewhere = theirs != instance;
    (elsewhere || name != *server).then(|| (name.to_string(), elsewhere))
}

/// The first address of the port that accepts a connection.
async fn connect(port: u16) -> Option<SocketAddr> {
    for ip in LOOPBACK {
        let addr = SocketAddr::new(ip, port);
        if let Ok(Ok(_)) = timeout(CONNECT, TcpStream::connect(addr)).await {
            return Some(addr);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 8066;

    /// None for the run itself.
    type Owner = Option<PortOwner>;

    fn server(name: &str) -> PortOwner {
        let name = name.to_owned();
        PortOwner::Server { name, elsewhere: false, pid: Some(7) }
    }

    fn process() -> PortOwner {
        PortOwner::Process { pid: 9, program: Some("ssh".to_owned()) }
    }

    /// Checks the verdict about sockets at these addresses, each with its owner.
    fn check(bound: &[(&str, Option<Owner>)], expected: &str) {
        let listener = |(inode, (ip, _)): (usize, &(&str, _))| {
            let v6_only = ip.ends_with('!');
            let ip = ip.trim_end_matches('!').parse().unwrap();
            Listener { ip, v6_only, inode: inode as u64, uid: 0 }
        };
        let all: Vec<Listener> = bound.iter().enumerate().map(listener).collect();
        let owners = bound.iter().enumerate();
        let owners = owners.filter_map(|(inode, (_, owner))| Some((inode as u64, owner.clone()?)));
        let verdict = match decide(PORT, &all, &owners.collect()) {
            Verdict::NotListening => "not listening".to_owned(),
            Verdict::Taken(owner) => format!("taken by {owner}"),
            Verdict::Reachable { addrs, owner } => {
                let owner = owner.map_or("own".to_owned(), |owner| owner.to_string());
                let ips: Vec<_> = addrs.iter().map(|addr| addr.ip().to_string()).collect();
                format!("{owner} at {}", ips.join(" "))
            }
        };
        assert_eq!(verdict, expected, "{bound:?}");
    }

    #[test]
    fn only_our_own_listener_or_one_of_no_server_is_reached() {
        let own = || Some(None);
        let prod = || Some(Some(server("prod")));
        let ssh = || Some(Some(process()));
        check(&[], "not listening");
        check(&[("192.168.0.1", prod())], "not listening");
        check(&[("127.0.0.1", own())], "own at 127.0.0.1");
        check(&[("::", own())], "own at 127.0.0.1 ::1");
        check(&[("0.0.0.0", own()), ("::!", own())], "own at 127.0.0.1 ::1");
        check(&[("::1", own())], "own at ::1");
        check(&[("127.0.0.1", prod())], "taken by the server `prod` (pid 7)");
        check(&[("::1", prod())], "taken by the server `prod` (pid 7)");
        check(&[("127.0.0.1", ssh())], "`ssh` (pid 9) at 127.0.0.1");
        check(&[("127.0.0.1", None)], "another program (of user id 0) at 127.0.0.1");
    }

    #[test]
    fn an_address_that_others_share_is_not_used() {
        let own = || Some(None);
        let prod = || Some(Some(server("prod")));
        let ssh = || Some(Some(process()));
        check(&[("127.0.0.1", prod()), ("::1", own())], "own at ::1");
        check(&[("127.0.0.1", ssh()), ("::1", own())], "own at ::1");
        check(&[("127.0.0.1", prod()), ("0.0.0.0", own())], "taken by the server `prod` (pid 7)");
        check(&[("127.0.0.1", own()), ("0.0.0.0", prod())], "own at 127.0.0.1");
        check(&[("127.0.0.1", prod()), ("::", own())], "own at ::1");
        let shared = "taken by the server `prod` (pid 7)";
        check(&[("0.0.0.0", own()), ("0.0.0.0", prod())], shared);
        check(&[("0.0.0.0", ssh()), ("0.0.0.0", prod())], shared);
        check(&[("0.0.0.0", own()), ("0.0.0.0", ssh())], "`ssh` (pid 9) at 127.0.0.1");
        check(&[("127.0.0.1", ssh()), ("::1", prod())], shared);
    }

    #[test]
    fn a_mark_names_another_server() {
        let ours: ServerName = "web".parse().unwrap();
        let check = |mark, expected: Option<(&str, bool)>| {
            let found = marked(mark, "i", &ours);
            let found = found.as_ref().map(|(name, elsewhere)| (name.as_str(), *elsewhere));
            assert_eq!(found, expected, "{mark}");
        };
        check("i/prod/3", Some(("prod", false)));
        check("j/web/3", Some(("web", true)));
        check("i/web/3", None);
        for junk in ["", "i", "i/prod", "i/No Name/3"] {
            check(junk, None);
        }
    }

    #[test]
    fn an_owner_is_named_as_far_as_it_is_known() {
        let check = |owner: PortOwner, expected: &str| assert_eq!(owner.to_string(), expected);
        let name = || "prod".to_owned();
        check(PortOwner::Server { name: name(), elsewhere: false, pid: None }, "the server `prod`");
        check(
            PortOwner::Server { name: name(), elsewhere: true, pid: Some(7) },
            "the server `prod` of another Mainstay instance (pid 7)",
        );
        check(PortOwner::Process { pid: 9, program: None }, "another program (pid 9)");
        check(PortOwner::Hidden { uid: None }, "another program");
    }
}
