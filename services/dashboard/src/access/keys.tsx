// API keys and sessions: their list, a new key, whose text is shown once, and their end.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { client, dataOf } from "../api/client.ts";
import { keysQuery } from "../api/queries.ts";
import type { Session } from "../api/session.ts";
import type { ApiKey, KeySession } from "../api/types.ts";
import { confirm } from "../ui/confirm.tsx";
import { Symbol } from "../ui/icons.tsx";
import { ErrorNote, Loading } from "../ui/notes.tsx";
import { Ago } from "../ui/time.tsx";
import { say, sayError } from "../ui/toast.tsx";

export function Keys({ signedIn }: { signedIn: Session }) {
  const listing = useQuery(keysQuery());
  const end = useEnd();
  const admin = signedIn.scope === "admin";
  const [made, setMade] = useState<ApiKey | null>(null);
  if (listing.error) return <ErrorNote error={listing.error} retry={() => void listing.refetch()} />;
  if (!listing.data) return <Loading what="the keys" />;
  const { keys, sessions } = listing.data;
  const own = sessions.find((other) => other.id === signedIn.id);
  const working = keys.filter((key) => !key.revoked);
  const revoked = keys.filter((key) => key.revoked);
  return (
    <>
      <h2>API keys</h2>
      <NewKey signedIn={signedIn} onMade={setMade} />
      {made ? <Made made={made} onClose={() => setMade(null)} /> : null}
      <KeyTable keys={working} admin={admin} own={own?.key_id} onEnd={(key) => void end.key(key, key.id === own?.key_id)} />
      {revoked.length > 0 ? (
        <details>
          <summary className="faint">Revoked keys: {revoked.length}</summary>
          <KeyTable keys={revoked} admin={admin} own={undefined} />
        </details>
      ) : null}
      <h2>Sessions of browsers</h2>
      <SessionTable sessions={sessions} keys={keys} admin={admin} own={signedIn.id} onEnd={(other) => void end.session(other)} />
    </>
  );
}

function useEnd() {
  const queries = useQueryClient();
  const apply = async (id: string, what: string): Promise<void> => {
    try {
      await client.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: id } } });
      say(what);
    } catch (error) {
      sayError("Not done", error);
    }
    void queries.invalidateQueries({ queryKey: ["keys"] });
  };
  return {
    key: async (key: ApiKey, own: boolean): Promise<void> => {
      const text = `Programs and browsers that use it are refused within seconds. This cannot be undone.${own ? " This browser was signed in with it, and is signed out." : ""}`;
      if (await confirm({ title: `Revoke the key ${key.name || key.id}?`, text, action: "Revoke" })) await apply(key.id, "The key was revoked");
    },
    session: async (other: KeySession): Promise<void> => {
      if (await confirm({ title: `End this session of ${other.user}?`, text: "The browser has to sign in again.", action: "End" })) await apply(other.id, "The session was ended");
    },
  };
}

/** Administrators make keys of any user; others make further keys of their own. */
function NewKey({ signedIn, onMade }: { signedIn: Session; onMade: (key: ApiKey) => void }) {
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [waits, setWaits] = useState(false);
  const admin = signedIn.scope === "admin";
  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = event.currentTarget;
    const given = Object.fromEntries([...new FormData(form)].flatMap(([name, value]) => (String(value).trim() ? [[name, String(value).trim()]] : [])));
    setError(null);
    setWaits(true);
    client
      .POST("/v1/keys", { body: given })
      .then((answer) => {
        onMade(dataOf(answer));
        form.reset();
        return queries.invalidateQueries({ queryKey: ["keys"] });
      })
      .catch(setError)
      .finally(() => setWaits(false));
  };
  return (
    <>
      <form className="tools new-key" aria-label="New API key" onSubmit={submit}>
        <input name="name" maxLength={100} placeholder="Where it is used, e.g. laptop" aria-label="Where the key is used" />
        {admin ? (
          <>
            <input name="user" placeholder={`User: ${signedIn.user}`} aria-label="User of the key" spellCheck={false} autoCapitalize="off" />
            <input name="tenant" placeholder={`Tenant: ${signedIn.tenant}`} aria-label="Tenant of the key" spellCheck={false} autoCapitalize="off" />
            <select name="scope" aria-label="Rights of the key" defaultValue="user">
              <option value="user">User</option>
              <option value="admin">Administrator</option>
            </select>
          </>
        ) : null}
        <button type="submit" className="button compact" disabled={waits}>
          <Symbol name="plus" size={12} /> New key
        </button>
      </form>
      {error ? <ErrorNote error={error} /> : null}
    </>
  );
}

