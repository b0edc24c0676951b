//! Private servers: PostgreSQL, MariaDB, MySQL, Redis, a Redis Cluster, NATS with JetStream and RabbitMQ
//! that belong to one test run.
//!
//! Every server listens on a loopback port of its own, keeps its data in a temporary directory and
//! is gone, data and all, when its [`Server`] is dropped or when the process that started it dies,
//! however it dies. The methods that a fault test needs are on [`Server`]: [`kill9`](Server::kill9),
//! [`pause`](Server::pause), [`resume`](Server::resume), [`restart`](Server::restart),
//! [`stop`](Server::stop).
//!
//! The crate has no clients, no pools and no async, and uses the standard library only, so that
//! `cargo xtask` builds in seconds and needs no database driver to start a database. It runs on Unix.
//!
//! ```no_run
//! use semel_servers::{Options, Redis};
//!
//! let mut redis = Redis::start(Options::new().flag("--appendonly").flag("no"))?;
//! println!("{}", redis.url());
//! redis.kill9()?;
//! redis.restart()?;
//! # Ok::<(), semel_servers::Error>(())
//! ```

mod account;
mod cluster;
mod environment;
mod error;
mod fleet;
pub mod install;
mod mariadb;
mod mysql;
mod nats;
pub mod node;
mod options;
mod pgbouncer;
mod port;
mod postgres;
mod process;
pub mod python;
mod rabbitmq;
mod redis;
mod release;
pub mod resp;
mod scratch;
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
