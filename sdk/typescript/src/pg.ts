/** node-postgres: `import { ledger } from "semel/pg"`. */

import type { Pool, PoolClient } from "pg";
import type { Database, Row } from "./database.js";
import { Ledger, type Defaults } from "./ledger.js";

/** Returns a ledger on a pool of node-postgres. */
export function ledger(pool: Pool, defaults: Defaults = {}): Ledger<PoolClient> {
  return new Ledger(database(pool), defaults);
}

/** Returns a pool as a database. */
export function database(pool: Pool): Database<PoolClient> {
  return {
    dialect: "postgresql",
    placeholder: (number) => `$${number}`,
    query: async (client, statement, values) => (await client.query<Row>(statement, [...values])).rows[0],
    sqlstate(error) {
      // Errors of sockets have a code, too; only the server's have a severity.
      const { severity, code } = (error ?? {}) as { severity?: unknown; code?: unknown };
      return typeof severity === "string" && typeof code === "string" ? code : undefined;
    },
    async transaction(work) {
      const client = await pool.connect();
      // Without a listener, a connection that is lost while it is used ends the process.
      const ignore = (): void => undefined;
      client.on("error", ignore);
      let failed: Error | undefined;
      try {
        await client.query("BEGIN");
        const value = await work(client);
        await client.query("COMMIT");
        return value;
      } catch (error) {
        await client.query("ROLLBACK").catch((broken: Error) => (failed = broken));
        throw error;
      } finally {
        client.off("error", ignore);
        client.release(failed);
      }
    },
  };
}
