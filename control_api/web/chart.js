// The residents' token rate over time as SVG: a line for each arm, faint ones for its blocks, and the prefill as bars.

import { h, number, svg } from "./dom.js";

const WIDTH = 960;
const HEIGHT = 380;
const MARGIN = { top: 16, right: 16, bottom: 44, left: 56 };
const BAR = 9;

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function ticks(low, high, count) {
  const step = niceStep(high - low || 1, count);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, place) => (first + place) * step);
}

// The mean over an arm's blocks, for every bin that any of them has. Bins count from the injection, so they align.
function meanLine(blocks) {
  const sums = new Map();
  for (const block of blocks) {
    block.tokensPerSecond.forEach((rate, place) => {
      const bin = Math.round(block.startSeconds / block.binSeconds) + place;
      const [sum, count] = sums.get(bin) ?? [0, 0];
      sums.set(bin, [sum + rate, count + 1]);
    });
  }
  const width = blocks[0].binSeconds;
  // Bins that only some blocks reach say more about which block than about the arm.
  return [...sums].filter(([, [, count]]) => count === blocks.length).sort(([a], [b]) => a - b)
    .map(([bin, [sum, count]]) => [(bin + 0.5) * width, sum / count]);
}

function points(block) {
  return block.tokensPerSecond.map((rate, place) => [block.startSeconds + (place + 0.5) * block.binSeconds, rate]);
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export function rateChart(armNames, blocks) {
  const arms = armNames.map((name, index) => {
    const own = blocks.filter((block) => block.arm === name);
    const prefills = own.map((block) => block.firstTokenSeconds).filter((seconds) => seconds !== null);
    return { name, index, own, line: own.length ? meanLine(own) : [], prefill: prefills.length ? mean(prefills) : null };
  }).filter((arm) => arm.own.length);
  const low = Math.min(...blocks.map((block) => block.startSeconds));
  const high = Math.max(...blocks.map((block) => block.startSeconds + block.binSeconds * block.tokensPerSecond.length));
  const lines = arms.flatMap((arm) => arm.line.map(([, rate]) => rate));
  const top = Math.max(1, ...lines, ...blocks.flatMap((block) => block.tokensPerSecond).sort((a, b) => a - b).slice(0, -3)) * 1.05;
  const bottom = HEIGHT - MARGIN.bottom - arms.length * (BAR + 3);
  const x = (seconds) => MARGIN.left + ((seconds - low) / (high - low)) * (WIDTH - MARGIN.left - MARGIN.right);
  const y = (rate) => bottom - (Math.min(rate, top) / top) * (bottom - MARGIN.top);
  const path = (line) => line.map(([seconds, rate], place) => `${place ? "L" : "M"}${x(seconds).toFixed(1)} ${y(rate).toFixed(1)}`).join("");

  const label = `Resident tokens per second over time. ${arms.map((arm) =>
    `${arm.name}: prefill ${arm.prefill === null ? "not finished" : `${number(arm.prefill, 1)} s`}`).join("; ")}.`;
  const readout = h("p", { class: "readout muted" }, "Move over the chart to read values.");
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, class: "chart" },
    ticks(0, top, 5).map((rate) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(rate), y2: y(rate) }),
      svg("text", { class: "tick", x: MARGIN.left - 8, y: y(rate) + 4, "text-anchor": "end" }, number(rate, 0)),
    ]),
    ticks(low, high, 9).map((seconds) => [
      svg("line", { class: "axis", x1: x(seconds), x2: x(seconds), y1: bottom, y2: bottom + 4 }),
      svg("text", { class: "tick", x: x(seconds), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" }, number(seconds, seconds % 1 ? 1 : 0)),
    ]),
    svg("line", { class: "axis", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: bottom, y2: bottom }),
    svg("text", { class: "label", x: (MARGIN.left + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "seconds since the prompt arrived"),
    svg("text", { class: "label", transform: `translate(14 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "tokens per second"),
    svg("line", { class: "arrival", x1: x(0), x2: x(0), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
    svg("text", { class: "tick", x: x(0) + 6, y: MARGIN.top + 10 }, "prompt arrives"),
    arms.map((arm) => svg("g", { class: `arm arm-${arm.index % 6}` },
      arm.own.length > 1 ? arm.own.map((block) => svg("path", { class: "faint", d: path(points(block)) })) : null,
      svg("path", { class: "line", d: path(arm.line) }))),
    arms.map((arm, place) => arm.prefill === null ? null : svg("rect", {
      class: `prefill arm-${arm.index % 6}`, x: x(0), y: bottom + 6 + place * (BAR + 3), height: BAR, rx: 2,
      width: Math.max(2, x(arm.prefill) - x(0)),
    }, svg("title", null, `${arm.name}: prefill of ${number(arm.prefill, 2)} s`))),
    cursor);

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const seconds = low + (((event.clientX - box.left) / box.width) * WIDTH - MARGIN.left) / (WIDTH - MARGIN.left - MARGIN.right) * (high - low);
    if (seconds < low || seconds > high) return;
    cursor.setAttribute("x1", x(seconds));
    cursor.setAttribute("x2", x(seconds));
    cursor.setAttribute("visibility", "visible");
    const values = arms.map((arm) => {
      const near = arm.line.reduce((best, point) => Math.abs(point[0] - seconds) < Math.abs(best[0] - seconds) ? point : best, arm.line[0] ?? [0, null]);
      return `${arm.name} ${number(near[1], 1)}`;
    });
    readout.textContent = `${number(seconds, 1)} s: ${values.join(", ")} tok/s`;
  });
  chart.addEventListener("pointerleave", () => cursor.setAttribute("visibility", "hidden"));

  const legend = h("ul", { class: "legend" }, arms.map((arm) => h("li", null, h("span", { class: `swatch arm-${arm.index % 6}` }),
    arm.name, h("span", { class: "muted" }, arm.prefill === null ? "" : ` prefill ${number(arm.prefill, 1)} s`))));
  return h("figure", null, legend, chart, readout);
}
