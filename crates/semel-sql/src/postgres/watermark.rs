//! Reads and writes the clock's watermark in PostgreSQL.

use semel_core::store::Result;
use sqlx::{PgConnection, Row};

use super::session::Naming;
use super::statement::failed;
use crate::watermark::{Judged, Reading};

const READ: &str =
    "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, m.trusted, m.suspect
from (select) one left join semel_clock m on m.id = 1";

const WRITE: &str = "insert into semel_clock (id, trusted, suspect) values (1, $1, $2)
on conflict (id) do update set trusted = excluded.trusted, suspect = excluded.suspect";

/// Returns the server's clock, if it is trusted.
pub(super) async fn trusted_now(
    naming: Naming,
    connection: &mut PgConnection,
    operation: &'static str,
) -> Result<Option<i64>> {
    let fail = failed(operation);
    let row = naming.query(READ).fetch_one(&mut *connection).await.map_err(&fail)?;
    let read = || -> sqlx::Result<Reading> {
        Ok(Reading { now: row.try_get(0)?, trusted: row.try_get(1)?, suspect: row.try_get(2)? })
    };
    let Judged { trusted_now, write } = read().map_err(&fail)?.judge();
    if let Some((trusted, suspect)) = write {
        let query = naming.query(WRITE).bind(trusted).bind(suspect);
        query.execute(connection).await.map_err(&fail)?;
    }
    Ok(trusted_now)
}
