//! Where Mainstay listens, from one daemon to the next.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use serde_json::json;

use super::setup::{Blow, Knocker, NAME, Setup, say};
use crate::env::{TestEnv, fixture, free_port, until};
use crate::proxy::raw::Raw;

#[test]
fn a_separate_port_is_kept_until_the_server_is_stopped() {
    let port = free_port().to_string();
    let setup = Setup::new(&["--port", &port], &[]);
    let address = format!("127.0.0.1:{port}");
    let session = Raw::open(&format!("http://{address}/{NAME}/mcp"));
    let knocker = Knocker::tcp(&address);
    for (round, blow) in (1..).zip(Blow::ALL) {
        blow.strike(&setup.env);
        assert_eq!(say(&session, round, "count", &json!({})), round.to_string());
    }
    knocker.was_always_welcome();
    setup.assert_server_kept();
    setup.env.ok(["stop", NAME]);
    assert_refused(&address);
    Blow::Reload.strike(&setup.env);
    assert_refused(&address);
    setup.env.ok(["start", NAME]);
    until("it listens again", || TcpStream::connect(&address).ok());
}

#[test]
fn a_changed_config_file_moves_the_listener_and_a_broken_one_changes_nothing() {
    let [old, new] = two_addresses();
    let env = TestEnv::new().with_var("MAINSTAY_LISTEN", "");
    fs::create_dir(env.mainstay_home()).unwrap();
    let file = env.mainstay_home().join("config.toml");
    let listen_at = |address: &str| fs::write(&file, format!("listen = '{address}'\n")).unwrap();
    listen_at(&old);
    let setup = Setup::in_env(env, &[], &[]);
    assert_eq!(setup.address(), old);
    listen_at(&new);
    Blow::Reload.strike(&setup.env);
    let url = format!("http://{new}/{NAME}/mcp");
    assert_eq!(setup.env.server(NAME)["url"], json!(url));
    assert_refused(&old);
    let session = Raw::open(&url);
    assert_eq!(say(&session, 1, "count", &json!({})), "1");

    let daemon = setup.env.daemon();
    let knocker = Knocker::tcp(&new);
    let taken = TcpListener::bind(&old).unwrap();
    for (address, why) in
        [("nowhere", "config.toml` cannot be used"), (&old, "address already in use")]
    {
        listen_at(address);
        let refused = setup.env.run(["daemon", "reload"]);
        assert_eq!(refused.code, 1, "{refused}");
        assert!(refused.stderr.contains(why), "{refused}");
        assert_eq!(setup.env.daemon(), daemon, "the old one continues");
    }
    drop(taken);
    assert_eq!(say(&session, 2, "count", &json!({})), "2");
    knocker.was_always_welcome();
    setup.assert_server_kept();
}

#[test]
fn a_reload_succeeds_with_an_address_in_use() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let env = TestEnv::new().with_var("MAINSTAY_LISTEN", &address);
    let server = env.run_server(NAME, &[], &[&fixture()]);
    Blow::Reload.strike(&env);
    // It went by itself.
    env.once_logged("daemon ends ending=HandOver", 1);
    env.ok(["daemon", "stop", "--keep-servers"]);
    env.ok(["daemon", "start"]);
    assert_eq!(env.server(NAME)["pid"], server["pid"]);

    drop(taken);
    until("it listens", || TcpStream::connect(&address).ok());
    assert_eq!(env.server(NAME)["url"], json!(format!("http://{address}/{NAME}/mcp")));
}

/// Two addresses that nothing listens at.
fn two_addresses() -> [String; 2] {
    let first = free_port();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
    let second = free_port();
    drop(taken);
    [first, second].map(|port| format!("127.0.0.1:{port}"))
}

#[track_caller]
fn assert_refused(address: &str) {
    let refused = TcpStream::connect(address).map(drop).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "{address}");
}
