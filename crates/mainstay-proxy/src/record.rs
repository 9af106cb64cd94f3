//! temp
/// temp
#[derive(Debug, Clone, Default)]
pub struct SessionRecord { /// x
 pub id: String, /// x
 pub server: String, /// x
 pub params: String, /// x
 pub version: String, /// x
 pub initialized: bool, /// x
 pub level: Option<String>, /// x
 pub subscriptions: Vec<String> }
/// temp
pub trait Keeper: Send + Sync + 'static { /// x
 fn save(&self, r: SessionRecord); /// x
 fn remove(&self, id: &str); /// x
 fn save_copy(&self, server: &str, copy: Vec<u8>); }
