//! What became of the calls, and what each disruption cost; pure.
//!
//! A disruption begins when the daemon is killed, or told to give way, and is over when its process
//! is gone: until then its connections may break, and later no more.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::stats::Percentiles;

/// How a client reaches its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// HTTP on a connection that is kept.
    Kept,
    /// HTTP on a new connection for every call.
    Fresh,
    /// HTTP, with calls that are answered on event streams.
    Slow,
    /// The same, of a client whose protocol version is older than 2025-11-25. It has no event id to come back with.
    Old,
    /// `mainstay connect`.
    Connect,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Answered,
    /// It was answered that nobody knows whether it had an effect.
    EffectUnknown,
    /// It was answered with an error.
    Told(String),
    /// It was answered with what belongs to no call, or to another one.
    Wrong(String),
    /// Its connection broke before the answer.
    Cut(Cut),
    /// Its session is not known any more.
    SessionLost,
    /// Nothing came in time.
    Unanswered,
}

/// A connection that broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// When it was made.
    pub(super) made: Instant,
    /// Whether an event stream had begun on it.
    pub(super) streamed: bool,
}

/// A call that is over.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) route: Route,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) ending: Ending,
}

/// How often what happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) answered: u64,
    pub(super) effect_unknown: u64,
    pub(super) told: u64,
    pub(super) wrong: u64,
    pub(super) answered_twice: u64,
    pub(super) unanswered: u64,
    /// In flight without an event stream when their daemon went, on a kept connection.
    pub(super) cut_kept: u64,
    /// The same on a connection of their own.
    pub(super) cut_fresh: u64,
    /// The same, of calls that would have got an event stream a moment later.
    pub(super) cut_slow: u64,
    /// Slow calls of clients without an event id.
    pub(super) cut_old: u64,
    pub(super) cut_otherwise: u64,
    pub(super) refused: u64,
    pub(super) sessions_lost: u64,
    /// Commands that said that they failed, although they did not.
    pub(super) misled: u64,
    /// Event streams that were taken up again.
    pub(super) resumed: u64,
    /// Notifications that came on a session's own stream.
    pub(super) updates: u64,
}

/// All that is known so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    /// The first thing that should not have happened.
    pub(super) example: Option<String>,
    disruption: Option<Disruption>,
    past: Vec<Disruption>,
}

#[derive(Debug)]
struct Disruption {
    begun: Instant,
    /// Whether somebody serves all the time.
    replaced: bool,
    over: Option<Instant>,
    fresh: Waits,
    connect: Waits,
    kept: Waits,
}

/// The answers on a route since a disruption began.
#[derive(Debug, Default)]
struct Waits {
    /// From its beginning to the first answer to a call that was begun after it.
    gap: Option<Duration>,
    /// The longest that an answered call took.
    longest: Duration,
}

/// What the disruptions cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Times {
    /// From the beginning of each to the end of the old daemon's process.
    pub(super) gone: Percentiles,
    pub(super) gap_fresh: Percentiles,
    pub(super) gap_connect: Percentiles,
    pub(super) longest_kept: Percentiles,
    pub(super) longest_fresh: Percentiles,
    pub(super) longest_connect: Percentiles,
}

impl Tally {
    /// The daemon is about to end: at once, or when it is `replaced`.
    pub(super) fn disrupted(&mut self, at: Instant, replaced: bool) {
        self.past.extend(self.disruption.take());
        let (fresh, connect, kept) = (Waits::default(), Waits::default(), Waits::default());
        self.disruption =
            Some(Disruption { begun: at, replaced, over: None, fresh, connect, kept });
    }

    /// The daemon is gone.
    pub(super) fn over(&mut self, at: Instant) {
        if let Some(disruption) = &mut self.disruption {
            disruption.over = Some(at);
        }
    }

    /// Whether clients new and old have been answered since.
    pub(super) fn recovered(&self) -> bool {
        let answered = |disruption: &Disruption| {
            let Disruption { fresh, connect, kept, .. } = disruption;
            [fresh, connect, kept].iter().all(|waits| waits.gap.is_some())
        };
        self.disruption.as_ref().is_none_or(answered)
    }

