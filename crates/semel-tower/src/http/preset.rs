//! Which responses are stored, by their status.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::response::Parts;

use crate::settle_as::SettleAs;

/// Chooses which responses are stored, by their status.
///
/// How the claim of any other response is settled does not depend on the choice:
///
/// | status | settled as |
/// |---|---|
/// | 400, 405, 406, 411, 413 to 417, 421, 422, 425, 426, 428, 431 | [`SettleAs::Release`]: about the form of the request, before it did anything |
/// | every other | [`SettleAs::Fail`]: it may have done something |
///
/// 401, 403, 404, 409, 410, 412, 423 and 429 are among the others because a handler passes on what the
/// services behind it say, and that may be after an effect: a repeat must come under the same operation
/// id. It runs at once all the same, unless the failure policy says when. A handler that refused before it
/// did anything says so with a [`SettleAs::Release`] in the extensions of its response.
///
/// ```
/// use http::StatusCode;
/// use semel_tower::http::{Preset, Rules, SettleAs};
///
/// let refusals_are_final = Rules::new().preset(Preset::terminal());
/// let by_hand = Rules::new().preset(Preset::by(|response| match response.status {
///     StatusCode::CREATED => SettleAs::Keep,
///     StatusCode::UNPROCESSABLE_ENTITY => SettleAs::Release,
///     _ => SettleAs::Fail,
/// }));
/// ```
#[derive(Clone)]
pub struct Preset {
    kind: Kind,
    doubts_5xx: bool,
}

#[derive(Clone)]
enum Kind {
    SuccessOnly,
    Below500,
    Terminal,
    StripeV1,
    By(Arc<dyn Fn(&Parts) -> SettleAs + Send + Sync>),
}

impl Preset {
    const fn of(kind: Kind) -> Self {
        Self { kind, doubts_5xx: false }
    }

    /// Stores 2xx, and 3xx: a redirect after a POST is a success that says where. The default.
    pub fn success_only() -> Self {
        Self::of(Kind::SuccessOnly)
    }

    /// Stores everything below 500 but statuses that may be gone a moment later: 401, 403, 408, 413,
    /// 425, 429.
    pub fn below_500() -> Self {
        Self::of(Kind::Below500)
    }

    /// Stores 2xx, 3xx, and the 4xx that no repeat can change: not those that
    /// [`below_500`](Self::below_500) leaves out, and not those about a state that other requests may
    /// change (404, 409, 412, 421, 423, 424, 426, 428).
    pub fn terminal() -> Self {
        Self::of(Kind::Terminal)
    }

    /// Stores everything, 5xx too: a failed request stays failed, and its repeat needs a new key.
    pub fn stripe_v1() -> Self {
        Self::of(Kind::StripeV1)
    }

    /// Decides by `settle_as`.
    pub fn by(settle_as: impl Fn(&Parts) -> SettleAs + Send + Sync + 'static) -> Self {
        Self::of(Kind::By(Arc::new(settle_as)))
    }

    /// Settles a 5xx that is not stored as [`SettleAs::Doubt`]: it says neither that the request had its effect nor
    /// that it had none. Under [`OnCrash::Hold`](semel_core::OnCrash::Hold) it is then not run again before
    /// an operator has decided. Default: it is a failure. Has no effect on [`by`](Self::by).
    #[must_use]
    pub fn doubt_5xx(mut self) -> Self {
        self.doubts_5xx = true;
        self
    }

    /// Decides how the claim is settled. `detached`: the caller was answered before.
    pub(super) fn settle(&self, response: &Parts, detached: bool) -> SettleAs {
        if detached { self.settle_detached(response) } else { self.settle_as(response) }
    }

    /// Decides how the claim of a waiting caller is settled.
    pub(super) fn settle_as(&self, answer: &Parts) -> SettleAs {
        if let Some(said) = answer.extensions.get::<SettleAs>() {
            return *said;
        }
        let status = answer.status;
        let kept = match &self.kind {
            Kind::By(settle_as) => return settle_as(answer),
            Kind::StripeV1 => true,
            Kind::SuccessOnly => status.as_u16() < 400,
            Kind::Below500 => status.as_u16() < 500 && !passing(status),
            Kind::Terminal => status.as_u16() < 500 && !passing(status) && !changing(status),
        };
        match kept {
            true => SettleAs::Keep,
            false if is_form(status) => SettleAs::Release,
            false if self.doubts_5xx && status.is_server_error() => SettleAs::Doubt,
            false => SettleAs::Fail,
        }
    }

    /// Decides how the claim of a caller is settled that was answered before. A refusal must be kept
    /// until the caller asks for it; one that the same request may not get again is a failure.
    fn settle_detached(&self, answer: &Parts) -> SettleAs {
        let status = answer.status;
        let by_status =
            answer.extensions.get::<SettleAs>().is_none() && !matches!(self.kind, Kind::By(_));
        match self.settle_as(answer) {
            SettleAs::Release if passing(status) || status.is_server_error() => SettleAs::Fail,
            SettleAs::Release => SettleAs::Keep,
            SettleAs::Fail
                if by_status
                    && status.is_client_error()
                    && !passing(status)
                    && !broken_off(status) =>
            {
                SettleAs::Keep
            }
            other @ (SettleAs::Keep | SettleAs::Fail | SettleAs::Doubt) => other,
        }
    }
}

