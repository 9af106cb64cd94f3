//! The log file of a server: its output, each line after the time at which it began, between a line for the
//! start of each run and one for its end.
//!
//! A line is `2026-05-01T14:03:59.045Z TEXT`, the time in UTC. Earlier versions wrote no times, and their shims may
//! still be alive, so readers must expect both.
//!
//! The file never grows beyond its limit; lines are kept whole where they fit. What cannot be written is dropped, and
//! the next write tries again: the server never waits for the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use crate::clock;
use crate::launch::LogConfig;
use crate::record::if_exists;

const SMALLEST: u64 = 256;

/// The log file of one server.
#[derive(Debug)]
pub struct Log {
    config: LogConfig,
    open: Option<Open>,
    /// Whether the last byte was a newline, or there was none; not known before the file is opened.
    at_line_start: Option<bool>,
}

#[derive(Debug)]
struct Open {
    file: File,
    size: u64,
}

impl Log {
    /// A log that is opened when there is something to write.
    pub fn new(config: LogConfig) -> Self {
        let config = LogConfig { max_bytes: config.max_bytes.max(SMALLEST), ..config };
        Self { config, open: None, at_line_start: None }
    }

    /// Adds output of the server. All lines that begin in it get the same time.
    pub fn write(&mut self, bytes: &[u8]) {
        // The last line may be unfinished, after the death of its writer.
        let _is_told_below = self.opened();
        let stamped = self.stamped(bytes, &clock::rfc3339_ms(clock::unix_ms()));
        if self.try_write(&stamped).is_err() {
            self.open = None;
        }
    }

    /// Adds lines of our own, which never share a line with the server's output.
    pub fn write_lines(&mut self, text: &[u8]) {
        self.break_line();
        self.write(text);
        self.break_line();
    }

    fn break_line(&mut self) {
        if self.at_line_start == Some(false) {
            self.write(b"\n");
        }
    }

    fn stamped(&self, bytes: &[u8], time: &str) -> Vec<u8> {
        let mut stamped = Vec::with_capacity(2 * bytes.len() + time.len());
        let mut begins = self.at_line_start.unwrap_or(true);
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if begins {
                stamped.extend_from_slice(time.as_bytes());
                stamped.push(b' ');
            }
            stamped.extend_from_slice(line);
            begins = true;
        }
        stamped
    }

    fn try_write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let size = self.opened()?.size;
            let room = self.config.max_bytes.saturating_sub(size);
            let movable = self.at_line_start == Some(true) && size > 0;
            let (now, later) = bytes.split_at(fitting(bytes, room, movable));
            if let Some(last) = now.last() {
                let open = self.opened()?;
                open.file.write_all(now)?;
                open.size += now.len() as u64;
                self.at_line_start = Some(*last == b'\n');
            }
            if !later.is_empty() {
                self.rotate()?;
            }
            bytes = later;
        }
        Ok(())
    }

    fn opened(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).mode(0o600).open(&self.config.path)?;
            let size = file.metadata()?.len();
            if self.at_line_start.is_none() {
                let mut last = *b"\n";
                if let Some(end) = size.checked_sub(1) {
                    File::open(&self.config.path)?.read_exact_at(&mut last, end)?;
                }
                self.at_line_start = Some(last == *b"\n");
            }
            self.open = Some(Open { file, size });
        }
        Ok(self.open.as_mut().expect("it was opened above"))
    }

    /// Begins a new file. If the old one cannot be moved away, it is emptied: the limit holds.
    fn rotate(&mut self) -> io::Result<()> {
        let moved = (1..=self.config.keep).rev().try_for_each(|number| {
            if_exists(fs::rename(self.numbered(number - 1), self.numbered(number))).map(drop)
        });
        if self.config.keep == 0 || moved.is_err() {
            let open = self.opened()?;
            open.file.set_len(0)?;
            open.size = 0;
        } else {
            self.open = None;
        }
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut path = OsString::from(&self.config.path);
        if number > 0 {
            path.push(format!(".{number}"));
        }
        path.into()
    }
}

