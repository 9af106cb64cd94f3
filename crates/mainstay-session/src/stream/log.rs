//! The messages of one stream: those still to be read, and some that were, for a reader that comes
//! back. Pure: no lock, no clock, no waking.

use std::collections::VecDeque;

use bytes::Bytes;

use mainstay_mcp::frame::{self, Frame};

/// How much one stream may hold.
#[derive(Debug)]
pub(crate) struct Limits {
    unread: Size,
    /// Messages that were read but may have been lost on the way to the client.
    kept: Size,
}

/// A number of messages and of bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    messages: usize,
    bytes: usize,
}

/// For the stream of a request.
pub(crate) const REQUEST: Limits = Limits {
    unread: Size { messages: 1024, bytes: 4 << 20 },
    kept: Size { messages: 256, bytes: 1 << 20 },
};
/// For the general stream of a session, which may go unread for a long time.
pub(crate) const GENERAL: Limits = Limits {
    unread: Size { messages: 256, bytes: 256 << 10 },
    kept: Size { messages: 64, bytes: 64 << 10 },
};
/// Below this there is room for more.
const ROOM: Size = Size { messages: 64, bytes: 1 << 20 };

/// The log of one stream.
///
/// Messages are numbered from 1 as they come in, and the answer bears the number after the last of
/// them. A number is never used twice; a message that was dropped leaves a gap.
#[derive(Debug)]
pub(crate) struct Log {
    limits: &'static Limits,
    entries: VecDeque<Entry>,
    /// The first so many entries have been read.
    kept: Size,
    unread: Size,
    last: u64,
    dropped: u64,
    end: End,
}

/// What a stream ends with.
#[derive(Debug)]
enum End {
    /// It has not ended.
    Open,
    /// The answer.
    Answer { message: Bytes, read: bool },
    /// Nothing: no answer is due.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    message: Bytes,
    /// Looked up when it is first asked for.
    is_notification: Option<bool>,
}

/// One message as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its number in the stream.
    pub number: u64,
    /// The message.
    pub message: Bytes,
    /// Whether it is the answer, after which nothing comes.
    pub is_answer: bool,
}

/// What there is to read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Item(Item),
    /// Nothing yet.
    Wait,
    /// Nothing follows.
    End,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    Added,
    /// It was added, and notifications (it may be one of them) were dropped for the first time.
    Overflowed,
    Refused,
}

impl Log {
    pub(crate) fn new(limits: &'static Limits) -> Self {
        Self {
            limits,
            entries: VecDeque::new(),
            kept: Size::default(),
            unread: Size::default(),
            last: 0,
            dropped: 0,
            end: End::Open,
        }
    }

    /// The log as an earlier daemon had it: messages with their numbers, oldest first, and the answer. All
    /// of it is unread.
    pub(crate) fn restored(
        limits: &'static Limits,
        messages: Vec<(u64, Bytes)>,
        answer: Option<(u64, Bytes)>,
    ) -> Self {
        let mut log = Self::new(limits);
        for (number, message) in messages {
            if number > log.last {
                log.last = number - 1;
                log.push(message);
            }
        }
        if let Some((number, answer)) = answer {
            log.last = log.last.max(number.saturating_sub(1));
            log.finish(Some(answer));
        }
        log
    }

    /// Takes a message, if the stream has not ended. Above the limits notifications are dropped,
    /// the oldest first; the newest message stays, unless all others are requests.
    pub(crate) fn push(&mut self, message: Bytes) -> Pushed {
        if self.has_ended() {
            return Pushed::Refused;
        }
        let dropped = self.dropped;
        self.last += 1;
        self.unread.add(&message);
        self.entries.push_back(Entry { number: self.last, message, is_notification: None });
        while self.unread.messages > 1 && self.unread.exceeds(self.limits.unread) {
            let Some(place) = self.oldest_notification() else {
                self.take_out(self.entries.len() - 1);
                return Pushed::Refused;
            };
            self.take_out(place);
            self.dropped += 1;
        }
        if dropped == 0 && self.dropped > 0 { Pushed::Overflowed } else { Pushed::Added }
    }

    /// Ends the stream; gives false if it had ended before.
    pub(crate) fn finish(&mut self, answer: Option<Bytes>) -> bool {
        if self.has_ended() {
            return false;
        }
        self.end = match answer {
            Some(message) => {
                self.last += 1;
                End::Answer { message, read: false }
            }
            None => End::Nothing,
        };
        true
    }

