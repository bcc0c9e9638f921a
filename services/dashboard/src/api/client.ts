// The typed client. Every change carries the CSRF token of the session, and an idempotency key: a repetition is safe.
import createClient, { type Middleware } from "openapi-fetch";
import { BASE } from "../base.ts";
import { ApiError, errorOf } from "./problem.ts";
import type { components, paths } from "./schema.ts";
import { csrfToken, sessionLost } from "./session.ts";

export type Schemas = components["schemas"];
export type Job = Schemas["Job"];

export const ROOT = new URL(BASE, location.origin).href.replace(/\/$/, "");

const changes: Middleware = {
  onRequest({ request }) {
    if (request.method === "GET" || request.method === "HEAD") return undefined;
    request.headers.set("X-Weft-CSRF", csrfToken());
    if (request.method !== "DELETE" && !request.headers.has("Idempotency-Key"))
      request.headers.set("Idempotency-Key", newKey());
    return request;
  },
  async onResponse({ response }) {
    if (response.status === 401) sessionLost();
    if (!response.ok) throw await errorOf(response);
    return undefined;
  },
  onError() {
    return new ApiError(0, {});
  },
};

export const client = createClient<paths>({ baseUrl: ROOT, credentials: "same-origin" });
client.use(changes);

/** The data of an answer. Errors were thrown by the middleware. */
export function dataOf<T>(answer: { data?: T }): T {
  return answer.data as T;
}

/** Reads an address of the API that is not part of the typed client, e.g. a file. */
export async function read(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(ROOT + path, { credentials: "same-origin", ...init });
  if (response.status === 401) sessionLost();
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** An idempotency key. (randomUUID exists in secure contexts only.) */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
