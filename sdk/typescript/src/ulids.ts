/** ULIDs: 16 bytes as 26 characters of upper-case Crockford base32, in one spelling. */

import { randomBytes } from "node:crypto";

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const SPELLING = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

/** Returns a new id: the time and 80 random bits, as 16 bytes. */
export function newId(): Buffer {
  const id = Buffer.concat([Buffer.alloc(6), randomBytes(10)]);
  id.writeUIntBE(Date.now(), 0, 6);
  return id;
}

/** Returns the text of 16 bytes. */
export function write(id: Uint8Array): string {
  let number = BigInt(`0x${Buffer.from(id).toString("hex")}`);
  let text = "";
  for (let digit = 0; digit < 26; digit += 1) {
    text = ALPHABET.charAt(Number(number & 31n)) + text;
    number >>= 5n;
  }
  return text;
}

/** Returns the 16 bytes of a text; undefined for any other spelling. */
export function parse(text: string): Buffer | undefined {
  if (!SPELLING.test(text)) {
    return undefined;
  }
  let number = 0n;
  for (const digit of text) {
    number = (number << 5n) | BigInt(ALPHABET.indexOf(digit));
  }
  return Buffer.from(number.toString(16).padStart(32, "0"), "hex");
}
