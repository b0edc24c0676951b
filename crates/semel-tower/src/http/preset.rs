//! The choice of responses that are stored, by their status.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::response::Parts;

use crate::settle_as::SettleAs;

/// Chooses which responses are stored, by their status.
///
/// The claim of a response that is not stored is settled in the same way under every preset:
///
/// | status | settled as |
/// |---|---|
/// | 400, 405, 406, 411, 413 to 417, 421, 422, 425, 426, 428, 431 | [`SettleAs::Release`]: the form of the request was refused before it had an effect |
/// | any other | [`SettleAs::Fail`]: the request may have had an effect |
///
/// 401, 403, 404, 409, 410, 412, 423 and 429 are settled as failures because a handler may pass
/// such a status on from a service behind it, after an effect: a repeat must run under the same
/// operation id. It runs at once, unless the failure policy sets a delay. A handler that refused
/// the request before it had an effect adds [`SettleAs::Release`] to the extensions of its
/// response.
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

    /// Stores 2xx and 3xx: a redirect after a POST is a success. The default.
    pub fn success_only() -> Self {
        Self::of(Kind::SuccessOnly)
    }

    /// Stores everything below 500 except statuses that a retry may not get again: 401, 403, 408,
    /// 413, 425, 429.
    pub fn below_500() -> Self {
        Self::of(Kind::Below500)
    }

    /// Stores 2xx, 3xx, and the 4xx that no repeat can change: not the statuses that
    /// [`below_500`](Self::below_500) excludes, and not statuses about a state that other requests
    /// may change (404, 409, 412, 421, 423, 424, 426, 428).
    pub fn terminal() -> Self {
        Self::of(Kind::Terminal)
    }

    /// Stores everything, 5xx too: a failed request stays failed, and its repeat needs a new key.
    pub fn stripe_v1() -> Self {
        Self::of(Kind::StripeV1)
    }

    /// Decides for each response with the function `settle_as`.
    pub fn by(settle_as: impl Fn(&Parts) -> SettleAs + Send + Sync + 'static) -> Self {
        Self::of(Kind::By(Arc::new(settle_as)))
    }

    /// Settles a 5xx that is not stored as [`SettleAs::Doubt`]: a 5xx leaves it open whether the
    /// request had its effect. Under [`OnCrash::Hold`](semel_core::OnCrash::Hold) the operation is
    /// then not run again before an operator has decided. Default: a 5xx is a failure. Has no
    /// effect on [`by`](Self::by).
    #[must_use]
    pub fn doubt_5xx(mut self) -> Self {
        self.doubts_5xx = true;
        self
    }

    /// Decides how the claim is settled. `detached` means that the caller already got a 202.
    pub(super) fn settle(&self, response: &Parts, detached: bool) -> SettleAs {
        if detached { self.settle_detached(response) } else { self.settle_as(response) }
    }

    /// Decides how the claim is settled if the caller waits for the response.
    pub(super) fn settle_as(&self, answer: &Parts) -> SettleAs {
        if let Some(chosen) = answer.extensions.get::<SettleAs>() {
            return *chosen;
        }
        let status = answer.status;
        let kept = match &self.kind {
            Kind::By(settle_as) => return settle_as(answer),
            Kind::StripeV1 => true,
            Kind::SuccessOnly => status.as_u16() < 400,
            Kind::Below500 => status.as_u16() < 500 && !is_transient(status),
            Kind::Terminal => {
                status.as_u16() < 500 && !is_transient(status) && !depends_on_state(status)
            }
        };
        match kept {
            true => SettleAs::Keep,
            false if is_form(status) => SettleAs::Release,
            false if self.doubts_5xx && status.is_server_error() => SettleAs::Doubt,
            false => SettleAs::Fail,
        }
    }

    /// Decides how the claim is settled if the caller already got a 202. A refusal must be stored
    /// until the caller gets the outcome; a refusal that a retry may not get again is a failure.
    fn settle_detached(&self, answer: &Parts) -> SettleAs {
        let status = answer.status;
        let by_status =
            answer.extensions.get::<SettleAs>().is_none() && !matches!(self.kind, Kind::By(_));
        match self.settle_as(answer) {
            SettleAs::Release if is_transient(status) || status.is_server_error() => SettleAs::Fail,
            SettleAs::Release => SettleAs::Keep,
            SettleAs::Fail
                if by_status
                    && status.is_client_error()
                    && !is_transient(status)
                    && !is_broken_off(status) =>
            {
                SettleAs::Keep
            }
            other @ (SettleAs::Keep | SettleAs::Fail | SettleAs::Doubt) => other,
        }
    }
}

/// Returns whether a status concerns the form of the request, so that it was sent before the
/// request had an effect.
fn is_form(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405 | 406 | 411 | 413..=417 | 421 | 422 | 425 | 426 | 428 | 431)
}

/// Returns whether a status means that the work broke off rather than that it was refused: 408 for
/// a timeout, 424 for a failed dependency, 499. The work may have had effects until then, so its
/// operation id must be kept.
fn is_broken_off(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 424 | 499)
}

/// Returns whether a status may be different for a retry of the same request, because credentials,
/// limits and load change.
fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 413 | 425 | 429)
}

/// Returns whether a status depends on a state that other requests may change.
fn depends_on_state(status: StatusCode) -> bool {
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
    fn each_preset_keeps_the_documented_statuses() {
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
    fn only_statuses_that_cannot_follow_an_effect_are_released() {
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
    fn a_server_error_may_be_settled_as_doubt() {
        use SettleAs::{Doubt, Fail, Keep, Release};
        let doubting = Preset::success_only().doubt_5xx();
        assert_eq!(
            settlements(&doubting, &[200, 500, 422, 503, 404]),
            [Keep, Doubt, Release, Doubt, Fail]
        );
        assert_eq!(settlements(&Preset::stripe_v1().doubt_5xx(), &[500]), [Keep]);
    }

    #[test]
    fn a_refusal_for_a_detached_caller_is_kept() {
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
    fn a_handler_may_choose_the_settlement() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.extensions.insert(SettleAs::Release);
        assert_eq!(Preset::stripe_v1().settle_as(&parts), SettleAs::Release);
    }
}
