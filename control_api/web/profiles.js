// The profiles with their live pacing, and the form that changes it.

import { get, Problem, send } from "./api.js";
import { announce, h, pill } from "./dom.js";

const REFRESH_MILLISECONDS = 3000;

const MODES = [
  ["Disabled", "Off", "As stock vLLM: prefills run as they come."],
  ["Fixed", "Interval", "At most one of N engine steps carries prefill while anybody is decoding."],
  ["SLO", "Promise", "Prefill is released as the promise to the decoding requests allows."],
];

export function describe(pacing) {
  if (pacing.mode === "Fixed") {
    return pacing.interval > 1 ? `one prefill step in ${pacing.interval}` : "off (interval below 2)";
  }
  if (pacing.mode === "SLO") return `${pacing.slo.timePerOutputTokenMilliseconds} ms per output token`;
  return "off";
}

function state(status) {
  if (!status.applied) {
    const silent = status.engines.every((engine) => engine.revision === null);
    return silent ? pill("no answer", "bad") : pill("pending", "warn");
  }
  return status.engines.every((engine) => engine.paced !== false) ? pill("applied", "good") : pill("can't pace", "warn");
}

function engineRow(engine, revision) {
  const lag = engine.applied ? pill("runs it", "good") : pill(engine.revision === null ? "no answer" : "behind", "warn");
  return h("tr", null,
    h("th", { scope: "row" }, engine.name),
    h("td", { class: "number" }, engine.revision === null ? "–" : `${engine.revision} of ${revision}`),
    h("td", null, lag),
    h("td", { class: "message" }, [engine.message, engine.pageGate].filter(Boolean).join("; ")));
}

function field(id, label, hint, attributes) {
  return h("div", { class: "field" },
    h("label", { for: id }, label),
    h("input", { id, type: "number", step: "1", required: true, inputmode: "numeric", "aria-describedby": `${id}-hint`, ...attributes }),
    h("span", { id: `${id}-hint`, class: "hint" }, hint));
}

