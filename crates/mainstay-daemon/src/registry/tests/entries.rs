//! What happens to a server's entries while things happen to the server: real files, a fake engine,
//! and time in the test's hands.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use mainstay_api::{ClientDone, ClientReport, EntryStanding, EventRecord};
use mainstay_core::{ClientSettings, Exit, RefreshMode, RestartPolicy};

use super::*;
use crate::entries::EntryRequest;
use crate::state::event_log::Part;

/// Somebody's file: another server, an odd layout, no final newline.
const BEFORE: &str =
    "{\n \"mcpServers\": {\n  \"other\": {\"url\": \"http://127.0.0.1:1/mcp\"}\n }\n}";

impl World {
    /// A world whose user has chosen Cursor.
    async fn with_cursor() -> Self {
        let world = Self::new();
        fs::create_dir_all(world.home().join(".cursor")).unwrap();
        fs::write(world.file(), BEFORE).unwrap();
        world.registry.choose_clients(vec!["cursor".to_owned()], world.around()).await.unwrap();
        world
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn around(&self) -> Around {
        Around { home: self.home(), ..Around::default() }
    }

    fn file(&self) -> PathBuf {
        self.home().join(".cursor/mcp.json")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn has_entry(&self) -> bool {
        self.text().contains("\"time\"")
    }

    async fn describe(&self, refresh: RefreshMode, restart: RestartPolicy) -> Vec<ClientReport> {
        let clients = ClientSettings { refresh: Some(refresh), ..ClientSettings::default() };
        self.describe_as(ServerSpec { clients, restart, ..container() }).await
    }

    async fn describe_as(&self, spec: ServerSpec) -> Vec<ClientReport> {
        let names = self.registry.describe(vec![spec], true, &self.around()).await.unwrap();
        let reports = self.registry.register(&names).await;
        self.runs(&names[0]).await;
        reports
    }

    /// Waits until something holds.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("never: {what}; {}", self.text()));
    }

    /// What the event log tells of these, in order.
    async fn told(&self, events: &[&str]) -> Vec<String> {
        let all = self.event_log.read(Some("time".parse().unwrap()), Part::Last(500)).await;
        let told = all.into_iter().map(|(_, event)| event);
        let told = told.filter(|event| events.contains(&event.event.as_str()));
        let word = |event: EventRecord| match event.cause {
            Some(cause) if event.event == EventRecord::CLIENT => cause,
            Some(_) | None => event.event,
        };
        told.map(word).collect()
    }

    /// Adds a field of the user's own to our entry.
    fn make_it_ones_own(&self) -> String {
        let own =
            self.text().replacen("\"url\": \"http://127.0.0.1:7433", "\"disabled\": true, $&", 1);
        let own = own.replace("$&", "\"url\": \"http://127.0.0.1:7433");
        assert!(own.contains("disabled"), "{own}");
        fs::write(self.file(), &own).unwrap();
        own
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_is_registered_with_the_chosen_clients_and_leaves_no_trace() {
    let world = World::with_cursor().await;
    let reports = world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let text = format!("added `time` to Cursor ({})", world.file().display());
    let expected = ClientReport {
        client: "cursor".to_owned(),
        server: "time".parse().unwrap(),
        done: ClientDone::Added,
        text,
    };
    assert_eq!(reports, [expected]);
    assert!(
        world.text().contains("\"url\": \"http://127.0.0.1:7433/time/mcp\""),
        "{}",
        world.text()
    );
    let removed = world.registry.remove(mainstay_api::Which::All).await.unwrap();
    assert_eq!(removed[0].clients[0].done, ClientDone::Removed);
    assert_eq!(world.text(), BEFORE);
}

#[tokio::test(start_paused = true)]
async fn auto_leaves_the_file_alone_when_a_server_recovers_quickly() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let before = world.text();
    for run in 1..4 {
        world.engine.die(&key("time", run), Exit::UNKNOWN);
        world.until("another run", |world| world.engine.alive() == [key("time", run + 1)]).await;
        world.runs(&"time".parse().unwrap()).await;
    }
    assert_eq!(world.text(), before);
    assert_eq!(world.told(&[EventRecord::CLIENT]).await, ["added"]);
}

#[tokio::test(start_paused = true)]
async fn auto_refreshes_when_an_outage_outlives_the_hold() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let own = world.make_it_ones_own();
    let begun = clock::now();
    world.engine.go_away("it is being updated");
    world.until("entry out", |world| !world.has_entry()).await;
    let hold = container().proxy.hold;
    assert!(clock::now() - begun >= hold, "{:?}", clock::now() - begun);
    assert_eq!(world.text(), BEFORE);
    let out = clock::now();
    world.engine.come_back();
    world.until("entry in", World::has_entry).await;
    assert!(clock::now() - out >= mainstay_core::refresh::GAP);
    assert_eq!(world.text(), own);
    assert_eq!(world.told(&[EventRecord::CLIENT]).await, ["added", "removed", "added"]);
}

#[tokio::test(start_paused = true)]
async fn always_takes_the_entry_out_before_a_restart_and_puts_it_back_after() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Always, RestartPolicy::default()).await;
    let own = world.make_it_ones_own();
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    world.until("entry out", |world| !world.has_entry()).await;
    assert_eq!(world.text(), BEFORE);
    world.until("entry in", World::has_entry).await;
    assert_eq!(world.text(), own);
    let told = world.told(&[EventRecord::CLIENT, "started", "ended", "ready"]).await;
    let expected = ["started", "added", "ready", "ended", "removed", "started", "ready", "added"];
    // The first start and the registration go on side by side.
    assert_eq!(told[3..], expected[3..], "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn always_leaves_clients_alone_that_a_refresh_does_not_help() {
    let world = World::with_cursor().await;
    let claude = world.home().join(".claude.json");
    fs::write(&claude, "{}").unwrap();
    let ids = vec!["claude-code".to_owned()];
    world.registry.choose_clients(ids, world.around()).await.unwrap();
    let restart = RestartPolicy { max: 1, ..RestartPolicy::default() };
    world.describe(RefreshMode::Always, restart).await;
    let with_entry = fs::read_to_string(&claude).unwrap();
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    world.until("entry out", |world| !world.has_entry()).await;
    assert_eq!(fs::read_to_string(&claude).unwrap(), with_entry);
    world.until("entry in", World::has_entry).await;
    assert_eq!(fs::read_to_string(&claude).unwrap(), with_entry);
    // A server that is given up is taken out of both, and comes back to both.
    world.engine.die(&key("time", 2), Exit::UNKNOWN);
    world
        .until("both out", |world| {
            !world.has_entry() && fs::read_to_string(&claude).unwrap() != with_entry
        })
        .await;
    world.registry.restart(mainstay_api::Which::All).await.unwrap();
    world
        .until("both in", |world| {
            world.has_entry() && fs::read_to_string(&claude).unwrap() == with_entry
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_given_up_loses_its_entry_until_it_is_ready_again() {
    let world = World::with_cursor().await;
    let restart = RestartPolicy { max: 0, ..RestartPolicy::default() };
    world.describe(RefreshMode::Auto, restart).await;
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    world.until("entry out", |world| !world.has_entry()).await;
    world.registry.restart(mainstay_api::Which::All).await.unwrap();
    world.until("entry in", World::has_entry).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_out_is_tried_again() {
    let world = World::with_cursor().await;
    let restart = RestartPolicy { max: 0, ..RestartPolicy::default() };
    world.describe(RefreshMode::Auto, restart).await;
    let with_entry = world.text();
    fs::write(world.file(), "{").unwrap();
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    let told = async {
        while world.told(&[EventRecord::CLIENT]).await != ["added", "failed"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, told).await.expect("it is told");
    fs::write(world.file(), with_entry).unwrap();
    world.until("entry out", |world| world.text() == BEFORE).await;
    world.registry.restart(mainstay_api::Which::All).await.unwrap();
    world.until("entry in", World::has_entry).await;
}

#[tokio::test(start_paused = true)]
async fn never_means_never() {
    let world = World::with_cursor().await;
    let restart = RestartPolicy { max: 0, ..RestartPolicy::default() };
    world.describe(RefreshMode::Never, restart).await;
    let before = world.text();
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    let mut view = world.registry.get(&"time".parse().unwrap()).unwrap().view;
    drop(view.wait_for(|shown| shown.info().status == Status::Error).await.unwrap());
    world.registry.register_all(EntryRequest::Keep).await;
    assert_eq!(world.text(), before);
    assert_eq!(world.told(&[EventRecord::CLIENT]).await, ["added"]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_somebody_removed_takes_the_entry_along() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    world.engine.end_by(&key("time", 1), Cause::Removed);
    world.until("server gone", |world| world.registry.all().is_empty()).await;
    assert_eq!(world.text(), BEFORE);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_took_out_stays_out_until_a_person_asks() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Always, RestartPolicy::default()).await;
    // Longer than a client takes to write its own settings over ours.
    fs::write(world.file(), BEFORE).unwrap();
    let ledger = world.dir.path().join("clients/clients.json");
    let mut page: serde_json::Value = serde_json::from_slice(&fs::read(&ledger).unwrap()).unwrap();
    page["records"][0]["at"] = "2026-01-01T00:00:00Z".into();
    fs::write(&ledger, page.to_string()).unwrap();
    world.engine.die(&key("time", 1), Exit::UNKNOWN);
    world.until("another run", |world| world.engine.alive() == [key("time", 2)]).await;
    world.runs(&"time".parse().unwrap()).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.registry.register_all(EntryRequest::Keep).await;
    assert_eq!(world.text(), BEFORE);
    let reports =
        world.registry.choose_clients(vec!["cursor".to_owned()], world.around()).await.unwrap();
    assert_eq!(reports[0].done, ClientDone::Added);
    assert!(world.has_entry());
}

#[tokio::test(start_paused = true)]
async fn the_next_daemon_puts_back_what_this_one_took_out() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let own = world.make_it_ones_own();
    world.engine.go_away("it is being updated");
    world.until("entry out", |world| !world.has_entry()).await;
    let stored = world.store.load().unwrap().remove(0);
    let dir = Arc::clone(&world.dir);
    drop(world);
    let next = World::after(FakeEngine::default(), dir);
    next.registry.add(stored, &Inherited::default());
    next.registry.register_all(EntryRequest::Keep).await;
    next.until("entry in", World::has_entry).await;
    assert_eq!(next.text(), own);
}

#[tokio::test(start_paused = true)]
async fn the_next_daemon_takes_out_what_a_server_left_that_nobody_knows() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let dir = Arc::clone(&world.dir);
    drop(world);
    let next = World::after(FakeEngine::default(), dir);
    assert!(next.has_entry());
    next.registry.sweep_entries().await;
    assert_eq!(next.text(), BEFORE);
}

#[tokio::test(start_paused = true)]
async fn lost_sessions_refresh_the_entry() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    world.registry.lose_sessions().await;
    world.until("entry out", |world| !world.has_entry()).await;
    world.until("entry in", World::has_entry).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_is_dropped_for_servers_that_name_it_too() {
    let world = World::with_cursor().await;
    let only = Some(BTreeSet::from(["cursor".to_owned()]));
    let clients = ClientSettings { only, refresh: None };
    world.describe_as(ServerSpec { clients, ..container() }).await;
    assert!(world.has_entry());
    let reports = world.registry.drop_clients(vec!["cursor".to_owned()]).await.unwrap();
    assert_eq!(reports.iter().map(|report| report.done).collect::<Vec<_>>(), [ClientDone::Removed]);
    assert_eq!(world.text(), BEFORE);
    assert_eq!(world.store.load().unwrap()[0].spec.clients.only, Some(BTreeSet::new()));
    assert!(reports[0].text.ends_with("; it no longer names that client"), "{}", reports[0].text);
    // The server itself has not noticed.
    assert_eq!(world.engine.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_makes_no_sense_is_left_alone_and_tried_again() {
    let world = World::with_cursor().await;
    fs::write(world.file(), "{ \"mcpServers\": {,} }").unwrap();
    let reports = world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    assert_eq!(reports[0].done, ClientDone::Failed);
    assert!(reports[0].text.contains("line 1, column 18"), "{}", reports[0].text);
    assert_eq!(world.text(), "{ \"mcpServers\": {,} }");
    fs::write(world.file(), BEFORE).unwrap();
    world.until("entry in", World::has_entry).await;
    assert_eq!(world.told(&[EventRecord::CLIENT]).await, ["failed", "added"]);
}

#[tokio::test(start_paused = true)]
async fn clients_are_shown_with_their_entries() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    world.make_it_ones_own();
    let clients = &world.registry.shared.context.clients;
    let all = world.registry.clients(Around::default()).await;
    let cursor = all.iter().find(|client| client.id == "cursor").unwrap();
    assert!(cursor.installed && cursor.chosen && cursor.exists);
    let of = |name: &str| cursor.entries.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!(of("other").standing, EntryStanding::Foreign);
    assert!(of("other").says.is_empty());
    assert_eq!(of("time").standing, EntryStanding::Ours);
    assert_eq!(of("time").says["url"], "http://127.0.0.1:7433/time/mcp");
    assert_eq!(of("time").own_fields, ["disabled"]);
    let registrations = clients.of(&"time".parse().unwrap()).await;
    assert_eq!(registrations[0].standing, EntryStanding::Ours);
    assert_eq!(registrations[0].file, world.file());
}

#[tokio::test(start_paused = true)]
async fn only_clients_that_exist_and_are_installed_can_be_chosen() {
    let world = World::with_cursor().await;
    let choose = |id: &str| world.registry.choose_clients(vec![id.to_owned()], world.around());
    let error = choose("cursed").await.unwrap_err();
    assert_eq!(error.message, "no client is called `cursed`");
    let error = choose("zed").await.unwrap_err();
    assert!(error.message.starts_with("Zed is not installed ("), "{}", error.message);
    let homeless = world.registry.choose_clients(vec!["cursor".to_owned()], Around::default());
    let error = homeless.await.unwrap_err();
    assert!(error.message.contains("HOME is not set"), "{}", error.message);
    // Who wants none needs none.
    world.registry.shared.context.clients.need(&[], &Around::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_wanted_and_not_there_are_shown() {
    let world = World::with_cursor().await;
    let taken = BEFORE.replace("other", "time");
    fs::write(world.file(), &taken).unwrap();
    let reports = world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    assert_eq!(reports[0].done, ClientDone::Left);
    let entries = || async {
        let all = world.registry.clients(Around::default()).await;
        let cursor = all.into_iter().find(|client| client.id == "cursor").unwrap();
        cursor.entries.into_iter().map(|entry| (entry.name, entry.standing, entry.wanted)).collect()
    };
    let shown: Vec<_> = entries().await;
    assert_eq!(shown, [("time".to_owned(), EntryStanding::Foreign, true)]);
    // One that leads to our server is in nobody's way, whoever wrote it.
    let same = taken.replace("127.0.0.1:1/mcp", "127.0.0.1:7433/time/mcp");
    fs::write(world.file(), same).unwrap();
    let reports =
        world.registry.choose_clients(vec!["cursor".to_owned()], world.around()).await.unwrap();
    assert_eq!(reports[0].done, ClientDone::Nothing);
    let all = world.registry.clients(Around::default()).await;
    let cursor = all.into_iter().find(|client| client.id == "cursor").unwrap();
    assert!(cursor.entries[0].leads_to_server, "{:?}", cursor.entries);
    fs::write(world.file(), BEFORE).unwrap();
    let shown: Vec<_> = entries().await;
    let expected = [
        ("other".to_owned(), EntryStanding::Foreign, false),
        ("time".to_owned(), EntryStanding::Missing, true),
    ];
    assert_eq!(shown, expected);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_written_is_shown() {
    let world = World::with_cursor().await;
    let read_only = fs::Permissions::from_mode(0o444);
    fs::set_permissions(world.file(), read_only).unwrap();
    let reports = world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    assert_eq!(reports[0].done, ClientDone::Failed);
    let all = world.registry.clients(Around::default()).await;
    let cursor = all.into_iter().find(|client| client.id == "cursor").unwrap();
    let problem = format!("{} is read-only; it was left as it is", world.file().display());
    assert_eq!(cursor.problem, Some(problem));
    let standings = cursor.entries.iter().map(|entry| entry.standing).collect::<Vec<_>>();
    assert_eq!(standings, [EntryStanding::Foreign, EntryStanding::Missing]);
}

/// In real time: time that is paused stands still while a file is waited for.
#[tokio::test]
async fn a_client_that_holds_its_file_holds_up_nobody() {
    let world = World::with_cursor().await;
    let name = "time".parse().unwrap();
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let lock = world.home().join(".claude.json.lock");
    fs::write(world.home().join(".claude.json"), "{}").unwrap();
    fs::create_dir(&lock).unwrap();
    let (registry, around) = (world.registry.clone(), world.around());
    let choosing = tokio::spawn(async move {
        registry.choose_clients(vec!["claude-code".to_owned()], around).await
    });
    let clients = &world.registry.shared.context.clients;
    world.until("work", |_| clients.is_at_work()).await;
    world.registry.stop(mainstay_api::Which::Names(vec![name])).await.unwrap();
    assert!(!world.registry.clients(world.around()).await.is_empty());
    assert!(!choosing.is_finished());
    fs::remove_dir(&lock).unwrap();
    let reports = choosing.await.unwrap().unwrap();
    assert!(reports.iter().any(|report| report.done == ClientDone::Added), "{reports:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_failed_is_not_added() {
    let world = World::with_cursor().await;
    world.engine.refuse_starts("no such device");
    let names = world.registry.describe(vec![container()], false, &world.around()).await.unwrap();
    let mut view = world.registry.get(&names[0]).unwrap().view;
    drop(view.wait_for(|shown| shown.info().status == Status::Error).await.unwrap());
    let reports = world.registry.register(&names).await;
    assert_eq!(reports[0].done, ClientDone::Waits);
    assert_eq!(world.text(), BEFORE);
    world.engine.allow_starts();
    world.registry.restart(mainstay_api::Which::All).await.unwrap();
    world.until("entry in", World::has_entry).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_swept_is_told_once_and_swept_when_it_can_be() {
    let world = World::with_cursor().await;
    world.describe(RefreshMode::Auto, RestartPolicy::default()).await;
    let with_entry = world.text();
    // What it has told is written by now.
    assert_eq!(world.told(&[EventRecord::CLIENT]).await, ["added"]);
    let dir = Arc::clone(&world.dir);
    world.event_log.close();
    drop(world);
    let next = World::after(FakeEngine::default(), dir);
    fs::write(next.file(), "{").unwrap();
    for _ in 0..3 {
        assert_eq!(next.registry.sweep_entries().await[0].done, ClientDone::Failed);
    }
    fs::write(next.file(), with_entry).unwrap();
    next.registry.sweep_entries().await;
    assert_eq!(next.text(), BEFORE);
    assert_eq!(next.told(&[EventRecord::CLIENT]).await, ["added", "failed", "removed"]);
}
