//! The counters of answers, one handle per result, so that a hit does not look its counter up by
//! name.

use super::resolved::ResolveReason;

pub(super) struct Counters {
    hit_l1: metrics::Counter,
    hit_l2: metrics::Counter,
    hit_db: metrics::Counter,
    hit_fallback: metrics::Counter,
    miss: metrics::Counter,
    invalid: metrics::Counter,
    disabled: metrics::Counter,
}

impl Counters {
    pub(super) fn new() -> Self {
        let of = |result: &'static str| metrics::counter!("semel_idresolve_lookups_total", "result" => result);
        Self {
            hit_l1: of("hit_l1"),
            hit_l2: of("hit_l2"),
            hit_db: of("hit_db"),
            hit_fallback: of("hit_fallback"),
            miss: of("miss"),
            invalid: of("invalid"),
            disabled: of("disabled"),
        }
    }

    pub(super) const fn of(&self, reason: ResolveReason) -> &metrics::Counter {
        match reason {
            ResolveReason::HitL1 => &self.hit_l1,
            ResolveReason::HitL2 => &self.hit_l2,
            ResolveReason::HitDb => &self.hit_db,
            ResolveReason::HitFallback => &self.hit_fallback,
            ResolveReason::NotFound => &self.miss,
            ResolveReason::InvalidFormat | ResolveReason::PrefixMismatch => &self.invalid,
            ResolveReason::Disabled => &self.disabled,
        }
    }
}
