/**
 * Many processes call the ledger on a few keys, while work fails, connections break and processes are
 * killed. Prints what came of it, as one JSON object. The same as stress.py, for the TypeScript package.
 *
 * An effect is a row in a table without a unique constraint, so that a doubled one is counted and not refused.
 */

import { spawn } from "node:child_process";
import { appendFileSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import mysql from "mysql2/promise";
import pg from "pg";
import { ClaimLost, CommitUnknown, InProgress, Unavailable } from "semel";
import { ledger as mysqlLedger } from "semel/mysql2";
import { ledger as pgLedger } from "semel/pg";

const TENANT = "stress";
// Shares of the work that runs; of all calls for the last one.
const [FAILING, BREAKING, KILLING] = [0.25, 0.15, 0.02];

// Each replaces one guard of the functions by nothing.
const SABOTAGE = {
  // Rivals are not kept from a key that an open transaction holds.
  lock: ["semel_take", "is_locked := pg_try_advisory_xact_lock(public.semel_lock_key(draft.digest));", "is_locked := true;"],
  // A claim whose key has another record by now completes all the same.
  fence: ["semel_write", "return written = 1;", "return true;"],
};

class Failing extends Error {}

/** PostgreSQL through node-postgres. */
class Postgres {
  number = "SELECT pg_backend_pid() AS number";
  end = "SELECT pg_terminate_backend(?)";

  constructor(url) {
    this.pool = new pg.Pool({ connectionString: url, max: 2 });
    this.pool.on("error", () => {});
  }

  ledger(defaults) {
    return pgLedger(this.pool, defaults);
  }

  /** Runs a statement with `?` for its parameters, on a connection or on any. */
  async rows(statement, values = [], connection = this.pool) {
    let count = 0;
    return (await connection.query(statement.replace(/\?/g, () => `$${(count += 1)}`), values)).rows;
  }

  close() {
    return this.pool.end();
  }
}

/** MariaDB and MySQL through mysql2. */
class MySql {
  number = "SELECT CONNECTION_ID() AS number";
  end = "KILL ?";

  constructor(url) {
    this.pool = mysql.createPool({ uri: url, connectionLimit: 2 });
    // READ COMMITTED, as the documentation recommends: there a rival is told at once.
    this.pool.pool.on("connection", (connection) => {
      connection.on("error", () => {});
      connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", () => {});
    });
  }

  ledger(defaults) {
    return mysqlLedger(this.pool, defaults);
  }

  async rows(statement, values = [], connection = this.pool) {
    return (await connection.query(statement, values))[0];
  }

  close() {
    return this.pool.end();
  }
}

function serverAt(url) {
  return url.startsWith("mysql:") ? new MySql(url) : new Postgres(url);
}

/** Returns numbers from 0 to 1 that are the same for the same seed (mulberry32). */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** One process: it makes its calls and writes down every result that it got. */
class Client {
  constructor(url, seed, journal) {
    this.random = random(seed);
    this.journal = journal;
    this.server = serverAt(url);
    this.ledger = this.server.ledger({ tenant: TENANT, waitMs: 60_000 });
  }

  /** Takes effect, unless a fault comes in between. */
  async place(unit, key, faults) {
    const answer = `${key} by ${process.pid} in ${this.random()}`;
    await this.server.rows("INSERT INTO effect (name, answer) VALUES (?, ?)", [key, answer], unit.connection);
    await unit.append("order.placed", { key }, { source: "/stress", name: "placed" });
    const fault = faults ? this.random() : 1;
    if (fault < FAILING) {
      throw new Failing("declined");
    }
    if (fault < FAILING + BREAKING) {
      // As a server does that is restarted: the next statement finds the connection gone.
      const [{ number }] = await this.server.rows(this.server.number, [], unit.connection);
      await this.server.rows(this.server.end, [number]);
    }
    return answer;
  }

  /** Makes one call; true if it got a result. */
  async call(key, faults = true) {
    let result;
    try {
      result = await this.ledger.execute({ operation: "CreateOrder", key, fields: { key } }, (unit) =>
        this.place(unit, key, faults),
      );
    } catch (error) {
      const told = [Failing, CommitUnknown, InProgress, ClaimLost, Unavailable];
      if (told.some((kind) => error instanceof kind) || isLost(error)) {
        return false;
      }
      throw error;
    }
    appendFileSync(this.journal, `${JSON.stringify([key, result.value, result.replayed])}\n`);
    return true;
  }
}

/** The errors of a connection that was cut. */
function isLost(error) {
  const codes = ["57P01", "ECONNRESET", "EPIPE", "ER_QUERY_INTERRUPTED", "ER_CONNECTION_KILLED"];
  return codes.includes(error.code) || error.fatal || /connection|not queryable/i.test(error.message);
}

/** Makes the calls from number `first` on; the number of the next one survives in a file. */
async function work(options) {
  const client = new Client(options.url, options.seed, join(options.directory, `${options.process}.answers`));
  // All processes use the keys in one order, and so meet on them.
  const chosen = random(options.order);
  const order = Array.from({ length: options.calls }, () => Math.floor(chosen() * options.keys));
  for (let number = options.first; number < options.calls; number += 1) {
    writeFileSync(join(options.directory, `${options.process}.next`), String(number + 1));
    if (client.random() < KILLING) {
      // In the middle of whatever the call then does.
      setTimeout(() => process.kill(process.pid, "SIGKILL"), 1 + client.random() * 29);
    }
    await client.call(`key-${order[number]}`);
  }
  await client.server.close();
}

/** Runs one process to its end, and starts it again each time it was killed; returns how often. */
async function supervise(options, directory, number) {
  let first = 0;
  for (let killed = 0; ; killed += 1) {
    const named = {
      ...options,
      directory,
      process: number,
      first,
      calls: Math.floor(options.calls / options.processes),
      order: options.seed,
      seed: 1_000_000 * options.seed + 1000 * killed + number,
    };
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), JSON.stringify(named)], {
      stdio: ["ignore", "inherit", "inherit"],
    });
    const [status, signal] = await new Promise((resolve) => child.on("exit", (...end) => resolve(end)));
    if (status === 0) {
      return killed;
    }
    if (signal !== "SIGKILL") {
      throw new Error(`a client ended with ${status ?? signal}`);
    }
    first = Number(readFileSync(join(directory, `${number}.next`), "utf8") || 0);
  }
}

