// Asks for the status every 2 s and draws it. Text from outside enters the page as text nodes and attributes only; the
// content security policy forbids everything else.

const EVERY_MS = 2000;
const PATIENCE_MS = 3000;
const SILENT_MS = 8000; // A laptop that slept, a tab that was held back: what is shown is old.
const UNJUDGED_S = 10;
const SPAN_S = 900;

// ---------------------------------------------------------------------------------------------------- building blocks

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "line", "circle", "g"]);

/** An element. Attributes that are null or false are left out; so are children that are null. */
function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Makes `old` look like `fresh` and touches only what differs: focus, selection and open details stay. */
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const children = [...fresh.childNodes];
  children.forEach((child, i) => (i < old.childNodes.length ? morph(old.childNodes[i], child) : old.append(child)));
  while (old.childNodes.length > children.length) old.lastChild.remove();
}

const known = (value) => value !== null && value !== undefined;

// ------------------------------------------------------------------------------------------------------ numbers, words

const GAP = "\u202f"; // Narrow and unbreakable: between a number and its unit.
const number = (value, digits = 0) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const significant = (value) => number(value, value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2);

const percent = (ratio) => number(ratio * 100, 1) + GAP + "%";
const wholePercent = (ratio) => number(ratio * 100) + GAP + "%";
const watts = (value) => (value >= 10000 ? number(value / 1000, 1) + GAP + "kW" : number(value) + GAP + "W");
const bytesPerSecond = (value) =>
  value >= 1e9 ? number(value / 1e9, 1) + GAP + "GB/s" : number(value / 1e6, value < 1e7 ? 1 : 0) + GAP + "MB/s";
const gibibytes = (value) => number(value / 2 ** 30);

function energy(joules) {
  const wattHours = joules / 3600;
  return wattHours >= 1000 ? significant(wattHours / 1000) + GAP + "kWh" : significant(wattHours) + GAP + "Wh";
}

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const whole = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0" + GAP + "s";
  const [unit, size] = units[first];
  const words = [Math.floor(whole / size) + GAP + unit];
  const [nextUnit, nextSize] = units[first + 1] ?? ["", Infinity];
  const rest = Math.floor((whole % size) / nextSize);
  if (rest > 0) words.push(rest + GAP + nextUnit);
  return words.join(" ");
}

const clock = (date) => date.toLocaleTimeString("en-GB");

/** A value as text, or a dash that says so. */
function shown(value, format) {
  return known(value)
    ? format(value)
    : h("span", { class: "absent", title: "not obtained" }, h("span", { "aria-hidden": "true" }, "–"),
        h("span", { class: "hidden" }, "not obtained"));
}

const REASONS = {
  gpu_idle: "idle clocks",
  sw_power_cap: "power cap",
  hw_slowdown: "hardware slowdown",
  sw_thermal_slowdown: "heat (driver)",
  hw_thermal_slowdown: "heat (hardware)",
  hw_power_brake_slowdown: "power brake",
  sync_boost: "sync boost",
  applications_clocks_setting: "application clocks",
  display_clock_setting: "display clocks",
  board_limit: "board limit",
};
const reasonWords = (reason) => REASONS[reason] ?? reason.replaceAll("_", " ");

// Drawn in a box of 16 by 16: each state has a shape of its own beside its colour.
const ICONS = {
  unknown: [{ d: "M5.2 6.2a2.8 2.8 0 1 1 4 2.5C8.3 9.2 8 9.7 8 10.6M8 13v.2" }],
  idle: [{ d: "M8 3a5 5 0 1 1 0 10A5 5 0 0 1 8 3z" }],
  working: [{ d: "M5 3.2v9.6l8-4.8z", fill: true }],
  saturated: [{ d: "M3 3h10v10H3z", fill: true }],
  low_power: [{ d: "M3 3h10v10H3z" }, { d: "M3 10h10v3H3z", fill: true }],
  idle_while_busy: [{ d: "M8 2.2 14.6 13.4H1.4z" }, { d: "M8 6.4v3.4M8 11.6v.1" }],
  stalled: [{ d: "M4 3h3v10H4zM9 3h3v10H9z", fill: true }],
};

