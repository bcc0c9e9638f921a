// The user of the session. The session itself is a cookie that scripts cannot read; this holds the user's name, the
// CSRF token and the expiry from the api's answer.
import { Store } from "../store.ts";
import { BASE } from "../base.ts";
import { ApiError, errorOf } from "./problem.ts";

export interface Session {
  user: string;
  tenant: string;
  scope: string;
  id: string;
  csrf: string;
  expires: string;
}

/** undefined: not known yet; null: nobody is signed in. */
export const session = new Store<Session | null | undefined>(undefined);

const URL_OF_SESSION = `${BASE}v1/session`;

/** The tenants of a screen for operators: all of them for administrators, else the user's own. */
export const tenantsOf = (signedIn: Session | null | undefined): string | undefined => (signedIn?.scope === "admin" ? "*" : undefined);

export const csrfToken = (): string => session.get()?.csrf ?? "";

/** The session has ended: the sign-in page is shown in place, and the address stays. */
export const sessionLost = (): void => session.set(null);

/** Looks whether the browser has a session. Raises ApiError if the server does not answer. */
export async function loadSession(): Promise<void> {
  const response = await request("GET");
  if (response.status === 401) session.set(null);
  else if (response.ok) session.set((await response.json()) as Session);
  else throw await errorOf(response);
}

/** Exchanges a key, or a code of `weft dashboard`, for a session. */
export async function signIn(credential: { key: string } | { code: string }): Promise<void> {
  const response = await request("POST", credential);
  if (!response.ok) throw await errorOf(response);
  session.set((await response.json()) as Session);
}

export async function signOut(): Promise<void> {
  const response = await request("DELETE");
  if (!response.ok && response.status !== 401) throw await errorOf(response);
  session.set(null);
}

async function request(method: string, body?: object): Promise<Response> {
  const headers: Record<string, string> = { "X-Weft-CSRF": csrfToken() };
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(URL_OF_SESSION, {
      method,
      headers,
      credentials: "same-origin",
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
  } catch {
    throw new ApiError(0, {});
  }
}
