// One experiment: how far it is, what its arms measured, what may be concluded, and the residents' rate over time.

import { follow, get, send } from "./api.js";
import { rateChart } from "./chart.js";
import { fill, h, number, pill, time } from "./dom.js";
import { progressBar, statusPill } from "./experiments.js";
import { describe } from "./profiles.js";

const METRICS = [
  ["residentTokensPerSecondBefore", "Resident tok/s before", 1],
  ["residentTokensPerSecondDuring", "Resident tok/s during", 1],
  ["longestResidentChunkGapDuringSeconds", "Longest silence (s)", 2],
  ["timeToFirstTokenSeconds", "TTFT (s)", 2],
];
const VERDICTS = { Better: ["better", "good"], Worse: ["worse", "bad"], NoDifference: ["no difference", ""], Invalid: ["does not count", "warn"] };
const OUTCOMES = { Passed: ["passed", "good"], Failed: ["failed", "bad"], NotApplicable: ["not seen", ""] };
const BIN_SECONDS = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60];
const WANTED_BINS = 160;

function estimate(value, digits) {
  if (!value) return "–";
  const interval = value.low === value.high ? "" : `${number(value.low, digits)} to ${number(value.high, digits)}`;
  return [h("span", { class: "value" }, number(value.value, digits)), h("span", { class: "interval" }, interval)];
}

function armsTable(experiment) {
  const intervals = `Medians over ${experiment.plan.blocks} blocks, with the ${experiment.plan.confidencePercent} % interval below`;
  return h("div", { class: "scroll" }, h("table", { class: "results" },
    h("caption", null, experiment.result ? intervals : "Arms"),
    h("thead", null, h("tr", null,
      h("th", { scope: "col" }, "Arm"), h("th", { scope: "col" }, "Pacing"),
      METRICS.map(([, label]) => h("th", { scope: "col", class: "number" }, label)))),
    h("tbody", null, experiment.arms.map((arm, index) => h("tr", null,
      h("th", { scope: "row" }, h("span", { class: `swatch arm-${index % 6}` }), arm.name,
        arm.result && !arm.result.valid ? [" ", pill("does not count", "warn")] : null),
      h("td", null, describe(arm.pacing)),
      METRICS.map(([metric, , digits]) => h("td", { class: "number" }, estimate(arm.result?.metrics[metric], digits))))))));
}

