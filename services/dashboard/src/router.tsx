// Addresses of the screens. Everything that a reload must restore is in the address, as plain words.
import type { QueryClient } from "@tanstack/react-query";
import { createRootRouteWithContext, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";
import { curvesQuery } from "./api/queries.ts";
import { BASE } from "./base.ts";
import { JobScreen } from "./screens/job.tsx";
import { JobsScreen } from "./screens/jobs.tsx";
import { NotFound, Shell } from "./shell.tsx";

type Words<Name extends string> = { [K in Name]?: string | undefined };

/** Keeps these parameters of an address, as texts; drops all others. */
const words =
  <Name extends string>(...names: Name[]) =>
  (search: Record<string, unknown>): Words<Name> => {
    const kept: Words<Name> = {};
    for (const name of names) if (typeof search[name] === "string" && search[name] !== "") kept[name] = search[name];
    return kept;
  };

/** How long the pointer rests on a link before its route is preloaded. A pointer that only passes over a list requests nothing. */
const RESTS_MS = 150;

const root = createRootRouteWithContext<{ queries: QueryClient }>()({ component: Shell, notFoundComponent: NotFound });
const at = { getParentRoute: () => root };

const home = createRoute({
  ...at,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/jobs" });
  },
});
const signedIn = createRoute({
  ...at,
  path: "/signin",
  beforeLoad: () => {
    throw redirect({ to: "/jobs" });
  },
});
export const jobsRoute = createRoute({
  ...at,
  path: "/jobs",
  validateSearch: words("q", "metrics", "order", "sort", "tenant"),
  component: JobsScreen,
});
export const jobRoute = createRoute({
  ...at,
  path: "/jobs/$id",
  validateSearch: words("tab", "x", "log", "smooth", "from", "to", "old", "rank", "attempt", "stream", "search", "order", "line", "file"),
  // Requested at the click, or before it, not once the page is drawn. The page's other requests follow with the page: the
  // server answers the curves first.
  loader: ({ context: { queries }, params: { id } }) => void queries.prefetchQuery(curvesQuery(id)),
  component: JobScreen,
});
export const compareRoute = createRoute({
  ...at,
  path: "/compare",
  validateSearch: words("jobs", "q", "metric", "x", "log", "smooth", "group", "all"),
  component: lazyRouteComponent(() => import("./screens/compare.tsx"), "CompareScreen"),
});
const queue = createRoute({
  ...at,
  path: "/queue",
  component: lazyRouteComponent(() => import("./screens/queue.tsx"), "QueueScreen"),
});
const cluster = createRoute({
  ...at,
  path: "/cluster",
  validateSearch: words("window"),
  component: lazyRouteComponent(() => import("./screens/cluster.tsx"), "ClusterScreen"),
});
const access = createRoute({
  ...at,
  path: "/access",
  component: lazyRouteComponent(() => import("./screens/access.tsx"), "AccessScreen"),
});
export const submitRoute = createRoute({
  ...at,
  path: "/submit",
  validateSearch: words("from"),
  component: lazyRouteComponent(() => import("./screens/submit.tsx"), "SubmitScreen"),
});

/** `queries`: where screens find what their routes have requested. */
export const routerOf = (queries: QueryClient) =>
  createRouter({
    routeTree: root.addChildren([home, signedIn, jobsRoute, jobRoute, compareRoute, queue, cluster, access, submitRoute]),
    context: { queries },
    basepath: `${BASE}ui`,
    parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
    stringifySearch: (search) => {
      const text = new URLSearchParams(
        Object.entries(search).filter((entry): entry is [string, string] => typeof entry[1] === "string" && entry[1] !== ""),
      ).toString();
      return text ? `?${text}` : "";
    },
    defaultPreload: "intent",
    defaultPreloadDelay: RESTS_MS,
  });

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof routerOf>;
  }
}
