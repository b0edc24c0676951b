/** Runs the code of the guide, as a reader would. */

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import pg from "pg";
import { POSTGRES } from "./databases.js";
import { document } from "./documents.js";

const GUIDE = "tutorials/your-language-in-ten-minutes";

function blocks(page: string): string[] {
  return [...document(page).matchAll(/^```js\n(.*?)^```$/gms)].map(([, code = ""]) => code);
}

test("both languages of the guide have the same code", () => {
  assert.ok(blocks(`${GUIDE}.md`).length > 0);
  assert.deepEqual(blocks(`${GUIDE}.md`), blocks(`${GUIDE}.zh-CN.md`));
});

const skip = POSTGRES === undefined ? "set SEMEL_TEST_POSTGRES_URL to a migrated database" : false;
test("the code of the guide does what the guide says", { skip }, async (context) => {
  const pool = new pg.Pool({ connectionString: POSTGRES });
  await pool.query("DROP TABLE IF EXISTS shop_order");
  await pool.query("CREATE TABLE shop_order (id uuid, sku text, cents int)");
  const held = context.mock.method(console, "assert", (value: unknown) => assert.ok(value));
  // Within the package, whose name is then known.
  const file = new URL("../guide.mjs", import.meta.url);
  writeFileSync(file, blocks(`${GUIDE}.md`).join("\n"));
  await import(file.href);
  assert.equal(held.mock.callCount(), 2);
  const { rows } = await pool.query("SELECT sku FROM shop_order");
  assert.deepEqual(rows, [{ sku: "A-1" }]);
  await pool.end();
});
