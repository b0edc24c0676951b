/** Codecs: how the result of an operation is stored, so that a replay gives the same value. */

import { ResultUnavailable } from "./errors.js";
import { toJson } from "./fingerprints.js";

/** Encodes results as a content type and bytes, and decodes them. */
export interface Codec<T> {
  encode(value: T): { contentType: string; body: Uint8Array };
  /** Throws ResultUnavailable for bytes that it cannot read. */
  decode(contentType: string, body: Uint8Array): T;
}

/** Returns the codec of results that JSON has; nothing is stored as null. */
export function json<T>(): Codec<T> {
  return {
    encode: (value) => ({ contentType: "application/json", body: Buffer.from(toJson(value ?? null)) }),
    decode(contentType, body) {
      if (contentType !== "application/json") {
        throw new ResultUnavailable({ reason: `stored as ${contentType}, read as application/json` });
      }
      try {
        return JSON.parse(Buffer.from(body).toString("utf8")) as T;
      } catch (error) {
        throw new ResultUnavailable({ reason: String(error) }, { cause: error });
      }
    },
  };
}
