//! Tests with curl as the client.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::backend::run;
use crate::shop::Shop;

/// A response as curl reports it.
struct CurlAnswer {
    status: String,
    version: String,
    text: String,
}

impl CurlAnswer {
    fn replayed(&self) -> bool {
        self.text.to_ascii_lowercase().contains("\nidempotent-replayed: true\r\n")
    }
}

/// The exit code of curl after a timeout.
const TIMED_OUT: i32 = 28;

/// Runs curl as `ann` with these arguments and this body.
async fn curl(shop: &Shop, path: &str, arguments: &[&str], body: &[u8]) -> CurlAnswer {
    let ended = attempt(shop, path, arguments, body).await;
    ended.unwrap_or_else(|(code, wrong)| panic!("curl {arguments:?} {path}: {code}, {wrong}"))
}

/// Runs curl; on failure returns its exit code and its output.
async fn attempt(
    shop: &Shop,
    path: &str,
    arguments: &[&str],
    body: &[u8],
) -> Result<CurlAnswer, (i32, String)> {
    let mut child = Command::new("curl")
        .args(["--silent", "--show-error", "--include", "--noproxy", "*", "-H", "X-User: ann"])
        .args(["-H", "Content-Type: application/json", "--data-binary", "@-"])
        .args(["--write-out", "\n%{http_code} %{http_version}"])
        .args(arguments)
        .arg(format!("http://{}{path}", shop.server.address()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("install curl or run `cargo xtask test`, which installs it");
    let mut stdin = child.stdin.take().expect("piped");
    let sent = async {
        // curl may have got its response before it has sent the whole body.
        let _ = stdin.write_all(body).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), sent);
    let output = output.expect("curl ends");
    if !output.status.success() {
        let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err((output.status.code().unwrap_or_default(), wrong));
    }
    let answer = String::from_utf8(output.stdout).expect("text");
    let (text, last) = answer.rsplit_once('\n').expect("a last line");
    let (status, version) = last.split_once(' ').expect("two words");
    Ok(CurlAnswer { status: status.to_owned(), version: version.to_owned(), text: text.to_owned() })
}

#[test]
fn a_repeat_gets_the_first_answer() {
    run(async {
        // With `--http2` curl offers an upgrade, which a server may ignore.
        for (flag, version) in
            [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2"), ("--http2", "1.1")]
        {
            let shop = Shop::open().await;
            for replayed in [false, true] {
                let arguments = [flag, "-H", "Idempotency-Key: \"k-1\""];
                let answer = curl(&shop, "/orders", &arguments, b"{\"a\":1}").await;
                assert_eq!((answer.status.as_str(), answer.version.as_str()), ("200", version));
                assert_eq!(answer.replayed(), replayed, "{flag}: {}", answer.text);
                assert!(answer.text.ends_with("POST /orders {\"a\":1}"), "{flag}: {}", answer.text);
            }
            assert_eq!(shop.journal.times("k-1"), 1, "{flag}");
        }
    });
}

#[test]
fn an_empty_key_is_refused() {
    run(async {
        for flag in ["--http1.1", "--http2-prior-knowledge"] {
            let shop = Shop::open().await;
            let answer = curl(&shop, "/orders", &[flag, "-H", "Idempotency-Key;"], b"{}").await;
            assert_eq!(answer.status, "400", "{flag}");
            assert!(answer.text.contains("KEY_INVALID"), "{flag}: {}", answer.text);
            assert_eq!(shop.journal.entries(), [], "{flag}");
        }
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_with_a_problem() {
    run(async {
        let body = vec![b'x'; 3 << 20];
        // With and without `Expect: 100-continue`.
        for expect in ["Expect: 100-continue", "Expect:"] {
            let shop = Shop::open().await;
            let arguments = ["--http1.1", "-H", expect, "-H", "Idempotency-Key: k-1"];
            let answer = curl(&shop, "/orders", &arguments, &body).await;
            assert_eq!(answer.status, "413", "{expect}");
            assert!(answer.text.contains("BODY_TOO_LARGE"), "{expect}: {}", answer.text);
            assert_eq!(shop.journal.entries(), [], "{expect}");
        }
    });
}

#[test]
fn a_retry_after_a_timeout_gets_the_response_of_the_first_request() {
    run(async {
        let shop = Shop::open().await;
        let key = ["--http1.1", "-H", "Idempotency-Key: k-1"];
        let retry = ["--max-time", "2", "--retry", "20", "--retry-delay", "1"];
        let given_up = async {
            shop.left(1).await;
            shop.release();
        };
        let arguments = [&key[..], &retry].concat();
        let (answer, ()) = tokio::join!(curl(&shop, "/waiting", &arguments, b"{}"), given_up);
        assert_eq!((answer.status.as_str(), answer.replayed()), ("200", true), "{}", answer.text);
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn the_next_curl_gets_the_response_of_an_abandoned_request() {
    run(async {
        let shop = Shop::open().await;
        let arguments = ["--http2-prior-knowledge", "-H", "Idempotency-Key: k-1"];
        let impatient = [&arguments[..], &["--max-time", "3"]].concat();
        // On a busy machine the time may be over before anything was sent.
        let mut tries = 0;
        while shop.journal.times("k-1") == 0 {
            tries += 1;
            assert!(tries < 20, "nothing arrives");
            let ended = attempt(&shop, "/waiting", &impatient, b"{}").await;
            assert_eq!(ended.err().map(|(code, _)| code), Some(TIMED_OUT));
        }
        shop.left(1).await;
        shop.release();
        let answer = curl(&shop, "/waiting", &arguments, b"{}").await;
        assert_eq!((answer.status.as_str(), answer.replayed()), ("200", true), "{}", answer.text);
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}
