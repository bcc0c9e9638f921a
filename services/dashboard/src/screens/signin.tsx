// Exchanges an API key for a session. With #code=... of `weft dashboard` it does so by itself.
import { type FormEvent, useEffect, useState } from "react";
import { signIn } from "../api/session.ts";
import { ErrorNote } from "../ui/notes.tsx";

const CODE = /^#code=(.+)$/;

export function SignIn() {
  const [error, setError] = useState<unknown>(null);
  const [waits, setWaits] = useState(false);

  useEffect(() => {
    document.title = "Sign in · Weft";
    const code = CODE.exec(location.hash)?.[1];
    if (!code) return;
    // A code works once: it is gone from the address before anything else happens.
    history.replaceState(history.state, "", location.pathname + location.search);
    setWaits(true);
    signIn({ code: decodeURIComponent(code) })
      .catch(setError)
      .finally(() => setWaits(false));
  }, []);

  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const key = String(new FormData(event.currentTarget).get("key") ?? "").trim();
    setError(null);
    setWaits(true);
    signIn({ key })
      .catch(setError)
      .finally(() => setWaits(false));
  };

  return (
    <main className="alone">
      <form className="card signin" onSubmit={submit}>
        <h1 className="brand large">
          <span className="mark" aria-hidden="true" /> Weft
        </h1>
        <label htmlFor="key">API key</label>
        <input
          id="key"
          name="key"
          type="password"
          required
          placeholder="weft_…"
          autoComplete="current-password"
          spellCheck={false}
        />
        <button type="submit" className="button primary" disabled={waits}>
          {waits ? "Signing in …" : "Sign in"}
        </button>
        {error ? <ErrorNote error={error} /> : null}
        <p className="hint">
          On the machine of the platform, <code>weft dashboard</code> opens this page signed in. <code>weft up</code>{" "}
          prints the address, and stores the key in the profile of the command line.
        </p>
      </form>
    </main>
  );
}
