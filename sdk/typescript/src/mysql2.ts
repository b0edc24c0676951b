/** mysql2, its promises: `import { ledger } from "semel/mysql2"`. */

import type { Pool, PoolConnection, ResultSetHeader } from "mysql2/promise";
import type { Database, Row } from "./database.js";
import { Misused } from "./errors.js";
import { Ledger, type Defaults } from "./ledger.js";

// What the server says of a connection with every answer.
const IN_TRANSACTION = 1;
const AUTOCOMMIT = 2;

/** Returns a ledger on a pool of `mysql2/promise`. */
export function ledger(pool: Pool, defaults: Defaults = {}): Ledger<PoolConnection> {
  return new Ledger(database(pool), defaults);
}

/** Returns a pool as a database. */
export function database(pool: Pool): Database<PoolConnection> {
  const given = pool as Partial<Pool> & { promise?: unknown };
  if (typeof given.getConnection !== "function" || typeof given.promise === "function") {
    throw new Misused("the ledger takes a pool of mysql2/promise: it opens transactions on connections of its own");
  }
  return {
    dialect: "mysql",
    placeholder: () => "?",
    query: async (connection, statement, values) => firstRow((await connection.query(statement, [...values]))[0]),
    sqlstate,
    async isInTransaction(connection) {
      const flags = await status(connection);
      return (flags & IN_TRANSACTION) !== 0 || (flags & AUTOCOMMIT) === 0;
    },
    async transaction(work) {
      const connection = await pool.getConnection();
      let isBroken = false;
      try {
        // BEGIN would commit what another user of the pool left open.
        if (((await status(connection)) & IN_TRANSACTION) !== 0) {
          throw new Misused(
            "a connection was given back to the pool within a transaction; commit or roll back before you release it",
          );
        }
        await connection.beginTransaction();
        const value = await work(connection);
        await connection.commit();
        return value;
      } catch (error) {
        await connection.rollback().catch(() => (isBroken = true));
        throw error;
      } finally {
        if (isBroken) {
          connection.destroy();
        } else {
          connection.release();
        }
      }
    },
  };
}

async function status(connection: PoolConnection): Promise<number> {
  const [{ serverStatus }] = await connection.query<ResultSetHeader & { serverStatus?: number }>("DO 0");
  return serverStatus ?? 0;
}

/** Returns the first row of a result of mysql2: a procedure's is a list of results. */
export function firstRow(result: unknown): Row | undefined {
  const first: unknown = Array.isArray(result) ? result[0] : undefined;
  return (Array.isArray(first) ? first[0] : first) as Row | undefined;
}

/** Returns the SQLSTATE of an error of mysql2. */
export function sqlstate(error: unknown): string | undefined {
  const { sqlState } = (error ?? {}) as { sqlState?: unknown };
  return typeof sqlState === "string" && sqlState !== "" ? sqlState : undefined;
}
