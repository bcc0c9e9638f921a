// The spec in normal form, as YAML.
import { Link } from "@tanstack/react-router";
import { stringify } from "yaml";
import type { Job } from "../api/types.ts";
import { Symbol } from "../ui/icons.tsx";
import { Empty } from "../ui/notes.tsx";
import { say, sayError } from "../ui/toast.tsx";

export function Spec({ job }: { job: Job }) {
  if (!job.spec) return <Empty title="The spec of this job cannot be read" />;
  const text = stringify(job.spec, { lineWidth: 0 });
  return (
    <section>
      <div className="tools">
        <button
          type="button"
          className="button compact"
          onClick={() => {
            navigator.clipboard.writeText(text).then(() => say("Copied"), (error: unknown) => sayError("Not copied", error));
          }}
        >
          <Symbol name="copy" /> Copy
        </button>
        <Link to="/submit" search={{ from: job.id }} className="button compact">
          Submit a changed copy
        </Link>
      </div>
      <pre className="spec" tabIndex={0}>
        {text}
      </pre>
      {job.code_digest ? <p className="faint digest">Code {job.code_digest}</p> : null}
    </section>
  );
}