function icon(state) {
  return h("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" },
    (ICONS[state] ?? ICONS.unknown).map(({ d, fill }) => h("path", { d, class: fill ? "filled" : null })));
}

const runbook = (name, ...words) => h("a", { href: `runbooks/${name}` }, ...words);

// --------------------------------------------------------------------------------------------------------------- chart

/** Where the line breaks: three times the usual distance of two points. */
function longestStep(points) {
  const steps = points.slice(1).map((p, i) => points[i].seconds_ago - p.seconds_ago).sort((a, b) => a - b);
  return 3 * Math.max(5, steps[Math.floor(steps.length / 2)] ?? 5);
}

/** Runs of points without a gap, as [x, y] in a box of 1000 by 100. */
function runs(points, field, top) {
  const longest = longestStep(points);
  const all = [];
  let before = null;
  for (const point of points) {
    if (!known(point[field])) {
      before = null;
      continue;
    }
    if (before === null || before - point.seconds_ago > longest) all.push([]);
    all.at(-1).push([1000 * Math.max(0, 1 - point.seconds_ago / SPAN_S), 100 * (1 - Math.min(1, point[field] / top))]);
    before = point.seconds_ago;
  }
  return all;
}

const coordinates = (run) => run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

function lineChart(points, field, top, name) {
  const all = runs(points, field, top);
  // A run of one point is drawn as a dot: a line to itself.
  const line = all.map((run) => `M${coordinates(run)}${run.length === 1 ? "h.01" : ""}`).join("");
  const area = all.map((run) => `M${run[0][0].toFixed(1)} 100L${coordinates(run)}L${run.at(-1)[0].toFixed(1)} 100z`);
  return h("svg", { class: `plot ${name}`, viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { class: "grid", d: "M0 0H1000M0 50H1000M0 100H1000M333.3 0V100M666.7 0V100" }),
    h("path", { class: "area", d: area.join("") }),
    h("path", { class: "line", d: line }));
}

function ribbon(points) {
  const longest = longestStep(points);
  const parts = [];
  points.forEach((point, i) => {
    const until = points[i + 1]?.seconds_ago ?? 0;
    const end = point.seconds_ago - until > longest ? point.seconds_ago - longest / 3 : until;
    const last = parts.at(-1);
    if (last && last.state === point.state && Math.abs(last.end - point.seconds_ago) < 0.01) last.end = end;
    else parts.push({ state: point.state, start: point.seconds_ago, end });
  });
  const x = (ago) => 1000 * (1 - Math.min(SPAN_S, ago) / SPAN_S);
  return h("svg", { class: "plot ribbon", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    parts.map((p) => h("rect", { "data-state": p.state, x: x(p.start).toFixed(1), y: 0, height: 10,
      width: Math.max(0, x(p.end) - x(p.start)).toFixed(1) })));
}

/** A round number at or above the greatest value. */
function roundedTop(points, field) {
  const greatest = Math.max(0, ...points.map((p) => p[field] ?? 0));
  if (greatest === 0) return 1;
  const size = 10 ** Math.floor(Math.log10(greatest));
  return size * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * size >= greatest);
}

const stateTitle = (state) => state.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());

function pointWords(point) {
  const when = point.seconds_ago < 1 ? "Now" : `${duration(point.seconds_ago)} ago`;
  const power = known(point.tdp_fraction) ? `${percent(point.tdp_fraction)} of the limit` : "power fraction not known";
  const tokens = known(point.tokens_per_second) ? `${significant(point.tokens_per_second)} tokens/s` : "tokens/s not known";
  return `${when}: ${stateTitle(point.state)}, ${power}, ${tokens}`;
}

const cursors = new Map(); // Deployment name -> seconds ago that are looked at.

function nearest(points, ago) {
  return points.reduce((best, p) => (Math.abs(p.seconds_ago - ago) < Math.abs(best.seconds_ago - ago) ? p : best));
}

