//! The set-up of a test: a home with clients, and a server that becomes ready on request.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;
use serde_json::Value;

use crate::env::{TestEnv, fixture, free_port, kill, patiently, pid_of, until};

/// A client, and the file that its user has.
#[derive(Clone, Copy)]
pub(crate) struct Sort {
    pub(crate) id: &'static str,
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// Strict JSON with uneven indentation.
pub(crate) const CURSOR: Sort = Sort {
    id: "cursor",
    path: ".cursor/mcp.json",
    text: r#"{
   "mcpServers" : {
     "mine": { "command": "npx", "args": ["-y", "my-server"], "disabled": true },
       "other":{"url":"https://example.org/mcp","headers":{"Authorization":"Bearer s3cret"}}
   },

   "theirs": [1,2 , 3]
}"#,
};

/// With comments and trailing commas.
pub(crate) const VSCODE: Sort = Sort {
    id: "vscode",
    path: ".config/Code/User/mcp.json",
    text: r#"// The servers of the team.
{
	"inputs": [ { "id": "token", "type": "promptString", "password": true, }, ],
	"servers": {
		/* Ask before you
		   touch this one. */
		"other": { "type": "http", "url": "https://example.org/mcp", }, // theirs
	},
}
"#,
};

/// What the extension wrote, with what it keeps in entries.
pub(crate) const CLINE: Sort = Sort {
    id: "cline",
    path: ".cline/data/settings/cline_mcp_settings.json",
    text: r#"{
  "mcpServers": {
    "other": {
      "type": "streamableHttp",
      "url": "https://example.org/mcp",
      "disabled": false,
      "autoApprove": [],
      "metadata": {"source": "marketplace"}
    }
  }
}
"#,
};

/// What a user adds to Mainstay's entry, after its URL.
const OWN_FIELDS: &str =
    r#", "disabled": false,  "autoApprove": ["echo"], "headers": {"X-Team": "a"}"#;

/// A client's file in the home of a test.
pub(crate) struct ClientFile {
    pub(crate) path: PathBuf,
}

impl ClientFile {
    /// Puts the file there, which also installs the client.
    pub(crate) fn install(env: &TestEnv, sort: Sort) -> Self {
        let file = Self { path: env.root().join("home").join(sort.path) };
        fs::create_dir_all(file.path.parent().unwrap()).unwrap();
        file.write(sort.text);
        file
    }

    pub(crate) fn write(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }

    /// What a client that takes only strict JSON reads.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// What changes with every write, even with one of the same bytes.
    pub(crate) fn stamp(&self) -> (u64, i64, i64) {
        let found = fs::metadata(&self.path).unwrap();
        (found.ino(), found.ctime(), found.ctime_nsec())
    }

    /// Waits until the file has exactly this text.
    #[track_caller]
    pub(crate) fn once(&self, expected: &str) {
        let mut last = String::new();
        let seen = patiently(|| {
            last = self.text();
            (last == expected).then_some(())
        });
        assert!(seen.is_some(), "the file never was\n{expected}\n--- it is\n{last}");
    }

    /// Adds fields of the user to the entry with this URL. Returns the whole text.
    #[track_caller]
    pub(crate) fn add_own_fields(&self, url: &str) -> String {
        let text = self.text();
        let url = format!("\"{url}\"");
        assert_eq!(text.matches(&url).count(), 1, "{text}");
        let text = text.replace(&url, &format!("{url}{OWN_FIELDS}"));
        self.write(&text);
        text
    }
}

/// A client that is chosen, and a server that is registered with it and ready.
pub(crate) struct Setup {
    pub(crate) file: ClientFile,
    /// The file without Mainstay's entry.
    pub(crate) before: String,
    /// The file with Mainstay's entry and the user's additions to it.
    pub(crate) with: String,
    pub(crate) env: TestEnv,
}

impl Setup {
    pub(crate) fn new(sort: Sort, options: &[&str]) -> Self {
        Self::with_config(sort, "", options)
    }

    /// The same, with a config file of Mainstay's own.
    pub(crate) fn with_config(sort: Sort, config: &str, options: &[&str]) -> Self {
        // The next daemon listens where this one did, so that URLs stay.
        let listen = format!("127.0.0.1:{}", free_port());
        let env = TestEnv::new().with_var("MAINSTAY_LISTEN", &listen);
        fs::create_dir_all(env.mainstay_home()).unwrap();
        fs::write(env.mainstay_home().join("config.toml"), config).unwrap();
        let file = ClientFile::install(&env, sort);
        env.ok(["client", "add", sort.id]);
        open_gate(&env);
        let url = run_gated(&env, "time", options)["url"].as_str().unwrap().to_owned();
        until("it is registered", || file.text().contains(&url).then_some(()));
        let with = file.add_own_fields(&url);
        Self { file, before: sort.text.to_owned(), with, env }
    }

    /// Ends the server. While the gate is closed, its next runs do not become ready.
    pub(crate) fn kill(&self) {
        kill(pid_of(&self.env.server("time")), Signal::KILL);
    }

    /// Lets no run become ready any more.
    pub(crate) fn close_gate(&self) {
        fs::remove_file(self.env.work().join("gate")).unwrap();
    }

    pub(crate) fn open_gate(&self) {
        open_gate(&self.env);
    }

    /// What was done to clients' files about the server, oldest first.
    pub(crate) fn done(&self) -> Vec<String> {
        done(&self.env, "time")
    }

    /// Waits until this is what was done last.
    #[track_caller]
    pub(crate) fn once_done(&self, cause: &str) -> Value {
        until(&format!("clients: {cause}"), || {
            let last = self.env.events_called("time", "client").pop()?;
            (last["cause"] == cause).then_some(last)
        })
    }

    /// The entry as `client ls` shows it.
    #[track_caller]
    pub(crate) fn standing(&self, client: &str) -> String {
        let entry = listed(&self.env, client)["entries"].as_array().unwrap().clone();
        let entry = entry.into_iter().find(|entry| entry["name"] == "time");
        entry.map_or_else(String::new, |entry| entry["standing"].as_str().unwrap().to_owned())
    }
}

fn open_gate(env: &TestEnv) {
    env.write("gate", "");
}

/// Runs a server that becomes ready while the gate is open.
pub(crate) fn run_gated(env: &TestEnv, name: &str, options: &[&str]) -> Value {
    let script = format!("until test -e gate; do sleep 0.05; done; exec {}", fixture());
    env.run_server(name, options, &["sh", "-c", &script])
}

/// A client as `client ls` shows it.
#[track_caller]
pub(crate) fn listed(env: &TestEnv, client: &str) -> Value {
    let Value::Array(clients) = env.json(["client", "ls", "--json"]) else { panic!("no array") };
    clients.into_iter().find(|found| found["id"] == client).unwrap()
}

/// What was done to clients' files about a server, oldest first.
pub(crate) fn done(env: &TestEnv, name: &str) -> Vec<String> {
    let events = env.events_called(name, "client");
    events.iter().map(|event| event["cause"].as_str().unwrap().to_owned()).collect()
}

/// The time between two events.
#[track_caller]
pub(crate) fn between(earlier: &Value, later: &Value) -> SignedDuration {
    let at = |event: &Value| event["at"].as_str().unwrap().parse::<Timestamp>().unwrap();
    at(later).duration_since(at(earlier))
}

/// The last event of this kind about clients' files.
#[track_caller]
pub(crate) fn last_done(env: &TestEnv, name: &str, cause: &str) -> Value {
    let events = env.events_called(name, "client");
    events.into_iter().rfind(|event| event["cause"] == cause).unwrap()
}
