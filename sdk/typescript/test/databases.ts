/** The databases and libraries of the tests. */

import { randomBytes } from "node:crypto";
import knexOf from "knex";
import mysql from "mysql2/promise";
import pg from "pg";
import type { Unit } from "../src/index.js";
import { Ledger, type Defaults } from "../src/index.js";
import { database as knexDatabase } from "../src/knex.js";
import { database as mysqlDatabase } from "../src/mysql2.js";
import { database as pgDatabase } from "../src/pg.js";

/** A ledger through one library, and what the tests need beside it. */
export interface Library {
  readonly name: string;
  ledger(defaults?: Defaults): Ledger<any>;
  /** Writes a row of the caller's own. */
  insert(unit: Unit<any>, name: string): Promise<unknown>;
  /** Runs a statement outside every ledger; parameters are written `?`. */
  rows(statement: string, ...values: string[]): Promise<any[]>;
  /** Lends a connection that is in no transaction. */
  idle(use: (connection: any) => Promise<void>): Promise<void>;
  /** Makes a ledger on what may be no pool. */
  over(pool: any): unknown;
  close(): Promise<void>;
}

const EFFECT = "CREATE TABLE IF NOT EXISTS effect (name varchar(200) NOT NULL)";

export const POSTGRES = process.env["SEMEL_TEST_POSTGRES_URL"];
export const MYSQL = process.env["SEMEL_TEST_MYSQL_URL"];

/** Returns the libraries whose database has a URL in the environment. */
export const LIBRARIES: Readonly<Record<string, () => Promise<Library>>> = {
  ...(POSTGRES === undefined ? {} : { pg: () => postgres(POSTGRES), "knex on pg": () => knexOn("pg", POSTGRES) }),
  ...(MYSQL === undefined ? {} : { mysql2: () => mysql2(MYSQL), "knex on mysql2": () => knexOn("mysql2", MYSQL) }),
};

/** Returns a tenant of one test. */
export function newTenant(): string {
  return `t-${randomBytes(8).toString("hex")}`;
}

async function postgres(url: string): Promise<Library> {
  const pool = new pg.Pool({ connectionString: url, max: 10 });
  pool.on("error", () => undefined);
  // Two files that create it at once are told apart by an error.
  await pool.query(EFFECT).catch(() => undefined);
  return {
    name: "pg",
    ledger: (defaults) => new Ledger(pgDatabase(pool), defaults),
    insert: (unit, name) => unit.connection.query("INSERT INTO effect VALUES ($1)", [name]),
    rows: async (statement, ...values) => {
      let number = 0;
      return (await pool.query(statement.replace(/\?/g, () => `$${(number += 1)}`), values)).rows;
    },
    idle: async (use) => {
      const client = await pool.connect();
      await use(client).finally(() => client.release());
    },
    over: pgDatabase,
    close: () => pool.end(),
  };
}

async function mysql2(url: string): Promise<Library> {
  const pool = mysql.createPool({ uri: url, connectionLimit: 10 });
  await pool.query(EFFECT);
  return {
    name: "mysql2",
    ledger: (defaults) => new Ledger(mysqlDatabase(pool), defaults),
    insert: (unit, name) => unit.connection.query("INSERT INTO effect VALUES (?)", [name]),
    rows: async (statement, ...values) => (await pool.query(statement, values))[0] as any[],
    idle: async (use) => {
      const connection = await pool.getConnection();
      await use(connection).finally(() => connection.release());
    },
    over: mysqlDatabase,
    close: () => pool.end(),
  };
}

async function knexOn(client: "pg" | "mysql2", url: string): Promise<Library> {
  const knex = knexOf({ client, connection: url, pool: { min: 0, max: 10 } });
  await knex.raw(EFFECT).catch(() => undefined);
  return {
    name: `knex on ${client}`,
    ledger: (defaults) => new Ledger(knexDatabase(knex), defaults),
    insert: (unit, name) => unit.connection("effect").insert({ name }),
    rows: async (statement, ...values) => {
      const result = await knex.raw(statement, values);
      return client === "pg" ? result.rows : result[0];
    },
    idle: (use) => use(knex),
    over: knexDatabase,
    close: () => knex.destroy(),
  };
}
