//! Private servers: PostgreSQL, MariaDB, MySQL, Redis, a Redis Cluster, NATS with JetStream and RabbitMQ
//! that belong to one test run.
//!
//! Every server listens on a loopback port of its own, keeps its data in a temporary directory and
//! is gone, data and all, when its [`Server`] is dropped or when the process that started it dies,
//! however it dies. The verbs a fault test needs are on [`Server`]: [`kill9`](Server::kill9),
//! [`pause`](Server::pause), [`resume`](Server::resume), [`restart`](Server::restart),
//! [`stop`](Server::stop).
//!
//! Deliberately absent: clients, pools and async. The module uses the standard library only, so
//! that the workspace's task runner can compile the very same files in a second and does not have
//! to build a database driver before it can start a database. It needs a Unix.
//!
//! ```no_run
//! use semel_testkit::servers::{Options, Redis};
//!
//! let mut redis = Redis::start(Options::new().flag("--appendonly").flag("no"))?;
//! println!("{}", redis.url());
//! redis.kill9()?;
//! redis.restart()?;
//! # Ok::<(), semel_testkit::servers::Error>(())
//! ```

// The paths are spelled out because the task runner includes this file by `#[path]` as well, and a
// module included that way would look for its children in a different directory.
#[path = "servers/account.rs"]
mod account;
#[path = "servers/cluster.rs"]
mod cluster;
#[path = "servers/error.rs"]
mod error;
#[path = "servers/fleet.rs"]
mod fleet;
#[path = "servers/install.rs"]
pub mod install;
#[path = "servers/mariadb.rs"]
mod mariadb;
#[path = "servers/mysql.rs"]
mod mysql;
#[path = "servers/nats.rs"]
mod nats;
#[path = "servers/options.rs"]
mod options;
#[path = "servers/pgbouncer.rs"]
mod pgbouncer;
#[path = "servers/port.rs"]
mod port;
#[path = "servers/postgres.rs"]
mod postgres;
#[path = "servers/process.rs"]
mod process;
#[path = "servers/rabbitmq.rs"]
mod rabbitmq;
#[path = "servers/redis.rs"]
mod redis;
#[path = "servers/release.rs"]
mod release;
#[path = "servers/resp.rs"]
pub mod resp;
#[path = "servers/scratch.rs"]
mod scratch;
#[path = "servers/server.rs"]
mod server;

pub use cluster::RedisCluster;
pub use error::{Error, ErrorKind};
pub use fleet::Fleet;
pub use mariadb::MariaDb;
pub use mysql::MySql;
pub use nats::Nats;
pub use options::Options;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use server::Server;
