//! Which answers are kept.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::response::Parts;

use crate::fate::Fate;

/// Which answers are kept, by their status.
#[derive(Clone)]
pub struct Preset(Kind);

#[derive(Clone)]
enum Kind {
    SuccessOnly,
    Below500,
    Terminal,
    StripeV1,
    By(Arc<dyn Fn(&Parts) -> Fate + Send + Sync>),
}

impl Preset {
    /// 2xx, and 3xx: a redirect after a POST is a success that says where. The default.
    pub fn success_only() -> Self {
        Self(Kind::SuccessOnly)
    }

    /// Everything below 500, but for what the same request may not get again a moment later: 401,
    /// 403, 408, 413, 425, 429.
    pub fn below_500() -> Self {
        Self(Kind::Below500)
    }

    /// 2xx, 3xx, and the 4xx that no repeat can change: not those of
    /// [`below_500`](Self::below_500), and not those that tell of a state somebody else may change
    /// (404, 409, 412, 421, 423, 424, 426, 428).
    pub fn terminal() -> Self {
        Self(Kind::Terminal)
    }

    /// Everything, 5xx too: a failed request stays failed, and its repeat needs a new key.
    pub fn stripe_v1() -> Self {
        Self(Kind::StripeV1)
    }

    /// Whatever `fate` says.
    pub fn by(fate: impl Fn(&Parts) -> Fate + Send + Sync + 'static) -> Self {
        Self(Kind::By(Arc::new(fate)))
    }

    pub(super) fn fate(&self, answer: &Parts) -> Fate {
        if let Some(said) = answer.extensions.get::<Fate>() {
            return *said;
        }
        let status = answer.status;
        let kept = match &self.0 {
            Kind::By(fate) => return fate(answer),
            Kind::StripeV1 => true,
            Kind::SuccessOnly => status.as_u16() < 400,
            Kind::Below500 => status.as_u16() < 500 && !passing(status),
            Kind::Terminal => status.as_u16() < 500 && !passing(status) && !changing(status),
        };
        match (kept, status.is_client_error() && !broken_off(status)) {
            (true, _) => Fate::Keep,
            (false, true) => Fate::Release,
            (false, false) => Fate::Fail,
        }
    }
}

/// Says that the work broke off, not that it was refused: a timeout's 408, a failed dependency's 424,
/// a 499. What it had done by then is done, so its operation id must survive.
fn broken_off(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 424 | 499)
}

/// Says nothing about the request itself: credentials, size and load change.
pub(super) fn passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 413 | 425 | 429)
}

/// Says something about a state that may change without the caller.
fn changing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 409 | 412 | 421 | 423 | 424 | 426 | 428)
}

impl fmt::Debug for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
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

    fn fates(preset: &Preset, statuses: &[u16]) -> Vec<Fate> {
        let answer = |status: &u16| {
            let (mut parts, ()) = http::Response::new(()).into_parts();
            parts.status = StatusCode::from_u16(*status).expect("a status");
            preset.fate(&parts)
        };
        statuses.iter().map(answer).collect()
    }

    #[test]
    fn each_preset_keeps_what_it_says() {
        use Fate::{Fail, Keep, Release};
        let statuses = [200, 201, 303, 400, 401, 404, 409, 422, 429, 500, 503];
        let expected = [
            (
                Preset::success_only(),
                [
                    Keep, Keep, Keep, Release, Release, Release, Release, Release, Release, Fail,
                    Fail,
                ],
            ),
            (
                Preset::below_500(),
                [Keep, Keep, Keep, Keep, Release, Keep, Keep, Keep, Release, Fail, Fail],
            ),
            (
                Preset::terminal(),
                [Keep, Keep, Keep, Keep, Release, Release, Release, Keep, Release, Fail, Fail],
            ),
            (Preset::stripe_v1(), [Keep; 11]),
        ];
        for (preset, fate) in expected {
            assert_eq!(fates(&preset, &statuses), fate, "{preset:?}");
        }
        let by = Preset::by(|answer| if answer.status == 409 { Keep } else { Fail });
        assert_eq!(fates(&by, &[409, 200]), [Keep, Fail]);
    }

    #[test]
    fn a_handler_may_say_it_itself() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.extensions.insert(Fate::Release);
        assert_eq!(Preset::stripe_v1().fate(&parts), Fate::Release);
    }
}