    /// Gives the next message to read.
    pub(crate) fn next(&mut self) -> Next {
        let Some(entry) = self.entries.get(self.kept.messages) else {
            return self.next_of_end();
        };
        let item = Item { number: entry.number, message: entry.message.clone(), is_answer: false };
        self.unread.sub(&item.message);
        self.kept.add(&item.message);
        while self.kept.exceeds(self.limits.kept) {
            let oldest = self.entries.pop_front().expect("what is kept is in the log");
            self.kept.sub(&oldest.message);
        }
        Next::Item(item)
    }

    /// Like [`Log::next`], but whatever it is stays unread.
    pub(crate) fn peek(&self) -> Next {
        if let Some(Entry { number, message, .. }) = self.entries.get(self.kept.messages) {
            return Next::Item(Item {
                number: *number,
                message: message.clone(),
                is_answer: false,
            });
        }
        match &self.end {
            End::Answer { message, read: false } => Next::Item(self.answer_item(message)),
            End::Answer { read: true, .. } | End::Nothing => Next::End,
            End::Open => Next::Wait,
        }
    }

    /// Makes all that came after this number unread, as far as it is still there.
    pub(crate) fn rewind(&mut self, after: u64) {
        (self.kept, self.unread) = (Size::default(), Size::default());
        for entry in &self.entries {
            let side = if entry.number <= after { &mut self.kept } else { &mut self.unread };
            side.add(&entry.message);
        }
        if let End::Answer { read, .. } = &mut self.end {
            *read = after >= self.last;
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unread.messages < ROOM.messages && self.unread.bytes < ROOM.bytes
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.end, End::Open)
    }

    /// Whether the stream has ended and all of it was read.
    pub(crate) fn is_read(&self) -> bool {
        self.peek() == Next::End
    }

    pub(crate) fn answer(&self) -> Option<&Bytes> {
        match &self.end {
            End::Answer { message, .. } => Some(message),
            End::Open | End::Nothing => None,
        }
    }

    /// The number after which the next message to read comes.
    pub(crate) fn position(&self) -> u64 {
        match self.peek() {
            Next::Item(item) => item.number - 1,
            Next::Wait | Next::End => self.last,
        }
    }

    /// The number of the newest message.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The messages that are there, with their numbers, oldest first.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.entries.iter().map(|entry| (entry.number, &entry.message))
    }

    /// The size of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes + self.unread.bytes + self.answer().map_or(0, Bytes::len)
    }

    fn next_of_end(&mut self) -> Next {
        let next = self.peek();
        if let End::Answer { read, .. } = &mut self.end {
            *read = true;
        }
        next
    }

    fn answer_item(&self, message: &Bytes) -> Item {
        Item { number: self.last, message: message.clone(), is_answer: true }
    }

    /// The place of the oldest unread notification, the newest message only if there is no other.
    fn oldest_notification(&mut self) -> Option<usize> {
        let unread = self.entries.iter_mut().skip(self.kept.messages);
        unread.map(Entry::is_notification).position(|is| is).map(|at| at + self.kept.messages)
    }

    fn take_out(&mut self, place: usize) {
        let entry = self.entries.remove(place).expect("the place is in the log");
        self.unread.sub(&entry.message);
    }
}

impl Entry {
    fn is_notification(&mut self) -> bool {
        *self.is_notification.get_or_insert_with(|| {
            matches!(frame::scan(&self.message), Ok(Frame::Notification { .. }))
        })
    }
}

impl Size {
    fn add(&mut self, message: &Bytes) {
        self.messages += 1;
        self.bytes += message.len();
    }

    fn sub(&mut self, message: &Bytes) {
        self.messages -= 1;
        self.bytes -= message.len();
    }