function chart(deployment) {
  const points = deployment.history;
  const powerTop = Math.max(1, roundedTop(points, "tdp_fraction"));
  const tokensTop = roundedTop(points, "tokens_per_second");
  const looked = cursors.get(deployment.name);
  const point = points.length ? nearest(points, looked ?? 0) : null;
  const words = point ? pointWords(point) : "Nothing is remembered yet.";
  const cursor = point && known(looked)
    ? h("svg", { class: "cursor", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        h("path", { d: `M${(1000 * (1 - point.seconds_ago / SPAN_S)).toFixed(1)} 0v10` }))
    : null;
  return h("figure", { class: "chart" },
    h("figcaption", {}, "The last 15 minutes"),
    h("div", { class: "panels", tabindex: 0, role: "slider", "data-chart": deployment.name,
      "aria-label": `The last 15 minutes of ${deployment.name}: move back in time`, "aria-orientation": "horizontal",
      "aria-valuemin": -SPAN_S, "aria-valuemax": 0, "aria-valuenow": point ? -Math.round(point.seconds_ago) : 0,
      "aria-valuetext": words },
      h("div", { class: "panel" },
        h("p", { class: "axis" }, h("span", { class: "series power" }, "Power, share of the limit"),
          h("span", {}, wholePercent(powerTop))),
        lineChart(points, "tdp_fraction", powerTop, "power")),
      h("div", { class: "panel" },
        h("p", { class: "axis" }, h("span", { class: "series tokens" }, "Generated tokens per second"),
          h("span", {}, points.some((p) => p.tokens_per_second > 0) ? significant(tokensTop) : "")),
        lineChart(points, "tokens_per_second", tokensTop, "tokens")),
      ribbon(points),
      cursor),
    h("p", { class: "axis times", "aria-hidden": "true" },
      ["15 min ago", "10 min", "5 min", "now"].map((t) => h("span", {}, t))),
    h("p", { class: "readout" }, words));
}

function lookAt(name, ago) {
  if (ago === null) cursors.delete(name);
  else cursors.set(name, Math.min(SPAN_S, Math.max(0, ago)));
  if (latest) draw(latest);
}

// ---------------------------------------------------------------------------------------------------------- deployment

function total(values) {
  return values.length && values.every(known) ? values.reduce((sum, v) => sum + v, 0) : null;
}

function figures(deployment, engines) {
  const d = deployment;
  const running = total(engines.map((e) => e.running_requests));
  const queued = total(engines.map((e) => e.queued_requests));
  const of = (value, words) => (known(value) ? words(value) : "");
  return [
    ["Power", d.tdp_fraction, percent,
      known(d.power_mean_watts) && known(d.power_limit_watts) ? `${watts(d.power_mean_watts)} of ${watts(d.power_limit_watts)}` : ""],
    ["Above idle", d.active_power_fraction, percent,
      of(d.active_power_fraction, () => "of the power between idle and limit")],
    ["Tokens/s", d.tokens_per_second.generation, significant,
      of(d.tokens_per_second.prompt, (v) => `and ${significant(v)} of prompts`)],
    ["Tokens/s per watt", d.tokens_per_watt.generation, significant,
      of(d.joules_per_token.generation, (v) => `${significant(v)}${GAP}J a token`)],
    ["Requests held", d.work_requests, number,
      known(running) && known(queued) ? `${number(running)} run, ${number(queued)} wait` : ""],
    ...(known(d.bandwidth_ratio)
      ? [["Memory bandwidth", d.bandwidth_ratio, wholePercent, of(d.flops_ratio, (v) => `compute ${wholePercent(v)} of the peak`)]]
      : []),
  ];
}

function suspicions(deployment) {
  return h("section", { class: "why" },
    h("h3", {}, deployment.suspicions.length > 1 ? "Suspected causes" : "Suspected cause"),
    deployment.suspicions.length
      ? h("ul", {}, deployment.suspicions.map((s) => h("li", {}, h("strong", {}, s.title, ":"), " ",
          h("span", { class: "evidence" }, s.evidence), ". ",
          s.runbook ? runbook(s.runbook, `Runbook`, h("span", { class: "hidden" }, ` for ${s.title}`)) : "")))
      : h("p", { class: "quiet" }, "None."),
    deployment.unseen.length
      ? [h("h3", {}, "Cannot be seen here"),
         h("ul", { class: "quiet list" }, deployment.unseen.map((words) => h("li", {}, words)))]
      : null,
    deployment.unresolved_gpus.length
      ? [h("h3", {}, "Configured GPUs that are not visible"),
         h("ul", { class: "list" }, deployment.unresolved_gpus.map((gpu) => h("li", {}, gpu)))]
      : null,
    deployment.unplaced.length
      ? [h("h3", {}, "Processes whose GPU is not known"),
         h("ul", { class: "list" }, deployment.unplaced.map((name) => h("li", {}, name)))]
      : null);
}

function ledger(deployment) {
  const seconds = deployment.state_seconds;
  const joules = deployment.state_energy_joules;
  const states = Object.keys(seconds).filter((s) => seconds[s] > 0 || joules[s] > 0);
  const all = states.reduce((sum, s) => sum + seconds[s], 0);
  if (!(all > 0)) return null;
  let x = 0;
  const parts = states.map((s) => {
    const width = (100 * seconds[s]) / all;
    const part = h("rect", { "data-state": s, x: `${x.toFixed(2)}%`, width: `${width.toFixed(2)}%`, height: "100%" });
    x += width;
    return part;
  });
  return h("section", { class: "ledger" },
    h("h3", {}, "Time and energy since the exporter started"),
    h("svg", { class: "shares", "aria-hidden": "true" }, parts),
    h("ul", {}, states.map((s) => h("li", { "data-state": s },
      h("span", { class: "swatch" }, icon(s)),
      h("span", { class: "what" }, stateTitle(s)),
      h("span", {}, `${duration(seconds[s])} (${wholePercent(seconds[s] / all)})`),
      h("span", {}, energy(joules[s]))))));
}

function deploymentCard(deployment, index, status) {
  const engines = status.engines.filter((e) => deployment.engines.includes(e.name));
  const gpus = status.gpus.filter((g) => deployment.gpus.includes(g.uuid));
  return h("article", { class: "deployment", id: `deployment-${index}`, "data-state": deployment.state,
    "aria-labelledby": `verdict-${index}` },
    h("header", { class: "verdict" },
      h("span", { class: "tile" }, icon(deployment.state)),
      h("div", {},
        h("h2", { id: `verdict-${index}` }, h("span", { class: "state" }, deployment.title), " ",
          h("span", { class: "name" }, h("span", { class: "hidden" }, "is the state of "), deployment.name), " ",
          h("span", { class: "since" }, `for ${duration(deployment.seconds_in_state)}`)),
        h("p", { class: "summary" }, deployment.summary, "."),
        deployment.reason === deployment.summary
          ? null
          : h("p", { class: "reason" }, h("span", { class: "quiet" }, "Why: "), deployment.reason, "."),
        deployment.pending
          ? h("p", { class: "pending" }, h("span", { class: "quiet" }, "Coming: "), deployment.pending.title,
              `, if this goes on: its signs have been there for ${duration(deployment.pending.seconds)}.`)
          : null,
        deployment.runbook ? h("p", {}, runbook(deployment.runbook, "What to do about it")) : null)),
    h("dl", { class: "figures" }, figures(deployment, engines).map(([name, value, format, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, h("span", { class: "value" }, shown(value, format)),
        note ? h("span", { class: "note" }, note) : null)))),
    h("div", { class: "halves" }, chart(deployment), h("div", { class: "side" }, suspicions(deployment), ledger(deployment))),
    gpus.length ? h("section", {}, h("h3", {}, gpus.length === 1 ? "1 GPU" : `${gpus.length} GPUs`), gpuTable(gpus, deployment.name, status.window_seconds)) : null,
    engines.length ? h("section", {}, h("h3", {}, engines.length === 1 ? "1 engine" : `${engines.length} engines`), engineTable(engines, deployment.name)) : null);
}

// -------------------------------------------------------------------------------------------------------------- tables

/** A table by columns of [title, cell of a row, class]. A column in which no row has anything is left out. The roles
 *  are written out because a phone shows the rows as blocks, which would take them away. */
function table(label, rows, columns) {
  const full = columns.filter(([, cell]) => rows.some((row) => known(cell(row))));
  return h("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label },
    h("table", { role: "table", "aria-label": label },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
        full.map(([title, , kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, title)))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" },
        full.map(([title, cell, kind], i) => h(i ? "td" : "th",
          { role: i ? "cell" : "rowheader", scope: i ? null : "row", class: kind, "data-title": title },
          shown(cell(row), (content) => content))))))));
}

