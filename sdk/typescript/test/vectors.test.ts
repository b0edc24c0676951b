/** Runs the vectors of docs/spec, which the Rust workspace computes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as canonical from "../src/canonical.js";
import { InvalidFingerprint, InvalidKey, InvalidPublicId, InvalidSignature, SemelError } from "../src/errors.js";
import * as events from "../src/events.js";
import * as fingerprints from "../src/fingerprints.js";
import * as contract from "../src/http.js";
import * as keys from "../src/keys.js";
import { PublicIdCodec, Resource } from "../src/publicIds.js";
import * as webhooks from "../src/webhooks.js";
import { document } from "./documents.js";

// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Vector = any;
const VECTORS: Vector = JSON.parse(document("spec/vectors.json"));

const raw = (hex: string): Buffer => Buffer.from(hex, "hex");
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");

/** Runs a test for each vector below a name; a name without vectors is an error. */
function each(names: string, title: string, judge: (vector: Vector) => void): void {
  test(`${names}: ${title}`, () => {
    const vectors: Vector[] = names.split(".").reduce((found, name) => found[name], VECTORS);
    assert.ok(vectors.length > 0);
    for (const vector of vectors) {
      try {
        judge(vector);
      } catch (error) {
        throw new Error(JSON.stringify(vector).slice(0, 300), { cause: error });
      }
    }
  });
}

each("principals", "a principal is a digest of the identity", (vector) => {
  assert.equal(hex(keys.principal(raw(vector.identity_hex))), vector.principal_hex);
});

each("keys", "a key has the digest of all its parts", (vector) => {
  const { tenant, scope, id, kind } = vector;
  assert.equal(hex(keys.digest({ tenant, scope, id, kind, principal: raw(vector.principal_hex) })), vector.digest_hex);
});

each("refused_keys", "a part that is not valid is refused with its reason", ({ tenant, scope, id, part, reason, at }) => {
  assert.throws(
    () => keys.checkKey({ tenant, scope, id }),
    (error) => {
      assert.ok(error instanceof InvalidKey);
      assert.deepEqual([error.part, error.reason, error.at], [part, reason, at]);
      return true;
    },
  );
});

test("a lone surrogate is refused", () => {
  assert.throws(() => keys.checkKey({ tenant: "t", scope: "s", id: "a\ud800" }), InvalidKey);
});

each("event_ids", "an event id is derived from its operation", (vector) => {
  assert.equal(events.derivedId(vector.operation_id, vector.name), vector.event_id);
});

each("foreign_event_ids", "an event of another system has an id of its source and id", ({ source, id, event_id }) => {
  const attributes = { specversion: "1.0", type: "t", tenantid: "acme", source, id };
  assert.equal(events.fromCloud(attributes, Buffer.alloc(0)).id, event_id);
});

each("fingerprints.bodies", "a body has the fingerprint of its canonical form", (vector) => {
  const body = raw(vector.body_hex);
  const form = canonical.read(body)?.form;
  assert.equal(form === undefined, vector.scheme === "raw");
  if (vector.canonical !== undefined) {
    assert.equal(form?.toString(), vector.canonical);
  }
  assert.equal(hex(fingerprints.ofBody(body)), vector.fingerprint_hex);
});

each("fingerprints.selected", "pointers select a part of a body", ({ body, include, exclude, fingerprint_hex }) => {
  assert.equal(hex(fingerprints.ofSelected(Buffer.from(body), { include, exclude })), fingerprint_hex);
});

each("fingerprints.refused_pointers", "a text that is no pointer is refused", (pointer) => {
  assert.throws(() => fingerprints.ofSelected(Buffer.from("{}"), { include: [pointer] }), InvalidFingerprint);
});

each("fingerprints.texts", "a text stands for a request", ({ text, fingerprint_hex }) => {
  assert.equal(hex(fingerprints.opaque(text)), fingerprint_hex);
});

each("fingerprints.parts", "parts are hashed with their lengths", ({ parts_hex, fingerprint_hex }) => {
  assert.equal(hex(fingerprints.ofParts(parts_hex.map(raw))), fingerprint_hex);
});

