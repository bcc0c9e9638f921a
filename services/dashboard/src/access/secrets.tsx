// The tenant's secrets: names and keys. Values never come to the browser, and are set on the command line.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { client } from "../api/client.ts";
import { secretsQuery } from "../api/queries.ts";
import { confirm } from "../ui/confirm.tsx";
import { ErrorNote, Loading } from "../ui/notes.tsx";
import { Ago } from "../ui/time.tsx";
import { say, sayError } from "../ui/toast.tsx";

export function Secrets({ tenant }: { tenant: string }) {
  const queries = useQueryClient();
  const secrets = useQuery(secretsQuery());
  const remove = async (name: string): Promise<void> => {
    if (!(await confirm({ title: `Delete the secret ${name}?`, text: "Jobs that name it cannot start any more. This cannot be undone.", action: "Delete" }))) return;
    try {
      await client.DELETE("/v1/secrets/{name}", { params: { path: { name } } });
      say(`The secret ${name} was deleted`);
    } catch (error) {
      sayError("Not deleted", error);
    }
    void queries.invalidateQueries({ queryKey: ["secrets"] });
  };
  return (
    <>
      <h2>Secrets of tenant {tenant}</h2>
      {secrets.error ? <ErrorNote error={secrets.error} retry={() => void secrets.refetch()} /> : null}
      {secrets.isPending ? <Loading what="the secrets" /> : null}
      {secrets.data && secrets.data.length > 0 ? (
        <table className="plain secrets">
          <caption className="sr-only">Secrets, without their values</caption>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Keys</th>
              <th scope="col" className="wide-only">Set by</th>
              <th scope="col" className="right">Set</th>
              <th scope="col">
                <span className="sr-only">Delete</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {secrets.data.map((secret) => (
              <tr key={secret.name}>
                <th scope="row">{secret.name}</th>
                <td className="mono">{secret.damaged ? <span className="not-ready">cannot be read: set it again</span> : secret.keys.join(", ")}</td>
                <td className="wide-only">{secret.changed_by}</td>
                <td className="right">
                  <Ago time={secret.changed} />
                </td>
                <td className="right">
                  <button type="button" className="quiet danger" onClick={() => void remove(secret.name)}>
                    Delete<span className="sr-only"> {secret.name}</span>
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
      {secrets.data ? (
        <p className="soft">
          {secrets.data.length === 0 ? "No secrets yet. " : ""}Data stores of jobs name a secret; nobody can read its values back. Set one:{" "}
          <code>weft secret set NAME KEY=@FILE</code>
        </p>
      ) : null}
    </>
  );
}
