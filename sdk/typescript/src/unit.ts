/** The open transaction of an operation. */

import { call, only, type Database, type FunctionName, type Row } from "./database.js";
import { InvalidEvent, Misused } from "./errors.js";
import { derivedId, encodePayload } from "./events.js";
import { toJson } from "./fingerprints.js";
import type { Resource } from "./publicIds.js";
import * as ulids from "./ulids.js";

/** What an event says beside its type and payload. */
export interface Appended {
  /** The service that sends it, such as `/orders`. */
  readonly source: string;
  /** The type and the id of what it is about: events about the same thing keep their order. */
  readonly about?: readonly [type: string, id: string];
  readonly headers?: Readonly<Record<string, string>>;
  /** The id; by default a new one. */
  readonly id?: string;
  /** Makes the id the same in every attempt of the operation. */
  readonly name?: string;
  readonly contentType?: string;
}

/** The open transaction of an operation: write your rows on `connection`, and do not commit. */
export class Unit<C> {
  readonly #database: Database<C>;

  /** A short text by which operators find the record, such as the public id of what was made. */
  reference: string | undefined;

  constructor(
    database: Database<C>,
    /** The connection or transaction of your database library. */
    readonly connection: C,
    /** Whose data it is. */
    readonly tenant: string,
    /** The id of the operation, the same in every attempt; undefined in a transaction without a key. */
    readonly operationId: string | undefined,
  ) {
    this.#database = database;
  }

  /** Appends an event to the outbox in this transaction, and returns its id. */
  async append(type: string, payload: unknown, event: Appended): Promise<string> {
    const { source, about = [], headers, name, contentType = "application/json" } = event;
    let { id } = event;
    if (id === undefined && name !== undefined) {
      if (this.operationId === undefined) {
        throw new InvalidEvent("an event has a name within an operation; without one give it an id");
      }
      id = derivedId(this.operationId, name);
    }
    const row = await this.#call("semel_append", [
      this.tenant,
      type,
      encodePayload(payload, contentType),
      about[0],
      about[1],
      headers === undefined ? null : toJson(headers),
      id,
      source,
      contentType,
    ]);
    return String(only(row));
  }

  /**
   * Makes the ids of what this operation creates: the internal one, which is the operation's, and the public
   * one, which becomes the reference.
   */
  async createId(resource: Resource): Promise<{ internal: Buffer; public: string }> {
    const internal = ulids.parse(this.operationId ?? "") ?? ulids.newId();
    const text = await this.registerId(resource, internal);
    this.reference = text;
    return { internal, public: text };
  }

  /** Binds the public id of a resource to its internal id, and returns the public id. */
  async registerId(resource: Resource, internal: Uint8Array): Promise<string> {
    const text = resource.encode(internal);
    const values = [this.tenant, resource.name, text, ulids.write(internal)];
    await this.#call("semel_register_id", values);
    return text;
  }

  /** Returns the internal id of a public id; undefined if this tenant has no such resource. */
  async resolveId(resource: Resource, publicId: string): Promise<Buffer | undefined> {
    resource.decode(publicId);
    const values = [this.tenant, resource.name, publicId];
    const found = only(await this.#call("semel_resolve_id", values));
    return typeof found === "string" ? ulids.parse(found) : undefined;
  }

  async #call(name: FunctionName, values: readonly unknown[]): Promise<Row> {
    // A transaction of the caller's own (`Ledger.join`): without one the statement would commit by itself.
    if (this.operationId === undefined && !(await this.#database.isInTransaction(this.connection))) {
      throw new Misused("the connection is not in a transaction; begin one, and commit it with your rows");
    }
    return call(this.#database, this.connection, name, values);
  }
}
