/** Knex on PostgreSQL (pg) or MySQL (mysql2): `import { ledger } from "semel/knex"`. */

import type { Knex } from "knex";
import type { Database, Row } from "./database.js";
import { Misused } from "./errors.js";
import { Ledger, type Defaults } from "./ledger.js";
import { firstRow, sqlstate } from "./mysql2.js";

/** Returns a ledger on a Knex instance. */
export function ledger(knex: Knex, defaults: Defaults = {}): Ledger<Knex.Transaction> {
  return new Ledger(database(knex), defaults);
}

/** Returns a Knex instance as a database. */
export function database(knex: Knex): Database<Knex.Transaction> {
  const { driverName } = knex.client as { driverName?: string };
  if (driverName !== "pg" && driverName !== "mysql2") {
    throw new Misused(`Knex uses ${String(driverName)}; the ledger works with its clients pg and mysql2`);
  }
  const isPostgres = driverName === "pg";
  return {
    dialect: isPostgres ? "postgresql" : "mysql",
    placeholder: () => "?",
    async query(trx, statement, values) {
      const result: unknown = await trx.raw(statement, values as Knex.RawBinding[]);
      return isPostgres ? (result as { rows: Row[] }).rows[0] : firstRow((result as unknown[])[0]);
    },
    sqlstate(error) {
      const { severity, code } = (error ?? {}) as { severity?: unknown; code?: string };
      return isPostgres ? (typeof severity === "string" ? code : undefined) : sqlstate(error);
    },
    transaction: (work) => knex.transaction(work),
  };
}