const given = (value, format) => (known(value) ? format(value) : null);

function powerBar(gpu, top) {
  if (!gpu.up) return h("span", { class: "bad" }, "✕ Does not answer");
  if (!known(gpu.power_watts)) return null;
  const at = (value) => `${((100 * value) / top).toFixed(2)}%`;
  const floor = gpu.idle_floor;
  const idle = Math.min(gpu.power_watts, floor?.watts ?? 0);
  const words = [
    known(gpu.limit_watts) ? `${watts(gpu.power_watts)} of ${watts(gpu.limit_watts)}` : `${watts(gpu.power_watts)}, limit not known`,
    floor ? `idle floor ${watts(floor.watts)}, ${floor.source}` : "idle floor not known",
  ].join("; ");
  return h("svg", { class: "bar", role: "img", "aria-label": words },
    known(gpu.limit_watts) ? h("rect", { class: "track", y: 4, height: 10, width: at(gpu.limit_watts) }) : null,
    h("rect", { class: "idle-part", y: 4, height: 10, width: at(idle) }),
    h("rect", { class: "work-part", y: 4, height: 10, x: at(idle), width: at(gpu.power_watts - idle) }),
    floor ? h("line", { class: `floor ${floor.source}`, x1: at(floor.watts), x2: at(floor.watts), y1: 0, y2: 18 }) : null,
    known(gpu.limit_watts)
      ? h("line", { class: "limit", x1: at(gpu.limit_watts), x2: at(gpu.limit_watts), y1: 0, y2: 18 })
      : null);
}

