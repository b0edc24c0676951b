/** Public ids: the ids that clients see, with one spelling each (docs/spec, "Public ids"). */

import { createCipheriv, createDecipheriv } from "node:crypto";
import { InvalidPublicId } from "./errors.js";

const BASE32 = "0123456789abcdefghjkmnpqrstvwxyz";
const BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const CHECKSUM = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const PREFIX = /^[a-z][a-z0-9]{1,9}$/;
const NAME = /^[A-Z][A-Z0-9_]{0,31}$/;

/** The settings of a codec. */
export interface CodecSettings {
  readonly payload?: "base32" | "base62";
  readonly checksum?: boolean;
  /** With keys (16 bytes each) ids are encrypted, which hides their time. The first encodes, all decode. */
  readonly keys?: readonly Uint8Array[];
}

/** How ids are written: `base32` (26 characters) or `base62` (22), with or without a checksum. */
export class PublicIdCodec {
  readonly checksum: boolean;
  readonly #alphabet: string;
  readonly #length: number;
  readonly #keys: readonly Uint8Array[];

  constructor({ payload = "base32", checksum = false, keys = [] }: CodecSettings = {}) {
    if (keys.some((key) => key.length !== 16)) {
      throw new InvalidPublicId("a key that hides the time of ids has 16 bytes");
    }
    const isShort = payload === "base62" || keys.length > 0;
    this.checksum = checksum;
    this.#alphabet = isShort ? BASE62 : BASE32;
    this.#length = isShort ? 22 : 26;
    this.#keys = keys;
  }

  /** Returns the public id of 16 bytes. */
  encode(prefix: string, internalId: Uint8Array): string {
    if (!PREFIX.test(prefix)) {
      throw new InvalidPublicId("a prefix is a lower-case letter and 1 to 9 letters or digits");
    }
    if (internalId.length !== 16) {
      throw new InvalidPublicId(`an internal id has 16 bytes, got ${internalId.length}`);
    }
    const [key] = this.#keys;
    const shown = key === undefined ? internalId : encrypt(key, internalId);
    const base = BigInt(this.#alphabet.length);
    let number = BigInt(`0x${Buffer.from(shown).toString("hex")}`);
    let payload = "";
    for (let digit = 0; digit < this.#length; digit += 1) {
      payload = this.#alphabet.charAt(Number(number % base)) + payload;
      number /= base;
    }
    const text = `${prefix}_${payload}`;
    return this.checksum ? `${text}_${crc(text)}` : text;
  }

  /**
   * Returns the internal id in a public id with this prefix; with several keys, by the first. Throws
   * InvalidPublicId for every text that this codec does not write.
   */
  decode(prefix: string, text: string): Buffer {
    const [first] = this.candidates(prefix, text);
    if (first === undefined) {
      throw notAnId();
    }
    return first;
  }

  /** Returns every internal id that a text may stand for: one, or one for each key. */
  candidates(prefix: string, text: string): Buffer[] {
    const [found, payload] = this.#parts(text);
    const base = BigInt(this.#alphabet.length);
    let bits = 0n;
    for (const digit of payload) {
      const value = this.#alphabet.indexOf(digit);
      if (value < 0) {
        throw notAnId();
      }
      bits = bits * base + BigInt(value);
    }
    if (bits >> 128n !== 0n || !PREFIX.test(found)) {
      throw notAnId();
    }
    if (found !== prefix) {
      throw new InvalidPublicId(
        `this is the id of another kind of thing: it begins with \`${found}_\`, not \`${prefix}_\``,
        "prefix",
      );
    }
    const block = Buffer.from(bits.toString(16).padStart(32, "0"), "hex");
    return this.#keys.length === 0 ? [block] : this.#keys.map((key) => decrypt(key, block));
  }

  #parts(given: string): [string, string] {
    let text = given;
    if (this.checksum) {
      text = given.slice(0, -3);
      if (given.slice(-3) !== `_${crc(text)}`) {
        throw notAnId();
      }
    }
    if (text.length <= this.#length || text.at(-this.#length - 1) !== "_") {
      throw notAnId();
    }
    return [text.slice(0, -this.#length - 1), text.slice(-this.#length)];
  }
}

/** A type of resource: its name in the id map (`ORDER`), its prefix (`ord`) and its codec. */
export class Resource {
  constructor(
    readonly name: string,
    readonly prefix: string,
    readonly codec = new PublicIdCodec(),
  ) {
    if (!NAME.test(name)) {
      throw new InvalidPublicId(
        "a resource type is a capital and at most 31 capitals, digits and underscores",
      );
    }
    if (!PREFIX.test(prefix)) {
      throw new InvalidPublicId("a prefix is a lower-case letter and 1 to 9 lower-case letters or digits");
    }
  }

  /** Returns the public id of 16 bytes. */
  encode(internalId: Uint8Array): string {
    return this.codec.encode(this.prefix, internalId);
  }

  /** Returns the internal id; throws InvalidPublicId for the id of anything else. */
  decode(text: string): Buffer {
    return this.codec.decode(this.prefix, text);
  }
}

// One block: there is nothing to chain.
function encrypt(key: Uint8Array, block: Uint8Array): Buffer {
  return createCipheriv("aes-128-ecb", key, null).setAutoPadding(false).update(block);
}

function decrypt(key: Uint8Array, block: Uint8Array): Buffer {
  return createDecipheriv("aes-128-ecb", key, null).setAutoPadding(false).update(block);
}

function notAnId(): InvalidPublicId {
  return new InvalidPublicId("not a public id; copy it again as it was given, with nothing added or changed");
}

function crc(text: string): string {
  let crc = 0;
  for (const byte of Buffer.from(text, "utf8")) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) {
      crc = crc & 0x80 ? (crc << 1) ^ 0x107 : crc << 1;
    }
  }
  return CHECKSUM.charAt(crc >> 5) + CHECKSUM.charAt(crc & 31);
}
