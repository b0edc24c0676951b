//! Vectors for the signatures of webhooks (Standard Webhooks 1.0, symmetric).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use serde::Serialize;

use crate::hex;

#[derive(Serialize)]
pub(crate) struct Webhooks {
    signed: Vec<Signed>,
    refused_secrets: [&'static str; 4],
}

#[derive(Serialize)]
struct Signed {
    name: &'static str,
    secret: String,
    id: &'static str,
    timestamp: i64,
    body_hex: String,
    signature: String,
}

pub(crate) fn all() -> Webhooks {
    // The first one is the example of the specification's own libraries.
    let published = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
    let secret = |bytes: &[u8]| format!("whsec_{}", BASE64.encode(bytes));
    let (short, long) = (secret(&[7; 24]), secret(&[255; 64]));
    let message = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let event = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let signed = vec![
        sign(
            "the published example",
            published,
            message,
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        ),
        sign("an empty body", short.clone(), event, 1_700_000_000, b""),
        sign("bytes that are not text", short.clone(), event, 1_700_000_000, &[0, 255, 46]),
        sign("the longest secret", long, event, 0, "{\"sku\":\"caf\u{e9}\"}".as_bytes()),
        sign("a full stop in the body", short, event, 1_700_000_000, b"a.b"),
    ];
    // What the reference implementations publish for the first one.
    assert_eq!(signed[0].signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    Webhooks { signed, refused_secrets: ["", "whsec_", "whsec_not base64!", "whsec_AAA"] }
}

fn sign(
    name: &'static str,
    secret: String,
    id: &'static str,
    timestamp: i64,
    body: &[u8],
) -> Signed {
    let key = BASE64.decode(secret.trim_start_matches("whsec_")).expect("base64");
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed);
    let signature = format!("v1,{}", BASE64.encode(tag));
    Signed { name, secret, id, timestamp, body_hex: hex(body), signature }
}
