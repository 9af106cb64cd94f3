//! temp
/// temp
pub fn is_session_lost(status: Option<u16>, _b: &[u8]) -> bool { status == Some(404) }