// One profile's card. `update` shows newer state and leaves a form alone that somebody is editing.
class Card {
  constructor(view) {
    this.path = `/v1/profiles/${view.namespace}/${view.name}/pacing`;
    this.key = `${view.namespace}/${view.name}`;
    const id = (name) => `${view.namespace}-${view.name}-${name}`;
    this.id = id;
    this.head = h("div", { class: "card-head" });
    this.now = h("p", { class: "now" });
    this.engines = h("tbody", null);
    this.feedback = h("p", { class: "notice", role: "status", "aria-live": "polite", hidden: true });
    this.interval = field(id("interval"), "Interval N", "steps, 2 to 1024", { name: "interval", min: 2, max: 1024 });
    this.tpot = field(id("tpot"), "Time per output token", "milliseconds", { name: "tpot", min: 1, max: 60000 });
    this.delay = field(id("delay"), "Longest prefill delay", "seconds", { name: "delay", min: 1, max: 3600 });
    this.hint = h("p", { class: "muted", id: id("mode-hint") });
    this.button = h("button", { type: "submit", class: "primary" }, "Apply");
    this.form = h("form", { class: "pacing", novalidate: false },
      h("fieldset", { class: "modes", "aria-describedby": id("mode-hint") },
        h("legend", null, "Pacing"),
        MODES.map(([mode, label]) => h("label", null,
          h("input", { type: "radio", name: id("mode"), value: mode, onchange: () => this.showFields() }),
          h("span", null, label)))),
      this.hint,
      h("div", { class: "fields" }, this.interval, this.tpot, this.delay, this.button));
    this.form.addEventListener("input", () => { this.edited = true; });
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.apply(); });
    this.element = h("article", { class: "card", "aria-labelledby": id("title") },
      this.head, this.now, this.form, this.feedback,
      h("div", { class: "scroll" }, h("table", null,
        h("caption", null, "Engines"),
        h("thead", null, h("tr", null, ["Engine", "Revision", "State", ""].map((text) => h("th", { scope: "col" }, text)))),
        this.engines)));
  }

  get mode() {
    return this.form.querySelector("input[type=radio]:checked")?.value ?? "Disabled";
  }

  update(view) {
    const { status } = view;
    this.pacing = view.profile.spec.pacing;
    this.head.replaceChildren(
      h("h2", { id: this.id("title") }, view.name, " ", h("span", { class: "muted" }, view.namespace)),
      state(status));
    this.now.replaceChildren(
      h("strong", null, describe(this.pacing)),
      h("span", { class: "muted" }, ` · revision ${status.revision} · model ${view.model}`));
    this.engines.replaceChildren(...status.engines.map((engine) => engineRow(engine, status.revision)));
    if (this.waiting !== undefined && status.applied && status.revision >= this.waiting) {
      this.waiting = undefined;
      this.say(`Applied: every engine runs revision ${status.revision}.`, "good");
    }
    if (!this.edited) this.fill();
  }

  fill() {
    const { mode, interval, slo } = this.pacing;
    this.form.querySelector(`input[value=${mode}]`).checked = true;
    this.interval.querySelector("input").value = Math.max(2, interval);
    this.tpot.querySelector("input").value = slo?.timePerOutputTokenMilliseconds ?? 80;
    this.delay.querySelector("input").value = slo?.maxPrefillDelaySeconds ?? 60;
    this.showFields();
  }

  showFields() {
    this.hint.textContent = MODES.find(([mode]) => mode === this.mode)[2];
    const shown = { Fixed: [this.interval], SLO: [this.tpot, this.delay] }[this.mode] ?? [];
    for (const part of [this.interval, this.tpot, this.delay]) {
      part.hidden = !shown.includes(part);
      part.querySelector("input").disabled = part.hidden;
    }
  }

  wanted() {
    const value = (part) => part.querySelector("input").valueAsNumber;
    if (this.mode === "Fixed") return { ...this.pacing, mode: "Fixed", interval: value(this.interval) };
    if (this.mode === "SLO") {
      const slo = { ...this.pacing.slo, timePerOutputTokenMilliseconds: value(this.tpot), maxPrefillDelaySeconds: value(this.delay) };
      return { ...this.pacing, mode: "SLO", slo };
    }
    return { ...this.pacing, mode: "Disabled" };
  }

  async apply() {
    this.button.disabled = true;
    this.say("Applying …", "");
    const started = performance.now();
    try {
      const { etag } = await get(this.path);
      const { status, body } = await send("PUT", `${this.path}?wait=5s`, this.wanted(), { "If-Match": etag });
      this.edited = false;
      if (status === 200) {
        this.say(`Applied: every engine runs revision ${body.revision}, after ${Math.round(performance.now() - started)} ms.`, "good");
      } else {
        this.waiting = body.revision;
        const late = body.engines.filter((engine) => !engine.applied).map((engine) => `${engine.name}: ${engine.message ?? "not yet"}`);
        this.say(`Pending: revision ${body.revision} is kept, and not yet run by ${late.join("; ")}`, "warn");
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const invalid = error.status === 422 && error.fields.length;
      this.say(invalid ? error.fields.map(({ field, message }) => `${field}: ${message}`).join("; ") : error.message, "error");
    } finally {
      this.button.disabled = false;
    }
    this.onApplied?.();
  }

  say(text, kind) {
    this.feedback.hidden = false;
    this.feedback.className = `notice ${kind}`;
    this.feedback.textContent = text;
  }
}

export async function showProfiles(main, signal, _match, fail) {
  const list = h("div", { class: "cards" });
  const cards = new Map();
  const refresh = async () => {
    const { body } = await get("/v1/profiles", signal);
    for (const view of body.items) {
      const key = `${view.namespace}/${view.name}`;
      if (!cards.has(key)) {
        cards.set(key, new Card(view));
        cards.get(key).onApplied = () => refresh().catch(fail);
        list.append(cards.get(key).element);
      }
      cards.get(key).update(view);
    }
    for (const [key, card] of cards) {
      if (!body.items.some((view) => `${view.namespace}/${view.name}` === key)) {
        card.element.remove();
        cards.delete(key);
        announce(`${key} is gone`);
      }
    }
  };
  await refresh();
  main.replaceChildren(
    h("h1", null, "Profiles"),
    cards.size ? list : h("p", { class: "muted" }, "There is no profile. Start one with ", h("code", null, "paceline up PROFILE.yaml"), "."));
  const timer = setInterval(() => { if (!document.hidden) refresh().catch(fail); }, REFRESH_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(timer));
}
