//! One server of each kind for a whole test run, and the environment variables with their URLs.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use super::cluster::RedisCluster;
use super::error::{Error, ErrorKind};
use super::mariadb::MariaDb;
use super::mysql::MySql;
use super::nats::Nats;
use super::options::Options;
use super::postgres::Postgres;
use super::rabbitmq::RabbitMq;
use super::redis::Redis;
use super::server::Server;

/// One running server of each kind.
///
/// All tests of a run share the fleet, so no test may kill or pause its servers; a fault test
/// starts its own.
#[derive(Debug)]
pub struct Fleet {
    postgres: Server,
    mariadb: Server,
    mysql: Server,
    redis: Server,
    cluster: RedisCluster,
    brokers: Option<Brokers>,
}

/// The servers that only events need.
#[derive(Debug)]
struct Brokers {
    nats: Server,
    rabbitmq: Server,
}

impl Fleet {
    /// The variable that is `1` while a fleet is running. Without it, a test that needs a server
    /// fails with a message.
    pub const PRESENT: &str = "SEMEL_TEST_SERVERS";
    /// The variable with the URL of PostgreSQL.
    pub const POSTGRES_URL: &str = "SEMEL_TEST_POSTGRES_URL";
    /// The variable with the URL of MariaDB.
    pub const MYSQL_URL: &str = "SEMEL_TEST_MYSQL_URL";
    /// The variable with the URL of MySQL (Oracle's).
    pub const MYSQL9_URL: &str = "SEMEL_TEST_MYSQL9_URL";
    /// The variable with the URL of the single Redis.
    pub const REDIS_URL: &str = "SEMEL_TEST_REDIS_URL";
    /// The variable with the URL of the Redis Cluster.
    pub const REDIS_CLUSTER_URL: &str = "SEMEL_TEST_REDIS_CLUSTER_URL";
    /// The variable with the URL of NATS.
    pub const NATS_URL: &str = "SEMEL_TEST_NATS_URL";
    /// The variable with the URL of RabbitMQ.
    pub const AMQP_URL: &str = "SEMEL_TEST_AMQP_URL";

    /// Starts all servers concurrently; if one fails, the others are stopped.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(true)
    }

    /// Starts the servers of stores and no brokers, for measurements: brokers would use processor
    /// time.
    pub fn start_without_brokers() -> Result<Self, Error> {
        Self::start_with(false)
    }

    fn start_with(brokers: bool) -> Result<Self, Error> {
        thread::scope(|scope| {
            // The slowest server first.
            let brokers = brokers.then(|| {
                let rabbitmq = scope.spawn(|| RabbitMq::start(Options::new()));
                (rabbitmq, scope.spawn(|| Nats::start(Options::new())))
            });
            let postgres = scope.spawn(|| Postgres::start(Options::new()));
            let mysql = scope.spawn(|| MySql::start(Options::new()));
            let mariadb = scope.spawn(|| MariaDb::start(Options::new()));
            let redis = scope.spawn(|| Redis::start(Options::new()));
            // The masters are never killed, and a master that is slow on a busy machine must not
            // count as dead.
            let cluster = scope.spawn(|| RedisCluster::start_with(Duration::from_secs(60)));
            Ok(Self {
                postgres: join(postgres)?,
                mariadb: join(mariadb)?,
                mysql: join(mysql)?,
                redis: join(redis)?,
                cluster: join(cluster)?,
                brokers: match brokers {
                    Some((rabbitmq, nats)) => {
                        Some(Brokers { nats: join(nats)?, rabbitmq: join(rabbitmq)? })
                    }
                    None => None,
                },
            })
        })
    }

    /// Returns the environment variables to run tests with.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            (Self::PRESENT, "1".to_owned()),
            (Self::POSTGRES_URL, self.postgres.url().to_owned()),
            (Self::MYSQL_URL, self.mariadb.url().to_owned()),
            (Self::MYSQL9_URL, self.mysql.url().to_owned()),
            (Self::REDIS_URL, self.redis.url().to_owned()),
            (Self::REDIS_CLUSTER_URL, self.cluster.url()),
        ];
        if let Some(brokers) = &self.brokers {
            environment.push((Self::NATS_URL, brokers.nats.url().to_owned()));
            environment.push((Self::AMQP_URL, brokers.rabbitmq.url().to_owned()));
        }
        environment
    }
}

fn join<T>(handle: ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    handle.join().unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::System, "the thread that was starting a server panicked"))
    })
}
