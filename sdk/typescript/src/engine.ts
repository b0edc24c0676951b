/**
 * The protocol between a program and the ledger.
 *
 * One call is one transaction: `semel_begin`, the caller's work, `semel_complete`, COMMIT. A failure is
 * recorded after the rollback, in a transaction of its own.
 */

import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import type { Codec } from "./codecs.js";
import { call, duration, only, type Database, type FunctionName, type Row } from "./database.js";
import * as errors from "./errors.js";
import { handlingId, type Event } from "./events.js";
import { Unit } from "./unit.js";

// The longest error text that the ledger keeps, in characters.
const MAX_ERROR = 256;
// How long to ask what became of a COMMIT whose answer was lost, while the server still works on it.
const ASKING_MS = 5_000;
// How long a group knows an event: 30 days, as long as any broker delivers it again.
const EVENT_KEEP_MS = 30 * 86_400_000;
// The longest that a timer of Node.js waits; it fires at once for more.
const MAX_SLEEP_MS = 2 ** 31 - 1;

const REFUSALS: Readonly<Record<string, new (known: errors.Known) => errors.Refused>> = {
  mismatch: errors.KeyReused,
  in_progress: errors.InProgress,
  backoff: errors.BackingOff,
  failed: errors.Failed,
  dead: errors.Dead,
  uncertain: errors.Uncertain,
  conflict: errors.EventConflict,
};

// Undefined function, table, schema; no right to them; MySQL: no such procedure, no right to it.
const NOT_MIGRATED = ["42883", "42P01", "3F000", "42501"];
// No transaction, a claim that was not completed.
const MISUSED = ["25P01", "55000", "25000"];
// The connection; the server is going down; it has too many connections.
const LOST = /^(?:08|57P|53300)/;
// A value, a constraint, a view's condition, what triggers raise: why a COMMIT is refused for what it contains.
const CONTAINED = /^(?:22|23|44|45|P0)/;

/** The result of an operation, and whether an earlier call produced it. */
export interface Execution<T> {
  readonly value: T;
  readonly replayed: boolean;
  readonly operationId: string;
  /** A short text by which operators find the record, normally a public id. */
  readonly reference: string | undefined;
}

/** The result of handling an event: `replayed` if this group had handled it before. */
export interface Handled {
  readonly replayed: boolean;
}

/** What is asked of the ledger. */
export interface Request {
  readonly tenant: string;
  readonly operation: string;
  readonly key: string;
  readonly fingerprint: Uint8Array;
  readonly principal: string | undefined;
  readonly leaseMs: number;
  readonly keepMs: number;
  readonly waitMs: number;
  readonly retryAfterMs: number;
  /** Tells failures that no repeat can change: they are kept, and repeats throw Failed. */
  readonly isFinal: (error: unknown) => boolean;
}

/** Ends work whose result is not stored; what is `recorded` is for operators, undefined forgets the attempt. */
export class NotKept extends Error {
  constructor(readonly recorded: string | undefined) {
    super(recorded);
  }
}

/** Undoes a transaction that was begun to ask a question. */
class Asked extends Error {
  constructor(readonly row: Row) {
    super();
  }
}

/** What one attempt came to. An error that the work threw is no refusal, and is thrown. */
type Attempt<T> = { readonly refused: errors.SemelError } | { readonly execution: Execution<T> };

/** Runs operations on one database. */
export class Engine<C> {
  constructor(readonly database: Database<C>) {
    if (database.dialect !== "postgresql" && database.dialect !== "mysql") {
      throw new errors.Misused(`the dialect of a database is postgresql or mysql, not ${String(database.dialect)}`);
    }
  }

  /** Runs `work` once under a key, in one transaction with its outcome. */
  async execute<T>(request: Request, work: (unit: Unit<C>) => Promise<T>, codec: Codec<T>): Promise<Execution<T>> {
    const until = performance.now() + request.waitMs;
    for (let delay = 50; ; delay = Math.min(2 * delay, 500)) {
      const attempt = await this.#attempt(request, work, codec);
      if ("execution" in attempt) {
        return attempt.execution;
      }
      const { refused } = attempt;
      const left = until - performance.now();
      if (left <= 0 || !(refused instanceof errors.InProgress || refused instanceof errors.BackingOff)) {
        throw refused;
      }
      const due = refused instanceof errors.BackingOff ? (refused.retryAfterMs ?? delay) : 0;
      if (due > left) {
        throw refused;
      }
      await sleep(due > 0 ? Math.min(due, MAX_SLEEP_MS) : Math.min(left, delay * (0.5 + Math.random() / 2)));
    }
  }

