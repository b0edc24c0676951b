//! Callers: one that retries, one with a deadline, one that disconnects.

use std::net::SocketAddr;
use std::time::Duration;

use semel_tower::grpc::{CallKey, Retry, with_key};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::network::Network;
use crate::proto::payments_client::PaymentsClient;
use crate::proto::{ChargeRequest, ListRequest, Payment};
use crate::server::Failure;

/// A caller with a connection of its own.
#[derive(Clone, Debug)]
pub struct Caller(PaymentsClient<Channel>);

/// A payment, and whether an earlier call made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Paid {
    /// The payment.
    pub payment: Payment,
    /// Whether an earlier call made it.
    pub replayed: bool,
}

impl Caller {
    /// Connects to the service.
    ///
    /// # Errors
    /// If nothing listens at the address.
    pub async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        Ok(Self(PaymentsClient::new(channel)))
    }

    /// Charges a card under `key`, and retries until there is an answer.
    ///
    /// # Errors
    /// The status, if the service refuses the charge.
    pub async fn charge(&self, key: &CallKey, card: &str, cents: i64) -> Result<Paid, Status> {
        let message = ChargeRequest { card: card.to_owned(), cents };
        let call = |request| {
            let mut client = self.0.clone();
            async move { client.charge(request).await }
        };
        Retry::new().tries(10).call(key, message, call).await.map(paid)
    }

    /// Charges without a key, which the service does not allow.
    ///
    /// # Errors
    /// The status of the refusal.
    pub async fn charge_without_a_key(&self, card: &str, cents: i64) -> Result<Paid, Status> {
        let message = ChargeRequest { card: card.to_owned(), cents };
        self.0.clone().charge(message).await.map(paid)
    }

    /// Charges a card with a deadline of `patience`.
    ///
    /// # Errors
    /// Usually that the deadline has passed.
    pub async fn charge_within(
        &self,
        patience: Duration,
        key: &CallKey,
        card: &str,
        cents: i64,
    ) -> Result<Paid, Status> {
        let message = ChargeRequest { card: card.to_owned(), cents };
        let mut request = with_key(Request::new(message), key);
        request.set_timeout(patience);
        self.0.clone().charge(request).await.map(paid)
    }

    /// Charges a card, and disconnects as soon as the card network has received the call.
    ///
    /// # Errors
    /// If there was an answer before that.
    pub async fn charge_and_disconnect(
        self,
        network: &Network,
        key: &CallKey,
        card: &str,
        cents: i64,
    ) -> Result<(), Failure> {
        let message = ChargeRequest { card: card.to_owned(), cents };
        let mut client = self.0;
        tokio::select! {
            answer = client.charge(with_key(Request::new(message), key)) => {
                Err(format!("an answer from a slow network: {answer:?}").into())
            }
            () = network.reached() => Ok(()),
        }
    }

    /// Returns all payments so far.
    ///
    /// # Errors
    /// If the stream breaks off.
    pub async fn list(&self) -> Result<Vec<Payment>, Status> {
        let mut stream = self.0.clone().list(ListRequest {}).await?.into_inner();
        let mut payments = Vec::new();
        while let Some(payment) = stream.message().await? {
            payments.push(payment);
        }
        Ok(payments)
    }
}

fn paid(answer: Response<Payment>) -> Paid {
    let replayed = answer.metadata().contains_key("idempotent-replayed");
    Paid { payment: answer.into_inner(), replayed }
}
