// The fields in which the specs of jobs differ. Pure.
import type { Job } from "../api/types.ts";

export interface Difference {
  /** As a filter and a grouping name it: "env.SEED". */
  path: string;
  /** Of each job, in the order of the jobs; undefined where the field is missing. */
  values: (string | undefined)[];
}

export function differences(jobs: readonly Pick<Job, "spec">[]): Difference[] {
  const flat = jobs.map((job) => {
    const fields = new Map<string, string>();
    collect(job.spec ?? {}, "", fields);
    return fields;
  });
  const paths = [...new Set(flat.flatMap((fields) => [...fields.keys()]))].sort();
  return paths
    .map((path) => ({ path, values: flat.map((fields) => fields.get(path)) }))
    .filter((row) => new Set(row.values).size > 1);
}

function collect(value: unknown, path: string, into: Map<string, string>): void {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    for (const [name, part] of Object.entries(value)) collect(part, path ? `${path}.${name}` : name, into);
  } else into.set(path, typeof value === "string" ? value : JSON.stringify(value));
}
