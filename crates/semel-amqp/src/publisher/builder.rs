//! The settings of a publisher.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{AmqpPublisher, Inner, TIMEOUT};
use crate::error::SetupError;
use crate::link::Link;
use crate::topology::{self, EXCHANGE};

/// Settings of an [`AmqpPublisher`].
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

    /// Sets the name of the topic exchange. Default [`EXCHANGE`].
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = name.to_owned();
        self
    }

    /// Sets how long to wait for the broker: to connect, and for the confirms of a batch. Must be
    /// shorter than the relay's lease. Default 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets whether the exchange is declared. Turn it off for users without that permission.
    /// Default on.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// Returns the publisher, whether or not the broker can be reached. It connects when it is
    /// first used, and retries with growing pauses (50 ms to 2 s) while it is used; until then
    /// every event is [`Unavailable`](semel_core::outbox::PublishError::Unavailable), which costs
    /// no attempt.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), semel_amqp::SetupError> {
    /// use semel_amqp::AmqpPublisher;
    ///
    /// let publisher = AmqpPublisher::builder("amqp://guest:guest@127.0.0.1:5672/%2f").build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SetupError::Setting`] contains the setting that cannot be used.
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

    /// Connects, declares the exchange and returns the publisher. Fails if the broker cannot be
    /// reached; [`build`](Self::build) does not.
    ///
    /// # Errors
    /// [`SetupError`] contains what is wrong, and what to do.
    pub async fn connect(self) -> Result<AmqpPublisher, SetupError> {
        let publisher = self.build()?;
        publisher.check().await?;
        Ok(publisher)
    }

    /// Connects and checks that the exchange has the required properties or does not exist yet.
    /// Creates nothing.
    ///
    /// # Errors
    /// [`SetupError`] contains what is wrong, and what to do.
    pub async fn check(mut self) -> Result<(), SetupError> {
        self.declare = false;
        let publisher = self.build()?;
        let Inner { link, exchange, .. } = &*publisher.0;
        let open = publisher.0.channel().await?;
        topology::check_exchange(&open.channel, exchange, link.timeout()).await
    }
}
