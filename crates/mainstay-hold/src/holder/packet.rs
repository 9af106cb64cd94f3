//! Packets with descriptors: a unix socket pair that keeps the bounds of messages.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use rustix::process::Pid;

/// The most bytes of one packet.
pub(super) const MAX_BYTES: usize = 32 * 1024;

/// The most descriptors of one packet. The kernel would take 253.
pub(super) const MAX_DESCRIPTORS: usize = 128;

const RIGHTS: usize = cmsg_space!(ScmRights(MAX_DESCRIPTORS));
const RIGHTS_AND_SENDER: usize = cmsg_space!(ScmRights(MAX_DESCRIPTORS), ScmCredentials(1));

/// Where packets are received. It is never cleared: a page that nothing was received into costs no
/// memory.
pub(super) struct Buffer(Box<[u8]>);

/// A packet that was received.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) descriptors: Vec<OwnedFd>,
    /// The process that sent it, if the socket has [sender credentials](enable_sender_credentials). For a
    /// process outside our pid namespace the kernel reports 0, which rustix reads as `None`.
    pub(super) sender: Option<Pid>,
}

/// Two ends that are closed on exec.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Has the kernel attach the sender's pid to every packet from now on, so that a leaked copy of the other
/// end cannot impersonate its owner.
pub(super) fn enable_sender_credentials(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_socket_passcred(socket, true)?)
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

    /// Receives one packet, or `None` if the other end is closed. A packet that is too long is an error of
    /// the kind [`InvalidData`](ErrorKind::InvalidData).
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: RecvFlags,
    ) -> io::Result<Option<Packet<'_>>> {
        let mut space = [MaybeUninit::uninit(); RIGHTS_AND_SENDER];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| {
            let mut into = [IoSliceMut::new(&mut self.0)];
            rustix::net::recvmsg(socket, &mut into, &mut rights, flags)
        })?;
        let (mut descriptors, mut sender, mut named) = (Vec::new(), None, false);
        for message in rights.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(received) => descriptors.extend(received),
                RecvAncillaryMessage::ScmCredentials(process) => {
                    (sender, named) = (Some(process.pid), true);
                }
                _ => {}
            }
        }
        // Descriptors that were lost because this process has too many open are noticed by the recipient.
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::new(ErrorKind::InvalidData, "the packet was cut off"));
        }
        let bytes = &self.0[..received.bytes];
        // An empty packet looks like the end, except that it has a sender.
        Ok((!bytes.is_empty() || named).then_some(Packet { bytes, descriptors, sender }))
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
    fn a_packet_has_the_pid_of_its_sender_if_credentials_are_enabled() {
        let (left, right) = pair().unwrap();
        let sender_of = |text: &[u8]| {
            send(left.as_fd(), text, &[], SendFlags::empty()).unwrap();
            let mut buffer = Buffer::new();
            let packet = buffer.receive(right.as_fd(), RecvFlags::empty()).unwrap().unwrap();
            assert_eq!(packet.bytes, text);
            packet.sender
        };
        assert_eq!(sender_of(b"one"), None);
        enable_sender_credentials(right.as_fd()).unwrap();
        assert_eq!(sender_of(b"two"), Some(rustix::process::getpid()));
        assert_eq!(sender_of(b""), Some(rustix::process::getpid()), "it is not the end");
        drop(left);
        assert!(Buffer::new().receive(right.as_fd(), RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn overlong_packets_are_rejected_by_both_ends() {
        let (left, right) = pair().unwrap();
        let long = vec![0; MAX_BYTES + 1];
        let error = send(left.as_fd(), &long, &[], SendFlags::empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        rustix::net::send(&left, &long, SendFlags::empty()).unwrap();
        let error = Buffer::new().receive(right.as_fd(), RecvFlags::empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