each("fingerprints.given", "a given hash is taken in either case", ({ text, fingerprint_hex }) => {
  assert.equal(hex(fingerprints.fromHex(text)), fingerprint_hex);
});

each("fingerprints.refused_given", "a text that is no hash is refused", (text) => {
  assert.throws(() => fingerprints.fromHex(text), InvalidFingerprint);
});

function codecOf({ codec: { payload, checksum, keys_hex } }: Vector): PublicIdCodec {
  return new PublicIdCodec({ payload: payload === "hidden" ? "base62" : payload, checksum, keys: keys_hex.map(raw) });
}

each("public_ids.written", "a codec writes and reads an id", (vector) => {
  const codec = codecOf(vector);
  assert.equal(codec.encode(vector.prefix, raw(vector.id_hex)), vector.text);
  assert.equal(hex(codec.decode(vector.prefix, vector.text)), vector.id_hex);
  const { checksum, keys_hex } = vector.codec;
  if (keys_hex.length > 0) {
    // After a rotation of the keys it is still one of the candidates.
    const rotated = new PublicIdCodec({ checksum, keys: [Buffer.alloc(16), ...keys_hex.map(raw)] });
    assert.ok(rotated.candidates(vector.prefix, vector.text).map(hex).includes(vector.id_hex));
  }
});

each("public_ids.refused", "a codec refuses what it does not write", (vector) => {
  assert.throws(
    () => codecOf(vector).decode(vector.prefix, vector.text),
    (error) => error instanceof InvalidPublicId && error.reason === vector.reason,
  );
});

each("public_ids.prefixes.accepted", "a prefix is accepted", (prefix) => {
  assert.ok(new Resource("ORDER", prefix).encode(Buffer.alloc(16)).startsWith(`${prefix}_000`));
});

each("public_ids.prefixes.refused", "a prefix is refused", (prefix) => {
  assert.throws(() => new Resource("ORDER", prefix), InvalidPublicId);
  assert.throws(() => new PublicIdCodec().encode(prefix, Buffer.alloc(16)), InvalidPublicId);
});

each("webhooks.signed", "a webhook is signed and verified", ({ secret, id, timestamp, body_hex, signature }) => {
  const body = raw(body_hex);
  assert.equal(webhooks.sign(secret, id, timestamp, body), signature);
  const headers = {
    "Webhook-Id": id,
    "Webhook-Timestamp": String(timestamp),
    "Webhook-Signature": `v1,AAAA ${signature}`,
  };
  const verify = (bytes: Buffer, now: number): string => webhooks.verify(secret, headers, bytes, { now });
  assert.equal(verify(body, timestamp + 300), id);
  assert.throws(() => verify(Buffer.concat([body, Buffer.from(" ")]), timestamp), InvalidSignature);
  assert.throws(() => verify(body, timestamp + 301), InvalidSignature);
  assert.throws(() => verify(body, timestamp - 301), InvalidSignature);
});

each("webhooks.refused_secrets", "a text that is no secret is refused", (secret) => {
  assert.throws(() => webhooks.sign(secret, "msg_1", 0, Buffer.alloc(0)), SemelError);
});

each("key_headers", "a key header has one key", ({ field_hex, key, refused }) => {
  // Node gives headers as Latin-1.
  const field = raw(field_hex).toString("latin1");
  if (key !== undefined) {
    assert.equal(contract.parseKey(field), key);
  } else {
    assert.throws(
      () => contract.parseKey(field),
      (error) => error instanceof contract.InvalidKeyHeader && error.reason === refused,
    );
  }
});

each("stored_responses", "a stored response has one form", ({ status, headers, body_hex, stored_hex }) => {
  const response = { status, headers, body: raw(body_hex) };
  const stored = contract.encodeResponse(response);
  assert.equal(hex(stored), stored_hex);
  assert.deepEqual(contract.decodeResponse(stored), response);
  for (let cut = 0; cut < stored.length - response.body.length; cut += 1) {
    assert.throws(() => contract.decodeResponse(stored.subarray(0, cut)), contract.Damaged);
  }
});