    fn exceeds(self, limit: Self) -> bool {
        self.messages > limit.messages || self.bytes > limit.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(text: &str) -> Bytes {
        format!(r#"{{"jsonrpc":"2.0","method":"{text}"}}"#).into()
    }

    fn request(id: usize) -> Bytes {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#).into()
    }

    /// The numbers of what is unread, with `!` for an answer.
    fn rest(log: &mut Log) -> String {
        let mut numbers = Vec::new();
        while let Next::Item(item) = log.next() {
            let mark = if item.is_answer { "!" } else { "" };
            numbers.push(format!("{}{mark}", item.number));
        }
        numbers.join(" ")
    }

    #[test]
    fn an_answer_comes_after_all_messages_and_ends_the_stream() {
        let mut log = Log::new(&REQUEST);
        assert_eq!(log.next(), Next::Wait);
        assert_eq!(log.push(notification("a")), Pushed::Added);
        assert!(log.finish(Some(notification("answer"))));
        assert!(!log.finish(Some(notification("another"))));
        assert_eq!(log.push(notification("late")), Pushed::Refused);
        assert_eq!(rest(&mut log), "1 2!");
        assert_eq!(log.next(), Next::End);
        assert!(log.is_read());
    }

    #[test]
    fn a_rewound_log_gives_again_what_came_after() {
        let mut log = Log::new(&REQUEST);
        for text in ["a", "b", "c"] {
            log.push(notification(text));
        }
        log.finish(Some(notification("answer")));
        for (after, expected) in
            [(0, "1 2 3 4!"), (2, "3 4!"), (3, "4!"), (4, ""), (9, ""), (1, "2 3 4!")]
        {
            log.rewind(after);
            assert_eq!(rest(&mut log), expected, "after {after}");
        }
    }

    #[test]
    fn a_restored_log_keeps_its_numbers_and_goes_on_after_them() {
        let messages =
            || vec![(3, notification("c")), (2, notification("late")), (7, notification("g"))];
        let mut log = Log::restored(&GENERAL, messages(), None);
        log.push(notification("h"));
        assert_eq!(rest(&mut log), "3 7 8");
        let mut log = Log::restored(&REQUEST, messages(), Some((9, notification("answer"))));
        assert_eq!(log.push(notification("late")), Pushed::Refused);
        assert_eq!(rest(&mut log), "3 7 9!");
        let many = (1..1000).map(|number| (number, notification("n"))).collect();
        assert_eq!(Log::restored(&GENERAL, many, None).unread.messages, 256);
    }

    #[test]
    fn a_slow_reader_loses_the_oldest_notifications_only() {
        let mut log = Log::new(&GENERAL);
        log.push(request(1));
        for number in 0..300 {
            let first_loss = number == 255;
            let expected = if first_loss { Pushed::Overflowed } else { Pushed::Added };
            assert_eq!(log.push(notification("n")), expected, "{number}");
        }
        log.finish(Some(notification("answer")));
        assert_eq!(log.dropped, 45);
        let rest = rest(&mut log);
        assert!(rest.starts_with("1 47 48 ") && rest.ends_with(" 301 302!"), "{rest}");
    }

    #[test]
    fn bytes_are_bounded_but_one_large_message_passes() {
        let mut log = Log::new(&GENERAL);
        let large = notification(&"x".repeat(300 << 10));
        assert_eq!(log.push(large.clone()), Pushed::Added);
        assert_eq!(log.push(large), Pushed::Overflowed);
        assert_eq!(rest(&mut log), "2");
        assert_eq!(log.bytes(), 0, "too large to be kept");
    }

    #[test]
    fn requests_are_refused_rather_than_dropped() {
        let mut log = Log::new(&GENERAL);
        for id in 0..256 {
            assert_eq!(log.push(request(id)), Pushed::Added);
        }
        assert_eq!(log.push(request(256)), Pushed::Refused);
        assert_eq!(log.push(notification("n")), Pushed::Overflowed);
        assert_eq!(log.unread.messages, 256);
    }

    #[test]
    fn what_was_read_is_kept_within_limits() {
        let mut log = Log::new(&GENERAL);
        for _ in 0..200 {
            log.push(notification("n"));
            rest(&mut log);
        }
        assert_eq!(log.position(), 200);
        log.rewind(0);
        assert_eq!(log.position(), 136);
        assert_eq!(log.unread.messages, GENERAL.kept.messages);
        assert!(rest(&mut log).starts_with("137 138"));
    }

    #[test]
    fn there_is_room_until_64_messages_or_a_mebibyte_are_unread() {
        let mut log = Log::new(&REQUEST);
        for _ in 0..63 {
            log.push(notification("n"));
        }
        assert!(log.has_room());
        log.push(notification("n"));
        assert!(!log.has_room());
        log.next();
        assert!(log.has_room());
        log.push(notification(&"x".repeat(1 << 20)));
        assert!(!log.has_room());
    }
}
