/** Knex on PostgreSQL (pg) or MySQL (mysql2): `import { ledger } from "semel/knex"`. */

import type { Knex } from "knex";
import type { Database, Row } from "./database.js";
import { Misused } from "./errors.js";
import { Ledger, type Defaults } from "./ledger.js";
import { firstRow, sqlstate as ofMySql } from "./mysql2.js";
import { sqlstate as ofPostgres } from "./pg.js";

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
  // A transaction in a transaction is a savepoint: the caller could still undo what was told as done.
  const { isTransaction } = knex as { isTransaction?: boolean };
  if (isTransaction === true) {
    throw new Misused("the ledger opens transactions of its own: give it the Knex instance, not a transaction");
  }
  const isPostgres = driverName === "pg";
  return {
    dialect: isPostgres ? "postgresql" : "mysql",
    placeholder: () => "?",
    async query(trx, statement, values) {
      const result: unknown = await trx.raw(statement, values as Knex.RawBinding[]);
      return isPostgres ? (result as { rows: Row[] }).rows[0] : firstRow((result as unknown[])[0]);
    },
    sqlstate: isPostgres ? ofPostgres : ofMySql,
    isInTransaction: async (trx) => trx.isTransaction === true && !trx.isCompleted(),
    async transaction(work) {
      let failure: { readonly error: unknown } | undefined;
      try {
        return await knex.transaction(async (trx) => {
          try {
            return await work(trx);
          } catch (error) {
            failure = { error };
            await rollBack(trx);
            throw error;
          }
        });
      } catch (error) {
        throw failure === undefined ? error : failure.error;
      }
    },
  };
}

/**
 * Rolls back before Knex does, which gives a connection back to its pool also if its ROLLBACK failed.
 */
async function rollBack(trx: Knex.Transaction): Promise<void> {
  try {
    await trx.raw("ROLLBACK");
  } catch (error) {
    // Knex destroys a connection with this mark when the next user asks for it, as after an error of its own.
    const { acquireConnection } = trx.client as { acquireConnection(): Promise<{ __knex__disposed?: unknown }> };
    (await acquireConnection()).__knex__disposed = error;
  }
}
