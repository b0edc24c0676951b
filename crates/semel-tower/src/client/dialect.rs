//! A provider's rules for idempotency keys: header, length, characters, methods, and how a response
//! asks for a retry.
//!
//! All limits are documented by the providers. A provider that documents none (Mollie,
//! Checkout.com, Mercado Pago, GoCardless at the time of writing) has no dialect here; use
//! [`Dialect::custom`]. Providers that take the key in the body (Square's and Plaid's
//! `idempotency_key`) have none either: the layer would have to parse and rewrite bodies.

use http::{HeaderName, HeaderValue, Method};

use super::invalid_key::InvalidCallKey;

/// How the key is written in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A structured-field String, RFC 9651: `"key"`.
    Quoted,
    /// The key without quotes.
    Bare,
}

/// The set of characters that a key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// 0x20–0x7E: the characters that a structured-field String can hold.
    Printable,
    /// 0x21–0x7E: the characters that a header value without quotes transports unchanged.
    Visible,
    /// 0x21–0x7E without `,` `;` `"`, which a server may parse as separators or quotes.
    Plain,
    /// Letters, digits and `-`.
    Dashed,
    /// Letters, digits, `-` and `_`.
    Word,
    /// Letters, digits, `-`, `_` and space.
    Spaced,
}

impl Alphabet {
    fn has(self, byte: u8) -> bool {
        match self {
            Alphabet::Printable => matches!(byte, 0x20..=0x7e),
            Alphabet::Visible => byte.is_ascii_graphic(),
            Alphabet::Plain => byte.is_ascii_graphic() && !b",;\"".contains(&byte),
            Alphabet::Dashed => byte.is_ascii_alphanumeric() || byte == b'-',
            Alphabet::Word => byte.is_ascii_alphanumeric() || b"-_".contains(&byte),
            Alphabet::Spaced => byte.is_ascii_alphanumeric() || b"-_ ".contains(&byte),
        }
    }
}

/// The part of a response that decides whether the call is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// The status and `Retry-After` decide.
    Status,
    /// As [`Advice::Status`], but a 409 always means "still running".
    Running,
    /// As [`Advice::Running`], unless this header is `true` or `false`.
    Overruled(&'static str),
    /// Only this header decides: the call is tried again if it is `true`.
    Only(&'static str),
}

/// A provider's rules for idempotency keys: header, length, characters, methods, and which responses are
/// tried again.
///
/// | dialect | header | length | characters | methods with a key |
/// |---|---|---|---|---|
/// | [`standard`](Self::standard) | `Idempotency-Key`, quoted | 1–255 | printable ASCII | POST, PATCH |
/// | [`bare`](Self::bare) | `Idempotency-Key` | 1–255 | visible ASCII but `,` `;` `"` | POST, PATCH |
/// | [`genesis`](Self::genesis) | `X-Idempotency-Key` | 1–255 | visible ASCII but `,` `;` `"` | POST, PATCH |
/// | [`stripe`](Self::stripe) | `Idempotency-Key` | 1–255 | visible ASCII | POST |
/// | [`adyen`](Self::adyen) | `Idempotency-Key` | 1–64 | visible ASCII | POST |
/// | [`paypal`](Self::paypal) | `PayPal-Request-Id` | 1–78 | visible ASCII | POST |
/// | [`amazon_pay`](Self::amazon_pay) | `x-amz-pay-idempotency-key` | 1–32 | letters, digits, `-` `_` | POST |
/// | [`worldline`](Self::worldline) | `X-GCS-Idempotence-Key` | 1–40 | visible ASCII | POST |
/// | [`razorpay`](Self::razorpay) | `X-Payout-Idempotency` | 4–36 | letters, digits, `-` `_`, space | POST |
/// | [`mangopay`](Self::mangopay) | `Idempotency-Key` | 16–36 | letters, digits, `-` | POST |
///
/// [`CallKey::fresh`](super::CallKey::fresh) and [`CallKey::of`](super::CallKey::of) create 32 hex
/// digits, which every dialect in the table accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    name: &'static str,
    header: HeaderName,
    form: Form,
    shortest: usize,
    longest: usize,
    alphabet: Alphabet,
    patch: bool,
    advice: Advice,
}

