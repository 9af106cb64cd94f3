//! Packets with descriptors: a unix socket pair that keeps the bounds of messages.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most bytes of one packet.
pub(super) const MAX_BYTES: usize = 32 * 1024;

/// The most descriptors of one packet. The kernel would take 253.
pub(super) const MAX_DESCRIPTORS: usize = 128;

const RIGHTS: usize = cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Where packets are received. It is never cleared: a page that nothing was received into costs no
/// memory.
pub(super) struct Buffer(Box<[u8]>);

/// A packet that was received.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Two ends that are closed on exec.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Sends one packet whole, or not at all.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    if bytes.len() > MAX_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the message is too long"));
    }
    let mut space = [MaybeUninit::uninit(); RIGHTS];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let bytes = [IoSlice::new(bytes)];
    retry_on_intr(|| rustix::net::sendmsg(socket, &bytes, &mut rights, flags))?;
    Ok(())
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self(vec![0; MAX_BYTES].into())
    }

    /// Receives one packet, or `None` if the other end is closed. What does not fit is an error of
    /// the kind [`InvalidData`](ErrorKind::InvalidData).
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: RecvFlags,
    ) -> io::Result<Option<Packet<'_>>> {
        let mut space = [MaybeUninit::uninit(); RIGHTS];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| {
            let mut into = [IoSliceMut::new(&mut self.0)];
            rustix::net::recvmsg(socket, &mut into, &mut rights, flags)
        })?;
        let descriptors = rights
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(ErrorKind::InvalidData, "the packet was cut off"));
        }
        let bytes = &self.0[..received.bytes];
        Ok((!bytes.is_empty()).then_some(Packet { bytes, descriptors }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn packets_keep_their_bounds_and_their_descriptors() {
        let (left, right) = pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        let many = vec![null.as_fd(); MAX_DESCRIPTORS];
        send(left.as_fd(), b"one", &[], SendFlags::empty()).unwrap();
        let long = vec![7; MAX_BYTES];
        send(left.as_fd(), &long, &many, SendFlags::empty()).unwrap();

        let mut buffer = Buffer::new();
        let one = buffer.receive(right.as_fd(), RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((one.bytes, one.descriptors.len()), (&b"one"[..], 0));
        let two = buffer.receive(right.as_fd(), RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((two.bytes, two.descriptors.len()), (&*long, MAX_DESCRIPTORS));
        for descriptor in &two.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }

        let none = buffer.receive(right.as_fd(), RecvFlags::DONTWAIT).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
        drop(left);
        assert!(buffer.receive(right.as_fd(), RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn what_is_too_long_is_refused_by_both_ends() {
        let (left, right) = pair().unwrap();
        let long = vec![0; MAX_BYTES + 1];
        let error = send(left.as_fd(), &long, &[], SendFlags::empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        rustix::net::send(&left, &long, SendFlags::empty()).unwrap();
        let error = Buffer::new().receive(right.as_fd(), RecvFlags::empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
