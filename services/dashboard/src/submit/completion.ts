// Names of fields that fit where the cursor is, from the JSON Schema of the spec. Pure.
import schema from "../../../../cli/weft/_cli/_schema.json";

interface Node {
  properties?: Record<string, Node>;
  additionalProperties?: Node | boolean;
  items?: Node;
  anyOf?: Node[];
  allOf?: Node[];
  $ref?: string;
  enum?: unknown[];
  description?: string;
  type?: string;
}

export interface Field {
  name: string;
  description: string;
}

const ROOT = schema as unknown as Node & { $defs: Record<string, Node> };

function resolved(node: Node | undefined): Node[] {
  if (!node) return [];
  const target = node.$ref ? ROOT.$defs[node.$ref.replace("#/$defs/", "")] : undefined;
  return [...(node.$ref ? resolved(target) : [node]), ...(node.anyOf ?? []).flatMap(resolved), ...(node.allOf ?? []).flatMap(resolved)];
}

/** The fields below a path of names, e.g. ["resources"]. */
export function fieldsAt(path: readonly string[]): Field[] {
  let nodes = resolved(ROOT);
  for (const name of path) {
    nodes = nodes.flatMap((node) => {
      const below = name === "-" ? node.items : (node.properties?.[name] ?? (typeof node.additionalProperties === "object" ? node.additionalProperties : undefined));
      return resolved(below);
    });
  }
  const fields = new Map<string, Field>();
  for (const node of nodes)
    for (const [name, field] of Object.entries(node.properties ?? {}))
      fields.set(name, { name, description: field.description ?? resolved(field).find((part) => part.description)?.description ?? "" });
  return [...fields.values()];
}

const indentOf = (line: string): number => line.length - line.trimStart().length;

/** The names of the fields around a line, by indentation. */
export function pathAt(lines: readonly string[], at: number): string[] {
  const path: string[] = [];
  let indent = indentOf(lines[at] ?? "");
  if ((lines[at] ?? "").trimStart().startsWith("- ")) path.unshift("-");
  for (let index = at - 1; index >= 0 && (indent > 0 || path[0] === "-"); index -= 1) {
    const line = lines[index] ?? "";
    const match = /^(\s*)(-\s+)?([\w.-]+):\s*$/.exec(line);
    if (!line.trim() || !match || indentOf(line) >= indent + (path[0] === "-" ? 1 : 0)) continue;
    indent = indentOf(line);
    path.unshift(match[3] ?? "");
    if (match[2]) path.unshift("-");
  }
  return path;
}

/** Fields that begin with the word that is being typed at the start of a line. */
export function completions(text: string, cursor: number): { word: string; fields: Field[] } {
  const before = text.slice(0, cursor);
  const lines = before.split("\n");
  const word = /^\s*(?:-\s+)?([\w.]*)$/.exec(lines.at(-1) ?? "")?.[1];
  if (word === undefined) return { word: "", fields: [] };
  const fields = fieldsAt(pathAt(lines, lines.length - 1)).filter((field) => field.name.startsWith(word) && field.name !== word);
  return { word, fields: fields.slice(0, 8) };
}
