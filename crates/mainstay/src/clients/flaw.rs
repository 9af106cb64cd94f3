//! What is not as it should be with a client, and what to do about it.

use mainstay_api::{ClientEntry, ClientInfo, EntryStanding};

use crate::text::tame;

/// One thing that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    /// What was found.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) help: String,
}

/// Everything that is not as it should be with a client.
pub(crate) fn flaws(client: &ClientInfo) -> Vec<Flaw> {
    let entries = client.entries.iter().filter_map(|entry| of_entry(&client.id, entry));
    of_file(client).into_iter().chain(absence(client)).chain(entries).collect()
}

/// Whether an entry is ours, in the file or not.
pub(crate) fn is_ours(entry: &ClientEntry) -> bool {
    match entry.standing {
        EntryStanding::Ours
        | EntryStanding::Drifted
        | EntryStanding::Away
        | EntryStanding::Withdrawn
        | EntryStanding::Missing => true,
        EntryStanding::Foreign => false,
    }
}

/// Whether an entry is ours and in the file.
pub(crate) fn is_in_file(entry: &ClientEntry) -> bool {
    match entry.standing {
        EntryStanding::Ours | EntryStanding::Drifted => true,
        EntryStanding::Away
        | EntryStanding::Withdrawn
        | EntryStanding::Missing
        | EntryStanding::Foreign => false,
    }
}

fn of_file(client: &ClientInfo) -> Option<Flaw> {
    let what = tame(client.problem.as_deref()?);
    let help = if client.chosen || client.entries.iter().any(is_ours) {
        format!("correct the file, then `mainstay client add {}` sets its entries right", client.id)
    } else {
        "correct the file; until then nothing can be added to it".to_owned()
    };
    Some(Flaw { what, help })
}

fn absence(client: &ClientInfo) -> Option<Flaw> {
    (client.chosen && !client.installed).then(|| Flaw {
        what: "it is chosen, but not installed any more".to_owned(),
        help: format!("`mainstay client remove {}` forgets it", client.id),
    })
}

fn of_entry(id: &str, entry: &ClientEntry) -> Option<Flaw> {
    let name = tame(&entry.name);
    let anew = |does: &str| format!("`mainstay client add {id}` {does}");
    let (what, help) = match entry.standing {
        EntryStanding::Ours | EntryStanding::Foreign => return None,
        EntryStanding::Drifted => {
            let fields = tame(&entry.drifted.join(", "));
            (format!("{name} was changed by hand ({fields})"), anew("sets it right"))
        }
        EntryStanding::Withdrawn => {
            (format!("{name} was taken out by hand and stays out"), anew("puts it back"))
        }
        EntryStanding::Missing => {
            (format!("{name} should be there and is not"), anew("puts it back"))
        }
        EntryStanding::Away => (
            format!("{name} is taken out until its server is ready"),
            format!("`mainstay why {name}` tells more"),
        ),
    };
    Some(Flaw { what, help })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An entry that stands like that.
    pub(crate) fn entry(name: &str, standing: EntryStanding) -> ClientEntry {
        ClientEntry {
            name: name.to_owned(),
            standing,
            wanted: true,
            drifted: Vec::new(),
            says: std::collections::BTreeMap::new(),
            own_fields: Vec::new(),
        }
    }

    /// A client that is installed and has these entries.
    pub(crate) fn client(id: &str, entries: Vec<ClientEntry>) -> ClientInfo {
        let product = mainstay_clients::Client::by_id(id).unwrap().product.to_owned();
        ClientInfo {
            id: id.to_owned(),
            product,
            installed: true,
            installed_because: Some(format!("/home/me/.{id} exists")),
            chosen: false,
            file: format!("/home/me/.{id}/mcp.json").into(),
            exists: true,
            entries,
            problem: None,
        }
    }

    #[test]
    fn every_flaw_says_what_to_do() {
        use EntryStanding as S;
        let drifted = ClientEntry { drifted: vec!["url".to_owned()], ..entry("time", S::Drifted) };
        let entries = vec![
            entry("fine", S::Ours),
            entry("yours", S::Foreign),
            drifted,
            entry("web", S::Withdrawn),
            entry("fs", S::Missing),
            entry("docs", S::Away),
        ];
        let mut cursor = client("cursor", entries);
        (cursor.chosen, cursor.installed) = (true, false);
        cursor.problem = Some("line 3, column 5: expected `,`".to_owned());
        let told: Vec<String> =
            flaws(&cursor).iter().map(|flaw| format!("{}; {}", flaw.what, flaw.help)).collect();
        insta::assert_snapshot!(told.join("\n"), @"
        line 3, column 5: expected `,`; correct the file, then `mainstay client add cursor` sets its entries right
        it is chosen, but not installed any more; `mainstay client remove cursor` forgets it
        time was changed by hand (url); `mainstay client add cursor` sets it right
        web was taken out by hand and stays out; `mainstay client add cursor` puts it back
        fs should be there and is not; `mainstay client add cursor` puts it back
        docs is taken out until its server is ready; `mainstay why docs` tells more
        ");
    }

    #[test]
    fn the_file_of_a_client_that_nobody_chose_may_stay_as_it_is() {
        let mut cursor = client("cursor", vec![entry("yours", EntryStanding::Foreign)]);
        assert_eq!(flaws(&cursor), []);
        cursor.problem = Some("it is no JSON".to_owned());
        assert!(!flaws(&cursor)[0].help.contains("mainstay client add"));
    }
}
