//! The programs that speak with the service manager.

use std::io;
use std::process::{Command, Stdio};

/// What a program said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// Why it failed, in one line.
    pub(crate) fn complaint(&self) -> String {
        let said =
            [self.stderr.trim(), self.stdout.trim()].into_iter().find(|said| !said.is_empty());
        said.unwrap_or("it said nothing").lines().collect::<Vec<_>>().join("; ")
    }
}

/// Whoever runs programs: this system, or a test that has the answers ready.
pub(crate) trait Tools: std::fmt::Debug {
    /// Runs a program to its end. `words` begins with its name.
    fn run(&self, words: &[&str]) -> io::Result<Answer>;
}

/// The programs of this system.
#[derive(Debug)]
pub(crate) struct Programs;

impl Tools for Programs {
    fn run(&self, words: &[&str]) -> io::Result<Answer> {
        let [program, args @ ..] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
        let output = Command::new(program)
            .args(args)
            // What they say is read by us, in one language and one time zone.
            .envs([("LC_ALL", "C"), ("TZ", "UTC"), ("SYSTEMD_COLORS", "0"), ("SYSTEMD_PAGER", "")])
            .stdin(Stdio::null())
            .output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer {
            ok: output.status.success(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        })
    }
}

#[cfg(test)]
pub(super) mod recorded {
    use std::cell::RefCell;

    use super::*;

    /// Answers that are ready, by the beginning of the command; everything else succeeds silently.
    #[derive(Debug, Default)]
    pub(crate) struct Recorded {
        pub(crate) answers: Vec<(&'static str, Answer)>,
        pub(crate) asked: RefCell<Vec<String>>,
    }

    impl Recorded {
        pub(crate) fn new(answers: &[(&'static str, bool, &str)]) -> Self {
            let answer = |&(command, ok, said): &(&'static str, bool, &str)| {
                let (stdout, stderr) = if ok { (said, "") } else { ("", said) };
                (command, Answer { ok, stdout: stdout.to_owned(), stderr: stderr.to_owned() })
            };
            Self { answers: answers.iter().map(answer).collect(), asked: RefCell::default() }
        }
    }

    impl Tools for &Recorded {
        fn run(&self, words: &[&str]) -> io::Result<Answer> {
            (**self).run(words)
        }
    }

    impl Tools for Recorded {
        fn run(&self, words: &[&str]) -> io::Result<Answer> {
            let command = words.join(" ");
            let found = self.answers.iter().find(|(begin, _)| command.starts_with(begin));
            self.asked.borrow_mut().push(command.clone());
            Ok(found.map_or(Answer { ok: true, ..Answer::default() }, |(_, answer)| answer.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_run_in_one_language() {
        let answer = Programs.run(&["sh", "-c", "echo $LC_ALL $TZ; echo no >&2; exit 3"]).unwrap();
        let expected = Answer { ok: false, stdout: "C UTC\n".into(), stderr: "no\n".into() };
        assert_eq!(answer, expected);
        assert_eq!(answer.complaint(), "no");
        assert_eq!(Programs.run(&["no-such-program"]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
