// What each stage did with its time, how stale it learned, and what it kept.

const PARTS = { compute: "compute", before: "before", after: "after", data: "data", other: "other" };

function stages(parent, run) {
  shares(section(parent, "time", "Where the time went"), run);
  staleness(section(parent, "staleness", "Staleness"), run);
  memory(section(parent, "memory", "Memory"), run);
}

function shares(part, { shares: found, name }) {
  if (found.missing) part.put("missing", missing(found.missing));
  else {
    const rows = found.rows.map((row, i) => [row, ...found.values[i].map((value) => percent(value))]);
    const busy = found.rows.map((row, i) => `${row} computes ${percent(found.values[i][0], 0)} of the time`).join(", ");
    figure(part, "chart", {
      title: "Shares of the time of each stage", wide: true, height: 34 * found.rows.length + 76, label: `${busy}.`,
      data: table(["stage", ...found.parts.map((each) => each.text)], rows, `Where the time of each stage of ${name} went`),
      make: (width) => bars({
        width, rows: found.rows, format: (value) => percent(value, 0), most: 1, stack: "time",
        series: found.parts.map((each, i) => ({ name: each.text, fill: colour(PARTS[each.key]), ink: each.key === "compute" ? "#ffffff" : each.key === "other" ? colour("text") : INK,
          values: found.values.map((values) => values[i]), least: 0.06 })),
      }),
    });
    part.put("source", h("p", { class: "note" }, [found.source, found.note].filter(Boolean).join(" ")));
  }
  part.close();
}

function staleness(part, { staleness: found, name }) {
  if (found.missing) part.put("missing", missing(found.missing));
  else {
    const series = [{ name: "measured, mean", fill: colour("bar"), values: found.mean }];
    if (found.planned) series.push({ name: "planned", fill: "none", values: found.planned });
    const columns = ["stage", "measured, mean"], rows = found.rows.map((row, i) => [row, short(found.mean[i])]);
    const add = (title, values) => values && (columns.push(title), rows.forEach((row, i) => row.push(values[i] ?? "–")));
    add("largest", found.most);
    add("planned", found.planned);
    add("delay", found.delays);
    add("batches by staleness", found.counts?.map((counts) => counts.map(([late, number]) => `${late}: ${number.toLocaleString("en-US")}`).join(", ") || "–"));
    figure(part, "chart", {
      title: found.planned ? "Measured, and as planned" : "Measured", wide: true, height: 34 * found.rows.length + 76,
      label: rows.map((row, i) => `${row[0]}: measured ${row[1]}${found.planned ? `, planned ${found.planned[i]}` : ""}`).join("; ") + ".",
      data: table(columns, rows, `Staleness of each stage of ${name}`),
      make: (width) => bars({ width, rows: found.rows, format: short, series, whole: true,
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

// Horizontal bars, one row for each stage; a series without a fill is drawn as a mark.
function bars({ width, rows, series, format, most, stack = null, whole = false }) {
  const names = Math.min(150, 16 + 6.6 * Math.max(...rows.map((row) => row.length)));
  const narrow = width < 480;
  return {
    grid: { left: names, right: 24, top: narrow && series.length > 2 ? 56 : 34, bottom: 26 },
    legend: legend({ type: "plain", data: series.map((each) => ({ name: each.name, icon: each.fill === "none" ? "diamond" : "rect" })), itemWidth: 14, itemHeight: 10, itemGap: 12,
      width: width - 8 }),
    tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { color: colour("grid"), opacity: 0.5 } }, valueFormatter: (value) => cellOf(value, stack ? (each) => percent(each) : format) }),
    xAxis: axis({ type: "value", min: 0, max: stack ? most : undefined, minInterval: whole ? 1 : 0, axisLabel: { color: colour("muted"), fontSize: 12, formatter: stack ? (value) => percent(value, 0) : short } }),
    yAxis: axis({ type: "category", data: rows, inverse: true, axisTick: { show: false }, axisLabel: { color: colour("text"), fontSize: 12, width: names - 10, overflow: "truncate", interval: 0 }, splitLine: { show: false } }),
    series: series.map((each) => each.fill === "none" ? {
      type: "line", name: each.name, data: each.values, symbol: "diamond", symbolSize: 13, showSymbol: true, lineStyle: { opacity: 0 }, z: 5,
      itemStyle: { color: colour("page"), borderColor: colour("text"), borderWidth: 2 },
    } : {
      type: "bar", name: each.name, stack, data: each.values, barMaxWidth: 20, color: each.fill, itemStyle: { color: each.fill, borderColor: colour("page"), borderWidth: stack ? 1 : 0 },
      label: stack ? { show: true, position: "inside", color: each.ink, fontSize: 11, formatter: ({ value }) => (value >= (narrow ? 2 : 1) * each.least ? format(value) : "") }
        : { show: true, position: "right", color: colour("text"), fontSize: 11, distance: 12, formatter: ({ value }) => format(value) },
    }),
  };
}