function limitWords(gpu) {
  if (!known(gpu.limit_watts)) return null;
  const lowered = known(gpu.limit_default_watts) && gpu.limit_watts < gpu.limit_default_watts;
  return watts(gpu.limit_watts) + (lowered ? ` (default ${watts(gpu.limit_default_watts)})` : "");
}

function linkWords(gpu) {
  if (!known(gpu.pcie_link_generation) || !known(gpu.pcie_link_width)) return null;
  const now = `${gpu.pcie_link_generation}.0 ×${gpu.pcie_link_width}`;
  const most = `${gpu.pcie_link_generation_max}.0 ×${gpu.pcie_link_width_max}`;
  const knownMost = known(gpu.pcie_link_generation_max) && known(gpu.pcie_link_width_max);
  return knownMost && most !== now ? `${now} of ${most}` : now;
}

/** The rate, and its share of the link where that says something. */
function pcieShare(gpu, value) {
  const share = gpu.pcie_link_bytes_per_second ? value / gpu.pcie_link_bytes_per_second : 0;
  return bytesPerSecond(value) + (share >= 0.005 ? ` (${wholePercent(share)})` : "");
}

function memoryWords(gpu) {
  if (!known(gpu.memory_used_bytes) || !known(gpu.memory_total_bytes)) return null;
  return `${gibibytes(gpu.memory_used_bytes)} / ${gibibytes(gpu.memory_total_bytes)}${GAP}GiB`;
}

