//! The measures of the proxy, as far as they need no Mainstay.

use std::fs;
use std::process::Command;

use serde_json::Value;

#[test]
fn contestants_take_turns_and_all_answers_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("proxy.json");
    let output = Command::new(env!("CARGO_BIN_EXE_proxy-bench"))
        .args(["proxy", "--without-mainstay", "--cycles", "2", "--slice", "300", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tables = String::from_utf8(output.stdout).unwrap();
    assert!(tables.starts_with("HTTP upstream, 32 sessions, 2 cycles"), "{tables}");
    let figures: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    for contest in figures["http"].as_array().unwrap() {
        let direct = &contest["contestants"][0];
        assert_eq!((&direct["name"], &direct["errors"]), (&"direct".into(), &0.into()));
        assert_eq!(direct["wrong"], 0);
        assert!(direct["calls_per_s"]["median"].as_f64().unwrap() > 0.0, "{direct}");
    }
}
