/** The ledger, as programs call it. */

import { json, type Codec } from "./codecs.js";
import type { Database } from "./database.js";
import { Engine, type Execution, type Handled, type Request } from "./engine.js";
import { InvalidKey, Misused } from "./errors.js";
import type { Event } from "./events.js";
import * as fingerprints from "./fingerprints.js";
import { checkIdentity, checkKey, checkTenant } from "./keys.js";
import { Unit } from "./unit.js";

/** What holds for all calls that say nothing else. */
export interface Defaults {
  readonly tenant?: string;
  /** How long a claim blocks its key on MySQL if it was committed without its end: 30 s. */
  readonly leaseMs?: number;
  /** How long an outcome, or a failure, is recognised: 24 h. */
  readonly keepMs?: number;
  /** How long to wait while another caller holds the key: not at all. */
  readonly waitMs?: number;
}

/** One operation. */
export interface Operation<T> extends Defaults {
  /** The name of the operation, such as `CreateOrder`. */
  readonly operation: string;
  /** The client's idempotency key. */
  readonly key: string;
  /** What makes two calls the same: the same key with other fields throws KeyReused. */
  readonly fields?: unknown;
  /** The same as a SHA-256 (64 hex digits), or as a fingerprint (33 bytes). */
  readonly requestHash?: string | Uint8Array;
  /** The identity of the caller; without it all callers of the tenant share the key. */
  readonly principal?: string;
  /** After how long a failure may be tried again: at once. */
  readonly retryAfterMs?: number;
  /** Tells failures that no repeat can change: they are kept, and repeats throw Failed. */
  readonly isFinal?: (error: unknown) => boolean;
  readonly codec?: Codec<T>;
}

/** Runs operations once, each in one transaction with its outcome. */
export class Ledger<C> {
  /** The protocol that the middleware shares. */
  readonly engine: Engine<C>;

  constructor(
    database: Database<C>,
    private readonly defaults: Defaults = {},
  ) {
    this.engine = new Engine(database);
  }

  /**
   * Runs `work` once under a key. A repeat gets the stored result, and `work` does not run.
   *
   * What `work` throws rolls everything back, is recorded for operators, and is thrown again; the next call
   * runs it again, after `retryAfterMs`.
   */
  async execute<T>(operation: Operation<T>, work: (unit: Unit<C>) => Promise<T>): Promise<Execution<T>> {
    return this.engine.execute(this.#request(operation), work, operation.codec ?? json<T>());
  }

  /**
   * Handles an event once for a consumer group, in one transaction with its writes. Acknowledge the message
   * once it returned; if it throws, let the broker deliver the event again.
   */
  async handle(
    group: string,
    event: Event,
    handler: (unit: Unit<C>, event: Event) => Promise<unknown>,
  ): Promise<Handled> {
    checkKey({ tenant: event.tenant, scope: group, id: event.id });
    return this.engine.handle(group, event, (unit) => handler(unit, event));
  }

  /**
   * Returns the functions for a transaction that you opened and will commit: `append`, `registerId` and
   * `resolveId` without a key. Each throws Misused if `connection` is not in a transaction.
   */
  join(connection: C, tenant = this.defaults.tenant): Unit<C> {
    checkTenant(tenant ?? "");
    return new Unit(this.engine.database, connection, tenant ?? "", undefined);
  }

  #request<T>(operation: Operation<T>): Request {
    const merged = { ...this.defaults, ...operation };
    const { tenant = "", key, fields, requestHash } = merged;
    checkKey({ tenant, scope: operation.operation, id: key });
    if (merged.principal !== undefined) {
      checkIdentity(merged.principal);
    }
    const times = {
      leaseMs: merged.leaseMs ?? 30_000,
      keepMs: merged.keepMs ?? 86_400_000,
      retryAfterMs: merged.retryAfterMs ?? 0,
      waitMs: merged.waitMs ?? 0,
    };
    checkTimes(times);
    let fingerprint: Uint8Array = Buffer.alloc(0);
    if (fields !== undefined && requestHash !== undefined) {
      throw new InvalidKey("give `fields` or `requestHash`, not both", "fields", "both");
    } else if (fields !== undefined) {
      fingerprint = fingerprints.of(fields);
    } else if (requestHash !== undefined) {
      fingerprint = typeof requestHash === "string" ? fingerprints.fromHex(requestHash) : requestHash;
    }
    return {
      tenant,
      operation: operation.operation,
      key,
      fingerprint,
      principal: merged.principal,
      ...times,
      isFinal: merged.isFinal ?? (() => false),
    };
  }
}

/** Throws Misused for a time that is none, before the work whose failure it would leave unrecorded. */
function checkTimes(times: Readonly<Record<string, number>>): void {
  for (const [name, ms] of Object.entries(times)) {
    // A caller may wait without an end.
    const isLimited = name === "waitMs" || Number.isFinite(ms);
    const isLong = name === "leaseMs" || name === "keepMs" ? ms > 0 : ms >= 0;
    if (typeof ms !== "number" || !isLimited || !isLong) {
      throw new Misused(`\`${name}\` is a number of milliseconds, got ${String(ms)}`);
    }
  }
}
