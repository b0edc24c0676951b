//! The service: an ordinary tonic handler that reads its claim from the request.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel::Context;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::network::{Network, Refused};
use crate::proto::payments_server::Payments;
use crate::proto::{ChargeRequest, ListRequest, Payment, ShowRequest};

/// Charges cards at the network, and stores its payments. Clones share them.
#[derive(Clone, Debug)]
pub struct Cashier {
    network: Network,
    payments: Arc<Mutex<BTreeMap<String, Payment>>>,
}

impl Cashier {
    /// Creates the service on this network.
    pub fn new(network: Network) -> Self {
        Self { network, payments: Arc::default() }
    }

    fn payments(&self) -> MutexGuard<'_, BTreeMap<String, Payment>> {
        self.payments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl Payments for Cashier {
    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Payment>, Status> {
        // The layer requires a key for this method, so there is a claim.
        let claim = request.extensions().get::<Context>().cloned();
        let claim = claim.ok_or_else(|| Status::internal("the layer is missing"))?;
        let ChargeRequest { card, cents } = request.into_inner();
        if cents <= 0 {
            return Err(Status::invalid_argument("a charge is of at least one cent"));
        }
        // The same key in every attempt of this operation, in any process: the network sees one
        // call, however often it is repeated.
        let key =
            claim.downstream_key("capture").map_err(|error| Status::internal(error.to_string()))?;
        let captured = self.network.capture(&key, &card, cents).await.map_err(status)?;
        let id = claim.operation_id().to_string();
        let payment = Payment { id: id.clone(), card, cents, reference: captured.reference };
        self.payments().insert(id, payment.clone());
        Ok(Response::new(payment))
    }

    async fn show(&self, request: Request<ShowRequest>) -> Result<Response<Payment>, Status> {
        let payment = self.payments().get(&request.get_ref().id).cloned();
        payment.map(Response::new).ok_or_else(|| Status::not_found("there is no such payment"))
    }

    type ListStream = Pin<Box<dyn Stream<Item = Result<Payment, Status>> + Send>>;

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let all: Vec<_> = self.payments().values().cloned().map(Ok).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(all))))
    }
}

fn status(refused: Refused) -> Status {
    match refused {
        // A declined card is an answer like any other, and the layer keeps it.
        Refused::Declined => Status::failed_precondition("the bank declined the card"),
        // It is not known whether the capture happened: the operation stays, and the next call
        // settles it.
        Refused::Lost => Status::unavailable("the card network did not answer"),
    }
}