function gpuTable(gpus, owner, lookback) {
  const top = Math.max(1, ...gpus.map((g) => Math.max(g.limit_watts ?? 0, g.power_watts ?? 0)));
  const names = [...new Set(gpus.map((g) => g.name))];
  return [
    h("p", { class: "key quiet" },
      names.length === 1 ? h("span", {}, names[0]) : null,
      h("span", { class: "key-idle" }, "idle power"), h("span", { class: "key-work" }, "power above idle"),
      h("span", { class: "key-floor" }, "idle floor"), h("span", { class: "key-limit" }, "limit"),
      known(lookback) ? h("span", {}, `Mean, of limit and above idle are over ${duration(lookback)}`) : null),
    table(`GPUs of ${owner}`, gpus, [
      ["GPU", (g) => h("span", { title: [g.name, g.uuid, g.pci_bus_id].filter(Boolean).join("\n") }, `GPU ${g.index}`,
        names.length > 1 ? h("span", { class: "note" }, g.name) : ""), "head"],
      ["Power", (g) => powerBar(g, top), "wide"],
      ["Now", (g) => given(g.power_watts, watts), "n first"],
      ["Mean", (g) => given(g.power_mean_watts, watts), "n first"],
      ["Limit", limitWords, "n"],
      ["Of limit", (g) => given(g.tdp_fraction, percent), "n first"],
      ["Above idle", (g) => given(g.active_power_fraction, percent), "n"],
      ["Idle floor", (g) => given(g.idle_floor, (f) => `${watts(f.watts)} ${f.source}`), "n"],
      ["Utilised", (g) => given(g.utilization_ratio, wholePercent) && wholePercent(g.utilization_ratio) + (g.utilization_stuck ? " (stuck)" : ""), "n"],
      ["SM", (g) => given(g.sm_active_ratio, wholePercent), "n"],
      ["Tensor", (g) => given(g.tensor_active_ratio, wholePercent), "n"],
      ["DRAM", (g) => given(g.dram_active_ratio, wholePercent), "n"],
      ["PCIe out", (g) => given(g.pcie_transmit_bytes_per_second, (v) => pcieShare(g, v)), "n"],
      ["PCIe in", (g) => given(g.pcie_receive_bytes_per_second, (v) => pcieShare(g, v)), "n"],
      ["Link", linkWords, "n"],
      ["Memory", memoryWords, "n"],
      ["Temp", (g) => given(g.temperature_celsius, (v) => `${number(v)}${GAP}°C`), "n"],
      ["Held back by", (g) => given(g.event_reasons, (r) => (r.length ? r.map(reasonWords).join(", ") : "nothing"))],
      ["XID errors", (g) => (g.xid_errors ? number(g.xid_errors) : null), "n"],
    ]),
  ];
}

function engineTable(engines, owner) {
  return table(`Engines of ${owner}`, engines, [
    ["Engine", (e) => e.name, "head"],
    ["Scraped", (e) => (e.up ? h("span", { class: "good" }, e.asleep ? "✓ up, asleep" : "✓ up") : h("span", { class: "bad" }, `✕ ${(e.error ?? "down").replaceAll("_", " ")}`)), "first"],
    ["Kind", (e) => given(e.kind, (kind) => [kind, e.version].filter(Boolean).join(" ")), "long"],
    ["Model", (e) => e.model, "long"],
    ["Run", (e) => given(e.running_requests, number), "n"],
    ["Wait", (e) => given(e.queued_requests, number), "n"],
    ["Wait for peer", (e) => given(e.waiting_for_peer_requests || null, number), "n"],
    ["KV cache", (e) => given(e.kv_cache_usage_ratio, wholePercent), "n"],
    ["Scheduler idle", (e) => given(e.scheduler_idle_ratio, wholePercent), "n"],
    ["Prompt tokens", (e) => given(e.prompt_tokens_total, number), "n"],
    ["Cached prompt tokens", (e) => given(e.cached_prompt_tokens_total, number), "n"],
    ["Generated tokens", (e) => given(e.generation_tokens_total, number), "n"],
  ]);
}

// --------------------------------------------------------------------------------------------------------------- others

const counted = (counts) => Object.entries(counts).map(([what, count]) => `${what.replaceAll("_", " ")} ${number(count)}`).join(", ");

