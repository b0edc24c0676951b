/**
 * Fingerprints: what makes two requests the same, as one byte for the scheme and a SHA-256 (docs/spec,
 * "Fingerprints").
 */

import { createHash } from "node:crypto";
import * as canonical from "./canonical.js";
import type { Document } from "./canonical.js";
import { InvalidFingerprint } from "./errors.js";

const JSON_FORM = 1;
const RAW = 2;
const OPAQUE = 3;
const GIVEN = 4;
const PARTS = 5;

function hash(scheme: number, data: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from([scheme]), createHash("sha256").update(data).digest()]);
}

/** Returns the fingerprint of a body: of its canonical form if it has one, else of its bytes. */
export function ofBody(body: Uint8Array): Buffer {
  const parsed = canonical.read(body);
  return parsed === undefined ? hash(RAW, body) : hash(JSON_FORM, parsed.form);
}

/**
 * Returns the fingerprint of chosen fields: whatever JSON has, and objects with `toJSON`. Values that
 * JSON would change silently (NaN, maps, undefined in lists) are refused.
 */
export function of(fields: unknown): Buffer {
  const text = toJson(fields);
  const parsed = canonical.read(Buffer.from(text, "utf8"));
  // Without a canonical form (a number beyond 2^53) the order of members would make a difference.
  return parsed === undefined ? hash(RAW, Buffer.from(sorted(JSON.parse(text)))) : hash(JSON_FORM, parsed.form);
}

/** Encodes a value as JSON text; throws InvalidFingerprint for what JSON does not have. */
export function toJson(value: unknown): string {
  try {
    const text = JSON.stringify(value, function check(this: unknown, name: string, member: unknown) {
      const isItem = name === "" || Array.isArray(this);
      if (
        (typeof member === "number" && !Number.isFinite(member)) ||
        typeof member === "function" ||
        typeof member === "symbol" ||
        member instanceof Map ||
        member instanceof Set ||
        isOpaque(member) ||
        (member === undefined && isItem)
      ) {
        throw new TypeError(`${describe(member)} is not JSON; convert it to text or a number`);
      }
      return member;
    });
    return text;
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new InvalidFingerprint(`the fields cannot be written as JSON: ${text}`, { cause: error });
  }
}

function sorted(value: unknown): string {
  if (Array.isArray(value)) {
    return `[${value.map(sorted).join(",")}]`;
  }
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${sorted(member)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

/** Tells whether JSON would write an object as `{}` although it has more: a promise, a map, a form. */
function isOpaque(value: unknown): boolean {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return false;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  return !isPlain && Object.keys(value).length === 0;
}

function describe(value: unknown): string {
  if (typeof value === "number" || value === undefined) {
    return String(value);
  }
  return typeof value === "object" && value !== null ? value.constructor.name : typeof value;
}

/** Which parts of a body are compared, by JSON pointers (RFC 6901). */
export interface Selection {
  /** The values that are compared; none: the whole body. */
  readonly include?: readonly string[];
  /** The values that are left out. */
  readonly exclude?: readonly string[];
}

/**
 * Returns the fingerprint of a part of a JSON body. A body without a canonical form is compared whole, by
 * its bytes.
 */
export function ofSelected(body: Uint8Array, { include = [], exclude = [] }: Selection): Buffer {
  const included = include.map((pointer) => [pointer, steps(pointer)] as const);
  const excluded = exclude.map(steps);
  const parsed = canonical.read(body);
  if (parsed === undefined) {
    return hash(RAW, body);
  }
  let whole = parsed.document;
  for (const path of excluded) {
    whole = without(whole, path);
  }
  if (included.length > 0) {
    const found = new Map<string, Document>();
    for (const [pointer, path] of included) {
      const value = find(whole, path);
      if (value !== undefined) {
        found.set(pointer, value);
      }
    }
    whole = found;
  }
  return hash(JSON_FORM, canonical.write(whole));
}

/** Returns the fingerprint of several parts. The same bytes split differently have another one. */
export function ofParts(parts: readonly Uint8Array[]): Buffer {
  return hash(PARTS, Buffer.concat(parts.flatMap((part) => [lengthOf(part), part])));
}

/** Returns the length of some bytes as eight bytes. */
export function lengthOf(part: Uint8Array): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(part.length));
  return length;
}

/** Returns the fingerprint of raw bytes. */
export function ofBytes(data: Uint8Array): Buffer {
  return hash(RAW, data);
}

/** Returns the fingerprint of a short text that stands for the request, such as a version. */
export function opaque(text: string): Buffer {
  return hash(OPAQUE, Buffer.from(text, "utf8"));
}

/** Returns the fingerprint of a SHA-256 that the caller computed: 64 hex digits of either case. */
export function fromHex(text: string): Buffer {
  if (!/^[0-9a-fA-F]{64}$/.test(text)) {
    throw new InvalidFingerprint("a request hash must be 64 hex digits (SHA-256)");
  }
  return Buffer.from(`0${GIVEN}${text}`, "hex");
}

function steps(pointer: string): string[] {
  if ((pointer !== "" && !pointer.startsWith("/")) || /~(?![01])/.test(pointer)) {
    throw new InvalidFingerprint(
      `\`${pointer}\` is not a JSON pointer: it starts with \`/\`, and \`~\` is written \`~0\`, \`/\` \`~1\``,
    );
  }
  const [, ...names] = pointer.split("/");
  return names.map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function child(value: Document | undefined, step: string): Document | undefined {
  if (value instanceof Map) {
    return value.get(step);
  }
  return Array.isArray(value) && /^(?:0|[1-9][0-9]*)$/.test(step) ? value[Number(step)] : undefined;
}

function find(whole: Document, path: readonly string[]): Document | undefined {
  return path.reduce<Document | undefined>(child, whole);
}

function without(whole: Document, path: readonly string[]): Document {
  const last = path.at(-1);
  if (last === undefined) {
    return null;
  }
  const parent = find(whole, path.slice(0, -1));
  if (parent instanceof Map) {
    parent.delete(last);
  } else if (Array.isArray(parent) && child(parent, last) !== undefined) {
    // Removing an item would renumber the others.
    parent[Number(last)] = null;
  }
  return whole;
}
