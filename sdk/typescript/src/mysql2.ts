/** mysql2, its promises: `import { ledger } from "semel/mysql2"`. */

import type { Pool, PoolConnection } from "mysql2/promise";
import type { Database, Row } from "./database.js";
import { Ledger, type Defaults } from "./ledger.js";

/** Returns a ledger on a pool of `mysql2/promise`. */
export function ledger(pool: Pool, defaults: Defaults = {}): Ledger<PoolConnection> {
  return new Ledger(database(pool), defaults);
}

/** Returns a pool as a database. */
export function database(pool: Pool): Database<PoolConnection> {
  return {
    dialect: "mysql",
    placeholder: () => "?",
    query: async (connection, statement, values) => firstRow((await connection.query(statement, [...values]))[0]),
    sqlstate,
    async transaction(work) {
      const connection = await pool.getConnection();
      let isBroken = false;
      try {
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
