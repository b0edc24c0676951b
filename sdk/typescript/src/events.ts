/** Events: facts that other services handle, as CloudEvents. */

import { createHash } from "node:crypto";
import { InvalidEvent } from "./errors.js";
import { lengthOf, toJson } from "./fingerprints.js";
import * as ulids from "./ulids.js";

/** An event that a broker delivered. `id` is the same in every delivery. */
export interface Event {
  readonly tenant: string;
  readonly id: string;
  readonly type: string;
  readonly source: string;
  readonly payload: Uint8Array;
  readonly contentType?: string | undefined;
  readonly aggregateType?: string | undefined;
  readonly aggregateId?: string | undefined;
}

/**
 * Returns the id of the event `name` of an operation: the same in every attempt, so that consumers
 * recognise a repeat.
 */
export function derivedId(operationId: string, name: string): string {
  const operation = ulids.parse(operationId);
  if (operation === undefined) {
    throw new InvalidEvent("an operation id is a ULID: 26 characters of upper-case Crockford base32");
  }
  const digest = createHash("sha256").update("semel/event/1\0").update(operation).update(name).digest();
  return ulids.write(Buffer.concat([operation.subarray(0, 6), digest.subarray(0, 10)]));
}

/** Returns a ULID as it is, and the id of an event of another system as a digest of it and its source. */
export function eventId(source: string, id: string): string {
  if (ulids.parse(id) !== undefined) {
    return id;
  }
  const from = Buffer.from(source, "utf8");
  const hash = createHash("sha256").update("semel/foreign-event/1\0").update(lengthOf(from));
  return ulids.write(hash.update(from).update(id).digest().subarray(0, 16));
}

/**
 * Returns what takes the place of the operation while a group handles an event: the same in every delivery,
 * and another one for every group and every event.
 */
export function handlingId(group: string, event: Event): string {
  const id = eventId(event.source, event.id);
  const hash = createHash("sha256").update("semel/handling/1\0");
  for (const part of [event.tenant, group, id]) {
    const bytes = Buffer.from(part, "utf8");
    hash.update(lengthOf(bytes)).update(bytes);
  }
  return ulids.write(Buffer.concat([(ulids.parse(id) as Buffer).subarray(0, 6), hash.digest().subarray(0, 10)]));
}

/** Returns JSON as text; for another content type the text that the payload is. */
export function encodePayload(payload: unknown, contentType: string): string {
  if (payload instanceof Uint8Array) {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload);
  }
  if (contentType === "application/json") {
    return toJson(payload);
  }
  if (typeof payload !== "string") {
    throw new InvalidEvent(`a payload of ${contentType} is text or bytes`);
  }
  return payload;
}

/**
 * Returns the event of a message in binary mode: CloudEvents attributes without the transport's prefix
 * (`ce-`, `cloudEvents:`), and the payload.
 */
export function fromCloud(
  attributes: Readonly<Record<string, string>>,
  payload: Uint8Array,
  tenant?: string,
): Event {
  const known = new Map(Object.entries(attributes).map(([name, value]) => [name.toLowerCase(), value]));
  if (known.get("specversion") !== "1.0") {
    throw new InvalidEvent("the message is not a CloudEvent 1.0");
  }
  const needed = (name: string, value = known.get(name)): string => {
    if (!value) {
      throw new InvalidEvent(`the message has no attribute ${name}`);
    }
    return value;
  };
  const source = needed("source");
  return {
    tenant: needed("tenantid", known.get("tenantid") || tenant),
    id: eventId(source, needed("id")),
    type: needed("type"),
    source,
    payload,
    contentType: known.get("datacontenttype"),
    aggregateType: known.get("aggregatetype"),
    aggregateId: known.get("partitionkey"),
  };
}
