/** What becomes of an operation when its connection is lost, or its transaction is not what it seems. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import pg from "pg";
import { CommitUnknown, Ledger, newId, NotMigrated, ulids, Unavailable } from "../src/index.js";
import type { Database } from "../src/index.js";
import { database } from "../src/pg.js";
import { newTenant, POSTGRES } from "./databases.js";

describe("faults on PostgreSQL", { skip: POSTGRES === undefined ? "set SEMEL_TEST_POSTGRES_URL" : false }, () => {
  let pool: pg.Pool;
  before(async () => {
    pool = new pg.Pool({ connectionString: POSTGRES });
    pool.on("error", () => undefined);
    await pool.query("CREATE TABLE IF NOT EXISTS effect (name varchar(200) NOT NULL)").catch(() => undefined);
  });
  after(() => pool.end());

  const effects = async (name: string): Promise<number> =>
    Number((await pool.query("SELECT count(*) AS n FROM effect WHERE name = $1", [name])).rows[0].n);

  const place = (ledger: Ledger<pg.PoolClient>, tenant: string) =>
    ledger.execute({ tenant, operation: "o", key: "k" }, async (unit) => {
      await unit.connection.query("INSERT INTO effect VALUES ($1)", [tenant]);
      return unit.operationId;
    });

  /** Loses the first COMMIT: before the server has it, or only its answer. */
  function losing(commits: boolean, recovers = true): Database<pg.PoolClient> {
    const real = database(pool);
    let isFirst = true;
    return {
      ...real,
      async transaction(work) {
        if (!isFirst && !recovers) {
          throw new Error("no connection");
        }
        const loses = isFirst;
        isFirst = false;
        if (loses && !commits) {
          return real.transaction(async (client) => {
            await work(client);
            throw new Error("the connection was lost");
          });
        }
        const value = await real.transaction(work);
        if (loses) {
          throw new Error("the connection was lost");
        }
        return value;
      },
    };
  }

  test("a COMMIT whose answer is lost is looked up, and the result given", async () => {
    const tenant = newTenant();
    const result = await place(new Ledger(losing(true)), tenant);
    assert.deepEqual([result.replayed, result.value], [false, result.operationId]);
    assert.equal(await effects(tenant), 1);
    const again = await place(new Ledger(database(pool)), tenant);
    assert.deepEqual([again.replayed, again.operationId], [true, result.operationId]);
  });

  test("a COMMIT that was lost with its connection is an error, and the key runs again", async () => {
    const tenant = newTenant();
    await assert.rejects(place(new Ledger(losing(false)), tenant), /the connection was lost/);
    assert.equal(await effects(tenant), 0);
    assert.equal((await place(new Ledger(database(pool)), tenant)).replayed, false);
    assert.equal(await effects(tenant), 1);
  });

  test("a COMMIT that nobody can look up is told as unknown", async () => {
    const tenant = newTenant();
    await assert.rejects(place(new Ledger(losing(true, false)), tenant), CommitUnknown);
    assert.equal((await place(new Ledger(database(pool)), tenant)).replayed, true);
  });

  test("a connection that is cut in the work fails the call, not the process", async () => {
    const tenant = newTenant();
    const ledger = new Ledger(database(pool));
    await assert.rejects(
      ledger.execute({ tenant, operation: "o", key: "k" }, async (unit) => {
        const { rows } = await unit.connection.query("SELECT pg_backend_pid() AS pid");
        await pool.query("SELECT pg_terminate_backend($1)", [rows[0].pid]);
        await unit.connection.query("INSERT INTO effect VALUES ($1)", [tenant]);
      }),
    );
    assert.equal(await effects(tenant), 0);
    // The backend may need a moment to let go of the key.
    const patient = new Ledger(database(pool), { waitMs: 60_000 });
    assert.equal((await place(patient, tenant)).replayed, false);
  });

  test("an error that a handler swallows does not count as handled", async () => {
    const ledger = new Ledger(database(pool));
    const event = { tenant: newTenant(), id: ulids.write(newId()), type: "t", source: "/s", payload: Buffer.from("") };
    await assert.rejects(
      ledger.handle("g", event, (unit) => unit.connection.query("SELECT 1 / 0").catch(() => undefined)),
      /aborted/,
    );
    assert.deepEqual(await ledger.handle("g", event, async () => undefined), { replayed: false });
  });

  test("a database that cannot be reached is told as such, and nothing ran", async () => {
    const nobody = new pg.Pool({ host: "127.0.0.1", port: 1 });
    await assert.rejects(place(new Ledger(database(nobody)), "t"), Unavailable);
    await nobody.end();
  });

  test("a database without the functions is told as such", async () => {
    const bare = new pg.Pool({ connectionString: POSTGRES, options: "-c search_path=pg_catalog" });
    await assert.rejects(place(new Ledger(database(bare)), "t"), NotMigrated);
    await bare.end();
  });

  test("work that commits by itself cannot commit its claim", async () => {
    const ledger = new Ledger(database(pool));
    await assert.rejects(
      ledger.execute({ tenant: newTenant(), operation: "o", key: "k" }, (unit) => unit.connection.query("COMMIT")),
      /did not complete it, so it cannot commit/,
    );
  });
});
