/**
 * Commands, events and webhooks exactly once, in one commit with your rows.
 *
 * Make a ledger with the module of your library: `semel/pg`, `semel/mysql2`, `semel/knex`; for another one
 * write a `Database`.
 */

export * from "./errors.js";
export { Ledger, type Defaults, type Operation } from "./ledger.js";
export { Unit, type Appended } from "./unit.js";
export type { Execution, Handled } from "./engine.js";
export type { Database, Row } from "./database.js";
export { json, type Codec } from "./codecs.js";
export { fromCloud, type Event } from "./events.js";
export { PublicIdCodec, Resource, type CodecSettings } from "./publicIds.js";
export { newId } from "./ulids.js";
export * as events from "./events.js";
export * as fingerprints from "./fingerprints.js";
export * as http from "./http.js";
export * as keys from "./keys.js";
export * as ulids from "./ulids.js";
export * as webhooks from "./webhooks.js";
