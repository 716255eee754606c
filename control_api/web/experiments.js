// The list of experiments, with live progress of those that run.

import { follow, get } from "./api.js";
import { h, pill, time } from "./dom.js";

const KINDS = { Queued: "", Running: "info", Succeeded: "good", Failed: "bad", Cancelled: "warn", Interrupted: "warn" };
const REFRESH_MILLISECONDS = 5000;
const PAGE = 50;

export function statusPill(experiment) {
  const ending = experiment.cancelRequested && !experiment.endedAt;
  return ending ? pill("Cancelling", "warn") : pill(experiment.status, KINDS[experiment.status] ?? "");
}

export function progressBar(experiment) {
  const { progress, status } = experiment;
  if (status === "Queued") return h("span", { class: "muted" }, "waits for its turn");
  if (!progress || status !== "Running") return h("span", { class: "muted" }, experiment.failure ?? "");
  const label = `block ${progress.position + 1} of ${progress.total}: ${progress.arm ?? ""}${progress.warmUp ? " (warm-up)" : ""}`;
  return h("div", { class: "progress" },
    h("progress", { max: progress.total, value: progress.position, "aria-label": label }),
    h("span", { class: "muted" }, label));
}

function row(experiment) {
  return h("tr", { "data-id": experiment.id },
    h("th", { scope: "row" }, h("a", { href: `#/experiments/${experiment.id}` }, experiment.name)),
    h("td", null, experiment.profile),
    h("td", null, statusPill(experiment)),
    h("td", { class: "wide" }, progressBar(experiment)),
    h("td", null, time(experiment.createdAt)));
}

export async function showExperiments(main, signal, _match, fail) {
  const rows = new Map();
  const followed = new Set();
  const body = h("tbody", null);
  const more = h("button", { type: "button" }, "Show older ones");
  let cursor = null;

  const put = (experiment, prepend) => {
    const old = rows.get(experiment.id);
    if (old?.version === experiment.version) return;
    const element = row(experiment);
    if (old) old.element.replaceWith(element);
    else if (prepend) body.prepend(element);
    else body.append(element);
    rows.set(experiment.id, { element, version: experiment.version });
    if (!experiment.endedAt && !followed.has(experiment.id)) {
      followed.add(experiment.id);
      follow(experiment.id, signal, (change) => put(change)).catch(fail);
    }
  };
  const older = async () => {
    const page = await get(`/v1/experiments?limit=${PAGE}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, signal);
    page.body.items.forEach((experiment) => put(experiment));
    cursor = page.body.nextCursor;
    more.hidden = cursor === null;
  };
  const newer = async () => {
    const page = await get("/v1/experiments?limit=20", signal);
    // From the oldest on, so that each new one lands above it.
    page.body.items.toReversed().forEach((experiment) => put(experiment, true));
    empty.hidden = rows.size > 0;
    table.hidden = rows.size === 0;
  };
  const table = h("div", { class: "card scroll" }, h("table", null,
    h("thead", null, h("tr", null, ["Name", "Profile", "Status", "Progress", "Created"].map((text) => h("th", { scope: "col" }, text)))),
    body));
  const empty = h("p", { class: "muted" }, "No experiment was run yet. Run one with ",
    h("code", null, "paceline experiment run --arm off --arm 4"), ".");
  await older();
  empty.hidden = rows.size > 0;
  table.hidden = rows.size === 0;
  more.addEventListener("click", () => older().catch(fail));
  main.replaceChildren(h("h1", null, "Experiments"), empty, table, more);
  const timer = setInterval(() => { if (!document.hidden) newer().catch(fail); }, REFRESH_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(timer));
}
