/**
 * Keys, which identify an operation that runs once (docs/spec, "Keys").
 *
 * The database computes the digest of a key itself. This module validates the parts before a statement is
 * sent, and computes the same digest for programs that look a record up.
 */

import { createHash } from "node:crypto";
import { isLone } from "./canonical.js";
import { InvalidKey } from "./errors.js";

export const MAX_TENANT = 64;
export const MAX_SCOPE = 128;
export const MAX_ID = 255;

/** The entry point by which a request came in. The same id under two kinds makes two keys. */
export const Kind = { COMMAND: 1, HTTP: 2, GRPC: 3, MESSAGE: 4, EVENT: 5 } as const;

/** The identity of an operation. `scope` is the operation or the consumer group. */
export interface Key {
  readonly tenant: string;
  readonly scope: string;
  readonly id: string;
  /** Nothing where all callers share the key, else `principal(identity)`. */
  readonly principal?: Uint8Array;
  readonly kind?: number;
}

/** Returns the principal of a caller with this identity: a user id, a client id, a subject. */
export function principal(identity: string | Uint8Array): Buffer {
  return createHash("sha256").update("semel/principal/1\0").update(identity).digest();
}

/** Throws InvalidKey unless all parts of a key are valid. */
export function checkKey(key: Key): void {
  check("tenant", key.tenant, MAX_TENANT);
  check("scope", key.scope, MAX_SCOPE);
  check("id", key.id, MAX_ID);
  const length = key.principal?.length ?? 0;
  if (length !== 0 && length !== 32) {
    throw new InvalidKey(`a principal has 0 or 32 bytes, got ${length}; use principal()`);
  }
}

/** Throws InvalidKey unless the identity of a caller is text that the database takes. */
export function checkIdentity(identity: unknown): void {
  if (typeof identity !== "string") {
    throw new InvalidKey(`a principal is text, got ${typeof identity}; await or convert it`, "principal", "type");
  }
  if (identity === "") {
    const text = "the principal is empty; leave it out where all callers of the tenant share the key";
    throw new InvalidKey(text, "principal", "blank");
  }
  if (isLone(identity) || identity.includes("\0")) {
    throw new InvalidKey("the principal has a lone surrogate or a NUL; it is no text", "principal", "control");
  }
}

/** Throws InvalidKey unless a tenant is valid. */
export function checkTenant(tenant: string): void {
  check("tenant", tenant, MAX_TENANT);
}

/** Returns the 32 bytes by which stores find the record of a key. */
export function digest(key: Key): Buffer {
  checkKey(key);
  const hash = createHash("sha256").update("semel/key/1\0");
  hash.update(Buffer.from([key.kind ?? Kind.COMMAND]));
  for (const part of [key.tenant, key.scope, key.principal ?? Buffer.alloc(0), key.id]) {
    // The length goes first, so that different parts never give the same bytes.
    const bytes = Buffer.from(part);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    hash.update(length).update(bytes);
  }
  return hash.digest();
}

function check(part: string, text: string, limit: number): void {
  if (typeof text !== "string") {
    throw new InvalidKey(`the ${part} of a key is text, got ${typeof text}; await or convert it`, part, "type");
  }
  if (/^\p{White_Space}*$/u.test(text)) {
    throw new InvalidKey(
      `the ${part} of a key is blank; give it a value that is unique to the request`,
      part,
      "blank",
    );
  }
  if (isLone(text)) {
    throw new InvalidKey(`the ${part} of a key has a lone surrogate; it is no text`, part, "surrogate");
  }
  const length = Buffer.byteLength(text);
  if (length > limit) {
    throw new InvalidKey(
      `the ${part} of a key has ${length} bytes, at most ${limit} are allowed; send a digest of it`,
      part,
      "too_long",
      length,
    );
  }
  const control = text.search(/\p{Cc}/u);
  if (control >= 0) {
    const at = Buffer.byteLength(text.slice(0, control));
    throw new InvalidKey(
      `the ${part} of a key has a control character at byte ${at}; remove or encode it`,
      part,
      "control",
      at,
    );
  }
}