    pub(super) fn learn(&mut self, done: &Done) {
        self.counts.calls += 1;
        match &done.ending {
            Ending::Answered => {
                self.counts.answered += 1;
                if let Some(disruption) = &mut self.disruption {
                    disruption.answered(done);
                }
            }
            Ending::EffectUnknown if self.may_be_unknown(done) => self.counts.effect_unknown += 1,
            Ending::EffectUnknown => {
                self.counts.told += 1;
                self.exemplify(done, "effect unknown");
            }
            Ending::Told(what) => {
                self.counts.told += 1;
                self.exemplify(done, what);
            }
            Ending::Wrong(what) => {
                self.counts.wrong += 1;
                self.exemplify(done, what);
            }
            Ending::Cut(cut) => self.cut(done, *cut),
            Ending::SessionLost => {
                self.counts.sessions_lost += 1;
                self.exemplify(done, "the session is not known");
            }
            Ending::Unanswered => {
                self.counts.unanswered += 1;
                self.exemplify(done, "no answer");
            }
        }
    }

    /// A connection could not be made.
    pub(super) fn refused(&mut self, why: &str) {
        self.counts.refused += 1;
        self.example.get_or_insert_with(|| format!("refused: {why}"));
    }

    /// The attempt to resume a stream broke. It is made again, so a disruption excuses it.
    pub(super) fn broken(&mut self, made: Instant) {
        let cut = Cut { made, streamed: false };
        if !self.disruption.as_ref().is_some_and(|it| it.explains(cut)) {
            self.counts.cut_otherwise += 1;
            self.example.get_or_insert_with(|| "a stream could not be resumed".to_owned());
        }
    }

    /// A command failed; if it did not do what it should, the disruption does not end.
    pub(super) fn misled(&mut self, why: &str) {
        self.counts.misled += 1;
        self.example.get_or_insert_with(|| why.to_owned());
    }

    pub(super) fn times(mut self) -> Times {
        self.past.extend(self.disruption.take());
        let gap = |of: fn(&Disruption) -> &Waits| {
            Percentiles::of(self.past.iter().filter_map(|past| of(past).gap).collect())
        };
        let longest = |of: fn(&Disruption) -> &Waits| {
            Percentiles::of(self.past.iter().map(|past| of(past).longest).collect())
        };
        let gone = self.past.iter().filter_map(|past| past.over.map(|over| over - past.begun));
        Times {
            gone: Percentiles::of(gone.collect()),
            gap_fresh: gap(|past| &past.fresh),
            gap_connect: gap(|past| &past.connect),
            longest_kept: longest(|past| &past.kept),
            longest_fresh: longest(|past| &past.fresh),
            longest_connect: longest(|past| &past.connect),
        }
    }

    fn cut(&mut self, done: &Done, cut: Cut) {
        let (it, unstreamed) = (self.disruption.as_ref(), Cut { streamed: false, ..cut });
        let explained = it.is_some_and(|it| it.explains(cut));
        match done.route {
            Route::Old if it.is_some_and(|it| it.explains(unstreamed)) => self.counts.cut_old += 1,
            Route::Kept if explained => self.counts.cut_kept += 1,
            Route::Fresh if explained => self.counts.cut_fresh += 1,
            Route::Slow if explained => self.counts.cut_slow += 1,
            Route::Kept | Route::Fresh | Route::Slow | Route::Old | Route::Connect => {
                self.counts.cut_otherwise += 1;
                self.exemplify(done, if cut.streamed { "cut on its stream" } else { "cut" });
            }
        }
    }

    /// Whether a call may have been sent to a daemon that could not tell what became of it.
    fn may_be_unknown(&self, done: &Done) -> bool {
        let met = |it: &Disruption| it.over.is_none_or(|over| done.begun <= over);
        self.disruption.as_ref().is_some_and(met)
    }

    fn exemplify(&mut self, done: &Done, what: &str) {
        let after =
            self.disruption.as_ref().map(|it| done.begun.saturating_duration_since(it.begun));
        let took = done.ended - done.begun;
        self.example.get_or_insert_with(|| {
            format!(
                "{:?}, begun {after:?} after a disruption, over {took:?} later: {what}",
                done.route
            )
        });
    }
}

impl Disruption {
    fn answered(&mut self, done: &Done) {
        let waits = match done.route {
            Route::Kept => &mut self.kept,
            Route::Fresh => &mut self.fresh,
            Route::Connect => &mut self.connect,
            Route::Slow | Route::Old => return,
        };
        if done.ended >= self.begun {
            waits.longest = waits.longest.max(done.ended - done.begun);
        }
        // A daemon that is being killed may still answer; that is no recovery.
        if done.begun >= self.begun && (self.replaced || self.over.is_some()) {
            waits.gap.get_or_insert(done.ended - self.begun);
        }
    }

