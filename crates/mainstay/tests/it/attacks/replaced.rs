//! A daemon that is not the newest one any more.

use rusqlite::Connection;

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, pid_of, until_dead};

#[test]
fn a_daemon_that_finds_a_later_one_in_the_store_ends() {
    let env = TestEnv::new();
    let server = env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    let before = env.json(["daemon", "status", "--json"]);
    let state = Connection::open(env.mainstay_home().join("state/state.db")).unwrap();
    let register = "UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'daemon'";
    let after = bystander.after("a daemon that finds a later one in the store", || {
        assert_eq!(state.execute(register, []).unwrap(), 1);
        until_dead(pid_of(&before));
        env.json(["daemon", "status", "--json"])
    });
    assert_eq!(after["holder"], before["holder"]);
    assert_eq!(env.server("fx")["pid"], server["pid"]);
}
