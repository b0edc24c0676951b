//! The load on one server: first calls, or repeats.
//!
//! Every response is checked, and after each turn the server's counts: first calls were executed
//! once, repeats were not executed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::process::Process;
use semel_bench::BoxError;
use semel_bench::connection::{Connection, Response};
use semel_bench::request::Request;
use semel_bench::turns::{AnyContender, Boxed};

/// The numbers of requests, unique over all servers of a run.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// The counts of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    executed: u64,
    /// The number of round trips to the store, if the server counts them.
    asked: Option<u64>,
}

async fn counts(connection: &mut Connection) -> Result<Counts, BoxError> {
    let answer = connection.exchange(b"GET /counts HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await?;
    let text = std::str::from_utf8(answer.body)?;
    let (executed, asked) = text.split_once(' ').ok_or("the server does not count")?;
    Ok(Counts { executed: executed.parse()?, asked: asked.parse().ok() })
}

/// How a server is called.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Whether the server replays repeats.
    pub(crate) protects: bool,
    /// Whether the server needs a session cookie.
    pub(crate) sessions: bool,
}

/// A contender that makes first calls: a new key every time.
pub(crate) struct First {
    server: Process,
    shape: Shape,
    idle: Mutex<Vec<(Connection, Request)>>,
    before: Mutex<Counts>,
}

impl First {
    pub(crate) fn new(server: Process, shape: Shape) -> Arc<Self> {
        Arc::new(Self { server, shape, idle: Mutex::default(), before: Mutex::default() })
    }

    async fn connection(&self) -> Result<(Connection, Request), BoxError> {
        let idle = lock(&self.idle).pop();
        match idle {
            Some(idle) => Ok(idle),
            None => {
                let connection = Connection::open(self.server.port()).await?;
                Ok((connection, Request::new(self.shape.sessions)))
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn took(last: &mut Instant) -> u32 {
    let now = Instant::now();
    let span = now - std::mem::replace(last, now);
    u32::try_from(span.as_nanos()).unwrap_or(u32::MAX)
}

fn wrong(expected: &str, answer: Response<'_>) -> BoxError {
    let Response { status, replayed, body } = answer;
    let body = String::from_utf8_lossy(body);
    format!("{expected} was expected: {status}, replayed: {replayed}, {body}").into()
}

fn first(request: &Request, answer: Response<'_>) -> Result<(), BoxError> {
    match answer {
        Response { status: 201, replayed: false, body } if request.is_answered_by(body) => Ok(()),
        other => Err(wrong("a first answer", other)),
    }
}

impl AnyContender for First {
    fn work(self: Arc<Self>, until: Instant) -> Boxed<Vec<u32>> {
        Box::pin(async move {
            let (mut connection, mut request) = self.connection().await?;
            let mut times = Vec::with_capacity(4096);
            let mut last = Instant::now();
            while last < until {
                request.number(NUMBER.fetch_add(1, Ordering::Relaxed));
                let answer = connection.exchange(request.bytes()).await?;
                first(&request, answer)?;
                times.push(took(&mut last));
            }
            lock(&self.idle).push((connection, request));
            Ok(times)
        })
    }

    /// Checks that all calls were executed, and that a repeat of the last call is not.
    fn audited(self: Arc<Self>, done: u64) -> Boxed<()> {
        Box::pin(async move {
            let (mut connection, request) = self.connection().await?;
            if self.shape.protects && done > 0 {
                match connection.exchange(request.bytes()).await? {
                    Response { status: 201, replayed: true, body }
                        if request.is_answered_by(body) => {}
                    other => return Err(wrong("a replay of a first call", other)),
                }
            }
            let after = counts(&mut connection).await?;
            let before = std::mem::replace(&mut *lock(&self.before), after);
            lock(&self.idle).push((connection, request));
            if after.executed - before.executed != done {
                let executed = after.executed - before.executed;
                return Err(format!("{executed} of {done} first calls were executed").into());
            }
            Ok(())
        })
    }
}

/// A contender that makes repeats: each connection has a key that was settled before the run.
pub(crate) struct Repeats {
    server: Process,
    /// Whether repeats read the store.
    asking: bool,
    idle: Mutex<Vec<Repeat>>,
    before: Mutex<Counts>,
}

struct Repeat {
    connection: Connection,
    request: Request,
    body: Vec<u8>,
}

impl Repeats {
    /// Makes the first call of each connection.
    pub(crate) async fn prepare(
        server: Process,
        shape: &Shape,
        asking: bool,
        connections: usize,
    ) -> Result<Arc<Self>, BoxError> {
        let (mut idle, mut before) = (Vec::new(), Counts::default());
        for _ in 0..connections {
            let mut connection = Connection::open(server.port()).await?;
            let mut request = Request::new(shape.sessions);
            request.number(NUMBER.fetch_add(1, Ordering::Relaxed));
            let answer = connection.exchange(request.bytes()).await?;
            first(&request, answer)?;
            let body = answer.body.to_vec();
            before = counts(&mut connection).await?;
            idle.push(Repeat { connection, request, body });
        }
        let (idle, before) = (Mutex::new(idle), Mutex::new(before));
        Ok(Arc::new(Self { server, asking, idle, before }))
    }
}

impl AnyContender for Repeats {
    fn work(self: Arc<Self>, until: Instant) -> Boxed<Vec<u32>> {
        Box::pin(async move {
            let idle = lock(&self.idle).pop();
            let Repeat { mut connection, request, body } = idle.ok_or("no connection is left")?;
            let mut times = Vec::with_capacity(4096);
            let mut last = Instant::now();
            while last < until {
                let answer = connection.exchange(request.bytes()).await?;
                if answer.status != 201 || !answer.replayed || answer.body != body {
                    return Err(wrong("the first call's answer", answer));
                }
                times.push(took(&mut last));
            }
            lock(&self.idle).push(Repeat { connection, request, body });
            Ok(times)
        })
    }

    /// Checks that nothing was executed, and that either each repeat read the store or none did.
    fn audited(self: Arc<Self>, done: u64) -> Boxed<()> {
        Box::pin(async move {
            let mut connection = Connection::open(self.server.port()).await?;
            let after = counts(&mut connection).await?;
            let before = std::mem::replace(&mut *lock(&self.before), after);
            if after.executed != before.executed {
                return Err(format!("repeats were executed: {before:?}, {after:?}").into());
            }
            let expected = if self.asking { done } else { 0 };
            if let (Some(before), Some(after)) = (before.asked, after.asked)
                && after - before != expected
            {
                let trips = after - before;
                return Err(format!("{done} repeats took {trips} trips, not {expected}").into());
            }
            Ok(())
        })
    }
}
