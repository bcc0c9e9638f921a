// Specs that were typed and are not submitted yet: they outlive the screen and the session, for the same user. They are
// kept in memory only, since a spec may have secrets.
import { session } from "../api/session.ts";

/** By the job that is copied; "" for a new one. */
const drafts = new Map<string, string>();
const userNow = (): string | null => {
  const signedIn = session.get();
  return signedIn ? JSON.stringify([signedIn.tenant, signedIn.user]) : null;
};
let owner = userNow();

session.subscribe(() => {
  const user = userNow();
  if (user === null || user === owner) return;
  drafts.clear();
  owner = user;
});

export const draftOf = (from: string): string | undefined => drafts.get(from);

export const keepDraft = (from: string, text: string): void => void drafts.set(from, text);

export const dropDraft = (from: string): void => void drafts.delete(from);