/// Returns whether a status is about the form of the request, so that the handler or a layer around it
/// sent it before anything was done.
fn is_form(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405 | 406 | 411 | 413..=417 | 421 | 422 | 425 | 426 | 428 | 431)
}

/// Returns whether a status means that the work broke off, not that it was refused: a timeout's 408, a failed dependency's 424,
/// a 499. What it had done by then is done, so its operation id must survive.
fn broken_off(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 424 | 499)
}

/// Says nothing about the request itself: credentials, size and load change.
fn passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 413 | 425 | 429)
}

/// Says something about a state that may change without the caller.
fn changing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 409 | 412 | 421 | 423 | 424 | 426 | 428)
}

impl fmt::Debug for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::SuccessOnly => "success_only",
            Kind::Below500 => "below_500",
            Kind::Terminal => "terminal",
            Kind::StripeV1 => "stripe_v1",
            Kind::By(_) => "by",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlements(preset: &Preset, statuses: &[u16]) -> Vec<SettleAs> {
        let answer = |status: &u16| {
            let (mut parts, ()) = http::Response::new(()).into_parts();
            parts.status = StatusCode::from_u16(*status).expect("a status");
            preset.settle_as(&parts)
        };
        statuses.iter().map(answer).collect()
    }

    #[test]
    fn each_preset_keeps_what_it_says() {
        use SettleAs::{Fail, Keep, Release};
        let statuses = [200, 201, 303, 400, 401, 404, 409, 422, 429, 500, 503];
        let expected = [
            (
                Preset::success_only(),
                [Keep, Keep, Keep, Release, Fail, Fail, Fail, Release, Fail, Fail, Fail],
            ),
            (
                Preset::below_500(),
                [Keep, Keep, Keep, Keep, Fail, Keep, Keep, Keep, Fail, Fail, Fail],
            ),
            (
                Preset::terminal(),
                [Keep, Keep, Keep, Keep, Fail, Fail, Fail, Keep, Fail, Fail, Fail],
            ),
            (Preset::stripe_v1(), [Keep; 11]),
        ];
        for (preset, settled) in expected {
            assert_eq!(settlements(&preset, &statuses), settled, "{preset:?}");
        }
        let by = Preset::by(|answer| if answer.status == 409 { Keep } else { Fail });
        assert_eq!(settlements(&by, &[409, 200]), [Keep, Fail]);
    }

    #[test]
    fn only_what_cannot_follow_an_effect_is_released() {
        let released = |preset: &Preset| -> Vec<u16> {
            (400..600)
                .filter(|status| settlements(preset, &[*status]) == [SettleAs::Release])
                .collect()
        };
        let form = [400, 405, 406, 411, 413, 414, 415, 416, 417, 421, 422, 425, 426, 428, 431];
        assert_eq!(released(&Preset::success_only()), form);
        assert_eq!(released(&Preset::below_500()), [413, 425]);
        assert_eq!(released(&Preset::terminal()), [413, 421, 425, 426, 428]);
        assert_eq!(released(&Preset::stripe_v1()), [0_u16; 0]);
    }

    #[test]
    fn a_server_error_may_be_doubted() {
        use SettleAs::{Doubt, Fail, Keep, Release};
        let doubting = Preset::success_only().doubt_5xx();
        assert_eq!(
            settlements(&doubting, &[200, 500, 422, 503, 404]),
            [Keep, Doubt, Release, Doubt, Fail]
        );
        assert_eq!(settlements(&Preset::stripe_v1().doubt_5xx(), &[500]), [Keep]);
    }

    #[test]
    fn a_refusal_that_nobody_waits_for_is_kept() {
        use SettleAs::{Doubt, Fail, Keep};
        let later = |preset: &Preset, statuses: &[u16]| -> Vec<SettleAs> {
            let answer = |status: &u16| {
                let (mut parts, ()) = http::Response::new(()).into_parts();
                parts.status = StatusCode::from_u16(*status).expect("a status");
                preset.settle_detached(&parts)
            };
            statuses.iter().map(answer).collect()
        };
        let statuses = [200, 400, 401, 404, 408, 409, 422, 429, 500];
        let kept = [Keep, Keep, Fail, Keep, Fail, Keep, Keep, Fail, Fail];
        assert_eq!(later(&Preset::success_only(), &statuses), kept);
        assert_eq!(later(&Preset::by(|_| Fail), &[404]), [Fail]);
        assert_eq!(later(&Preset::success_only().doubt_5xx(), &[500]), [Doubt]);
    }

    #[test]
    fn a_handler_may_say_it_itself() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.extensions.insert(SettleAs::Release);
        assert_eq!(Preset::stripe_v1().settle_as(&parts), SettleAs::Release);
    }
}