function sourceItem(source, name) {
  const s = source;
  return h("li", { title: s.name },
    h("span", { class: s.up ? "good" : "bad" }, s.up ? "✓ up" : "✕ down"),
    h("span", {}, h("strong", {}, name), " ", h("span", { class: "quiet" },
      known(s.age_seconds) ? `read ${s.age_seconds < 1 ? "just now" : `${duration(s.age_seconds)} ago`}` : "never read")),
    s.detail ? h("span", {}, s.detail) : null,
    Object.keys(s.errors).length ? h("span", { class: "quiet" }, `failed calls: ${counted(s.errors)}`) : null,
    Object.keys(s.rejected).length ? h("span", { class: "quiet" }, `implausible readings dropped: ${counted(s.rejected)}`) : null);
}

/** Those in trouble stand open; the whole list can be opened. */
function sources(status) {
  const names = new Map(status.gpus.map((g) => [g.uuid, `GPU ${g.index}`]));
  const items = (list) => h("ul", {}, list.map((s) => sourceItem(s, names.get(s.name) ?? s.name)));
  const down = status.sources.filter((s) => !s.up);
  const count = status.sources.length;
  return h("section", { class: "sources" },
    h("h2", {}, "Sources"),
    down.length ? h("p", { class: "bad" }, `${down.length} of ${count} cannot be read.`) : null,
    down.length ? items(down) : null,
    count
      ? h("details", {}, h("summary", {}, down.length ? `All ${count} sources` : `All ${count} are read`), items(status.sources))
      : h("p", { class: "quiet" }, "None is read yet."));
}

/** The configuration as YAML. Text that YAML could read as something else is quoted. */
function yaml(value, indent = "") {
  if (Array.isArray(value) && value.length) {
    return value.map((item) => `${indent}- ${yaml(item, indent + "  ").trimStart()}`).join("\n");
  }
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    return Object.entries(value).map(([key, item]) => {
      const nested = item !== null && typeof item === "object" && Object.keys(item).length;
      return `${indent}${scalar(key)}:${nested ? `\n${yaml(item, indent + "  ")}` : ` ${scalar(item)}`}`;
    }).join("\n");
  }
  return indent + scalar(value);
}

const scalar = (value) =>
  typeof value === "string" && /^[A-Za-z_/][\w ./-]*$/.test(value) && !/^(true|false|null|yes|no|on|off)$/i.test(value)
    ? value
    : JSON.stringify(value);

function configuration(status) {
  if (!Object.keys(status.configuration).length) return null;
  return h("details", { class: "configuration" }, h("summary", {}, "Configuration in force"),
    h("pre", { tabindex: 0, role: "region", "aria-label": "Configuration in force" }, yaml(status.configuration)));
}

function phase(status) {
  const now = status.phase;
  if (!now) return null;
  return h("section", { class: "phase", "aria-label": "Demo" },
    h("strong", {}, "Demo"), h("span", { class: "title" }, now.title),
    h("span", { class: "left" }, known(now.seconds_left) ? `next in ${duration(now.seconds_left)}` : "held"));
}

function overview(status) {
  if (status.deployments.length < 2) return null;
  return h("nav", { class: "overview", "aria-label": "Deployments" }, status.deployments.map((d, i) =>
    h("a", { href: `#deployment-${i}`, "data-state": d.state },
      h("span", { class: "swatch" }, icon(d.state)), h("strong", {}, d.name), " ", d.title,
      known(d.tdp_fraction) ? h("span", { class: "quiet" }, percent(d.tdp_fraction)) : null)));
}

function view(status) {
  const free = status.gpus.filter((g) => !status.deployments.some((d) => d.gpus.includes(g.uuid)));
  return h("main", { id: "verdicts", tabindex: -1 },
    phase(status),
    overview(status),
    status.ready ? null : h("p", { class: "notice" }, `Not ready: ${status.why_not_ready}.`),
    status.deployments.map((d, i) => deploymentCard(d, i, status)),
    free.length ? h("section", { class: "card" }, h("h2", {}, "GPUs of no deployment"), gpuTable(free, "no deployment", status.window_seconds)) : null,
    h("div", { class: "card" }, sources(status), configuration(status)));
}

