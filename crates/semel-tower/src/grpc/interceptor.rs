//! The key of an outgoing call, and the interceptor that sends it.
//!
//! An interceptor runs once for every attempt, so it cannot know which attempts belong together:
//! the code that makes the attempts must give them one key. [`Retry`](super::Retry) does so; a loop
//! of your own keeps a [`CallKey`] and adds it to each attempt with [`with_key`].

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::client::{CallKey, Dialect};
use crate::key::parse;

/// The default name of the metadata that carries the key.
const NAME: &str = "idempotency-key";

/// Adds `key` to the metadata and the extensions of `request`. Needs no interceptor.
///
/// ```
/// use semel_tower::grpc::{CallKey, with_key};
///
/// # struct Charge;
/// let key = CallKey::new("order-7/charge")?;
/// let request = with_key(tonic::Request::new(Charge), &key);
/// assert_eq!(request.metadata().get("idempotency-key").expect("sent"), "order-7/charge");
/// # Ok::<(), semel_tower::grpc::InvalidCallKey>(())
/// ```
pub fn with_key<T>(mut request: Request<T>, key: &CallKey) -> Request<T> {
    request.metadata_mut().insert(NAME, written(key));
    request.extensions_mut().insert(key.clone());
    request
}

/// Returns the metadata value for a key, as the server layers of this crate parse it: quoted if the
/// key has characters that a bare key cannot have.
fn written(key: &CallKey) -> AsciiMetadataValue {
    let text = key.as_str();
    let mut value = match Dialect::bare().check(text) {
        Ok(()) => text.parse(),
        Err(_) => format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"")).parse(),
    }
    .expect("a call's key is printable ASCII");
    // Keeps the key out of logs and of the header compression table, where it would not be used
    // again.
    AsciiMetadataValue::set_sensitive(&mut value, true);
    value
}

/// Adds a key to each call: the key that the metadata already has, else the [`CallKey`] in the
/// extensions, else a fresh one.
///
/// A fresh key covers repeats that are made *behind* the interceptor, by a proxy, a service mesh or
/// a reconnect. A caller that repeats calls itself must supply a key that it can use again; inside
/// an execution that is [`CallKey::of`].
///
/// ```
/// use semel_tower::grpc::{CallKey, KeyInterceptor};
/// use tonic::service::Interceptor;
///
/// // PaymentsClient::with_interceptor(channel, KeyInterceptor::new())
/// let mut interceptor = KeyInterceptor::new();
/// let mut request = tonic::Request::new(());
/// request.extensions_mut().insert(CallKey::new("order-7/charge")?);
/// let sent = interceptor.call(request)?;
/// assert_eq!(sent.metadata().get("idempotency-key").expect("sent"), "order-7/charge");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct KeyInterceptor {
    name: AsciiMetadataKey,
    fresh: bool,
}

impl KeyInterceptor {
    /// Creates an interceptor that sends `idempotency-key`, with a fresh key for calls without one.
    pub fn new() -> Self {
        Self { name: AsciiMetadataKey::from_static(NAME), fresh: true }
    }

    /// Sets the metadata that carries the key. Default `idempotency-key`; Genesis reads `x-idem-key`.
    pub fn metadata(mut self, name: AsciiMetadataKey) -> Self {
        self.name = name;
        self
    }

    /// Sets whether a call without a key gets a fresh one. Default yes.
    pub fn fresh_keys(mut self, fresh: bool) -> Self {
        self.fresh = fresh;
        self
    }
}

impl Default for KeyInterceptor {
    fn default() -> Self {
        Self::new()
    }
}

impl Interceptor for KeyInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let given = request.extensions().get::<CallKey>().cloned();
        if let Some(value) = request.metadata().get::<AsciiMetadataKey>(self.name.clone()) {
            let differs = given.is_some_and(|given| {
                parse(value.as_bytes()).map_or(true, |sent| sent != given.as_str())
            });
            return if differs {
                let detail = "the call has one key in its metadata and another in its extensions; \
                              give one";
                Err(Status::invalid_argument(detail))
            } else {
                Ok(request)
            };
        }
        if let Some(key) = given.or_else(|| self.fresh.then(CallKey::fresh)) {
            request.metadata_mut().insert(self.name.clone(), written(&key));
            request.extensions_mut().insert(key);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn every_key_is_read_as_it_was_written() {
        for text in ["order-7/charge", "two words", "a,b;c", r#"q"uo\te"#] {
            let key = CallKey::new(text).expect("a key");
            let request = with_key(Request::new(()), &key);
            let value = request.metadata().get(NAME).expect("sent");
            assert_eq!(parse(value.as_bytes()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn the_interceptor_keeps_an_existing_key_and_refuses_two() {
        let key = CallKey::new("mine").expect("a key");
        let mut interceptor = KeyInterceptor::new();
        let sent = interceptor.call(with_key(Request::new(()), &key)).expect("sent");
        assert_eq!(sent.metadata().get(NAME).expect("sent"), "mine");
        let mut both = with_key(Request::new(()), &key);
        both.metadata_mut().insert(NAME, AsciiMetadataValue::from_static("other"));
        assert_eq!(interceptor.call(both).expect_err("two keys").code(), Code::InvalidArgument);
    }

    #[test]
    fn the_interceptor_creates_a_key_unless_switched_off() {
        let keys: Vec<_> = (0..2)
            .map(|_| {
                let sent = KeyInterceptor::new().call(Request::new(())).expect("sent");
                sent.metadata().get(NAME).cloned().expect("a fresh key")
            })
            .collect();
        assert_ne!(keys[0], keys[1]);
        let sent = KeyInterceptor::new().fresh_keys(false).call(Request::new(())).expect("sent");
        assert!(sent.metadata().get(NAME).is_none());
    }
}
