//! The settings of a publisher.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{AmqpPublisher, Inner, TIMEOUT};
use crate::error::SetupError;
use crate::link::Link;
use crate::topology::{self, EXCHANGE};

/// A publisher in the making.
#[derive(Clone)]
#[must_use]
pub struct PublisherBuilder {
    url: String,
    exchange: String,
    timeout: Duration,
    declare: bool,
}

impl std::fmt::Debug for PublisherBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublisherBuilder").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}

impl PublisherBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), exchange: EXCHANGE.to_owned(), timeout: TIMEOUT, declare: true }
    }

    /// The topic exchange. Default [`EXCHANGE`].
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = name.to_owned();
        self
    }

    /// How long to wait for the broker: to connect, and for the confirms of a batch. Shorter than
    /// the relay's lease. Default 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Whether the exchange is declared. Turn it off for users that may not. Default on.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// The publisher. It connects when it is first used.
    ///
    /// # Errors
    /// [`SetupError::Setting`] names the setting that cannot be used.
    pub fn build(self) -> Result<AmqpPublisher, SetupError> {
        let exchange = topology::exchange(&self.exchange)?;
        let link = Link::new(&self.url, format!("semel publisher {exchange}"), self.timeout)?;
        Ok(AmqpPublisher(Arc::new(Inner {
            link,
            exchange,
            declare: self.declare,
            idle: Mutex::default(),
        })))
    }

    /// The publisher, connected, its exchange declared: what is wrong shows now.
    ///
    /// # Errors
    /// [`SetupError`] says what, and what to do.
    pub async fn connect(self) -> Result<AmqpPublisher, SetupError> {
        let publisher = self.build()?;
        let desk = publisher.0.desk().await?;
        publisher.0.give_back(desk);
        Ok(publisher)
    }

    /// Connects and looks, for those who only want to know: whether the exchange is what is needed, or
    /// not there yet. Nothing is made.
    ///
    /// # Errors
    /// [`SetupError`] says what is wrong, and what to do.
    pub async fn check(mut self) -> Result<(), SetupError> {
        self.declare = false;
        let publisher = self.build()?;
        let Inner { link, exchange, .. } = &*publisher.0;
        let desk = publisher.0.desk().await?;
        topology::check_exchange(&desk.channel, exchange, link.timeout()).await
    }
}
