/** What becomes of an operation when its connection is lost, or its transaction is not what it seems. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import pg from "pg";
import { CommitUnknown, Failed, Ledger, Misused, newId, NotMigrated, ulids, Unavailable } from "../src/index.js";
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

  test("a COMMIT that was lost gives the result of the attempt that took effect since", async () => {
    const tenant = newTenant();
    const real = database(pool);
    const execute = (ledger: Ledger<pg.PoolClient>, answer: string) =>
      ledger.execute({ tenant, operation: "o", key: "k" }, async () => answer);
    // A failure is recorded, so that all attempts have one operation id.
    const failing = async () => Promise.reject(new Error("declined"));
    await assert.rejects(new Ledger(real).execute({ tenant, operation: "o", key: "k" }, failing));
    let isFirst = true;
    const overtaken: Database<pg.PoolClient> = {
      ...real,
      async transaction(work) {
        if (!isFirst) {
          return real.transaction(work);
        }
        isFirst = false;
        const lost = new Error("the connection was lost");
        await real.transaction((client) => work(client).then(() => Promise.reject(lost))).catch(() => undefined);
        await execute(new Ledger(real), "the rival's");
        throw lost;
      },
    };
    const { value, replayed } = await execute(new Ledger(overtaken), "the first's");
    assert.deepEqual([value, replayed], ["the rival's", true]);
  });

  test("a failure that the server reports at COMMIT is recorded as one of the work", async () => {
    const tenant = newTenant();
    const ledger = new Ledger(database(pool));
    await pool.query("CREATE TABLE IF NOT EXISTS late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
    const placing = () =>
      ledger.execute({ tenant, operation: "o", key: "k", isFinal: () => true }, async (unit) => {
        await unit.connection.query("INSERT INTO late VALUES (1), (1)");
      });
    await assert.rejects(placing(), /duplicate key/);
    await assert.rejects(placing(), Failed);
  });

  test("a statement that fails after the work, and that nobody awaits, is no success", async () => {
    const failing = database(pool).transaction((client) => client.query("SELECT 1 / 0").catch(() => undefined));
    await assert.rejects(failing, Misused);
  });

  test("a client that was given back within a transaction is refused, and destroyed", async () => {
    const one = new pg.Pool({ connectionString: POSTGRES, max: 1 });
    const tenant = newTenant();
    const client = await one.connect();
    await client.query("BEGIN");
    await client.query("INSERT INTO effect VALUES ($1)", [`${tenant}/pending`]);
    client.release();
    await assert.rejects(place(new Ledger(database(one)), tenant), Misused);
    assert.equal(await effects(`${tenant}/pending`), 0);
    assert.equal((await place(new Ledger(database(one)), tenant)).replayed, false);
    assert.equal(await effects(`${tenant}/pending`), 0);
    await one.end();
  });

  test("a client whose ROLLBACK fails is destroyed", async () => {
    const one = new pg.Pool({ connectionString: POSTGRES, max: 1 });
    one.on("error", () => undefined);
    const pids: unknown[] = [];
    for (const breaks of [true, false]) {
      const asking = database(one).transaction(async (client) => {
        pids.push((await client.query("SELECT pg_backend_pid() AS pid")).rows[0].pid);
        if (breaks) {
          client.query = (() => Promise.reject(new Error("no answer"))) as never;
          throw new Error("declined");
        }
      });
      await (breaks ? assert.rejects(asking, /declined/) : asking);
    }
    assert.notEqual(pids[0], pids[1]);
    await one.end();
  });

  test("an error about what was sent is not told as a ledger out of reach", async () => {
    const transaction = () => Promise.reject(new TypeError("a typo"));
    await assert.rejects(place(new Ledger({ ...database(pool), transaction }), "t"), TypeError);
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
