//! Another user binds our port while no Mainstay runs. Only root can act as another user, so this needs root.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::bystander::Bystander;
use crate::clients::setup::{CURSOR, Setup};
use crate::env::{fixture, free_port, until};
use crate::proxy::raw::parts;

/// A local user who does not run Mainstay.
const STRANGER: u32 = 64_321;

/// A server of another user at an address.
fn server_of_another_user(dir: &std::path::Path, address: &str) -> Child {
    let program =
        tempfile::Builder::new().prefix("mainstay-other_program-").tempdir_in("/tmp").unwrap();
    let path = program.path().join("fixture");
    fs::copy(fixture(), &path).unwrap();
    fs::set_permissions(program.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let child = Command::new(path)
        .args(["--http", address])
        .uid(STRANGER)
        .gid(STRANGER)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(dir.join("other_program.log")).unwrap())
        .spawn()
        .unwrap();
    until("the other_program listens", || TcpStream::connect(address).ok());
    child
}

#[test]
fn no_entry_refers_to_a_process_of_another_user() {
    assert!(rustix::process::geteuid().is_root(), "acting as another user needs root");
    let setup = Setup::new(CURSOR, &[]);
    // The port of the bystander's server is not the one that is taken.
    let port = free_port();
    let own = ["--port", &port.to_string(), "--no-clients"];
    setup.env.run_server("bystander", &own, &[&fixture()]);
    let mut bystander = Bystander::at(&format!("http://127.0.0.1:{port}/mcp"));
    let url = setup.env.server("time")["url"].as_str().unwrap().to_owned();
    let (address, _) = parts(&url);
    let (mut other_program, listed) = bystander.after("another user binds the port first", || {
        setup.env.kill_mainstay();
        (server_of_another_user(setup.env.root(), &address), setup.env.run(["ls"]))
    });
    let owner = format!("{address} belongs to another user of this machine (uid {STRANGER})");
    assert!(listed.stderr.contains(&owner), "{listed}");
    bystander.during("entries are removed", || setup.file.once(&setup.before));
    assert!(setup.env.server("time")["url"].is_null());
    let added = bystander.during("`client add` while another user has the port", || {
        setup.env.run(["client", "add", "cursor"])
    });
    assert!(added.to_string().contains(&format!("belongs to uid {STRANGER}")), "{added}");
    let run = bystander.during("`run` while another user has the port", || {
        setup.env.run(["run", "again", "--", &fixture()])
    });
    assert!(run.stderr.contains(&owner), "{run}");
    let doctor =
        bystander.during("`doctor` while another user has the port", || setup.env.run(["doctor"]));
    assert!(doctor.stdout.contains(&owner), "{doctor}");
    assert_eq!(setup.file.text(), setup.before, "no entry is added meanwhile");
    setup.env.ok(["rm", "again"]);

    bystander.during("the other user leaves the port", || {
        other_program.kill().unwrap();
        other_program.wait().unwrap();
        setup.file.once(&setup.with);
    });
    assert_eq!(setup.env.server("time")["url"], url.as_str());
}