function Made({ made, onClose }: { made: ApiKey; onClose: () => void }) {
  const text = made.key ?? "";
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(() => say("Key copied"), (error: unknown) => sayError("Not copied", error));
  };
  return (
    <section className="card made-key" aria-label="The new key">
      <p>
        <b>The new key of {made.user}.</b> Copy it now: it is shown this once only.
      </p>
      <code>{text}</code>
      <div className="tools">
        <button type="button" className="button compact" onClick={copy}>
          <Symbol name="copy" size={12} /> Copy
        </button>
        <button type="button" className="button quiet compact" onClick={onClose}>
          Close
        </button>
      </div>
    </section>
  );
}

function KeyTable({ keys, admin, own, onEnd }: { keys: readonly ApiKey[]; admin: boolean; own: string | undefined; onEnd?: (key: ApiKey) => void }) {
  return (
    <table className="plain keys">
      <caption className="sr-only">API keys</caption>
      <thead>
        <tr>
          <th scope="col">Where it is used</th>
          {admin ? <th scope="col">User</th> : null}
          {admin ? <th scope="col" className="wide-only">Tenant</th> : null}
          <th scope="col" className="wide-only">Rights</th>
          <th scope="col" className="wide-only">Id</th>
          <th scope="col" className="right">{onEnd ? "Made" : "Revoked"}</th>
          {onEnd ? (
            <th scope="col">
              <span className="sr-only">Revoke</span>
            </th>
          ) : null}
        </tr>
      </thead>
      <tbody>
        {keys.map((key) => (
          <tr key={key.id}>
            <th scope="row">
              {key.name || <span className="faint">no name</span>} {key.id === own ? <span className="tag">this browser</span> : null}
            </th>
            {admin ? <td className="nowrap">{key.user}</td> : null}
            {admin ? <td className="wide-only">{key.tenant}</td> : null}
            <td className="wide-only">{key.scope === "admin" ? "administrator" : key.scope}</td>
            <td className="wide-only mono">{key.id}</td>
            <td className="right">
              <Ago time={key.revoked ?? key.created} />
            </td>
            {onEnd ? (
              <td className="right">
                <button type="button" className="quiet danger" onClick={() => onEnd(key)}>
                  Revoke<span className="sr-only"> {key.name || key.id}</span>
                </button>
              </td>
            ) : null}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function SessionTable({ sessions, keys, admin, own, onEnd }: { sessions: readonly KeySession[]; keys: readonly ApiKey[]; admin: boolean; own: string; onEnd: (session: KeySession) => void }) {
  const names = new Map(keys.map((key) => [key.id, key.name || key.id]));
  return (
    <table className="plain sessions">
      <caption className="sr-only">Sessions of browsers</caption>
      <thead>
        <tr>
          {admin ? <th scope="col">User</th> : null}
          <th scope="col">Signed in with the key</th>
          <th scope="col" className="right wide-only">Began</th>
          <th scope="col" className="right">Last used</th>
          <th scope="col">
            <span className="sr-only">End</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {sessions.toSorted((a, b) => (a.created < b.created ? 1 : -1)).map((other) => (
          <tr key={other.id}>
            {admin ? <td className="nowrap">{other.user}</td> : null}
            <th scope="row">
              {names.get(other.key_id) ?? other.key_id} {other.id === own ? <span className="tag">this browser</span> : null}
            </th>
            <td className="right wide-only">
              <Ago time={other.created} />
            </td>
            <td className="right">
              <Ago time={other.used} />
            </td>
            <td className="right">
              {other.id === own ? null : (
                <button type="button" className="quiet danger" onClick={() => onEnd(other)}>
                  End<span className="sr-only"> the session of {other.user}</span>
                </button>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
