-- A refund waits in this table for the process that calls the payment provider; its id is the
-- provider's idempotency key.
CREATE TABLE refund (
    id       TEXT    NOT NULL PRIMARY KEY,
    order_id TEXT    NOT NULL REFERENCES customer_order (id),
    cents    INTEGER NOT NULL CHECK (cents > 0)
) STRICT, WITHOUT ROWID;

CREATE INDEX refund_order ON refund (order_id);
