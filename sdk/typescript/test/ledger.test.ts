/** Runs the ledger through every library whose database is there. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import {
  BackingOff,
  Failed,
  InProgress,
  InvalidFingerprint,
  InvalidKey,
  KeyReused,
  EventConflict,
  newId,
  Resource,
  ulids,
  type Event,
} from "../src/index.js";
import { LIBRARIES, newTenant, type Library } from "./databases.js";

const ORDER = new Resource("ORDER", "ord");

if (Object.keys(LIBRARIES).length === 0) {
  test("the ledger", { skip: "set SEMEL_TEST_POSTGRES_URL or SEMEL_TEST_MYSQL_URL to a migrated database" });
}

for (const [name, open] of Object.entries(LIBRARIES)) {
  describe(`the ledger through ${name}`, { concurrency: true }, () => suite(open));
}

function suite(open: () => Promise<Library>): void {
  let library: Library;
  before(async () => {
    library = await open();
  });
  after(() => library.close());

  const effects = async (prefix: string): Promise<number> => {
    const rows = await library.rows("SELECT count(*) AS n FROM effect WHERE name LIKE ?", `${prefix}%`);
    return Number(rows[0].n);
  };
  const order = (tenant: string, more = {}) => ({ tenant, operation: "CreateOrder", key: "k-1", ...more });

  test("a repeat gets the first result, and the work runs once", async () => {
    const tenant = newTenant();
    const ledger = library.ledger({ tenant });
    const place = () =>
      ledger.execute({ operation: "CreateOrder", key: "k-1", fields: { sku: "A-1" } }, async (unit) => {
        unit.reference = "ord_1";
        await library.insert(unit, `${tenant}/1`);
        // JSON has no dates: both calls get what is stored.
        return { order: 1, by: unit.operationId, on: new Date(0) as unknown };
      });
    const first = await place();
    const again = await place();
    assert.deepEqual(again, { ...first, replayed: true });
    assert.equal(first.replayed, false);
    assert.equal(again.reference, "ord_1");
    assert.equal(await effects(tenant), 1);
  });

  test("other fields under one key are refused, and their order is none", async () => {
    const ledger = library.ledger({ tenant: newTenant() });
    const place = (fields: unknown) => ledger.execute({ operation: "o", key: "k", fields }, async () => 1);
    await place({ a: 1, b: 2 });
    assert.equal((await place({ b: 2, a: 1.0 })).replayed, true);
    await assert.rejects(place({ a: 1, b: 3 }), KeyReused);
  });

  test("a failure rolls back, is recorded and runs again as the same operation", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    const operations = new Set<string | undefined>();
    const place = (fails: boolean) =>
      ledger.execute(order(tenant), async (unit) => {
        operations.add(unit.operationId);
        await library.insert(unit, `${tenant}/1`);
        if (fails) {
          throw new RangeError("declined\nby the bank");
        }
        return 1;
      });
    await assert.rejects(place(true), RangeError);
    assert.equal(await effects(tenant), 0);
    const [record] = await library.rows("SELECT error FROM semel_record WHERE tenant = ?", tenant);
    assert.equal(String(record.error), "RangeError: declined by the bank");
    assert.equal((await place(false)).replayed, false);
    assert.equal(await effects(tenant), 1);
    assert.equal(operations.size, 1);
  });

  test("a failure may be put off or kept", async () => {
    const ledger = library.ledger({ tenant: newTenant() });
    const fail = async () => {
      throw new Error("declined");
    };
    const later = { operation: "o", key: "later", retryAfterMs: 60_000 };
    await assert.rejects(ledger.execute(later, fail), /declined/);
    await assert.rejects(ledger.execute(later, fail), (error) => {
      assert.ok(error instanceof BackingOff);
      assert.ok(error.retryAfterMs !== undefined && error.retryAfterMs > 50_000);
      return true;
    });
    const never = { operation: "o", key: "never", isFinal: () => true };
    await assert.rejects(ledger.execute(never, fail), /declined/);
    await assert.rejects(ledger.execute(never, fail), Failed);
  });

  test("a caller that waits runs a failed operation when it is due", async () => {
    const ledger = library.ledger({ tenant: newTenant() });
    let attempts = 0;
    const place = () =>
      ledger.execute({ operation: "o", key: "k", retryAfterMs: 200, waitMs: 60_000 }, async () => {
        attempts += 1;
        if (attempts === 1) {
          throw new Error("declined");
        }
        return attempts;
      });
    await assert.rejects(place(), /declined/);
    assert.equal((await place()).value, 2);
  });

  test("a rival is told at once, or waits for the result", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    let begun = (): void => undefined;
    let finish = (): void => undefined;
    const isBegun = new Promise<void>((resolve) => (begun = resolve));
    const mayFinish = new Promise<void>((resolve) => (finish = resolve));
    const first = ledger.execute(order(tenant), async () => {
      begun();
      await mayFinish;
      return "first";
    });
    await isBegun;
    const rival = async () => "rival";
    await assert.rejects(ledger.execute(order(tenant), rival), InProgress);
    const waiting = ledger.execute(order(tenant, { waitMs: 60_000 }), rival);
    finish();
    assert.equal((await first).value, "first");
    const { value, replayed } = await waiting;
    assert.deepEqual([value, replayed], ["first", true]);
  });

  test("many callers of one key have one effect and one result", async () => {
    const tenant = newTenant();
    const ledger = library.ledger({ waitMs: 60_000 });
    const calls = Array.from({ length: 8 }, (_, caller) =>
      ledger.execute(order(tenant), async (unit) => {
        await library.insert(unit, `${tenant}/${caller}`);
        return caller;
      }),
    );
    const results = await Promise.all(calls);
    assert.equal(new Set(results.map((result) => result.value)).size, 1);
    assert.equal(results.filter((result) => !result.replayed).length, 1);
    assert.equal(await effects(tenant), 1);
  });

  test("keys of other tenants, operations and callers are other keys", async () => {
    const ledger = library.ledger();
    const one = { tenant: newTenant(), operation: "o", key: "k" };
    const others = [one, { ...one, tenant: newTenant() }, { ...one, operation: "p" }, { ...one, principal: "u" }];
    for (const other of others) {
      assert.equal((await ledger.execute(other, async () => 1)).replayed, false);
    }
  });

  test("what cannot work is refused before anything is sent", async () => {
    const ledger = library.ledger();
    const work = async () => assert.fail("it ran");
    await assert.rejects(ledger.execute(order(newTenant(), { key: " " }), work), InvalidKey);
    await assert.rejects(ledger.execute(order(""), work), InvalidKey);
    for (const fields of [NaN, { a: new Map() }, [undefined], 1n, () => 1]) {
      await assert.rejects(ledger.execute(order(newTenant(), { fields }), work), InvalidFingerprint);
    }
    const both = { fields: 1, requestHash: "0".repeat(64) };
    await assert.rejects(ledger.execute(order(newTenant(), both), work), InvalidKey);
  });

  test("a result that cannot be stored commits nothing", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    for (const result of ["x".repeat(1 << 21), new Map()]) {
      const placing = ledger.execute(order(tenant), async (unit) => {
        await library.insert(unit, `${tenant}/1`);
        return result;
      });
      await assert.rejects(placing as Promise<unknown>);
      assert.equal(await effects(tenant), 0);
    }
  });

  test("an event commits with its operation, under the same id in every attempt", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    const ids: string[] = [];
    const place = (fails: boolean) =>
      ledger.execute(order(tenant), async (unit) => {
        const about = ["order", "1"] as const;
        ids.push(await unit.append("order.placed", { n: 1 }, { source: "/orders", name: "placed", about }));
        if (fails) {
          throw new Error("declined");
        }
      });
    const outbox = () => library.rows("SELECT id, aggregateid FROM semel_outbox WHERE tenant = ?", tenant);
    await assert.rejects(place(true));
    assert.equal((await outbox()).length, 0);
    await place(false);
    assert.equal((await place(false)).value, null);
    assert.deepEqual(new Set(ids).size, 1);
    assert.deepEqual((await outbox()).map(({ id, aggregateid }) => [id, aggregateid]), [[ids[0], "1"]]);
  });

  test("a public id is the operation's, and resolves for its tenant", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    const { value, reference, operationId } = await ledger.execute(
      order(tenant),
      async (unit) => (await unit.createId(ORDER)).public,
    );
    assert.equal(reference, value);
    await ledger.execute(order(tenant, { key: "other" }), async (unit) => {
      const found = await unit.resolveId(ORDER, value);
      assert.equal(found && ulids.write(found), operationId);
    });
    await ledger.execute(order(newTenant()), async (unit) => {
      assert.equal(await unit.resolveId(ORDER, value), undefined);
    });
  });

  test("an event is handled once per group, and again if its handler failed", async () => {
    const tenant = newTenant();
    const ledger = library.ledger();
    const event: Event = {
      tenant,
      id: ulids.write(newId()),
      type: "order.placed",
      source: "/orders",
      payload: Buffer.from("{}"),
    };
    const ship = (group: string) =>
      ledger.handle(group, event, (unit) => library.insert(unit, `${tenant}/${group}`));
    await assert.rejects(
      ledger.handle("SHIPPING", event, async (unit) => {
        await library.insert(unit, `${tenant}/failed`);
        throw new Error("no box");
      }),
      /no box/,
    );
    assert.deepEqual([await ship("SHIPPING"), await ship("SHIPPING"), await ship("BILLING")], [
      { replayed: false },
      { replayed: true },
      { replayed: false },
    ]);
    assert.equal(await effects(tenant), 2);
    await assert.rejects(
      ledger.handle("SHIPPING", { ...event, type: "order.paid" }, async () => assert.fail("it ran")),
      EventConflict,
    );
  });
}
