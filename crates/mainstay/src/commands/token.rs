//! `mainstay token`: admits other callers to servers over HTTP.

use clap::Subcommand;
use mainstay_api::{NewToken, Request, TokenInfo};
use mainstay_core::ServerName;

use crate::context::Context;
use crate::error::CliError;
use crate::text::{Cell, Fit, table};
use crate::times::{Zone, ZoneArgs};
use crate::ui::paint;

/// Let others call your servers over HTTP
///
/// Your own programs need no token. Other users of this machine, programs in containers and other machines
/// do, and send it as `Authorization: Bearer TOKEN`. A token gives access only to the endpoints of servers
/// (/NAME/mcp). A token for a single server is removed with it (`mainstay rm`).
///
/// Containers and other machines also need an address that they can reach: add one to `listen` in
/// config.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token and print it once
    Create {
        /// The name of the token, such as the program it is for
        name: String,
        /// Give access to this server only, instead of all
        #[arg(long, value_name = "NAME")]
        server: Option<ServerName>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List tokens
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        zone: ZoneArgs,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a token; the next request with it is refused
    #[command(visible_alias = "remove")]
    Rm {
        /// The name of the token
        name: String,
    },
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    const ASKING: &str = "asking the daemon";
    match args.action {
        Action::Create { name, server, json } => {
            let request = Request::CreateToken { name, server };
            let created: NewToken = ctx.ask(ASKING, &request).await?;
            if !json {
                ctx.ui.message(created_text(&created.info));
            }
            ctx.ui.answer(json, &created, |created| created.token.clone())
        }
        Action::Ls { zone, json } => {
            let tokens: Vec<TokenInfo> = ctx.ask(ASKING, &Request::Tokens).await?;
            if tokens.is_empty() && !json {
                ctx.ui.message("no tokens; your own programs need none".to_owned());
            }
            let (width, zone) = (ctx.ui.width(), zone.zone());
            ctx.ui.answer(json, &tokens, |tokens| page(tokens, &zone, width))
        }
        Action::Rm { name } => {
            let () = ctx.ask(ASKING, &Request::RemoveToken { name: name.clone() }).await?;
            ctx.ui.print(format!("token {name} is removed"))
        }
    }
}

fn created_text(token: &TokenInfo) -> String {
    let what = match &token.server {
        Some(server) => format!("/{server}/mcp"),
        None => "all servers".to_owned(),
    };
    format!(
        "token {} gives access to {what}; it is not shown again. Send it as `Authorization: Bearer TOKEN` to the URL in `mainstay ls`. Containers and other machines also need an address in `listen` in config.toml",
        token.name
    )
}

fn page(tokens: &[TokenInfo], zone: &Zone, width: Option<usize>) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let row = |token: &TokenInfo| {
        vec![
            Cell::painted(&token.name, paint::strong),
            Cell::new(token.server.as_ref().map_or("all", |server| server.as_str())),
            Cell::new(zone.date_and_clock(token.created_at)),
        ]
    };
    let fit = Fit { dispensable: &[], essential: None };
    table(&["NAME", "SERVER", "CREATED"], tokens.iter().map(row).collect(), &fit, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_shown_with_their_scope() {
        let token = |name: &str, server: Option<&str>| TokenInfo {
            name: name.to_owned(),
            server: server.map(|server| server.parse().unwrap()),
            created_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        };
        let (ci, all) = (token("ci", Some("time")), token("laptop", None));
        insta::assert_snapshot!(anstream::adapter::strip_str(&page(&[ci.clone(), all.clone()], &Zone::utc(), None)), @"
        NAME    SERVER  CREATED
        ci      time    2026-01-02 03:04:05
        laptop  all     2026-01-02 03:04:05
        ");
        assert!(created_text(&ci).contains("/time/mcp"));
        assert!(created_text(&all).contains("all servers"));
        assert_eq!(page(&[], &Zone::utc(), None), "");
    }
}
