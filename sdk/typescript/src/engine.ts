/**
 * The protocol between a program and the ledger.
 *
 * One call is one transaction: `semel_begin`, the caller's work, `semel_complete`, COMMIT. A failure is
 * recorded after the rollback, in a transaction of its own.
 */

import { setTimeout as sleep } from "node:timers/promises";
import type { Codec } from "./codecs.js";
import { call, duration, only, type Database, type FunctionName, type Row } from "./database.js";
import * as errors from "./errors.js";
import type { Event } from "./events.js";
import { Unit } from "./unit.js";

// The longest error text that the ledger keeps, in characters.
const MAX_ERROR = 256;
// How long to ask what became of a COMMIT whose answer was lost, while the server still works on it.
const ASKING_MS = 5_000;
// How long a group knows an event: 30 days, as long as any broker delivers it again.
const EVENT_KEEP_MS = 30 * 86_400_000;

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

type Ended<T> = { readonly refused: Row } | { readonly execution: Execution<T> };

/** Runs operations on one database. */
export class Engine<C> {
  constructor(readonly database: Database<C>) {}

  /** Runs `work` once under a key, in one transaction with its outcome. */
  async execute<T>(request: Request, work: (unit: Unit<C>) => Promise<T>, codec: Codec<T>): Promise<Execution<T>> {
    const until = Date.now() + request.waitMs;
    for (let delay = 50; ; delay = Math.min(2 * delay, 500)) {
      try {
        return await this.#attempt(request, work, codec);
      } catch (error) {
        const left = until - Date.now();
        if (left <= 0 || !(error instanceof errors.InProgress || error instanceof errors.BackingOff)) {
          throw error;
        }
        const due = error instanceof errors.BackingOff ? (error.retryAfterMs ?? delay) : 0;
        if (due > left) {
          throw error;
        }
        await sleep(due > 0 ? due : Math.min(left, delay * (0.5 + Math.random() / 2)));
      }
    }
  }

  async #attempt<T>(request: Request, work: (unit: Unit<C>) => Promise<T>, codec: Codec<T>): Promise<Execution<T>> {
    let isOpen = false;
    let unit: Unit<C> | undefined;
    let completed: Execution<T> | undefined;
    let ended: Ended<T>;
    try {
      ended = await this.database.transaction(async (connection): Promise<Ended<T>> => {
        isOpen = true;
        const row = await this.#begin(connection, request);
        if (row["verdict"] === "replay") {
          return { execution: replay(row, codec) };
        }
        if (row["verdict"] !== "run") {
          // The verdict may have changed the record (of a crashed attempt, to uncertain): it is committed.
          return { refused: row };
        }
        unit = new Unit(this.database, connection, request.tenant, String(row["operation_id"]));
        const value = await work(unit);
        const { contentType, body } = codec.encode(value);
        const values = [row["claim"], Buffer.from(body), contentType, unit.reference];
        await this.#call(connection, "semel_complete", values);
        completed = {
          // What a replay will give, so that the first answer is no other.
          value: codec.decode(contentType, body),
          replayed: false,
          operationId: String(row["operation_id"]),
          reference: unit.reference,
        };
        return { execution: completed };
      });
    } catch (error) {
      if (!isOpen) {
        throw new errors.Unavailable({ cause: error });
      }
      if (completed !== undefined) {
        return await this.#committed(request, completed, error);
      }
      if (unit !== undefined) {
        await this.#recordFailure(request, unit, error);
      }
      throw error;
    }
    if ("refused" in ended) {
      throw refusal(ended.refused);
    }
    return ended.execution;
  }

  #begin(connection: C, request: Request): Promise<Row> {
    const values = [...identity(request), duration(request.leaseMs), duration(request.keepMs), request.principal];
    return this.#call(connection, "semel_begin", values);
  }

  /** Finds out what became of a COMMIT that gave an error: it may have happened, and only its answer been lost. */
  async #committed<T>(request: Request, completed: Execution<T>, error: unknown): Promise<Execution<T>> {
    const until = Date.now() + Math.max(request.waitMs, ASKING_MS);
    for (;;) {
      let verdict: unknown;
      let isOurs = false;
      try {
        await this.database.transaction(async (connection) => {
          throw new Asked(await this.#begin(connection, request));
        });
      } catch (answer) {
        if (answer instanceof Asked) {
          verdict = answer.row["verdict"];
          isOurs = answer.row["operation_id"] === completed.operationId;
        } else if (answer instanceof errors.InProgress) {
          verdict = "in_progress";
        } else {
          throw new errors.CommitUnknown(completed.operationId, { cause: error });
        }
      }
      if (verdict === "replay" && isOurs) {
        return completed;
      }
      if (verdict !== "in_progress") {
        // It did not commit.
        throw error;
      }
      if (Date.now() > until) {
        throw new errors.CommitUnknown(completed.operationId, { cause: error });
      }
      await sleep(50);
    }
  }

  /** Records a failure after the rollback. If that fails, the key is free: nothing is recorded. */
  async #recordFailure(request: Request, unit: Unit<C>, error: unknown): Promise<void> {
    const isFree = error instanceof NotKept && error.recorded === undefined;
    if (isFree || error instanceof errors.Refused || error instanceof errors.Misused) {
      return;
    }
    const delay = request.isFinal(error) ? null : Math.round(request.retryAfterMs);
    try {
      await this.database.transaction((connection) =>
        call(this.database, connection, "semel_fail", [
          ...identity(request),
          printable(error),
          delay,
          request.principal,
          unit.operationId,
          duration(request.keepMs),
        ]),
      );
    } catch {
      // The caller gets the failure itself.
    }
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
          // The event takes the place of the operation: what the handler derives is the same for all.
          await handler(new Unit(this.database, connection, event.tenant, event.id));
          // Fails if an error that the handler caught has ended the transaction.
          await this.database.query(connection, "SELECT 1", []);
        }
        return found;
      });
    } catch (error) {
      throw isOpen ? error : new errors.Unavailable({ cause: error });
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
      // 08: the connection; 57P: the server is going down; none: the library itself.
      if (isFirst && (sqlstate === undefined || /^(?:08|57P)/.test(sqlstate))) {
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