function comparisons(result) {
  const shown = new Map(METRICS.map(([metric, label, digits]) => [metric, { label, digits }]));
  const rows = result.comparisons.filter(({ metric }) => shown.has(metric));
  return h("div", { class: "scroll" }, h("table", null,
    h("caption", null, "Against the baseline"),
    h("thead", null, h("tr", null, ["Arm", "Metric", "Ratio", "Verdict"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, rows.map((row) => {
      const [word, kind] = VERDICTS[row.verdict];
      const ratio = row.ratio ? `${number(row.ratio.value, 2)} × (${number(row.ratio.low, 2)} to ${number(row.ratio.high, 2)})` : "–";
      return h("tr", null,
        h("th", { scope: "row" }, row.arm), h("td", null, shown.get(row.metric).label),
        h("td", { class: "number" }, ratio), h("td", { title: row.reason }, pill(word, kind)));
    }))));
}

function audits(result) {
  const list = (found) => h("ul", { class: "audits" }, found.map((audit) => {
    const [word, kind] = OUTCOMES[audit.outcome];
    return h("li", null, pill(word, kind), h("span", null, h("strong", null, audit.name), audit.arm ? ` (${audit.arm})` : "", `: ${audit.message}`));
  }));
  const passed = result.audits.filter(({ outcome }) => outcome === "Passed");
  const others = result.audits.filter(({ outcome }) => outcome !== "Passed").sort((a, b) => a.outcome.localeCompare(b.outcome));
  return [
    others.length ? list(others) : null,
    h("details", null, h("summary", null, `${passed.length} of ${result.audits.length} passed`), list(passed)),
  ];
}

function facts(experiment) {
  const work = experiment.plan.workload;
  const prompt = experiment.result?.arms[0]?.injectedPromptTokens ?? work.injectedPromptTokens;
  const pairs = [
    ["Profile", experiment.profile],
    ["Workload", `${work.residents} residents decode, then a cold prompt${prompt ? ` of ${number(prompt, 0)} tokens` : ""} arrives`],
    ["Engine", experiment.engine ? `${experiment.engine.model}, vLLM ${experiment.engine.version ?? "of unknown version"}` : "–"],
    ["Seed", String(experiment.seed)],
    ["Started", time(experiment.startedAt)],
    ["Ended", time(experiment.endedAt)],
  ];
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

async function plot(experiment, signal) {
  const longest = Math.max(0, ...experiment.blocks.map((block) => block.endedSeconds - (block.steadySeconds ?? block.startedSeconds)));
  const width = BIN_SECONDS.find((seconds) => longest / seconds <= WANTED_BINS) ?? BIN_SECONDS.at(-1);
  const { body } = await get(`/v1/experiments/${experiment.id}/timeline?binSeconds=${width}`, signal);
  const blocks = body.blocks.filter((block) => !block.warmUp);
  if (!blocks.length) return null;
  return h("section", { class: "card", "aria-labelledby": "chart-title" },
    h("h2", { id: "chart-title" }, "What a resident sees"),
    h("p", { class: "muted" },
      `Output tokens per second of one resident, from ${number(Math.abs(Math.min(...blocks.map((block) => block.startSeconds))), 0)} s before the prompt arrives. `,
      "The bars below the axis are the prefill: from the prompt's arrival to its first token."),
    rateChart(experiment.arms.map((arm) => arm.name), blocks));
}

function render(main, experiment, chart, stop) {
  const { result } = experiment;
  const believe = experiment.trustworthy === false
    ? h("p", { class: "notice warn" }, "Not to be believed as it is: see the arms and audits that say why.") : null;
  const reasons = experiment.arms.flatMap((arm) => (arm.result?.reasons ?? []).map((reason) => h("li", null, `${arm.name}: ${reason}`)));
  fill(main,
    h("p", { class: "back" }, h("a", { href: "#/experiments" }, "← Experiments")),
    h("div", { class: "card-head" }, h("h1", null, experiment.name), statusPill(experiment), stop),
    h("div", { id: "progress" }, progressBar(experiment)),
    facts(experiment),
    believe,
    chart,
    h("section", { class: "card", "aria-label": "Arms" }, armsTable(experiment), reasons.length ? h("ul", { class: "reasons" }, reasons) : null),
    result ? h("section", { class: "card", "aria-label": "Comparisons" }, comparisons(result)) : null,
    result ? h("section", { class: "card", "aria-labelledby": "audits-title" }, h("h2", { id: "audits-title" }, "Audits"), audits(result)) : null);
}

export async function showExperiment(main, signal, id, fail) {
  const path = `/v1/experiments/${encodeURIComponent(id)}`;
  const load = async () => {
    const { body } = await get(path, signal);
    document.title = `${body.name} – Paceline`;
    const stop = body.endedAt ? null : h("button", {
      type: "button",
      onclick: (event) => {
        event.target.disabled = true;
        send("POST", `${path}/cancel`).catch(fail);
      },
    }, "Stop");
    render(main, body, body.blocks.length ? await plot(body, signal) : null, stop);
    return body;
  };
  const experiment = await load();
  if (experiment.endedAt) return;
  let blocks = experiment.progress?.position;
  follow(id, signal, (change) => {
    // Whole only when a block was added; in between only the progress changes.
    if (change.endedAt || change.progress?.position !== blocks) {
      blocks = change.progress?.position;
      load().catch(fail);
      return;
    }
    document.querySelector("#progress")?.replaceChildren(progressBar(change));
  }).catch(fail);
}
