//! Where in a text the servers are.

use super::{Client, Keys};
use crate::edit::{EditError, Place, Reading, Value};

impl Client {
    /// Where in this text the client's servers are, or would be.
    pub fn place(&self, text: &str) -> Result<Place<'static>, EditError> {
        match self.keys {
            Keys::At(keys) => Ok(self.place_at(keys)),
            Keys::Either { .. } => self.read(text).map(|(place, _)| place),
        }
    }

    /// Reads a text, and finds out where in it the client's servers are, or would be.
    pub fn read<'t>(&self, text: &'t str) -> Result<(Place<'static>, Reading<'t>), EditError> {
        let read = |keys| {
            let place = self.place_at(keys);
            Reading::of(text, &place).map(|reading| (place, reading))
        };
        match self.keys {
            Keys::At(keys) => read(keys),
            Keys::Either { flat, nested, signs } => {
                let (place, reading) = read(flat)?;
                if is_newer(&reading, signs)? { read(nested) } else { Ok((place, reading)) }
            }
        }
    }

    fn place_at(&self, keys: &'static [&'static str]) -> Place<'static> {
        Place { format: self.format, keys }
    }
}

/// Whether a file is of the newer kind: beside servers there is a map that is no entry.
fn is_newer(flat: &Reading<'_>, signs: &[&str]) -> Result<bool, EditError> {
    for sign in signs {
        if let Some(Value::Map(fields)) = flat.find(sign)?
            && !is_entry(&fields)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether these are the fields of an entry. An entry may say no more than that it is off.
fn is_entry(fields: &[(String, Value)]) -> bool {
    fields.iter().any(|(name, value)| match value {
        Value::Text(_) => name == "type",
        Value::Flag(_) => name == "enabled",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, keys: &[&str]) {
        let place = Client::by_id("opencode").unwrap().place(text).unwrap();
        assert_eq!(place.keys, keys, "{text}");
    }

    #[test]
    fn opencodes_newer_files_are_told_from_older_ones() {
        check("", &["mcp"]);
        check(r#"{"mcp": {"time": {"type": "remote"}}}"#, &["mcp"]);
        check(r#"{"mcp": {"servers": {}}}"#, &["mcp", "servers"]);
        check(r#"{"mcp": {"servers": {"time": {"type": "remote"}}}}"#, &["mcp", "servers"]);
        check(r#"{"mcp": {"timeout": {"startup": 1}}}"#, &["mcp", "servers"]);
        // Servers that happen to be called so.
        check(r#"{"mcp": {"servers": {"type": "local", "command": ["x"]}}}"#, &["mcp"]);
        check(r#"{"mcp": {"timeout": {"enabled": false}}}"#, &["mcp"]);
    }
}
