//! Tokens that admit callers other than this user.

use mainstay_api::{ApiError, ErrorKind, NewToken, TokenInfo};
use mainstay_core::ServerName;
use mainstay_proxy::front::http::{digest, token_text};

use super::Service;
use crate::registry::refused;
use crate::state::store::{Added, StoredToken};
use crate::{clock, random};

/// The maximum length of a token's name.
const MAX_NAME: usize = 64;

impl Service {
    /// Creates a token. Its text is returned only this once.
    pub(super) async fn create_token(
        &self,
        name: String,
        server: Option<ServerName>,
    ) -> Result<NewToken, ApiError> {
        check(&name)?;
        if let Some(server) = &server {
            self.registry.get(server)?;
        }
        let token = token_text(random::bytes());
        let info = TokenInfo { name, server, created_at: clock::wall() };
        let stored = StoredToken { info: info.clone(), digest: digest(&token) };
        let _token_guard = self.context.access.token_lock.lock().await;
        let added = self.context.store.add_token(stored).await;
        match (added.map_err(|error| refused(&error))?, &info.server) {
            (Added::NoSuchServer, Some(server)) => {
                // It is being removed.
                let message = format!("there is no server `{server}`");
                return Err(ApiError::new(ErrorKind::NoSuchServer, message));
            }
            (Added::NameTaken, _) => {
                let message = format!("a token `{}` already exists", info.name);
                let help =
                    format!("choose another name, or run `mainstay token rm {}` first", info.name);
                return Err(ApiError::new(ErrorKind::NameTaken, message).with_help(help));
            }
            (Added::Yes | Added::NoSuchServer, _) => {}
        }
        self.admit_tokens().await?;
        Ok(NewToken { info, token })
    }

    pub(super) async fn tokens(&self) -> Result<Vec<TokenInfo>, ApiError> {
        let tokens = self.context.store.tokens().await.map_err(|error| refused(&error))?;
        Ok(tokens.into_iter().map(|token| token.info).collect())
    }

    /// Removes a token. Takes effect with the next request.
    pub(super) async fn remove_token(&self, name: String) -> Result<(), ApiError> {
        let _token_guard = self.context.access.token_lock.lock().await;
        let removed = self.context.store.remove_token(name.clone()).await;
        if !removed.map_err(|error| refused(&error))? {
            let message = format!("there is no token `{name}`");
            let help = "`mainstay token ls` shows all tokens";
            return Err(ApiError::new(ErrorKind::Invalid, message).with_help(help));
        }
        self.admit_tokens().await
    }

    async fn admit_tokens(&self) -> Result<(), ApiError> {
        let tokens = self.context.store.tokens().await.map_err(|error| refused(&error))?;
        self.context.access.admit(tokens);
        Ok(())
    }
}

/// Checks the name of a token.
fn check(name: &str) -> Result<(), ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits) {
        return Ok(());
    }
    let message = format!("`{}` is not a valid token name", name.escape_debug());
    let help = format!("use up to {MAX_NAME} letters, digits, `-`, `_` and `.`");
    Err(ApiError::new(ErrorKind::Invalid, message).with_help(help))
}
