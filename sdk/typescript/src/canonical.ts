/**
 * The canonical form of JSON (RFC 8785), for bodies that it does not change (docs/spec).
 *
 * A body that is not I-JSON, or whose numbers a double would change, has no canonical form: it is
 * compared by its bytes, since two different amounts must never look the same. `JSON.parse` shows
 * neither members of one name nor how a number was written, so documents are parsed here.
 */

/** A parsed document. Objects are maps, so that no name has a meaning of its own. */
export type Document = null | boolean | number | string | Document[] | Map<string, Document>;

// Up to here every integer is exactly a double.
const MAX_SAFE = 2 ** 53;
// The deepest nesting of lists and objects that is read.
const MAX_DEPTH = 127;
// The name by which one parser represents numbers internally; no document may have it.
const RESERVED = "$serde_json::private::Number";

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
// eslint-disable-next-line no-control-regex
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const LITERAL = /true|false|null/y;

class NotCanonical extends Error {}

/** Returns a document and its canonical form; undefined if it has none. */
export function read(body: Uint8Array): { document: Document; form: Buffer } | undefined {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
    const document = new Parser(text).document();
    return { document, form: write(document) };
  } catch (error) {
    if (error instanceof NotCanonical || error instanceof TypeError) {
      return undefined;
    }
    throw error;
  }
}

/** Writes a document that was read in its canonical form. */
export function write(document: Document): Buffer {
  return Buffer.from(written(document), "utf8");
}

function written(value: Document): string {
  if (Array.isArray(value)) {
    return `[${value.map(written).join(",")}]`;
  }
  if (value instanceof Map) {
    // Texts compare by their UTF-16 code units.
    const members = [...value].sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${written(member)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

class Parser {
  private at = 0;

  constructor(private readonly text: string) {}

  document(): Document {
    const value = this.value(0);
    if (this.at !== this.text.length) {
      throw new NotCanonical("more than one document");
    }
    return value;
  }

  private value(depth: number): Document {
    this.token(SPACE);
    const first = this.text[this.at];
    let value: Document;
    if (first === "{") {
      value = this.object(depth + 1);
    } else if (first === "[") {
      value = this.list(depth + 1);
    } else if (first === '"') {
      value = this.string();
    } else if (first === "t" || first === "f" || first === "n") {
      value = JSON.parse(this.needed(LITERAL)) as null | boolean;
    } else {
      value = double(this.needed(NUMBER));
    }
    this.token(SPACE);
    return value;
  }

  private list(depth: number): Document {
    const items: Document[] = [];
    this.inside(depth, "]", () => items.push(this.value(depth)));
    return items;
  }

  private object(depth: number): Document {
    const members = new Map<string, Document>();
    this.inside(depth, "}", () => {
      this.token(SPACE);
      const name = this.string();
      if (members.has(name) || name === RESERVED) {
        throw new NotCanonical("a name that is there twice, or reserved");
      }
      this.token(SPACE);
      this.character(":");
      members.set(name, this.value(depth));
    });
    return members;
  }

  /** Parses what is between brackets, separated by commas. */
  private inside(depth: number, end: string, item: () => void): void {
    if (depth > MAX_DEPTH) {
      throw new NotCanonical("nested too deep");
    }
    this.at += 1;
    this.token(SPACE);
    if (this.text[this.at] === end) {
      this.at += 1;
      return;
    }
    for (;;) {
      item();
      if (this.text[this.at] === end) {
        this.at += 1;
        return;
      }
      this.character(",");
    }
  }

  private string(): string {
    const text = JSON.parse(this.needed(TEXT)) as string;
    if (isLone(text)) {
      throw new NotCanonical("a lone surrogate");
    }
    return text;
  }

  private character(expected: string): void {
    if (this.text[this.at] !== expected) {
      throw new NotCanonical("not JSON");
    }
    this.at += 1;
  }

  private needed(pattern: RegExp): string {
    const found = this.token(pattern);
    if (!found) {
      throw new NotCanonical("not JSON");
    }
    return found;
  }

  private token(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0];
    this.at += found?.length ?? 0;
    return found;
  }
}

/** Tells whether a text has a surrogate without its other half. */
export function isLone(text: string): boolean {
  return /\p{Surrogate}/u.test(text);
}

function double(token: string): number {
  const number = Number(token);
  if (!(Math.abs(number) <= MAX_SAFE)) {
    throw new NotCanonical("a number beyond 2^53");
  }
  if (decimal(token) !== decimal(String(number))) {
    throw new NotCanonical("a number that a double changes");
  }
  return number;
}

/** Returns a decimal number in one spelling: sign, significant digits and exponent. */
function decimal(token: string): string {
  const [mantissa = "", exponent = "0"] = token.toLowerCase().split("e");
  const [whole = "", fraction = ""] = mantissa.replace("-", "").split(".");
  const digits = (whole + fraction).replace(/^0+/, "");
  const significant = digits.replace(/0+$/, "");
  if (significant === "") {
    return "0";
  }
  if (exponent.length > 10) {
    throw new NotCanonical("an absurd exponent");
  }
  const power = Number(exponent) - fraction.length + digits.length - significant.length;
  return `${mantissa.startsWith("-") ? "-" : ""}${significant}e${power}`;
}
