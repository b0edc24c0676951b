/** node-postgres: `import { ledger } from "semel/pg"`. */

import type { Pool, PoolClient } from "pg";
import type { Database, Row } from "./database.js";
import { Misused } from "./errors.js";
import { Ledger, type Defaults } from "./ledger.js";

const LEFT_OPEN =
  "a client was given back to the pool within a transaction; commit or roll back before you release it";

/** Returns a ledger on a pool of node-postgres. */
export function ledger(pool: Pool, defaults: Defaults = {}): Ledger<PoolClient> {
  return new Ledger(database(pool), defaults);
}

/** Returns a pool as a database. */
export function database(pool: Pool): Database<PoolClient> {
  if (typeof (pool as Partial<Pool>).totalCount !== "number") {
    throw new Misused("the ledger takes a Pool of node-postgres: it opens transactions on clients of its own");
  }
  return {
    dialect: "postgresql",
    placeholder: (number) => `$${number}`,
    query: async (client, statement, values) => (await client.query<Row>(statement, [...values])).rows[0],
    sqlstate,
    async isInTransaction(client) {
      try {
        // Refused outside a transaction; one message, since nothing else may come between.
        await client.query("SAVEPOINT semel_joined; RELEASE SAVEPOINT semel_joined");
        return true;
      } catch (error) {
        if (sqlstate(error) === "25P01") {
          return false;
        }
        throw error;
      }
    },
    async transaction(work) {
      const client = await pool.connect();
      // Without a listener, a connection that is lost while it is used ends the process.
      const ignore = (): void => undefined;
      client.on("error", ignore);
      let failed: Error | undefined;
      // The server says so, and goes on in the transaction that another user of the pool left open.
      const notice = ({ code }: { code?: string | undefined }): void => {
        failed = code === "25001" ? new Misused(LEFT_OPEN) : failed;
      };
      client.on("notice", notice);
      try {
        await client.query("BEGIN");
        client.off("notice", notice);
        if (failed !== undefined) {
          throw failed;
        }
        const value = await work(client);
        // The server answers ROLLBACK, and gives no error, if a statement failed that was not awaited.
        const { command } = await client.query("COMMIT");
        if (command !== "COMMIT") {
          throw new Misused("a statement failed after the work had ended, so nothing was committed; await all of them");
        }
        return value;
      } catch (error) {
        await client.query("ROLLBACK").catch((broken: Error) => (failed = broken));
        throw error;
      } finally {
        client.off("notice", notice);
        client.off("error", ignore);
        client.release(failed);
      }
    },
  };
}

/** Returns the SQLSTATE of an error of node-postgres. */
export function sqlstate(error: unknown): string | undefined {
  // Errors of sockets have a code, too; only the server's have a severity.
  const { severity, code } = (error ?? {}) as { severity?: unknown; code?: unknown };
  return typeof severity === "string" && typeof code === "string" ? code : undefined;
}
