//! A client that everybody has.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::backend::run;
use crate::shop::Shop;

/// What curl says of an answer.
struct Said {
    status: String,
    version: String,
    text: String,
}

impl Said {
    fn replayed(&self) -> bool {
        self.text.to_ascii_lowercase().contains("\nidempotent-replayed: true\r\n")
    }
}

/// What curl ends with when it has waited long enough.
const TIMED_OUT: i32 = 28;

/// Runs curl as `ann` with these arguments and this body.
async fn curl(shop: &Shop, path: &str, arguments: &[&str], body: &[u8]) -> Said {
    let ended = attempt(shop, path, arguments, body).await;
    ended.unwrap_or_else(|(code, wrong)| panic!("curl {arguments:?} {path}: {code}, {wrong}"))
}

/// The same, or what it ended with and what it said.
async fn attempt(
    shop: &Shop,
    path: &str,
    arguments: &[&str],
    body: &[u8],
) -> Result<Said, (i32, String)> {
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
        // It may have heard enough before it has sent all.
        let _ = stdin.write_all(body).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), sent);
    let output = output.expect("curl ends");
    if !output.status.success() {
        let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err((output.status.code().unwrap_or_default(), wrong));
    }
    let said = String::from_utf8(output.stdout).expect("text");
    let (text, last) = said.rsplit_once('\n').expect("a last line");
    let (status, version) = last.split_once(' ').expect("two words");
    Ok(Said { status: status.to_owned(), version: version.to_owned(), text: text.to_owned() })
}

#[test]
fn a_repeat_gets_the_first_answer() {
    run(async {
        // What it offers with `--http2` is an upgrade, which no server has to take.
        for (flag, version) in
            [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2"), ("--http2", "1.1")]
        {
            let shop = Shop::open().await;
            for replayed in [false, true] {
                let arguments = [flag, "-H", "Idempotency-Key: \"k-1\""];
                let said = curl(&shop, "/orders", &arguments, b"{\"a\":1}").await;
                assert_eq!((said.status.as_str(), said.version.as_str()), ("200", version));
                assert_eq!(said.replayed(), replayed, "{flag}: {}", said.text);
                assert!(said.text.ends_with("POST /orders {\"a\":1}"), "{flag}: {}", said.text);
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
            let said = curl(&shop, "/orders", &[flag, "-H", "Idempotency-Key;"], b"{}").await;
            assert_eq!(said.status, "400", "{flag}");
            assert!(said.text.contains("KEY_INVALID"), "{flag}: {}", said.text);
            assert_eq!(shop.journal.entries(), [], "{flag}");
        }
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_in_words() {
    run(async {
        let body = vec![b'x'; 3 << 20];
        // It asks first, or it does not.
        for expect in ["Expect: 100-continue", "Expect:"] {
            let shop = Shop::open().await;
            let arguments = ["--http1.1", "-H", expect, "-H", "Idempotency-Key: k-1"];
            let said = curl(&shop, "/orders", &arguments, &body).await;
            assert_eq!(said.status, "413", "{expect}");
            assert!(said.text.contains("BODY_TOO_LARGE"), "{expect}: {}", said.text);
            assert_eq!(shop.journal.entries(), [], "{expect}");
        }
    });
}

#[test]
fn a_retry_after_a_timeout_gets_the_answer_of_the_request_that_was_given_up() {
    run(async {
        let shop = Shop::open().await;
        let key = ["--http1.1", "-H", "Idempotency-Key: k-1"];
        let retry = ["--max-time", "2", "--retry", "20", "--retry-delay", "1"];
        let given_up = async {
            shop.left(1).await;
            shop.release();
        };
        let arguments = [&key[..], &retry].concat();
        let (said, ()) = tokio::join!(curl(&shop, "/waiting", &arguments, b"{}"), given_up);
        assert_eq!((said.status.as_str(), said.replayed()), ("200", true), "{}", said.text);
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn a_request_that_was_given_up_is_answered_to_the_next_curl() {
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
        let said = curl(&shop, "/waiting", &arguments, b"{}").await;
        assert_eq!((said.status.as_str(), said.replayed()), ("200", true), "{}", said.text);
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}
