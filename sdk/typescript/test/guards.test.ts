/** What the ledger refuses before it runs, and whose errors are whose, through every library. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import knexOf from "knex";
import {
  BackingOff,
  events,
  Failed,
  fingerprints,
  InProgress,
  InvalidFingerprint,
  InvalidKey,
  InvalidResult,
  KeyReused,
  Ledger,
  Misused,
  newId,
  Resource,
  ulids,
} from "../src/index.js";
import { database as knexDatabase } from "../src/knex.js";
import { database as pgDatabase } from "../src/pg.js";
import { LIBRARIES, newTenant, POSTGRES, type Library } from "./databases.js";

const ORDER = new Resource("ORDER", "ord");

test("fields beyond 2^53 have no order", () => {
  const [one, other] = [{ b: 2 ** 60, a: { d: [1], c: 2 } }, { a: { c: 2, d: [1] }, b: 2 ** 60 }];
  assert.deepEqual(fingerprints.of(one), fingerprints.of(other));
  assert.notDeepEqual(fingerprints.of(one), fingerprints.of({ ...one, b: 2 ** 61 }));
});

test("a promise, or what JSON would write as nothing, is no field", () => {
  const later = Promise.resolve(1);
  for (const value of [later, { body: later }, /a/, new URLSearchParams("a=1"), new Error("a")]) {
    assert.throws(() => fingerprints.of(value), InvalidFingerprint);
  }
  for (const value of [{}, { a: {} }, Object.create(null), [], new Date(0)]) {
    fingerprints.of(value);
  }
});

for (const [name, open] of Object.entries(LIBRARIES)) {
  describe(`guards through ${name}`, () => suite(open));
}

function suite(open: () => Promise<Library>): void {
  let library: Library;
  before(async () => {
    library = await open();
  });
  after(() => library.close());

  const order = (tenant: string, more = {}) => ({ tenant, operation: "CreateOrder", key: "k-1", ...more });

  test("a tenant, a key or a principal that is no text is refused", async () => {
    const ledger = library.ledger();
    for (const wrong of [{ id: 1 }, Promise.resolve("a"), 1, null, ["a"]]) {
      for (const part of ["tenant", "key", "operation", "principal"]) {
        const placing = ledger.execute(order(newTenant(), { [part]: wrong }), async () => assert.fail("it ran"));
        await assert.rejects(placing, InvalidKey, part);
      }
      const event = { tenant: newTenant(), id: "1", type: "t", source: "/s", payload: Buffer.from("") };
      const handler = async () => assert.fail("it ran");
      await assert.rejects(ledger.handle("g", { ...event, tenant: wrong as never }, handler), InvalidKey);
      await assert.rejects(ledger.handle(wrong as never, event, handler), InvalidKey);
    }
    for (const principal of ["", "a\0b", "\ud800"]) {
      await assert.rejects(ledger.execute(order(newTenant(), { principal }), async () => assert.fail()), InvalidKey);
    }
  });

  test("a time that is none is refused before the work", async () => {
    const ledger = library.ledger();
    const wrong = [{ retryAfterMs: -1 }, { keepMs: 0 }, { leaseMs: 0 }, { waitMs: NaN }, { keepMs: Infinity }];
    for (const more of [...wrong, { retryAfterMs: "5" }, { waitMs: -1 }]) {
      await assert.rejects(ledger.execute(order(newTenant(), more), async () => assert.fail("it ran")), Misused);
    }
  });

  test("an error of the ledger that the work threw is the work's, and does not run it again", async () => {
    const ledger = library.ledger();
    for (const error of [new InProgress(), new BackingOff(), new KeyReused(), new Misused("nested")]) {
      const request = order(newTenant(), { waitMs: 60_000, isFinal: () => true });
      let runs = 0;
      const place = () =>
        ledger.execute(request, async () => {
          runs += 1;
          throw error;
        });
      await assert.rejects(place(), (thrown) => thrown === error);
      assert.equal(runs, 1);
      await assert.rejects(place(), Failed);
    }
  });

  test("what two groups derive from one event, or one group from two, has an id of its own", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    const ids: string[] = [];
    const internals: string[] = [];
    for (const [group, id] of [["A", "evt-1"], ["B", "evt-1"], ["A", "evt-2"], ["A", ulids.write(newId())]] as const) {
      const event = { tenant, id, type: "t", source: "/s", payload: Buffer.from("") };
      const handle = (fails: boolean) =>
        ledger.handle(group, event, async (unit) => {
          ids.push(await unit.append("done", {}, { source: "/s", name: "done" }));
          internals.push(ulids.write((await unit.createId(ORDER)).internal));
          if (fails) {
            throw new Error("no box");
          }
        });
      await assert.rejects(handle(true), /no box/);
      await handle(false);
    }
    assert.deepEqual([new Set(ids).size, new Set(internals).size], [4, 4]);
    const rows = await library.rows("SELECT id FROM semel_outbox WHERE tenant = ?", tenant);
    assert.equal(rows.length, 4);
  });

  test("a result that cannot be read back is told as such, and may be mended", async () => {
    const ledger = library.ledger();
    const request = order(newTenant());
    const codec = {
      encode: () => ({ contentType: "text/plain", body: Buffer.from("x") }),
      decode: () => assert.fail("not readable"),
    };
    await assert.rejects(ledger.execute({ ...request, codec }, async () => 1), InvalidResult);
    await assert.rejects(ledger.execute(request, async () => NaN), InvalidResult);
    assert.deepEqual((await ledger.execute(request, async () => 1)).replayed, false);
  });

  test("`isFinal` that throws, or gives a promise, is told beside the failure, which is recorded", async () => {
    const ledger = library.ledger();
    for (const isFinal of [() => assert.fail("a bug"), async () => false]) {
      const tenant = newTenant();
      const failure = new Error("declined");
      const placing = ledger.execute(order(tenant, { isFinal }), () => Promise.reject(failure));
      await assert.rejects(placing, (error) => error instanceof AggregateError && error.errors[0] === failure);
      const rows = await library.rows("SELECT error FROM semel_record WHERE tenant = ?", tenant);
      assert.deepEqual(rows.map(({ error }) => String(error)), ["Error: declined"]);
      assert.equal((await ledger.execute(order(tenant), async () => 1)).replayed, false);
    }
  });

  test("a generator, which would not run, is refused as work", async () => {
    const ledger = library.ledger();
    const work = function* (): Generator {
      assert.fail("it ran");
    };
    await assert.rejects(ledger.execute(order(newTenant()), work as never), Misused);
    const event = { tenant: newTenant(), id: "1", type: "t", source: "/s", payload: Buffer.from("") };
    await assert.rejects(ledger.handle("g", event, work as never), Misused);
  });

  test("a clock that is set does not end the wait for a rival", async (context) => {
    const ledger = library.ledger();
    const request = order(newTenant());
    let finish = (): void => undefined;
    const mayFinish = new Promise<void>((resolve) => (finish = resolve));
    let waiting: Promise<{ value: string; replayed: boolean }> | undefined;
    const first = await ledger.execute(request, async () => {
      let now = Date.now();
      const clock = context.mock.method(Date, "now", () => (now += 86_400_000));
      let asked = 0;
      const real = ledger.engine.database;
      const counting = {
        ...real,
        transaction: (work: never) => real.transaction(work).finally(() => (asked += 1) === 2 && finish()),
      };
      waiting = new Ledger<unknown>(counting as never).execute({ ...request, waitMs: 60_000 }, async () => "rival");
      waiting.catch(() => finish());
      await mayFinish;
      clock.mock.restore();
      return "first";
    });
    const { value, replayed } = (await waiting) ?? {};
    assert.deepEqual([first.value, value, replayed], ["first", "first", true]);
  });

  test("a joined connection that is in no transaction is refused, and nothing is written", async () => {
    const tenant = newTenant();
    const ledger = library.ledger({ tenant });
    const append = (connection: unknown) =>
      ledger.join(connection).append("t", {}, { source: "/s", id: ulids.write(newId()) });
    const rows = () => library.rows("SELECT id FROM semel_outbox WHERE tenant = ?", tenant);
    await library.idle(async (connection) => {
      await assert.rejects(append(connection), Misused);
    });
    assert.equal((await rows()).length, 0);
    await ledger.engine.database.transaction(append);
    assert.equal((await rows()).length, 1);
    assert.throws(() => ledger.join({}, { id: 1 } as never), InvalidKey);
  });

  test("what is no pool is refused when the ledger is made", async () => {
    await library.idle(async (connection) => {
      if (library.name !== "knex on pg" && library.name !== "knex on mysql2") {
        assert.throws(() => library.over(connection), Misused);
      }
    });
    assert.throws(() => new Ledger({ ...library.ledger().engine.database, dialect: "sqlite" as never }), Misused);
  });
}

const skip = POSTGRES === undefined ? "set SEMEL_TEST_POSTGRES_URL" : false;
test("a transaction of Knex is no database: the ledger would only make a savepoint", { skip }, async () => {
  const knex = knexOf({ client: "pg", connection: POSTGRES as string });
  await knex.transaction(async (trx) => {
    assert.throws(() => knexDatabase(trx), Misused);
  });
  await knex.destroy();
  assert.throws(() => pgDatabase({} as never), Misused);
});

test("a connection of Knex whose ROLLBACK fails is destroyed, and the work's error thrown", { skip }, async () => {
  const knex = knexOf({ client: "pg", connection: POSTGRES as string, pool: { min: 0, max: 1 } });
  const pids = new Set<unknown>();
  for (const breaks of [true, false]) {
    const asking = knexDatabase(knex).transaction(async (trx) => {
      pids.add((await trx.raw("SELECT pg_backend_pid() AS pid")).rows[0].pid);
      if (breaks) {
        const connection = await (trx.client as any).acquireConnection();
        const fails = (...given: any[]) => given.at(-1)(new Error("no answer"));
        connection.query = fails;
        throw new Error("declined");
      }
    });
    await (breaks ? assert.rejects(asking, /declined/) : asking);
  }
  assert.equal(pids.size, 2);
  await knex.destroy();
});

test("the id from which a handler derives others is the same in every language", () => {
  const event = { tenant: "t", id: "evt-1", type: "x", source: "/s", payload: Buffer.from("") };
  assert.equal(events.handlingId("A", event), "2497XDY4B092FH79WTCYZN7MY9");
});
