/** The documents of the repository that tests read. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const DIRECTORY =
  process.env["SEMEL_TEST_DOCS"] ?? fileURLToPath(new URL("../../../../docs", import.meta.url));

/** Returns the text of a document. */
export function document(path: string): string {
  return readFileSync(`${DIRECTORY}/${path}`, "utf8");
}
