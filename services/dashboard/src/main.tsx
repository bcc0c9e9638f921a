import { setNonce } from "get-nonce";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/problem.ts";
import { loadSession, session } from "./api/session.ts";
import { BASE } from "./base.ts";
import { routerOf } from "./router.tsx";
import { SignIn } from "./screens/signin.tsx";
import { useStore } from "./store.ts";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/screens.css";
import "uplot/dist/uPlot.min.css";
import { ErrorNote } from "./ui/notes.tsx";
import { startTheme } from "./ui/theme.ts";

const SERVER_ERROR = 500;
const TRIES = 3;

/** Queries that fail for want of an answer are tried again; an answer that says no is final. */
const retry = (failures: number, error: Error): boolean =>
  error instanceof ApiError && (error.status === 0 || error.status >= SERVER_ERROR) && failures < TRIES;

const queries = new QueryClient({
  queryCache: new QueryCache(),
  defaultOptions: { queries: { retry, staleTime: 1000, refetchOnWindowFocus: true } },
});
const router = routerOf(queries);

function App() {
  const signedIn = useStore(session);
  const [error, setError] = useState<unknown>(null);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    setError(null);
    loadSession().catch(setError);
  }, [tries]);
  useEffect(() => {
    if (signedIn === null) queries.clear();
  }, [signedIn]);
  if (signedIn === undefined) {
    return error ? (
      <main className="alone">
        <ErrorNote error={error} retry={() => setTries(tries + 1)} />
      </main>
    ) : null;
  }
  return signedIn === null ? <SignIn /> : <RouterProvider router={router} />;
}

const nonce = document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce;
if (nonce) setNonce(nonce);
if (location.pathname === BASE) history.replaceState(null, "", `${BASE}ui/jobs${location.search}`);
startTheme();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </StrictMode>,
  );
}
