//! Where one request is handled, as far as its caller has to know.

use std::time::Duration;

use tokio::sync::watch;

/// How far the handler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Awaited,
    Running,
    /// What the request is for has happened.
    Done,
    Answered,
}

/// When a caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// Before all of the body was sent.
    InTheBody,
    /// When all was sent.
    AfterSending,
    /// Some time after that.
    Anytime,
    /// While the handler runs, before the effect.
    BeforeTheEffect,
    /// While the handler runs, after the effect.
    AfterTheEffect,
    /// When the answer has begun.
    InTheAnswer,
}

impl Moment {
    pub(super) const ALL: [Moment; 6] = [
        Moment::InTheBody,
        Moment::AfterSending,
        Moment::Anytime,
        Moment::BeforeTheEffect,
        Moment::AfterTheEffect,
        Moment::InTheAnswer,
    ];
}

/// What happens with one request, and how far it is.
pub(super) struct Desk {
    pub(super) moment: Moment,
    /// How long the handler takes before and after its effect.
    pub(super) takes: [Duration; 2],
    stage: watch::Sender<Stage>,
    left: watch::Sender<bool>,
    noticed: watch::Sender<bool>,
}

impl Desk {
    pub(super) fn new(moment: Moment, takes: [Duration; 2]) -> Self {
        let (stage, _) = watch::channel(Stage::Awaited);
        let (left, _) = watch::channel(false);
        let (noticed, _) = watch::channel(false);
        Self { moment, takes, stage, left, noticed }
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// The handler says how far it is.
    pub(super) fn reach(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// The caller waits until the handler is so far.
    pub(super) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        stages.wait_for(|now| *now >= stage).await.expect("we hold the sender");
    }

    /// The server has dropped the request: it saw that the caller left.
    pub(super) fn notice(&self) {
        self.noticed.send_replace(true);
    }

    /// The caller waits until the server has noticed.
    pub(super) async fn noticed(&self) {
        let mut noticed = self.noticed.subscribe();
        noticed.wait_for(|noticed| *noticed).await.expect("we hold the sender");
    }

    /// The caller says that it has left.
    pub(super) fn leave(&self) {
        self.left.send_replace(true);
    }

    /// Whether the handler waits for its caller to leave.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.moment, Moment::BeforeTheEffect | Moment::AfterTheEffect)
    }

    /// The handler goes on when its caller has left, if this is the moment.
    pub(super) async fn await_leaving(&self, moment: Moment) {
        if self.moment == moment {
            let mut left = self.left.subscribe();
            left.wait_for(|left| *left).await.expect("we hold the sender");
        }
    }
}
