/**
 * What goes over the wire under an idempotency key, as the Rust layers and the gateway have it: the key header,
 * and stored responses (docs/spec, "HTTP").
 */

import { SemelError } from "./errors.js";

/** Headers as they came: names may repeat. */
export type Lines = readonly (readonly [name: string, value: string])[];

export const KEY_HEADERS = ["idempotency-key", "x-idempotency-key"] as const;
export const STORED_TYPE = "application/vnd.semel.http.v1";
const MAX_KEY = 255;
const MAX_FIELD = 4 * MAX_KEY;

// A structured-field string (RFC 9651), and the parameters that may follow it.
const STRING = /^"((?:[ !#-[\]-~]|\\["\\])*)"/;
const TOKEN = "[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*";
const NUMBER = "@?-?[0-9]+(?:\\.[0-9]{1,3})?";
const BARE_ITEM = `(?:"(?:[ !#-\\[\\]-~]|\\\\["\\\\])*"|[?][01]|${NUMBER}|:[A-Za-z0-9+/=]*:|${TOKEN})`;
const PARAMETERS = new RegExp(`^(?:; *[a-z*][a-z0-9_.*-]*(?:=${BARE_ITEM})?)*$`);

/** A key header cannot be read as one key. */
export class InvalidKeyHeader extends SemelError {
  constructor(
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

/** Returns the key in the value of a header: a structured-field string, or the same without quotes. */
export function parseKey(value: string): string {
  const field = value.replace(/^[ \t\r\n\f]+|[ \t\r\n\f]+$/g, "");
  if (field.length > MAX_FIELD) {
    throw tooLong();
  }
  const key = field.startsWith('"') ? quoted(field) : bare(field);
  if (key.trim() === "") {
    throw new InvalidKeyHeader(
      "empty",
      "the key is empty; send a value that is unique to this request, such as a UUID",
    );
  }
  if (key.length > MAX_KEY) {
    throw tooLong();
  }
  return key;
}

function tooLong(): InvalidKeyHeader {
  return new InvalidKeyHeader(
    "too_long",
    `the key is longer than ${MAX_KEY} bytes; send a shorter one, or a digest of it`,
  );
}

function quoted(field: string): string {
  const text = STRING.exec(field);
  if (text?.[1] === undefined || !PARAMETERS.test(field.slice(text[0].length))) {
    throw new InvalidKeyHeader(
      "not_a_string",
      "the key begins with a quote but is not a structured-field string (RFC 9651)",
    );
  }
  return text[1].replace(/\\(.)/g, "$1");
}

function bare(field: string): string {
  const at = field.search(/[^!-~]|[,";]/);
  if (at >= 0) {
    const byte = field.charCodeAt(at).toString(16).padStart(2, "0");
    throw new InvalidKeyHeader(
      "character",
      `the key has byte 0x${byte} at ${at}; send one key of visible ASCII without commas, semicolons ` +
        "and quotes, or quote it",
    );
  }
  return field;
}

/** Returns the key of a request's headers; undefined if it has none. */
export function keyIn(headers: Lines): string | undefined {
  let found: string | undefined;
  for (const name of KEY_HEADERS) {
    const lines = headers.filter(([header]) => header.toLowerCase() === name);
    const [line] = lines;
    if (line === undefined) {
      continue;
    }
    if (lines.length > 1) {
      throw new InvalidKeyHeader("repeated", `the key was sent ${lines.length} times; send it once`);
    }
    const key = parseKey(line[1]);
    if (found !== undefined && found !== key) {
      throw new InvalidKeyHeader("differ", "two key headers have different keys; send one");
    }
    found = key;
  }
  return found;
}

/** Stored bytes are not a response of this version. */
export class Damaged extends SemelError {}

/** A response as it is stored: status, chosen headers, body. */
export interface StoredResponse {
  readonly status: number;
  readonly headers: Lines;
  readonly body: Uint8Array;
}

/** Returns the stored form of a response. */
export function encodeResponse({ status, headers, body }: StoredResponse): Buffer {
  const head = Buffer.alloc(7);
  head.writeUInt8(1);
  head.writeUInt16BE(status, 1);
  head.writeUInt32BE(headers.length, 3);
  const parts: Uint8Array[] = [head];
  for (const [name, value] of headers) {
    const rawName = Buffer.from(name.toLowerCase(), "latin1");
    const rawValue = Buffer.from(value, "latin1");
    const lengths = [Buffer.alloc(2), Buffer.alloc(4)] as const;
    lengths[0].writeUInt16BE(rawName.length);
    lengths[1].writeUInt32BE(rawValue.length);
    parts.push(lengths[0], rawName, lengths[1], rawValue);
  }
  return Buffer.concat([...parts, Buffer.alloc(4), body]);
}

/** Returns the response in stored bytes; throws Damaged if they are none. */
export function decodeResponse(bytes: Uint8Array): StoredResponse {
  const stored = Buffer.from(bytes);
  let at = 0;
  const take = (length: number): Buffer => {
    if (at + length > stored.length) {
      throw new Damaged("the stored response ends in the middle");
    }
    at += length;
    return stored.subarray(at - length, at);
  };
  const block = (): [string, string][] =>
    Array.from({ length: counted(take(4).readUInt32BE(), stored.length - at) }, () => [
      take(take(2).readUInt16BE()).toString("latin1"),
      take(take(4).readUInt32BE()).toString("latin1"),
    ]);
  const version = take(1).readUInt8();
  if (version !== 1) {
    throw new Damaged(`the stored response has layout version ${version}, this release reads 1`);
  }
  const status = take(2).readUInt16BE();
  const headers = block();
  block();
  return { status, headers, body: stored.subarray(at) };
}

/** A header has at least six bytes: a larger count is damage, and would be memory. */
function counted(count: number, bytes: number): number {
  if (count * 6 > bytes) {
    throw new Damaged("the stored response ends in the middle");
  }
  return count;
}
