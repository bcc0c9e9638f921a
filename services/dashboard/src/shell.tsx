// The frame of all screens: navigation, connection, theme, account, shortcuts.
import * as Dialog from "@radix-ui/react-dialog";
import * as Menu from "@radix-ui/react-dropdown-menu";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { Suspense, useEffect, useRef, useState } from "react";
import { session, signOut } from "./api/session.ts";
import { streams } from "./api/stream_health.ts";
import { useStore } from "./store.ts";
import { ConfirmDialog } from "./ui/confirm.tsx";
import { Symbol } from "./ui/icons.tsx";
import { MENUS } from "./ui/menus.ts";
import { useShortcuts } from "./ui/keys.ts";
import { Empty } from "./ui/notes.tsx";
import { type Theme, theme } from "./ui/theme.ts";
import { sayError, Toasts } from "./ui/toast.tsx";

export function Shell() {
  const [help, setHelp] = useState(false);
  const navigate = useNavigate();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const pending = useRef(0);
  const main = useRef<HTMLElement>(null);

  useEffect(() => {
    if (main.current) main.current.scrollTop = 0;
  }, [path]);

  const goTo = (to: "/jobs" | "/queue" | "/cluster" | "/access") => (): void => {
    if (Date.now() - pending.current < 1200) void navigate({ to });
    pending.current = 0;
  };
  useShortcuts({
    "?": () => setHelp(true),
    g: () => {
      pending.current = Date.now();
    },
    o: goTo("/jobs"),
    u: goTo("/queue"),
    l: goTo("/cluster"),
    a: goTo("/access"),
    n: () => void navigate({ to: "/submit" }),
  });

  return (
    <div className="shell">
      <a className="skip" href={`${location.pathname}${location.search}#main`}>
        Skip to content
      </a>
      <header className="top">
        <Link to="/jobs" className="brand" aria-label="Weft: jobs">
          <span className="mark" aria-hidden="true" />
          <span className="brand-name">Weft</span>
        </Link>
        <nav aria-label="Screens">
          <Link to="/jobs" activeOptions={{ includeSearch: false }}>
            Jobs
          </Link>
          <Link to="/queue">Queue</Link>
          <Link to="/cluster">Cluster</Link>
          <Link to="/compare" className="wide-only" activeOptions={{ includeSearch: false }}>
            Compare
          </Link>
        </nav>
        <Connection />
        <Link to="/submit" className="button primary compact">
          <Symbol name="plus" size={12} />
          <span>
            New<span className="wide-only"> job</span>
          </span>
        </Link>
        <Account onHelp={() => setHelp(true)} />
        {/* Menus open within a landmark. */}
        <div id={MENUS} />
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Suspense fallback={null}>
          <Outlet />
        </Suspense>
      </main>
      <Toasts />
      <ConfirmDialog />
      <Help open={help} onClose={() => setHelp(false)} />
    </div>
  );
}

/** Says so while what is shown may be old. */
function Connection() {
  const health = useStore(streams.health);
  return (
    <span className={`connection ${health}`} role="status" aria-live="polite">
      {health === "lost" ? "Reconnecting … shown data may be old" : health === "live" ? "Live" : ""}
    </span>
  );
}

function Account({ onHelp }: { onHelp: () => void }) {
  const signedIn = useStore(session);
  const chosen = useStore(theme);
  const navigate = useNavigate();
  return (
    <Menu.Root modal={false}>
      <Menu.Trigger className="button quiet compact">
        <Symbol name="user" />
        <span className="sr-only">Account and settings </span>
        <span className="wide-only">{signedIn?.user}</span>
      </Menu.Trigger>
      <Menu.Portal container={document.getElementById(MENUS)}>
        <Menu.Content className="menu" align="end" sideOffset={6} collisionPadding={8}>
          <Menu.Label className="menu-label">
            {signedIn?.user} · tenant {signedIn?.tenant}
          </Menu.Label>
          <Menu.Item className="menu-item" onSelect={() => void navigate({ to: "/access" })}>
            <Symbol name="key" /> Keys and secrets
          </Menu.Item>
          <Menu.Separator className="menu-line" />
          <Menu.RadioGroup value={chosen} onValueChange={(value) => theme.set(value as Theme)}>
            {(["system", "light", "dark"] as const).map((value) => (
              <Menu.RadioItem key={value} value={value} className="menu-item">
                <Symbol name={value === "light" ? "sun" : value === "dark" ? "moon" : "system"} />
                {value === "system" ? "As the system" : value === "light" ? "Light" : "Dark"}
                <Menu.ItemIndicator className="menu-mark">
                  <Symbol name="done" size={12} />
                </Menu.ItemIndicator>
              </Menu.RadioItem>
            ))}
          </Menu.RadioGroup>
          <Menu.Separator className="menu-line" />
          <Menu.Item className="menu-item" onSelect={() => setTimeout(onHelp)}>
            Keyboard shortcuts <kbd>?</kbd>
          </Menu.Item>
          <Menu.Item className="menu-item" onSelect={() => void signOut().catch((error: unknown) => sayError("Not signed out", error))}>
            Sign out
          </Menu.Item>
        </Menu.Content>
      </Menu.Portal>
    </Menu.Root>
  );
}

const SHORTCUTS: [string, string][] = [
  ["/", "Filter jobs, or search the log"],
  ["j  k", "Next, previous job"],
  ["Enter", "Open the job"],
  ["x", "Select the job"],
  ["c", "Compare the selected jobs"],
  ["1 … 6", "Tabs of a job"],
  ["n", "New job"],
  ["g o", "Jobs"],
  ["g u", "Queue"],
  ["g l", "Cluster"],
  ["g a", "Keys and secrets"],
  ["?", "This list"],
];

function Help({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog.Root open={open} onOpenChange={(stays) => !stays && onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog small" aria-describedby={undefined}>
          <Dialog.Title className="dialog-title">Keyboard shortcuts</Dialog.Title>
          <dl className="shortcuts">
            {SHORTCUTS.map(([keys, what]) => (
              <div key={keys}>
                <dt>
                  {keys.split(/ +/).map((key) => (key === "…" ? "…" : <kbd key={key}>{key}</kbd>))}
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
          <div className="dialog-actions">
            <Dialog.Close className="button">Close</Dialog.Close>
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

export function NotFound() {
  return (
    <Empty title="There is no such page">
      <p>
        <Link to="/jobs">All jobs</Link>
      </p>
    </Empty>
  );
}
