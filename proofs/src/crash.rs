//! Crashes: real processes die in the middle of everything while clients repeat their calls.
//!
//! Two children serve one store. Each is started with a failpoint chosen at random, or with none and
//! a `kill -9` at a random moment, and is replaced when it is dead. Clients ask for new keys and old
//! ones, of either child, again and again until each key has its answer. Afterwards everything is
//! asked once more without faults, and the effects are counted where nothing hides a second one.
//!
//! A child that was to die and did not is no kill: what counts is the exit status.

mod audit;
mod clients;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::child::{self, Mode};
use crate::effects::Journal;
use crate::place::Place;
use crate::report::Line;
use crate::subject::{Death, Subject};
use clients::{Book, Slots};

/// Why a run is worth nothing.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// Where the executor can be aborted on the road of this mode.
const fn failpoints(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Transact => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "commit.before",
            "commit.after",
            "sweep.before",
            "sweep.after",
        ],
        Mode::ClaimFirst => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "fail.before",
            "commit.before",
            "commit.after",
            "renew.before",
            "renew.after",
            "sweep.before",
            "sweep.after",
        ],
        Mode::Run | Mode::Hold => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "settle.after",
            "fail.before",
            "renew.before",
            "renew.after",
            "sweep.before",
            "sweep.after",
        ],
    }
}

/// Children at a time.
const CHILDREN: usize = 2;
/// Clients that ask them.
const CLIENTS: usize = 12;
/// A failpoint that was not reached within this long after the child was ready is given up; the child
/// gets `kill -9`, and counts as that.
const GIVE_UP: Duration = Duration::from_millis(400);
/// After faults end, every key must have its answer within a lease and this.
const GRACE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary `faults`, which can be a child.
    pub program: PathBuf,
    /// How operations are executed.
    pub mode: Mode,
    /// How many children must really have died.
    pub kills: u32,
    /// The lease of claims.
    pub lease: Duration,
}

/// How children died.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    by: Mutex<BTreeMap<String, u32>>,
    kills: AtomicU32,
    /// Exits that were neither an abort nor a `kill -9`.
    strange: AtomicU32,
}

impl Deaths {
    pub(crate) fn count(&self, death: Death, armed: Option<&str>) {
        let name = match death {
            Death::Aborted => armed.and_then(|name| name.split('@').next()).unwrap_or("abort"),
            Death::Killed => "kill -9",
            Death::Otherwise(status) => {
                eprintln!("a child ended by itself: {status}");
                self.strange.fetch_add(1, Ordering::SeqCst);
                return;
            }
        };
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        *by.entry(name.to_owned()).or_default() += 1;
        self.kills.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn kills(&self) -> u32 {
        self.kills.load(Ordering::SeqCst)
    }

    pub(crate) fn strange(&self) -> u32 {
        self.strange.load(Ordering::SeqCst)
    }

    /// How many died of what.
    pub(crate) fn by(&self) -> BTreeMap<String, u32> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs it, in a place of its own.
///
/// # Errors
/// A process could not be started, or the store could not be read afterwards.
pub async fn run(place: &Place, settings: &Settings) -> Result<Line, Trouble> {
    let child = child::Settings {
        backend: place.backend().clone(),
        mode: settings.mode,
        lease: settings.lease,
        journal: Journal::at(place.directory().join("effects.jsonl")),
        fails_one_in: 12,
    };
    let (deaths, book, slots) =
        (Arc::new(Deaths::default()), Arc::new(Book::default()), Slots::new());
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut askers = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (book, slots) = (Arc::clone(&book), slots.clone());
        askers.spawn(clients::ask(book, slots, Arc::clone(&over), Arc::clone(&deaths)));
    }
    let keepers = (0..CHILDREN).map(|slot| keep(slot, &slots, &child, settings, &deaths));
    let kept = futures_util::future::join_all(keepers).await;
    over.store(true, Ordering::SeqCst);
    while askers.join_next().await.is_some() {}
    kept.into_iter().collect::<io::Result<()>>()?;
    let took = began.elapsed();

    let lasting = Subject::healthy(&settings.program, &child).await?;
    clients::ask_until_a_panic(&book, lasting.line()).await;
    drop(lasting);
    let stuck = settle_all(&book, &child, settings).await?;
    let line = Line::new()
        .column("store", place.backend().name())
        .column("mode", settings.mode.name())
        .column("kills", deaths.kills())
        .column("kills/s", f64::from(deaths.kills()) / took.as_secs_f64())
        .column("keys", book.len())
        .column("calls", book.calls())
        .column("deaths", serde_json::to_value(deaths.by())?);
    let line = audit::audit(line, place, &child, &book).await?;
    let strange = deaths.strange() as usize;
    Ok(line
        .column("panics", book.panics())
        .promise(book.panics() > 0, "nothing panicked")
        .zero("stuck", stuck)
        .zero("strange exits", strange)
        .promise(deaths.kills() >= settings.kills, "fewer kills than were asked for"))
}

/// Keeps one child alive until enough have died.
async fn keep(
    slot: usize,
    slots: &Slots,
    child: &child::Settings,
    settings: &Settings,
    deaths: &Deaths,
) -> io::Result<()> {
    while deaths.kills() < settings.kills {
        let points = failpoints(settings.mode);
        let point = points.get(fastrand::usize(..=points.len()));
        // What the background does it does less often than a call.
        let most =
            |name: &str| if name.starts_with("renew") || name.starts_with("sweep") { 1 } else { 6 };
        let armed = point.map(|name| format!("{name}@{}", fastrand::u32(1..=most(name))));
        let mut subject = Subject::start(&settings.program, child, armed.as_deref())?;
        slots.put(slot, subject.line().clone());
        let patience = match armed {
            Some(_) => GIVE_UP,
            None => Duration::from_millis(fastrand::u64(5..150)),
        };
        let (line, waits) = (subject.line().clone(), armed.is_some());
        let given_up = async {
            // How long a child takes to get as far as a failpoint is the machine's business.
            if waits {
                let _ = line.ready().await;
            }
            tokio::time::sleep(patience).await;
        };
        let death = tokio::select! {
            death = subject.death() => Some(death?),
            () = given_up => None,
        };
        let death = match death {
            Some(death) => death,
            None => subject.kill().await?,
        };
        deaths.count(death, armed.as_deref());
    }
    Ok(())
}

/// Asks for every key without faults; the number of those that have no answer in time.
async fn settle_all(
    book: &Arc<Book>,
    child: &child::Settings,
    settings: &Settings,
) -> Result<usize, Trouble> {
    let healthy = child::Settings { fails_one_in: 0, ..child.clone() };
    let subject = Subject::healthy(&settings.program, &healthy).await?;
    let deadline = Instant::now() + settings.lease + GRACE;
    clients::finish(book, subject.line(), deadline).await;
    drop(subject);
    // A process that has never seen any of it answers the same.
    let stranger = Subject::healthy(&settings.program, &healthy).await?;
    clients::ask_again(book, stranger.line()).await;
    Ok(book.unanswered().len())
}
