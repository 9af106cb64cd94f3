//! `mainstay events`

use mainstay_api::{EventRecord, Request};
use mainstay_core::ServerName;

use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;
use crate::text::plain_line;
use crate::times::{Zone, ZoneArgs};
use crate::ui::paint;

/// Print events, oldest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print only events of this server
    name: Option<ServerName>,
    /// Keep printing new events
    #[arg(short, long)]
    follow: bool,
    /// Print only the last N events
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print each event as a JSON object, one per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let Args { name, follow, tail, zone, json } = args;
    let zone = zone.zone();
    let remote = Remote::of(ctx)?;
    let ui = &mut ctx.ui;
    let each = |events: Vec<EventRecord>| ui.items(json, &events, |event| line(event, &zone));
    remote.stream(&Request::Events { name, tail, follow }, each).await
}

fn line(event: &EventRecord, zone: &Zone) -> String {
    let at = zone.date_and_clock(event.at);
    let server = event.server.as_ref().map_or("-", ServerName::as_str);
    let what = event.run.map_or(event.event.clone(), |run| format!("{} #{run}", event.event));
    let line =
        format!("{}  {server:<16}  {what:<14}  {}", paint::faint(&at), plain_line(&event.detail));
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = EventRecord {
            at: Timestamp::from_second(0).unwrap(),
            server: Some("time".parse().unwrap()),
            run: Some(3),
            event: "ended".to_owned(),
            cause: Some("exited".to_owned()),
            detail: "exited 1 after 3 s".to_owned(),
        };
        assert_eq!(
            anstream::adapter::strip_str(&line(&event, &Zone::utc())).to_string(),
            "1970-01-01 00:00:00  time              ended #3        exited 1 after 3 s"
        );
    }
}
