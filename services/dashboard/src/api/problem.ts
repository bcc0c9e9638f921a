// Errors of the API (RFC 9457), and of the way to it.
import type { components } from "./schema.ts";

export type Problem = components["schemas"]["Problem"];

/** An answer of the API that is an error. `status` is 0 if no answer came. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly problem: Partial<Problem>;

  constructor(status: number, problem: Partial<Problem>) {
    super(problem.detail || problem.title || (status ? `the server answered ${status}` : "the server does not answer"));
    this.status = status;
    this.problem = problem;
  }
}

/** The error that a response carries. A proxy's answer may be no problem document. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  return new ApiError(response.status, parsed(text));
}

export function parsed(text: string): Partial<Problem> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

/** No answer, too many requests, or a part that starts or is away: the same request may succeed in a moment. */
export const isTemporary = (error: unknown): boolean => error instanceof ApiError && (error.status === 0 || error.status === 429 || error.status >= 502);

/** What to show of an unknown error. */
export function messageOf(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  return error instanceof TypeError ? "the server does not answer" : String(error);
}