  async #attempt<T>(request: Request, work: (unit: Unit<C>) => Promise<T>, codec: Codec<T>): Promise<Attempt<T>> {
    let isOpen = false;
    let begun: Row = {};
    // What the ledger itself said of this attempt. Errors of the same types that the work threw are the work's.
    let own: unknown;
    let isWorking = false;
    let completed: Execution<T> | undefined;
    try {
      return await this.database.transaction(async (connection): Promise<Attempt<T>> => {
        isOpen = true;
        begun = await this.#begin(connection, request).catch((error: unknown) => {
          own = error;
          throw error;
        });
        if (begun["verdict"] === "replay") {
          return { execution: replay(begun, codec) };
        }
        if (begun["verdict"] !== "run") {
          // The verdict may have changed the record (of a crashed attempt, to uncertain): it is committed.
          return { refused: refusal(begun) };
        }
        isWorking = true;
        const unit = new Unit(this.database, connection, request.tenant, String(begun["operation_id"]));
        const { value, contentType, body } = stored(finished(await work(unit)), codec);
        const values = [begun["claim"], body, contentType, unit.reference];
        await this.#call(connection, "semel_complete", values).catch((error: unknown) => {
          own = error instanceof errors.SemelError ? error : undefined;
          throw error;
        });
        const operationId = String(begun["operation_id"]);
        completed = { value, replayed: false, operationId, reference: unit.reference };
        return { execution: completed };
      });
    } catch (error) {
      if (!isOpen) {
        throw this.#isLost(error) ? new errors.Unavailable({ cause: error }) : error;
      }
      if (completed !== undefined) {
        return { execution: await this.#committed(request, begun, completed, codec, error) };
      }
      if (error === own && error instanceof errors.InProgress) {
        return { refused: error };
      }
      if (isWorking && error !== own) {
        await this.#recordFailure(request, String(begun["operation_id"]), error);
      }
      throw error;
    }
  }

  #begin(connection: C, request: Request): Promise<Row> {
    const values = [...identity(request), duration(request.leaseMs), duration(request.keepMs), request.principal];
    return this.#call(connection, "semel_begin", values);
  }

  /**
   * Finds out what became of a COMMIT that gave an error: it may have happened, and only its answer been lost.
   * Another attempt may have completed the operation since then: the result is that one's.
   */
  async #committed<T>(
    request: Request,
    begun: Row,
    completed: Execution<T>,
    codec: Codec<T>,
    error: unknown,
  ): Promise<Execution<T>> {
    const sqlstate = this.database.sqlstate(error);
    if (sqlstate !== undefined && CONTAINED.test(sqlstate)) {
      // A failure of the work, such as of a deferred constraint. A full disk or a cancelled query is none.
      await this.#recordFailure(request, completed.operationId, error);
      throw error;
    }
    const until = performance.now() + Math.max(request.waitMs, ASKING_MS);
    for (;;) {
      const row = await this.#ask(request);
      if (row?.["verdict"] === "replay") {
        // All attempts have one operation id, and each its own fence.
        return String(row["fence"]) === String(begun["fence"]) ? completed : replay(row, codec);
      }
      if (row !== undefined && row["verdict"] !== "in_progress") {
        // It did not commit.
        throw error;
      }
      if (row === undefined || performance.now() > until) {
        throw new errors.CommitUnknown(completed.operationId, { cause: error });
      }
      await sleep(50);
    }
  }

  /** Returns what the ledger says of a key, and changes nothing; undefined if it cannot be asked. */
  async #ask(request: Request): Promise<Row | undefined> {
    try {
      return await this.database.transaction(async (connection) => {
        throw new Asked(await this.#begin(connection, request));
      });
    } catch (answer) {
      if (answer instanceof Asked) {
        return answer.row;
      }
      return answer instanceof errors.InProgress ? { verdict: "in_progress" } : undefined;
    }
  }

  /** Records a failure after the rollback. If that fails, the key is free: nothing is recorded. */
  async #recordFailure(request: Request, operationId: string, error: unknown): Promise<void> {
    if (error instanceof NotKept && error.recorded === undefined) {
      return;
    }
    const [isFinal, wrong] = judged(request, error);
    const delay = isFinal ? null : Math.round(request.retryAfterMs);
    try {
      await this.database.transaction((connection) =>
        call(this.database, connection, "semel_fail", [
          ...identity(request),
          printable(error),
          delay,
          request.principal,
          operationId,
          duration(request.keepMs),
        ]),
      );
    } catch {
      // The caller gets the failure itself.
    }
    if (wrong !== undefined) {
      throw new AggregateError([error, wrong], "the work failed, and `isFinal` could not tell whether for good");
    }
  }

  /** Tells whether an error is about the connection, not about what was sent. */
  #isLost(error: unknown): boolean {
    const sqlstate = this.database.sqlstate(error);
    if (sqlstate !== undefined) {
      return LOST.test(sqlstate);
    }
    // What drivers throw for wrong arguments.
    const isWrong = error instanceof errors.SemelError || error instanceof TypeError || error instanceof RangeError;
    const { code } = (error ?? {}) as { code?: unknown };
    return !isWrong && !(typeof code === "string" && code.startsWith("ERR_"));
  }

  /** Handles an event once per group, in one transaction with the handler's writes. */
  async handle(group: string, event: Event, handler: (unit: Unit<C>) => Promise<unknown>): Promise<Handled> {
    let isOpen = false;
    let verdict: string;
    try {
      verdict = await this.database.transaction(async (connection) => {
        isOpen = true;
        const values = [group, event.tenant, event.id, event.type, event.source, duration(EVENT_KEEP_MS)];
        const found = String(only(await this.#call(connection, "semel_handle", values)));
        if (found === "run") {
          finished(await handler(new Unit(this.database, connection, event.tenant, handlingId(group, event))));
          // Fails if an error that the handler caught has ended the transaction.
          await this.database.query(connection, "SELECT 1", []);
        }
        return found;
      });
    } catch (error) {
      throw !isOpen && this.#isLost(error) ? new errors.Unavailable({ cause: error }) : error;
    }
    if (verdict !== "run" && verdict !== "done") {
      throw refusal({ verdict });
    }
    return { replayed: verdict === "done" };
  }

  async #call(connection: C, name: FunctionName, values: readonly unknown[]): Promise<Row> {
    try {
      return await call(this.database, connection, name, values);
    } catch (error) {
      const sqlstate = this.database.sqlstate(error);
      const options = { cause: error };
      const isFirst = name === "semel_begin" || name === "semel_handle";
      if (sqlstate === "40001") {
        throw isFirst ? new errors.InProgress({}, options) : new errors.ClaimLost({}, options);
      }
      if (sqlstate !== undefined && (NOT_MIGRATED.includes(sqlstate) || isMissing(error))) {
        throw new errors.NotMigrated(options);
      }
      if (sqlstate !== undefined && MISUSED.includes(sqlstate)) {
        throw new errors.Misused(error instanceof Error ? error.message : String(error), options);
      }
      if (isFirst && this.#isLost(error)) {
        throw new errors.Unavailable(options);
      }
      throw error;
    }
  }
}

