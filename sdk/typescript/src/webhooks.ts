/** The signatures of webhooks (Standard Webhooks 1.0; docs/spec, "Webhooks"). */

import { createHmac, timingSafeEqual } from "node:crypto";
import { InvalidSignature, SemelError } from "./errors.js";

// How far the sender's clock may be from ours, in seconds.
const TOLERANCE = 300;

function keyOf(secret: string): Buffer {
  const text = secret.startsWith("whsec_") ? secret.slice(6) : secret;
  const key = Buffer.from(text, "base64");
  // Node skips what is not base64; a secret that is written otherwise is refused.
  if (key.length === 0 || key.toString("base64") !== text) {
    throw new SemelError("a secret is `whsec_` and standard base64 of at least one byte");
  }
  return key;
}

/** Returns the value of the header `webhook-signature`. */
export function sign(secret: string, id: string, timestamp: number, body: Uint8Array): string {
  const tag = createHmac("sha256", keyOf(secret)).update(`${id}.${timestamp}.`).update(body);
  return `v1,${tag.digest("base64")}`;
}

/** How a webhook is verified. */
export interface Verification {
  /** How many seconds the sender's clock may be from ours: 300. */
  readonly tolerance?: number;
  /** The time, in seconds since 1970. */
  readonly now?: number;
}

/**
 * Returns the id of a webhook (`webhook-id`), which is the same in every delivery. Throws InvalidSignature
 * unless one of its signatures is ours and its timestamp is recent. Verify the bytes that arrived, before
 * anything parses them.
 */
export function verify(
  secret: string,
  headers: Readonly<Record<string, string | string[] | undefined>>,
  body: Uint8Array,
  { tolerance = TOLERANCE, now = Date.now() / 1000 }: Verification = {},
): string {
  const given = new Map(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
  const [id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) =>
    given.get(name),
  );
  if (typeof id !== "string" || typeof timestamp !== "string" || typeof signatures !== "string") {
    throw new InvalidSignature("the headers of a webhook are missing or cannot be read");
  }
  if (!/^(?:0|-?[1-9][0-9]{0,14})$/.test(timestamp)) {
    throw new InvalidSignature("the timestamp of a webhook cannot be read");
  }
  if (Math.abs(now - Number(timestamp)) > tolerance) {
    throw new InvalidSignature("the timestamp of a webhook is too far from now");
  }
  const expected = Buffer.from(sign(secret, id, Number(timestamp), body));
  // All are compared, in constant time.
  const matching = signatures.split(" ").filter((signature) => {
    const bytes = Buffer.from(signature);
    return bytes.length === expected.length && timingSafeEqual(bytes, expected);
  });
  if (matching.length === 0) {
    throw new InvalidSignature("no signature of the webhook is right");
  }
  return id;
}
