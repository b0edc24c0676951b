//! Tests ids in the columns of SQLite, PostgreSQL and MySQL.

use semel_ids::resource::{Order, User};
use semel_ids::{Generator, PublicId, TypedId};
use sqlx::{Connection as _, MySqlConnection, PgConnection, SqliteConnection};

type OrderId = TypedId<Order>;

fn new_id() -> OrderId {
    TypedId::new(Generator::new().generate().expect("a working clock"))
}

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

async fn sqlite() -> SqliteConnection {
    SqliteConnection::connect("sqlite::memory:").await.expect("SQLite")
}

async fn postgres() -> PgConnection {
    PgConnection::connect(&url("SEMEL_TEST_POSTGRES_URL")).await.expect("PostgreSQL")
}

async fn mysql() -> MySqlConnection {
    MySqlConnection::connect(&url("SEMEL_TEST_MYSQL_URL")).await.expect("MySQL")
}

/// Defines the same tests for a database, with its connection, its column types and its
/// placeholders.
macro_rules! behaviours {
    ($name:ident: $bytes:literal, $short:literal, $text:literal, $first:literal, $second:literal, $third:literal) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn ids_are_stored_as_bytes_and_read_as_ids() {
                let mut db = super::$name().await;
                let table = concat!(
                    "CREATE TEMPORARY TABLE t (id ",
                    $bytes,
                    ", other ",
                    $bytes,
                    ", public ",
                    $text,
                    ")"
                );
                sqlx::query(table).execute(&mut db).await.expect("a table");
                let id = new_id();
                let public: PublicId = id.public();
                let insert =
                    concat!("INSERT INTO t VALUES (", $first, ", ", $second, ", ", $third, ")");
                sqlx::query(insert)
                    .bind(id)
                    .bind(None::<OrderId>)
                    .bind(public)
                    .execute(&mut db)
                    .await
                    .expect("a row");
                let select = concat!("SELECT id, other, public FROM t WHERE id = ", $first);
                let row: (OrderId, Option<OrderId>, String) =
                    sqlx::query_as(select).bind(id).fetch_one(&mut db).await.expect("the row");
                assert_eq!(row, (id, None, public.to_string()));
                assert_eq!(row.2.parse(), Ok(id));
                let stored: Vec<u8> =
                    sqlx::query_scalar("SELECT id FROM t").fetch_one(&mut db).await.expect("bytes");
                assert_eq!(stored, id.to_bytes());
                let by_text = concat!("SELECT id FROM t WHERE public = ", $first);
                let found: OrderId = sqlx::query_scalar(by_text)
                    .bind(public)
                    .fetch_one(&mut db)
                    .await
                    .expect("a row");
                assert_eq!(found, id);
            }

            #[tokio::test]
            async fn values_that_are_not_ids_are_refused() {
                let mut db = super::$name().await;
                let select = concat!("SELECT ", $short, " AS short, ", $first, " AS spelled");
                let row = sqlx::query(select)
                    .bind("sixteen letters!")
                    .fetch_one(&mut db)
                    .await
                    .expect("a row");
                use sqlx::Row as _;
                let short = row.try_get::<TypedId<User>, _>("short").expect_err("three bytes");
                assert!(short.to_string().contains("16 bytes"), "{short}");
                assert!(short.to_string().contains("has 3"), "{short}");
                assert_eq!(row.get::<String, _>("spelled").len(), 16);
                row.try_get::<TypedId<User>, _>("spelled").expect_err("a text");
            }
        }
    };
}

behaviours!(sqlite: "BLOB", "x'010203'", "TEXT", "?", "?", "?");
behaviours!(postgres: "BYTEA", "'\\x010203'::bytea", "TEXT", "$1", "$2", "$3");
behaviours!(mysql: "BINARY(16)", "x'010203'", "VARCHAR(64)", "?", "?", "?");

#[tokio::test]
async fn postgres_accepts_many_ids_as_an_array() {
    let mut db = postgres().await;
    let ids = [new_id(), new_id(), new_id()];
    let publics = ids.map(TypedId::public);
    let found: Vec<OrderId> = sqlx::query_scalar(
        "SELECT a FROM unnest($1) AS a WHERE a = ANY($2) AND cardinality($3) = 3",
    )
    .bind(&ids[..])
    .bind(&ids[1..])
    .bind(&publics[..])
    .fetch_all(&mut db)
    .await
    .expect("two rows");
    assert_eq!(found, ids[1..]);
}
