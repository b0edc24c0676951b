//! Whether the server's clock is believed by those who remove by it.

use semel_core::clock::Timestamp;
use semel_core::store::{ClockTrust, Result, Watermark};
use sqlx::{PgConnection, Row};

use super::session::Naming;
use super::statement::failed;

const READ: &str =
    "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, m.trusted, m.suspect
from (select) one left join semel_clock m on m.id = 1";

const WRITE: &str = "insert into semel_clock (id, trusted, suspect) values (1, $1, $2)
on conflict (id) do update set trusted = excluded.trusted, suspect = excluded.suspect";

/// The server's clock, if it is believed. What is removed afterwards goes by this moment, not by a clock
/// that may have jumped since.
pub(super) async fn believed(
    naming: Naming,
    connection: &mut PgConnection,
    operation: &'static str,
) -> Result<Option<i64>> {
    let fail = failed(operation);
    let row = naming.query(READ).fetch_one(&mut *connection).await.map_err(&fail)?;
    let read = || -> sqlx::Result<(i64, Option<i64>, Option<i64>)> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
    };
    let (now, trusted, suspect) = read().map_err(&fail)?;
    let at = Timestamp::from_micros(now);
    let (trust, next) = match trusted.map(Timestamp::from_micros) {
        Some(trusted) => {
            Watermark { trusted, suspect: suspect.map(Timestamp::from_micros) }.observe(at)
        }
        // A mark that was lost is made anew, or every jump would be believed.
        None => (ClockTrust::Trusted, Some(Watermark::new(at))),
    };
    if let Some(next) = next {
        naming
            .query(WRITE)
            .bind(next.trusted.as_micros())
            .bind(next.suspect.map(Timestamp::as_micros))
            .execute(connection)
            .await
            .map_err(&fail)?;
    }
    Ok((trust == ClockTrust::Trusted).then_some(now))
}
