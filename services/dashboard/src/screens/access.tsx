// Who may use the platform: API keys, the sessions of browsers that were made from them, and the tenant's secrets.
import { useEffect } from "react";
import { Keys } from "../access/keys.tsx";
import { Secrets } from "../access/secrets.tsx";
import { session } from "../api/session.ts";
import { useStore } from "../store.ts";

export function AccessScreen() {
  const signedIn = useStore(session);
  useEffect(() => {
    document.title = "Access · Weft";
  }, []);
  if (!signedIn) return null;
  return (
    <section className="screen padded" aria-labelledby="access-title">
      <div className="screen-head">
        <h1 id="access-title">Access</h1>
        <span className="faint">
          {signedIn.user} of tenant {signedIn.tenant}
          {signedIn.scope === "admin" ? ", administrator" : ""}
        </span>
      </div>
      <Keys signedIn={signedIn} />
      <Secrets tenant={signedIn.tenant} />
    </section>
  );
}
