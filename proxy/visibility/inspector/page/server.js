// What the proxy is asked, and what it tells while it works.

export async function ask(path) {
  const answer = await fetch(`/inspector/${path}`, { headers: { Accept: "application/json" }, cache: "no-store" });
  const value = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(value?.error?.message ?? `The proxy answered with status ${answer.status}.`);
  return value;
}

// Calls `heard(name, data)` for each event, and `changed(state)` when the line is there, or lost. It comes back by itself.
export function listen(heard, changed) {
  const line = new EventSource("/inspector/events");
  line.addEventListener("open", () => changed("live"));
  line.addEventListener("error", () => changed("lost"));
  for (const name of ["request", "state", "anew"]) {
    line.addEventListener(name, (event) => heard(name, JSON.parse(event.data)));
  }
}