// ------------------------------------------------------------------------------------------------------------- contact

const main = () => document.getElementById("verdicts");
const say = (id, words) => {
  const element = document.getElementById(id);
  if (element.textContent !== words) element.textContent = words;
};

let latest = null;
let heardAt = null;
let loadedVersion = null;
let said = "";

function draw(status) {
  morph(main(), view(status));
}

/** The worst state stands in the tab; it is read out when it changes. */
function headline(status) {
  const order = Object.keys(status.deployments[0]?.state_seconds ?? {});
  const worst = [...status.deployments].sort((a, b) => order.indexOf(b.state) - order.indexOf(a.state))[0];
  return worst ? `${worst.title}: ${worst.name}` : "No deployment";
}

function show(contact, words, alarm) {
  document.body.dataset.contact = contact;
  say("contact", words);
  say("lost", alarm);
  document.getElementById("lost").hidden = !alarm;
}

function heard(status) {
  if (loadedVersion !== null && status.version !== loadedVersion) {
    location.reload();
    return;
  }
  loadedVersion = status.version;
  latest = status;
  heardAt = new Date();
  say("host", location.host);
  say("version", `Wattline ${status.version}`);
  draw(status);
  const words = headline(status);
  document.title = `${words} · Wattline`;
  if (words !== said) say("announce", words);
  said = words;
  const old = status.judged_seconds_ago;
  if (known(old) && old > UNJUDGED_S) {
    show("lost", "Not judging", `The exporter answers, but has judged nothing for ${duration(old)}. The values below are old.`);
  } else {
    show("live", `Live, ${clock(heardAt)}`, "");
  }
}

function lost(why) {
  document.title = "Lost contact · Wattline";
  said = "";
  if (heardAt === null) show("lost", "No contact", `No contact with the exporter: ${why}.`);
  else {
    const since = clock(heardAt);
    show("lost", `Lost contact since ${since}`, `Lost contact since ${since}: ${why}. The values below are from then.`);
  }
}

async function ask() {
  let status;
  try {
    const answer = await fetch("api/v1/status", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`it answers ${answer.status} ${answer.statusText}`);
    status = await answer.json();
  } catch (error) {
    lost(error.message.startsWith("it ") ? error.message : error.name === "TimeoutError" ? "it does not answer in time" : "it does not answer");
    return;
  }
  heard(status);
}

let asking = false;
async function tick() {
  if (asking) return;
  asking = true;
  try {
    await ask();
  } finally {
    asking = false;
  }
}

setInterval(tick, EVERY_MS);
setInterval(() => {
  if (heardAt !== null && document.body.dataset.contact === "live" && Date.now() - heardAt > SILENT_MS) lost("it was not asked");
}, 1000);
document.addEventListener("visibilitychange", () => document.hidden || tick());

document.addEventListener("pointermove", (event) => {
  const panels = event.target.closest?.("[data-chart]");
  if (!panels) return;
  const box = panels.getBoundingClientRect();
  lookAt(panels.dataset.chart, SPAN_S * (1 - (event.clientX - box.left) / box.width));
});
document.addEventListener("pointerout", (event) => {
  const panels = event.target.closest?.("[data-chart]");
  if (panels && !panels.contains(event.relatedTarget)) lookAt(panels.dataset.chart, null);
});
document.addEventListener("focusout", (event) => {
  if (event.target.dataset?.chart) lookAt(event.target.dataset.chart, null);
});

const STEPS = { ArrowLeft: 15, ArrowDown: 15, ArrowRight: -15, ArrowUp: -15, PageUp: -60, PageDown: 60, Home: SPAN_S, End: -SPAN_S };
document.addEventListener("keydown", (event) => {
  const name = event.target.dataset?.chart;
  if (!name) return;
  if (event.key === "Escape") lookAt(name, null);
  else if (event.key in STEPS) {
    event.preventDefault();
    lookAt(name, (cursors.get(name) ?? 0) + STEPS[event.key]);
  }
});

tick();
