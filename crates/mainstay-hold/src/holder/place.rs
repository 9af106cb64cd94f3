//! Where a listener listens.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::message::path;
use crate::codec::{DecodeError, Put, Reader};

/// The address of a listener as the daemon asked for it. It names the listener: port 0 stays the port
/// that was found the first time, for every daemon that asks again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket that only our user may connect to.
    Unix {
        /// Its directory, of any length.
        dir: PathBuf,
        /// Its name there.
        name: String,
    },
}

const TCP: u8 = 0;
const UNIX: u8 = 1;

pub(super) fn put_place(out: &mut Vec<u8>, place: &Place) {
    match place {
        Place::Tcp(address) => {
            out.put_u8(TCP);
            out.put_bytes(address.to_string().as_bytes());
        }
        Place::Unix { dir, name } => {
            out.put_u8(UNIX);
            out.put_bytes(dir.as_os_str().as_bytes());
            out.put_bytes(name.as_bytes());
        }
    }
}

pub(super) fn place(from: &mut Reader<'_>) -> Result<Place, DecodeError> {
    match from.u8()? {
        TCP => {
            let address = from.text("address")?.parse();
            Ok(Place::Tcp(address.map_err(|_| DecodeError::Invalid("address"))?))
        }
        UNIX => Ok(Place::Unix { dir: path(from.bytes()?), name: from.text("name")? }),
        _ => Err(DecodeError::Invalid("place")),
    }
}