/// Creates the dialect of a provider that honours keys without quotes on POST.
const fn provider(
    name: &'static str,
    header: &'static str,
    (shortest, longest): (usize, usize),
    alphabet: Alphabet,
    advice: Advice,
) -> Dialect {
    let header = HeaderName::from_static(header);
    Dialect { name, header, form: Form::Bare, shortest, longest, alphabet, patch: false, advice }
}

impl Dialect {
    /// The constructors of all built-in dialects.
    pub const KNOWN: [fn() -> Self; 10] = [
        Self::standard,
        Self::bare,
        Self::genesis,
        Self::stripe,
        Self::adyen,
        Self::paypal,
        Self::amazon_pay,
        Self::worldline,
        Self::razorpay,
        Self::mangopay,
    ];

    /// Creates the dialect `Idempotency-Key: "key"` of
    /// draft-ietf-httpapi-idempotency-key-header-07. The draft sets no limit; 255 characters is the
    /// limit of Semel's own HTTP layer.
    pub fn standard() -> Self {
        let advice = Advice::Status;
        let known = provider("standard", "idempotency-key", (1, 255), Alphabet::Printable, advice);
        Self { form: Form::Quoted, patch: true, ..known }
    }

    /// Creates the dialect `Idempotency-Key: key`, for servers that expect the standard header
    /// without quotes.
    pub fn bare() -> Self {
        let advice = Advice::Status;
        Self {
            patch: true,
            ..provider("bare", "idempotency-key", (1, 255), Alphabet::Plain, advice)
        }
    }

    /// Creates the dialect `X-Idempotency-Key: key`, the default of Genesis and Bento.
    pub fn genesis() -> Self {
        let known =
            provider("genesis", "x-idempotency-key", (1, 255), Alphabet::Plain, Advice::Status);
        Self { patch: true, ..known }
    }

    /// Creates Stripe's dialect: up to 255 characters (docs.stripe.com/api/idempotent_requests). A
    /// 409 means that the key is in use, and `Stripe-Should-Retry` overrides the status of an
    /// error, as in Stripe's own clients.
    pub fn stripe() -> Self {
        let advice = Advice::Overruled("stripe-should-retry");
        provider("stripe", "idempotency-key", (1, 255), Alphabet::Visible, advice)
    }

    /// Creates Adyen's dialect: up to 64 characters
    /// (docs.adyen.com/development-resources/api-idempotency). An error response is tried again
    /// only with `transient-error: true`; any other is final for the key.
    pub fn adyen() -> Self {
        let advice = Advice::Only("transient-error");
        provider("adyen", "idempotency-key", (1, 64), Alphabet::Visible, advice)
    }

    /// Creates PayPal's dialect: up to 78 characters, the lowest limit in PayPal's published
    /// OpenAPI documents (Payments v1: 78, Orders v2: 108, Payouts v1: 1,000, the others none).
    pub fn paypal() -> Self {
        provider("paypal", "paypal-request-id", (1, 78), Alphabet::Visible, Advice::Status)
    }

    /// Creates Amazon Pay's dialect: up to 32 letters, digits, `-` and `_`. A key has no effect on
    /// methods other than POST (developer.amazon.com/docs/amazon-pay-api-v2/idempotency.html).
    pub fn amazon_pay() -> Self {
        let header = "x-amz-pay-idempotency-key";
        provider("amazon pay", header, (1, 32), Alphabet::Word, Advice::Status)
    }

    /// Creates the dialect of Worldline Direct: up to 40 ASCII characters. A 409 means that the
    /// first request is still running (docs.direct.worldline-solutions.com, "Idempotent requests").
    pub fn worldline() -> Self {
        provider("worldline", "x-gcs-idempotence-key", (1, 40), Alphabet::Visible, Advice::Running)
    }

    /// Creates the dialect of RazorpayX payouts: 4 to 36 letters, digits, `-`, `_` and spaces
    /// (razorpay.com/docs/api/x/payout-idempotency).
    pub fn razorpay() -> Self {
        provider("razorpay", "x-payout-idempotency", (4, 36), Alphabet::Spaced, Advice::Status)
    }

