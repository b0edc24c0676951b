/** The reasons why an operation did not run or has no result here. Each text says what to do. */

/** The base of all errors of this package. */
export class SemelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A part of a key is blank, too long or has a control character. Nothing was sent. */
export class InvalidKey extends SemelError {
  constructor(
    message: string,
    readonly part = "",
    readonly reason = "",
    readonly at?: number,
  ) {
    super(message);
  }
}

/** The fields that make two requests the same cannot be compared. Nothing was sent. */
export class InvalidFingerprint extends SemelError {}

/** The text is not a public id of the expected type. */
export class InvalidPublicId extends SemelError {
  constructor(
    message: string,
    readonly reason: "format" | "prefix" = "format",
  ) {
    super(message);
  }
}

/** The result of the work cannot be stored, or cannot be read back. Everything was rolled back. */
export class InvalidResult extends SemelError {
  constructor(options?: ErrorOptions) {
    const { message } = (options?.cause ?? {}) as { message?: unknown };
    super(`the result cannot be stored and read back, and nothing was committed: ${String(message)}`, options);
  }
}

/** A part of an event is missing, too long or cannot be written. Nothing was sent. */
export class InvalidEvent extends SemelError {}

/** A webhook was not signed with this secret, or too long ago. Answer 400 and do nothing. */
export class InvalidSignature extends SemelError {}

/** The call cannot work as it was made: outside a transaction, or in one that an error ended. */
export class Misused extends SemelError {}

/** The database lacks Semel's tables or functions. */
export class NotMigrated extends SemelError {
  constructor(options?: ErrorOptions) {
    super(
      "the database lacks Semel's functions, or this role may not call them; run `semel migrate " +
        "apply` as the owner, and grant this role their use (docs/reference/sql-functions.md)",
      options,
    );
  }
}

/** The ledger cannot be reached. The work did not run; `cause` is the driver's error. */
export class Unavailable extends SemelError {
  constructor(options?: ErrorOptions) {
    super("the ledger cannot be reached, and nothing ran; retry with the same key", options);
  }
}

/** The connection was lost at COMMIT, and the ledger could not be asked what became of it. */
export class CommitUnknown extends SemelError {
  constructor(
    readonly operationId: string,
    options?: ErrorOptions,
  ) {
    super(
      "the answer to COMMIT was lost, and the ledger cannot be asked; retry with the same key: it " +
        "gives the result if there is one, and runs the operation if there is none",
      options,
    );
  }
}

/** What the ledger says of a key whose work did not run. */
export interface Known {
  /** The id by which operators find the record. */
  readonly operationId?: string | undefined;
  /** After how many milliseconds to try again, where that is known. */
  readonly retryAfterMs?: number | undefined;
  /** The error that the ledger has for operators. Not for callers: it may have their data. */
  readonly reason?: string | undefined;
}

/** The work did not run, because of what the ledger knows about its key. */
export abstract class Refused extends SemelError {
  /** The slug of the problem: its page is docs/errors/SLUG.md. */
  abstract readonly slug: string;
  /** Whether the same call with the same key may succeed later, by itself. */
  readonly retryable: boolean = false;
  readonly operationId: string | undefined;
  readonly retryAfterMs: number | undefined;
  readonly reason: string | undefined;

  constructor(text: string, known: Known = {}, options?: ErrorOptions) {
    super(text, options);
    this.operationId = known.operationId;
    this.retryAfterMs = known.retryAfterMs;
    this.reason = known.reason;
  }
}

/** The key was used for another request. */
export class KeyReused extends Refused {
  readonly slug = "key-reused";
  constructor(known?: Known) {
    super("this key was used for a different request; use a new key for a new request", known);
  }
}

/** Another caller holds the key right now. */
export class InProgress extends Refused {
  readonly slug = "in-progress";
  override readonly retryable = true;
  constructor(known?: Known, options?: ErrorOptions) {
    super("a call with this key is still running; retry with the same key for its result", known, options);
  }
}

/** The last attempt failed, and the next one is not due yet. */
export class BackingOff extends Refused {
  readonly slug = "backing-off";
  override readonly retryable = true;
  constructor(known?: Known) {
    super("the last attempt failed; retry with the same key when it is due (`retryAfterMs`)", known);
  }
}

/** The operation failed, and its failure is kept. */
export class Failed extends Refused {
  readonly slug = "failed";
  constructor(known?: Known) {
    super("the operation failed, and its failure is kept; look it up with `semel records show`", known);
  }
}

/** The operation was given up, or discarded by an operator. */
export class Dead extends Refused {
  readonly slug = "dead";
  constructor(known?: Known) {
    super("all attempts failed; an operator must look at it with `semel records show`", known);
  }
}

/** An attempt broke off, and whether it took effect is unknown. */
export class Uncertain extends Refused {
  readonly slug = "uncertain";
  constructor(known?: Known) {
    super("an attempt broke off; an operator must find out whether it took effect (`semel resolve`)", known);
  }
}

/** Another attempt took over while this one ran. This transaction was rolled back. */
export class ClaimLost extends Refused {
  readonly slug = "claim-lost";
  override readonly retryable = true;
  constructor(known?: Known, options?: ErrorOptions) {
    super("another attempt took over; nothing of this one was committed, retry with the same key", known, options);
  }
}

/** The operation is done, but its result was not stored or cannot be read. */
export class ResultUnavailable extends Refused {
  readonly slug = "result-unavailable";
  constructor(known?: Known, options?: ErrorOptions) {
    super("the operation is done, but its result cannot be replayed; do not run it again", known, options);
  }
}

/** This group has handled another event of the same id: another type or source. */
export class EventConflict extends Refused {
  readonly slug = "key-reused";
  constructor(known?: Known) {
    super("this event id was used before for an event of another type; give each event its own id", known);
  }
}