async function sabotage(server, guards) {
  for (const guard of guards) {
    const [name, guarded, removed] = SABOTAGE[guard];
    const definition = "SELECT pg_get_functiondef(oid) AS source FROM pg_proc WHERE proname = ?";
    const [{ source }] = await server.rows(definition, [name]);
    if (!source.includes(guarded)) {
      throw new Error(`the guard ${guard} is not where it was: ${name}`);
    }
    await server.rows(source.replace(guarded, removed));
  }
}

/** Compares what the clients were told with the effects that are there. */
async function judge(server, options, directory) {
  // Every key has a result in the end, whatever happened to it.
  const client = new Client(options.url, options.seed, join(directory, "last.answers"));
  const deadline = Date.now() + 300_000;
  for (let number = 0; number < options.keys; number += 1) {
    while (!(await client.call(`key-${number}`, false))) {
      if (Date.now() > deadline) {
        throw new Error(`key-${number} never got a result`);
      }
    }
  }
  await client.server.close();
  const lines = readdirSync(directory)
    .filter((name) => name.endsWith(".answers"))
    .flatMap((name) => readFileSync(join(directory, name), "utf8").split("\n").filter(Boolean));
  const answers = new Map();
  let replayed = 0;
  for (const [key, answer, wasReplayed] of lines.map((line) => JSON.parse(line))) {
    answers.set(key, (answers.get(key) ?? new Set()).add(answer));
    replayed += wasReplayed ? 1 : 0;
  }
  const effects = await server.rows("SELECT name, answer FROM effect");
  const counts = new Map();
  for (const { name } of effects) {
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const outbox = "SELECT count(*) AS n, count(DISTINCT id) AS ids FROM semel_outbox WHERE tenant = ?";
  const [events] = await server.rows(outbox, [TENANT]);
  return {
    effects: effects.length,
    doubled: [...counts.values()].filter((count) => count > 1).length,
    lost: [...answers.keys()].filter((key) => !counts.has(key)).length,
    keys_with_several_answers: [...answers.values()].filter((each) => each.size > 1).length,
    foreign_answers: effects.filter(({ name, answer }) => !answers.get(name)?.has(answer)).length,
    keys_answered: answers.size,
    events: [Number(events.n), Number(events.ids)],
    told: lines.length,
    replayed,
  };
}

async function main() {
  const { values } = parseArgs({
    options: {
      url: { type: "string" },
      processes: { type: "string", default: "8" },
      calls: { type: "string", default: "1200" },
      keys: { type: "string", default: "120" },
      seed: { type: "string", default: "1" },
      sabotage: { type: "string", multiple: true, default: [] },
    },
  });
  const [processes, calls, keys, seed] = ["processes", "calls", "keys", "seed"].map((name) => Number(values[name]));
  const options = { url: values.url, processes, calls, keys, seed };
  const server = serverAt(options.url);
  await server.rows("CREATE TABLE effect (name varchar(200) NOT NULL, answer varchar(200) NOT NULL)");
  await sabotage(server, values.sabotage);
  const directory = mkdtempSync(join(tmpdir(), "semel-stress-"));
  try {
    const begun = Date.now();
    const numbers = Array.from({ length: processes }, (_, number) => number);
    const killed = await Promise.all(numbers.map((number) => supervise(options, directory, number)));
    const report = await judge(server, options, directory);
    report.killed = killed.reduce((sum, each) => sum + each, 0);
    report.seconds = (Date.now() - begun) / 1000;
    console.log(JSON.stringify(report));
  } finally {
    rmSync(directory, { recursive: true });
    await server.close();
  }
}

const [, , argument = ""] = process.argv;
await (argument.startsWith("{") ? work(JSON.parse(argument)) : main());
