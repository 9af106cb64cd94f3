//! The kernel's counters of a TCP connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How many bytes were written to a TCP connection that was accepted here or by another process.
#[expect(unsafe_code, reason = "rustix has no wrapper for TCP_INFO")]
pub fn bytes_written(socket: BorrowedFd<'_>) -> io::Result<u64> {
    /// Where `tcpi_bytes_acked` is in `struct tcp_info`.
    const BYTES_ACKED: usize = 120;
    let acked = || {
        let mut info = [0_u64; BYTES_ACKED / 8 + 1];
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or_default();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let start = info.as_mut_ptr().cast();
        // SAFETY: the kernel gets the length of the buffer, and any bytes are valid for it.
        match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, start, &raw mut length) } {
            0 if length as usize == size_of_val(&info) => Ok(info[BYTES_ACKED / 8]),
            0 => Err(io::ErrorKind::Unsupported.into()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut before = acked()?;
    loop {
        let mut unacked: libc::c_int = 0;
        // SAFETY: the kernel writes one integer.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unacked) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let after = acked()?;
        if after == before {
            return Ok(before + u64::from(unacked.unsigned_abs()));
        }
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn bytes_are_counted_whether_they_were_read_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        assert_eq!(bytes_written(accepted.as_fd()).unwrap(), 0);
        accepted.write_all(b"12345").unwrap();
        assert_eq!(bytes_written(accepted.as_fd()).unwrap(), 5);
        client.read_exact(&mut [0; 5]).unwrap();
        client.write_all(b"answer").unwrap();
        accepted.read_exact(&mut [0; 6]).unwrap();
        assert_eq!(bytes_written(accepted.as_fd()).unwrap(), 5);
    }
}