    /// Creates Mangopay's dialect: 16 to 36 letters, digits and `-` (docs.mangopay.com,
    /// "Idempotency"). Mangopay does not replay responses: a repeat of a call that arrived is
    /// answered 409, and `GET /responses/{key}` returns the first response. The key is in the
    /// extensions of the 409.
    pub fn mangopay() -> Self {
        provider("mangopay", "idempotency-key", (16, 36), Alphabet::Dashed, Advice::Status)
    }

    /// Creates a dialect with keys of up to `longest` visible ASCII characters, without quotes, in
    /// `header` on POST.
    ///
    /// ```
    /// use http::HeaderName;
    /// use semel_tower::client::Dialect;
    ///
    /// let ours = Dialect::custom(HeaderName::from_static("x-request-token"), 64).on_patch();
    /// assert!(ours.check("3f9a").is_ok());
    /// ```
    pub fn custom(header: HeaderName, longest: usize) -> Self {
        Self { header, ..provider("custom", "x", (1, longest), Alphabet::Visible, Advice::Status) }
    }

    /// Returns the same dialect for a provider that honours the key of a PATCH too.
    #[must_use]
    pub fn on_patch(self) -> Self {
        Self { patch: true, ..self }
    }

    /// Returns the same dialect for a provider whose 409 always means "the first request is still
    /// running". Otherwise a 409 is tried again only if it has `Retry-After`: with other providers
    /// it may also mean "already done" or "given up".
    #[must_use]
    pub fn conflict_means_running(self) -> Self {
        Self { advice: Advice::Running, ..self }
    }

    /// Returns the name of the dialect.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the header that carries the key.
    pub fn header(&self) -> &HeaderName {
        &self.header
    }

    /// Returns the smallest and the greatest length of a key, in characters.
    pub fn lengths(&self) -> (usize, usize) {
        (self.shortest, self.longest)
    }

    pub(super) fn advice(&self) -> Advice {
        self.advice
    }

    /// Checks whether `text` can be a key of this dialect.
    ///
    /// # Errors
    /// [`InvalidCallKey`] if the length or a character of `text` is not allowed.
    pub fn check(&self, text: &str) -> Result<(), InvalidCallKey> {
        let (dialect, len) = (self.name, text.len());
        if text.trim().is_empty() {
            return Err(InvalidCallKey::Blank);
        }
        if let Some(at) = text.bytes().position(|byte| !self.alphabet.has(byte)) {
            return Err(InvalidCallKey::Character { dialect, at });
        }
        // Proxies may strip white space at the ends of a header value: two keys would become one.
        if text.starts_with(' ') || text.ends_with(' ') {
            let at = if text.starts_with(' ') { 0 } else { len - 1 };
            return Err(InvalidCallKey::Character { dialect, at });
        }
        match len {
            _ if len < self.shortest => {
                Err(InvalidCallKey::TooShort { dialect, len, min: self.shortest })
            }
            _ if len > self.longest => {
                Err(InvalidCallKey::TooLong { dialect, len, max: self.longest })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the provider treats two requests of this method with the same key as one.
    pub fn covers(&self, method: &Method) -> bool {
        method == Method::POST || (self.patch && method == Method::PATCH)
    }

    /// Parses the key in a header value.
    pub(super) fn read(&self, value: &HeaderValue) -> Result<String, InvalidCallKey> {
        let malformed = || InvalidCallKey::Malformed { dialect: self.name };
        let text = value.to_str().map_err(|_| malformed())?;
        let text = if self.form == Form::Quoted && text.starts_with('"') {
            unquote(text).ok_or_else(malformed)?
        } else {
            text.to_owned()
        };
        self.check(&text)?;
        Ok(text)
    }

    /// Returns the header value for `key`, which has been checked.
    pub(super) fn write(&self, key: &str) -> HeaderValue {
        let text = match self.form {
            Form::Quoted => format!("\"{}\"", key.replace('\\', r"\\").replace('"', "\\\"")),
            Form::Bare => key.to_owned(),
        };
        let mut value = HeaderValue::try_from(text).expect("a checked key is printable ASCII");
        // Keeps the key out of logs and of the header compression table, where it would not be used
        // again.
        value.set_sensitive(true);
        value
    }
}

fn unquote(text: &str) -> Option<String> {
    let item: sfv::Item = sfv::Parser::new(text).parse().ok()?;
    item.bare_item.as_string().map(|string| string.as_str().to_owned())
}
