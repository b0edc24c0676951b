/** What the ledger needs of a database library, and the functions that it calls. */

/** The first row of a result. */
export type Row = Readonly<Record<string, unknown>>;

/**
 * A database through one library: write one for a library that is not here. It has no more than the library
 * has itself: a transaction around a callback, and a statement with parameters in it.
 */
export interface Database<C> {
  readonly dialect: "postgresql" | "mysql";

  /**
   * Begins a transaction on a connection of its own, runs `work`, and commits; rolls back what throws. The
   * error of `work` or of COMMIT must come out as it is.
   */
  transaction<T>(work: (connection: C) => Promise<T>): Promise<T>;

  /** Runs a statement in the open transaction, and returns its first row. */
  query(connection: C, statement: string, values: readonly unknown[]): Promise<Row | undefined>;

  /** Tells whether a connection that the caller opened (`Ledger.join`) is in a transaction. */
  isInTransaction(connection: C): Promise<boolean>;

  /** Returns the placeholder of a parameter, counted from 1: `$1` or `?`. */
  placeholder(number: number): string;

  /** Returns the SQLSTATE of an error of the library; undefined if it came from no server. */
  sqlstate(error: unknown): string | undefined;
}

/** A duration in milliseconds. */
class Milliseconds {
  constructor(readonly count: number) {}
}

/** Marks an argument as a duration: an interval on PostgreSQL, milliseconds on MySQL. */
export function duration(ms: number): unknown {
  return new Milliseconds(ms);
}

// The arguments of each function in their order: names, and types of PostgreSQL.
const FUNCTIONS = {
  semel_begin: {
    tenant: "text",
    operation: "text",
    key: "text",
    request_hash: "text",
    lease: "interval",
    keep: "interval",
    principal: "text",
  },
  semel_complete: { claim: "text", body: "bytea", content_type: "text", reference: "text" },
  semel_fail: {
    tenant: "text",
    operation: "text",
    key: "text",
    request_hash: "text",
    error: "text",
    retry_after_ms: "bigint",
    principal: "text",
    operation_id: "text",
    keep: "interval",
  },
  semel_append: {
    tenant: "text",
    type: "text",
    payload: "text",
    aggregate_type: "text",
    aggregate_id: "text",
    headers: "text",
    id: "text",
    source: "text",
    content_type: "text",
  },
  semel_handle: {
    consumer_group: "text",
    tenant: "text",
    event_id: "text",
    type: "text",
    source: "text",
    keep: "interval",
  },
  semel_register_id: { tenant: "text", resource_type: "text", public_id: "text", internal_id: "text" },
  semel_resolve_id: { tenant: "text", resource_type: "text", public_id: "text" },
} as const;

/** The functions of the ledger. */
export type FunctionName = keyof typeof FUNCTIONS;

/** Calls a function in the open transaction, and returns its row. */
export async function call<C>(
  database: Database<C>,
  connection: C,
  name: FunctionName,
  values: readonly unknown[],
): Promise<Row> {
  const isMySql = database.dialect === "mysql";
  const parameters = Object.entries(FUNCTIONS[name]).map(([parameter, type], at) => {
    const placeholder = database.placeholder(at + 1);
    return isMySql ? placeholder : `${parameter} => CAST(${placeholder} AS ${type})`;
  });
  const list = parameters.join(", ");
  const statement = isMySql ? `CALL ${name}(${list})` : `SELECT * FROM ${name}(${list})`;
  const sent = values.map((value) => {
    if (value instanceof Milliseconds) {
      return isMySql ? value.count : `${value.count} milliseconds`;
    }
    return value ?? null;
  });
  return (await database.query(connection, statement, sent)) ?? {};
}

/** Returns the only value of a row. */
export function only(row: Row): unknown {
  return Object.values(row)[0];
}
