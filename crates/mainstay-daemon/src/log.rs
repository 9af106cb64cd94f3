//! The daemon's own log.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::Config;

/// When the log is rotated; one old one is kept.
const MAX_BYTES: u64 = 5 * 1024 * 1024;

/// Sends what is traced to standard error or to the log file.
pub(crate) fn set_up(config: &Config) -> io::Result<()> {
    let filter = config.log_filter.as_deref().unwrap_or("info");
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| io::Error::other(format!("the filter `{filter}`: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let done = if config.foreground {
        builder.with_writer(io::stderr).try_init()
    } else {
        let file = LogFile::open(config.instance.daemon_log())?;
        builder.with_ansi(false).with_writer(file).try_init()
    };
    done.map_err(io::Error::other)?;
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the daemon has a bug")));
    Ok(())
}

/// A log file that is rotated when it grows too long. A full disk costs lines, nothing else.
struct LogFile {
    path: PathBuf,
    open: Mutex<(File, u64)>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = append(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { path, open: Mutex::new((file, length)) })
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut open = self.open.lock().expect("no code panics with this lock");
        if open.1 > MAX_BYTES {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *open = (append(&self.path)?, 0);
        }
        open.0.write_all(line)?;
        open.1 += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}
