// What each stage did with its time, how stale it learned, and what it kept.

const INKS = { compute: "compute-ink", other: "text" }; // of the numbers in bars
const LABEL = 58; // pixels right of bars, for their numbers

function stages(parent, run) {
  shares(section(parent, "time", "Where the time went"), run);
  staleness(section(parent, "staleness", "Staleness"), run);
  memory(section(parent, "memory", "Memory"), run);
}

function shares(part, { shares: found, name }) {
  if (found.missing) part.put("missing", missing(found.missing));
  else {
    const rows = found.rows.map((row, i) => [row, ...found.values[i].map((value) => percent(value))]);
    const parts = found.parts.map((each, place) => ({ ...each, place })).filter(({ place }) => found.values.some((values) => values[place]));
    const busy = found.rows.map((row, i) => `${row} computes ${percent(found.values[i][0], 0)} of the time`).join(", ");
    figure(part, "chart", {
      title: `Shares of the time of each ${found.of}`, height: 34 * found.rows.length + 36, label: `${busy}.`, from: [name, found],
      keys: keysOf(parts.map((each) => ({ name: each.text, fill: `var(--${each.key})` }))),
      data: () => table([found.of, ...found.parts.map((each) => each.text)], rows, `Where the time of each ${found.of} of ${name} went`),
      make: (width) => bars({
        width, rows: found.rows, format: (value) => percent(value, 0), most: 1, stack: "time",
        series: parts.map((each) => ({ name: each.text, fill: colour(each.key), ink: colour(INKS[each.key] ?? "ink"),
          values: found.values.map((values) => values[each.place]), least: 0.06 })),
      }),
    });
    part.put("source", h("p", { class: "note" }, [found.source, found.note].filter(Boolean).join(" ")));
  }
  part.close();
}

function staleness(part, { staleness: found, name }) {
  if (found.missing) part.put("missing", missing(found.missing));
  else {
    const series = [{ name: "measured, mean", fill: "var(--bar)", values: found.mean }];
    if (found.planned) series.push({ name: "planned", fill: null, values: found.planned });
    const columns = ["stage", "measured, mean"], rows = found.rows.map((row, i) => [row, short(found.mean[i])]);
    const add = (title, values) => values && (columns.push(title), rows.forEach((row, i) => row.push(values[i] ?? "–")));
    add("largest", found.most);
    add("planned", found.planned);
    add("delay", found.delays);
    add("batches by staleness", found.counts?.map((counts) => counts.map(([late, number]) => `${late}: ${number.toLocaleString("en-US")}`).join(", ") || "–"));
    figure(part, "chart", {
      title: found.planned ? "Measured, and as planned" : "Measured", height: 34 * found.rows.length + 36, keys: keysOf(series), from: [name, found],
      label: rows.map((row, i) => `${row[0]}: measured ${row[1]}${found.planned ? `, planned ${found.planned[i]}` : ""}`).join("; ") + ".",
      data: () => table(columns, rows, `Staleness of each stage of ${name}`),
      make: (width) => bars({ width, rows: found.rows, format: short, whole: true,
        series: series.map((each) => ({ ...each, fill: each.fill && colour("bar") })),
        most: Math.max(1, ...found.mean.map((value) => value ?? 0), ...(found.planned ?? [])) }),
    });
    const about = found.counts || found.planned ? "The updates between the forward of a batch and the update with it." : "";
    part.put("note", h("p", { class: "note" }, [about, found.note].filter(Boolean).join(" ")));
  }
  part.close();
}

function memory(part, { memory: found, name }) {
  if (found.missing) part.put("missing", missing(found.missing));
  else {
    if (found.peaks.length) {
      part.put("peaks", h("dl", { class: "tiles" }, found.peaks.map((each) =>
        h("div", {}, h("dt", {}, `Peak of ${each.name}`), h("dd", {}, h("div", { class: "value" }, each.text))))));
    } else part.put("no peaks", missing(found.peaks_note));
    if (found.kept) {
      const rows = found.rows.map((row, i) => [row, ...found.kept[i]]);
      part.put("kept", h("div", { style: "margin-top: 1.2rem" }, h("h3", {}, "What the plan keeps, at most"),
        table(["stage", ...found.parts], rows, `What each stage of ${name} keeps at most, by its plan`)));
    } else part.put("no plan", missing(found.kept_note));
  }
  part.close();
}

// What the marks of a chart mean; those without a fill are diamonds.
function keysOf(series) {
  if (series.length < 2) return null;
  return h("ul", { class: "keys", "aria-label": "Colours of the bars" }, series.map(({ name, fill }) =>
    h("li", {}, fill ? h("i", { style: `background: ${fill}` }) : h("i", { class: "mark" }, "◇"), name)));
}

// Horizontal bars, one row for each stage; a series without a fill is drawn as a mark.
function bars({ width, rows, series, format, most, stack = null, whole = false }) {
  const left = Math.min(150, 26 + 6.6 * Math.max(...rows.map((row) => row.length))), right = stack ? 24 : LABEL;
  const marks = series.find((each) => !each.fill)?.values, last = stack ? most : Math.ceil(most);
  const pixels = (value) => ((value ?? 0) / last) * (width - left - right);
  const beside = (value, row) => { // a number stands right of its bar; of the mark, where that is in its way
    const gap = pixels(marks[row]) - pixels(value);
    return gap < -12 || gap > LABEL ? 6 : Math.max(0, gap) + 12;
  };
  const drawn = ({ name, fill, ink, values, least }) => ({
    type: "bar", name, stack, barMaxWidth: 20, itemStyle: { color: fill, borderColor: colour("page"), borderWidth: stack ? 1 : 0 },
    data: values.map((value, row) => ({ value, label: stack ? {} : { distance: marks ? beside(value, row) : 6 } })),
    label: { show: true, position: stack ? "inside" : "right", color: stack ? ink : colour("text"), fontSize: stack ? 11 : 12,
      formatter: ({ value }) => (!stack || value >= (width < 480 ? 2 : 1) * least ? format(value) : "") },
  });
  const marked = ({ name, values }) => ({
    type: "line", name, data: values, symbol: "diamond", symbolSize: 13, showSymbol: true, lineStyle: { opacity: 0 }, z: 5,
    itemStyle: { color: colour("page"), borderColor: colour("text"), borderWidth: 2 },
  });
  return {
    grid: { left, right, top: 6, bottom: 26 }, legend: { show: false },
    tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: colour("grid"), opacity: 0.5 } }, valueFormatter: (value) => cellOf(value, stack ? (each) => percent(each) : format) }),
    xAxis: axis({ type: "value", min: 0, max: last, minInterval: whole ? 1 : 0, axisLabel: { color: colour("muted"), fontSize: 12, formatter: stack ? (value) => percent(value, 0) : short } }),
    yAxis: axis({ type: "category", data: rows, inverse: true, axisTick: { show: false }, splitLine: { show: false },
      axisLabel: { color: colour("text"), fontSize: 12, width: left - 20, margin: 14, overflow: "truncate", interval: 0 } }),
    series: series.map((each) => (each.fill ? drawn : marked)(each)),
  };
}
