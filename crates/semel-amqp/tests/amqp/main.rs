//! Publisher and source against a real RabbitMQ.

mod conformance;
mod consuming;
mod fixture;
mod foreign;
mod outage;
mod publishing;
mod topology;
