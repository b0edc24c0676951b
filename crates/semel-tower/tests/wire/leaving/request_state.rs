//! The state of one request, which its handler and its caller share.

use std::time::Duration;

use tokio::sync::watch;

/// The progress of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Awaited,
    Running,
    /// The effect of the request has happened.
    Done,
    Answered,
}

/// The moment at which a caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// The caller leaves before the whole body was sent.
    InTheBody,
    /// The caller leaves when the whole request was sent.
    AfterSending,
    /// The caller leaves some time after the whole request was sent.
    Anytime,
    /// The caller leaves while the handler runs, before the effect.
    BeforeTheEffect,
    /// The caller leaves while the handler runs, after the effect.
    AfterTheEffect,
    /// The caller leaves when the response has begun.
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

/// The plan and the progress of one request.
pub(super) struct RequestState {
    pub(super) moment: Moment,
    /// The time that the handler takes before and after its effect.
    pub(super) takes: [Duration; 2],
    stage: watch::Sender<Stage>,
    left: watch::Sender<bool>,
    noticed: watch::Sender<bool>,
}

impl RequestState {
    pub(super) fn new(moment: Moment, takes: [Duration; 2]) -> Self {
        let (stage, _) = watch::channel(Stage::Awaited);
        let (left, _) = watch::channel(false);
        let (noticed, _) = watch::channel(false);
        Self { moment, takes, stage, left, noticed }
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Records the progress of the handler.
    pub(super) fn reach(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// Waits until the handler has reached `stage`.
    pub(super) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        stages.wait_for(|now| *now >= stage).await.expect("we hold the sender");
    }

    /// Records that the server has noticed that the caller left.
    pub(super) fn notice(&self) {
        self.noticed.send_replace(true);
    }

    /// Waits until the server has noticed that the caller left.
    pub(super) async fn noticed(&self) {
        let mut noticed = self.noticed.subscribe();
        noticed.wait_for(|noticed| *noticed).await.expect("we hold the sender");
    }

    /// Records that the caller has left.
    pub(super) fn leave(&self) {
        self.left.send_replace(true);
    }

    /// Returns whether the handler waits for its caller to leave.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.moment, Moment::BeforeTheEffect | Moment::AfterTheEffect)
    }

    /// Makes the handler wait until its caller has left, if the caller leaves at `moment`.
    pub(super) async fn await_leaving(&self, moment: Moment) {
        if self.moment == moment {
            let mut left = self.left.subscribe();
            left.wait_for(|left| *left).await.expect("we hold the sender");
        }
    }
}