    /// Whether a call may be cut because of this.
    fn explains(&self, cut: Cut) -> bool {
        !cut.streamed && self.over.is_none_or(|over| cut.made <= over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        start: Instant,
        tally: Tally,
    }

    impl Story {
        fn new() -> Self {
            Self { start: Instant::now(), tally: Tally::default() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn call(&mut self, route: Route, begun: u64, ended: u64, ending: Ending) {
            let (begun, ended) = (self.at(begun), self.at(ended));
            self.tally.learn(&Done { route, begun, ended, ending });
        }

        fn cut(&mut self, made: u64, streamed: bool, begun: u64) {
            let cut = Cut { made: self.at(made), streamed };
            self.call(Route::Fresh, begun, begun + 1, Ending::Cut(cut));
        }

        fn cuts(&self) -> (u64, u64) {
            (self.tally.counts.cut_fresh, self.tally.counts.cut_otherwise)
        }
    }

    #[test]
    fn a_gap_ends_with_the_first_answer_to_a_later_call() {
        let mut story = Story::new();
        story.tally.disrupted(story.at(10), false);
        story.call(Route::Fresh, 11, 12, Ending::Answered);
        assert!(!story.tally.recovered(), "that was the old daemon");
        story.tally.over(story.at(13));
        story.call(Route::Fresh, 9, 30, Ending::Answered);
        story.call(Route::Fresh, 14, 50, Ending::Answered);
        story.call(Route::Fresh, 51, 52, Ending::Answered);
        assert!(!story.tally.recovered(), "nobody else was answered yet");
        story.call(Route::Connect, 14, 60, Ending::Answered);
        story.call(Route::Kept, 14, 61, Ending::Answered);
        assert!(story.tally.recovered());
        let times = story.tally.times();
        assert_eq!((times.gap_fresh.max_us, times.gap_connect.max_us), (40e3, 50e3));
        assert_eq!((times.longest_fresh.max_us, times.longest_kept.max_us), (36e3, 47e3));
    }

    #[test]
    fn only_connections_of_the_old_daemon_may_break() {
        let mut story = Story::new();
        story.cut(0, false, 5);
        assert_eq!(story.cuts(), (0, 1), "nothing had happened");
        story.tally.disrupted(story.at(10), false);
        story.cut(8, false, 9);
        story.tally.over(story.at(20));
        story.cut(15, false, 16);
        assert_eq!(story.cuts(), (2, 1));
        story.cut(21, false, 22);
        assert_eq!(story.cuts(), (2, 2), "the old daemon was gone by then");
        story.cut(8, true, 9);
        assert_eq!(story.cuts(), (2, 3), "streams are resumed");
        let cut = Cut { made: story.at(8), streamed: true };
        story.call(Route::Old, 9, 10, Ending::Cut(cut));
        assert_eq!(story.tally.counts.cut_old, 1, "those without an id cannot be");
        story.tally.broken(story.at(19));
        story.tally.broken(story.at(22));
        assert_eq!(story.cuts(), (2, 4), "and only the old daemon is excused");
    }

    #[test]
    fn an_effect_is_unknown_only_to_who_was_connected_to_the_old_daemon() {
        let mut story = Story::new();
        story.call(Route::Connect, 0, 1, Ending::EffectUnknown);
        story.tally.disrupted(story.at(10), false);
        story.tally.over(story.at(20));
        story.call(Route::Connect, 9, 30, Ending::EffectUnknown);
        story.call(Route::Connect, 21, 30, Ending::EffectUnknown);
        story.call(Route::Slow, 9, 30, Ending::EffectUnknown);
        let Counts { calls, answered, effect_unknown, told, .. } = story.tally.counts;
        assert_eq!((calls, answered, effect_unknown, told), (4, 0, 2, 2));
    }

    #[test]
    fn who_is_replaced_serves_meanwhile() {
        let mut story = Story::new();
        story.tally.disrupted(story.at(10), true);
        for route in [Route::Fresh, Route::Kept, Route::Connect] {
            story.call(route, 11, 13, Ending::Answered);
        }
        assert!(story.tally.recovered());
        let three = Percentiles::of(vec![Duration::from_millis(3)]);
        assert_eq!(story.tally.times().gap_fresh, three);
    }
}