/// How many of these bytes go into a file with this much room: all, else whole lines, else none if
/// the line can be moved to the next file, else as many as fit.
fn fitting(bytes: &[u8], room: u64, movable: bool) -> usize {
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if bytes.len() <= room {
        return bytes.len();
    }
    match bytes[..room].iter().rposition(|&byte| byte == b'\n') {
        Some(newline) => newline + 1,
        None if movable => 0,
        None => room,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    fn log(dir: &TempDir, max_bytes: u64, keep: u32) -> Log {
        Log::new(LogConfig { path: dir.path().join("log"), max_bytes, keep })
    }

    /// The length of a time and the blank after it.
    const STAMP: usize = 25;

    fn text(dir: &TempDir, name: &str) -> String {
        without_times(&fs::read_to_string(dir.path().join(name)).unwrap_or_default())
    }

    fn without_times(text: &str) -> String {
        let line = |line: &str| match line.split_at_checked(STAMP) {
            Some((time, line)) if time.ends_with("Z ") => line.to_owned(),
            Some(_) | None => line.to_owned(),
        };
        text.split_inclusive('\n').map(line).collect()
    }

    #[test]
    fn a_line_has_the_time_at_which_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 1_000, 1);
        let stamped = |log: &Log, bytes| String::from_utf8(log.stamped(bytes, "T")).unwrap();
        assert_eq!(stamped(&log, b"a\n\nb"), "T a\nT \nT b");
        log.write(b"half ");
        assert_eq!(stamped(&log, b"a line\nnext"), "a line\nT next");
        let written = fs::read_to_string(dir.path().join("log")).unwrap();
        let (time, line) = written.split_at(STAMP);
        assert!(time.starts_with("20") && time.ends_with("Z "), "{written}");
        assert_eq!(line, "half ");
    }

    #[test]
    fn an_unfinished_line_is_continued_after_the_death_of_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        log(&dir, 1_000, 1).write(b"half ");
        log(&dir, 1_000, 1).write(b"a line\nnext\n");
        assert_eq!(text(&dir, "log"), "half a line\nnext\n");
    }

    #[test]
    fn lines_of_mainstay_do_not_share_a_line_with_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 1_000, 1);
        log.write_lines(b"--- start ---");
        log.write(b"half \xc3");
        log.write(b"\xa4 line");
        log.write_lines(b"--- end ---");
        log.write_lines(b"junk\n");
        assert_eq!(text(&dir, "log"), "--- start ---\nhalf ä line\n--- end ---\njunk\n");
    }

    #[test]
    fn a_later_run_appends_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        log(&dir, 1_000, 1).write_lines(b"one");
        log(&dir, 1_000, 1).write_lines(b"two");
        assert_eq!(text(&dir, "log"), "one\ntwo\n");
    }

    #[test]
    fn rotated_files_are_renumbered_and_the_oldest_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 256, 2);
        for number in 0..4 {
            log.write(format!("{number}{}\n", "x".repeat(200)).as_bytes());
        }
        let firsts = ["log", "log.1", "log.2"].map(|name| text(&dir, name).chars().next());
        assert_eq!(firsts, [Some('3'), Some('2'), Some('1')]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn without_rotated_files_the_file_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 256, 0);
        log.write(&[b'a'; 256 - STAMP]);
        log.write(b"b\n");
        assert_eq!(text(&dir, "log"), "b\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn logging_resumes_when_a_missing_directory_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/log");
        let mut log = Log::new(LogConfig { path: path.clone(), max_bytes: 256, keep: 1 });
        log.write(b"lost\n");
        fs::create_dir(dir.path().join("later")).unwrap();
        log.write(b"kept\n");
        assert_eq!(without_times(&fs::read_to_string(path).unwrap()), "kept\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn lines_stay_whole_and_files_within_their_limit(
            lines in prop::collection::vec("[a-z]{0,120}\n", 0..60), cut in 1..300usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut log, whole) = (log(&dir, 300, 100), lines.concat());
            whole.as_bytes().chunks(cut).for_each(|chunk| log.write(chunk));
            let files: Vec<String> =
                (0..=100).rev().map(|number| fs::read_to_string(log.numbered(number)).unwrap_or_default()).collect();
            prop_assert_eq!(without_times(&files.concat()), whole);
            prop_assert!(files.iter().all(|file| file.len() <= 300));
        }
    }
}
