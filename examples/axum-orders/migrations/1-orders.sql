-- An order belongs to a tenant. Its id is the operation id of the request that placed it, so that one
-- request can never place two orders.
CREATE TABLE product (
    sku   TEXT    NOT NULL PRIMARY KEY,
    cents INTEGER NOT NULL CHECK (cents >= 0)
) STRICT, WITHOUT ROWID;

INSERT INTO product (sku, cents) VALUES ('tea', 450), ('mug', 1200), ('kettle', 4900);

CREATE TABLE customer_order (
    id          TEXT    NOT NULL PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    placed_by   TEXT    NOT NULL,
    total_cents INTEGER NOT NULL CHECK (total_cents >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE order_line (
    order_id TEXT    NOT NULL REFERENCES customer_order (id),
    number   INTEGER NOT NULL,
    sku      TEXT    NOT NULL REFERENCES product (sku),
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    cents    INTEGER NOT NULL CHECK (cents >= 0),
    PRIMARY KEY (order_id, number)
) STRICT, WITHOUT ROWID;