/** MySQL has no SQLSTATE of its own for a procedure that does not exist (1305), or may not be called (1370). */
function isMissing(error: unknown): boolean {
  const { errno } = error as { errno?: unknown };
  return errno === 1305 || errno === 1370;
}

function identity({ tenant, operation, key, fingerprint }: Request): unknown[] {
  return [tenant, operation, key, Buffer.from(fingerprint).toString("hex") || null];
}

function refusal(row: Row): errors.SemelError {
  const Refusal = REFUSALS[String(row["verdict"])];
  if (Refusal === undefined) {
    return new errors.SemelError(`the database answered ${String(row["verdict"])}; upgrade this package`);
  }
  const delay = row["retry_after_ms"];
  return new Refusal({
    operationId: text(row["operation_id"]),
    retryAfterMs: delay === null || delay === undefined ? undefined : Number(delay),
    reason: text(row["error"]),
  });
}

function replay<T>(row: Row, codec: Codec<T>): Execution<T> {
  const known = { operationId: text(row["operation_id"]), reason: text(row["error"]) };
  const body = row["body"];
  if (!(body instanceof Uint8Array)) {
    throw new errors.ResultUnavailable(known);
  }
  return {
    value: codec.decode(String(row["content_type"]), body),
    replayed: true,
    operationId: String(row["operation_id"]),
    reference: text(row["reference"]),
  };
}

/** Returns the result of work; throws Misused if the work has not run yet. */
function finished<T>(value: T): T {
  const kind = Object.prototype.toString.call(value);
  if (kind === "[object Generator]" || kind === "[object AsyncGenerator]") {
    throw new errors.Misused("a generator does not run when it is called; give an async function");
  }
  return value;
}

/** Returns a result as it is stored, and as a replay will give it, so that the first answer is no other. */
function stored<T>(result: T, codec: Codec<T>): { value: T; contentType: string; body: Buffer } {
  try {
    const { contentType, body } = codec.encode(result);
    return { value: codec.decode(contentType, body), contentType, body: Buffer.from(body) };
  } catch (error) {
    throw new errors.InvalidResult({ cause: error });
  }
}

/** Tells whether a failure is final, and what is wrong with the caller's function that says so. */
function judged({ isFinal }: Request, error: unknown): [isFinal: boolean, wrong?: unknown] {
  try {
    const answer: unknown = isFinal(error);
    if (typeof answer === "boolean") {
      return [answer];
    }
    return [false, new errors.Misused("`isFinal` returns true or false, and no promise")];
  } catch (wrong) {
    return [false, wrong];
  }
}

function text(value: unknown): string | undefined {
  return value === null || value === undefined ? undefined : String(value);
}

/** Returns an error as a line without control characters. */
function printable(error: unknown): string {
  let line = String(error);
  if (error instanceof NotKept) {
    line = error.recorded ?? "";
  } else if (error instanceof Error) {
    line = `${error.name}: ${error.message}`;
  }
  return [...line.replace(/[\p{Cc}\p{Surrogate}]/gu, " ")].slice(0, MAX_ERROR).join("");
}
