// A new job from YAML. Each change is tried by a dry run: the plan is shown, or wrong fields are marked at their lines.
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { stringify } from "yaml";
import { newKey, read } from "../api/client.ts";
import { ApiError } from "../api/problem.ts";
import { jobQuery } from "../api/queries.ts";
import { csrfToken } from "../api/session.ts";
import type { Job, JobPlan } from "../api/types.ts";
import { bytes, plural } from "../format.ts";
import { draftOf, dropDraft, keepDraft } from "../submit/draft.ts";
import { Editor } from "../submit/editor.tsx";
import { type Mark, marksOf, syntaxMarks } from "../submit/locate.ts";
import { ErrorNote, Loading } from "../ui/notes.tsx";
import { say } from "../ui/toast.tsx";

const SETTLED_MS = 500;
const EXAMPLE = `name: my-first-job
command: |
  python -c "
  import json
  for step in range(50):
      print(json.dumps({'step': step, 'loss': 1 / (step + 1)}))
  "
learners: 1
resources:
  cpus: 1
  memory: 512MB
metrics:
  - type: jsonl
`;

export function SubmitScreen() {
  const { from } = useSearch({ from: "/submit" });
  useEffect(() => {
    document.title = "New job · Weft";
  }, []);
  return from ? <FromJob key={from} id={from} /> : <Form from="" start={EXAMPLE} digest="" />;
}

function FromJob({ id }: { id: string }) {
  const job = useQuery({ ...jobQuery(id), staleTime: Number.POSITIVE_INFINITY, refetchOnWindowFocus: false });
  if (job.error) return <ErrorNote error={job.error} />;
  if (!job.data) return <Loading what="the job" />;
  return <Form from={id} start={stringify(job.data.spec ?? {}, { lineWidth: 0 })} digest={job.data.code_digest} copied={job.data as Job} />;
}

async function send<T>(spec: string, code: File | null, digest: string, dryRun: boolean, key: string, signal?: AbortSignal): Promise<T> {
  const query = new URLSearchParams({ ...(dryRun ? { dry_run: "true" } : {}), ...(digest && !code ? { code_digest: digest } : {}) });
  const headers: Record<string, string> = { "X-Weft-CSRF": csrfToken(), ...(dryRun ? {} : { "Idempotency-Key": key }) };
  let body: BodyInit = spec;
  if (code) {
    const form = new FormData();
    form.append("spec", spec);
    form.append("code", code);
    body = form;
  } else headers["Content-Type"] = "application/yaml";
  const response = await read(`/v1/jobs?${query}`, { method: "POST", headers, body, ...(signal ? { signal } : {}) });
  return (await response.json()) as T;
}

interface Tried {
  plan: JobPlan | null;
  marks: Mark[];
  error: unknown;
}

/** What a dry run of the text says, once the text has settled. */
function useDryRun(text: string, digest: string): Tried | null {
  const [tried, setTried] = useState<Tried | null>(null);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(() => {
      const wrong = syntaxMarks(text);
      if (wrong.length > 0) {
        setTried({ plan: null, marks: wrong, error: null });
        return;
      }
      send<JobPlan>(text, null, digest, true, "", controller.signal).then(
        (plan) => setTried({ plan, marks: [], error: null }),
        (error: unknown) => {
          if (controller.signal.aborted) return;
          const fields = error instanceof ApiError ? (error.problem.errors as { pointer: string; message: string; hint?: string }[] | undefined) : undefined;
          setTried({ plan: null, marks: fields ? marksOf(text, fields) : [], error: fields && fields.length > 0 ? null : error });
        },
      );
    }, SETTLED_MS);
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [text, digest]);
  return tried;
}

function Form({ from, start, digest, copied }: { from: string; start: string; digest: string; copied?: Job }) {
  const navigate = useNavigate();
  const [text, setText] = useState(() => draftOf(from) ?? start);
  const [code, setCode] = useState<File | null>(null);
  const [sending, setSending] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const key = useRef({ of: "", value: "" });
  const tried = useDryRun(text, digest);

  const change = (next: string): void => {
    setText(next);
    keepDraft(from, next);
  };
  const submit = async (): Promise<void> => {
    // The same text is the same job, however often it is sent.
    const of = `${text}|${code?.name}|${code?.lastModified}`;
    if (key.current.of !== of) key.current = { of, value: newKey() };
    setSending(true);
    setError(null);
    try {
      const job = await send<Job>(text, code, digest, false, key.current.value);
      dropDraft(from);
      say(`${job.name} was submitted`);
      void navigate({ to: "/jobs/$id", params: { id: job.id } });
    } catch (failure) {
      setError(failure);
    } finally {
      setSending(false);
    }
  };
  const wrong = tried !== null && (tried.marks.length > 0 || tried.error !== null);
  return (
    <section className="screen padded submit" aria-labelledby="submit-title">
      <div className="screen-head">
        <h1 id="submit-title">{copied ? `A copy of ${copied.name}` : "New job"}</h1>
      </div>
      <div className="submit-columns">
        <Editor text={text} marks={tried?.marks ?? []} onText={change} />
        <aside className="submit-side" aria-label="Plan">
          {wrong ? (
            <ul className="marks" role="alert">
              {tried.marks.map((mark) => (
                <li key={`${mark.line}${mark.message}`}>
                  {mark.line > 0 ? <b>Line {mark.line}: </b> : null}
                  {mark.message}
                </li>
              ))}
            </ul>
          ) : null}
          {tried?.error ? <ErrorNote error={tried.error} /> : null}
          {tried?.plan ? <Plan plan={tried.plan} /> : null}
          <label className="file-label">
            Code, a zip archive (optional)
            <input type="file" accept=".zip,application/zip" onChange={(event) => setCode(event.target.files?.[0] ?? null)} />
          </label>
          {digest && !code ? <p className="faint">With the code of the job that is copied.</p> : null}
          <button type="button" className="button primary" disabled={sending || wrong || tried === null} onClick={() => void submit()}>
            {sending ? "Submitting …" : "Submit"}
          </button>
          {error ? <ErrorNote error={error} /> : null}
        </aside>
      </div>
    </section>
  );
}

const FITS: Record<string, [string, string]> = {
  now: ["good", "Starts at once"],
  later: ["wait", "Has to wait"],
  never: ["bad", "Never fits this cluster"],
  unknown: ["wait", "Start unknown"],
};

function Plan({ plan }: { plan: JobPlan }) {
  const [tone, words] = FITS[plan.fits] ?? ["wait", plan.fits];
  const { cpus, memory, gpus } = plan.resources.total;
  return (
    <div className="plan">
      <p className={`fits tone-${tone}`}>
        <b>{plan.fits_message ? `${words}:` : words}</b> {plan.fits_message}
      </p>
      <dl className="facts">
        <div>
          <dt>Learners</dt>
          <dd>{plan.learners}</dd>
        </div>
        <div>
          <dt>Hardware</dt>
          <dd>{[gpus ? plural(gpus, "GPU") : "", plural(cpus, "CPU"), bytes(memory)].filter(Boolean).join(" · ")}</dd>
        </div>
        {plan.framework ? (
          <div>
            <dt>Framework</dt>
            <dd>
              {plan.framework.name} {plan.framework.version}
            </dd>
          </div>
        ) : null}
      </dl>
      {plan.warnings.map((warning) => (
        <p key={warning} className="note">
          {warning}
        </p>
      ))}
    </div>
  );
}
