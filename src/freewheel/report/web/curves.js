// Loss, metric and speed over epochs or time; of several runs, over each other.

const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow", "circle"];

function curves(parent, data) {
  const part = section(parent, "curves", "Curves");
  const drawn = data.runs.filter((run) => !run.curves.missing);
  if (!drawn.length) {
    part.put("missing", missing(data.runs[0].curves.missing));
    part.close();
    return;
  }
  part.place("over", () => choice("over", "Over", [["epochs", "epochs"], ["seconds", "time"]], state.over, (value) => {
    state.over = value;
    render(shown);
  }));
  const row = placesOf(part.place("row", () => h("div", { class: "row" })));
  const several = data.runs.length > 1;
  curve(row, "loss", "Loss", drawn, several, [["loss", "training"], ["validation_loss", "validation"]], short);
  if (drawn.some((run) => run.curves.metric)) {
    const { metric_name: name, metric_is_share: share } = drawn.find((run) => run.curves.metric).curves;
    const title = name[0].toUpperCase() + name.slice(1);
    curve(row, "metric", title, drawn, several, [["metric", "validation"]], share ? percent : short, share ? trimmed : exact);
  }
  curve(row, "rate", "Samples per second", drawn, several, [["rate", "training"]], short);
  row.close();
  if (drawn.every((run) => !run.curves.metric)) part.put("no metric", missing("No accuracy or other metric was measured between the epochs."));
  const broken = drawn.filter((run) => run.curves.complete.includes(false)).map((run) => run.name);
  if (broken.length) part.put("broken", h("p", { class: "note" }, `The last epoch was broken off: ${broken.join(", ")}.`));
  part.close();
}

function curve(parent, key, title, runs, several, lines, format, scale = exact) {
  const found = runs.flatMap((run, place) => lines.filter(([name]) => run.curves[name]).map(([name, kind], line) => ({
    name: several ? (lines.length > 1 ? `${run.name}, ${kind}` : run.name) : kind,
    entry: several ? run.name : kind, // of the legend: of several runs one for both lines
    place: several ? place : line, dashed: line > 0, values: run.curves[name], run,
  })));
  const { over } = state, dashes = several && found.some((each) => each.dashed);
  const columns = ["run", "epoch", "seconds", ...new Set(found.map((each) => each.name))];
  const rows = () => runs.flatMap((run) => run.curves.epochs.map((epoch, i) => [run.name, epoch, short(run.curves.seconds[i]),
    ...columns.slice(3).map((name) => {
      const each = found.find((one) => one.name === name && one.run === run);
      return each ? cellOf(each.values[i], format) : "";
    })]));
  const last = found.map((each) => `${each.name} ends at ${cellOf(each.values.at(-1), format)}`).join("; ");
  figure(parent, key, {
    title: dashes ? `${title} (dashed: validation)` : title, height: 260,
    label: `${title} over ${over === "epochs" ? "epochs" : "time"}: ${last}.`,
    from: [over, found.map((each) => [each.name, each.values, each.run.name, each.run.curves[over]])],
    data: () => table(columns, rows(), `${title} of each epoch`, { tall: true }),
    make: () => lineOption(found, over, format, scale),
  });
}

function cellOf(value, format) {
  return value === null || value === undefined ? "–" : format(value);
}

function lineOption(found, over, format, scale) {
  const colours = seriesColours(), epochs = over === "epochs", entries = [...new Set(found.map((each) => each.entry))];
  const named = entries.length > 1, few = Math.max(...found.map((each) => each.values.length)) <= 30;
  const last = Math.max(...found.flatMap((each) => each.run.curves[over]));
  return {
    grid: { left: 4, right: 16, top: named ? 34 : 12, bottom: 24, containLabel: true },
    legend: named ? legend({ data: entries, formatter: shortened }) : { show: false },
    tooltip: tooltip({ trigger: "axis", axisPointer: { lineStyle: { color: colour("muted") } }, formatter: (given) => told(given, found, epochs, format) }),
    xAxis: axis({ type: "value", name: epochs ? "epoch" : "seconds of training", nameLocation: "middle", nameGap: 25, splitLine: { show: false },
      min: epochs ? (last === 1 ? 0 : 1) : 0, max: epochs ? Math.max(2, last) : undefined, minInterval: epochs ? 1 : 0 }),
    yAxis: axis({ type: "value", scale: true, axisLabel: { color: colour("muted"), fontSize: 12, formatter: scale }, splitNumber: 4 }),
    series: found.map((each) => ({
      type: "line", sampling: "lttb", name: each.entry, data: each.values.map((value, i) => [each.run.curves[over][i], value]), connectNulls: false,
      color: colours[each.place % colours.length], symbol: SYMBOLS[each.place % SYMBOLS.length], symbolSize: 6,
      showSymbol: few, lineStyle: { width: 2, type: each.dashed ? [5, 4] : "solid" },
    })),
  };
}

function told(given, found, epochs, format) { // the values at a place of the axis
  const at = given[0].axisValue;
  const lines = given.map(({ marker, seriesIndex, value }) => `${marker}${escaped(found[seriesIndex].name)} <b>${cellOf(value[1], format)}</b>`);
  return [epochs ? `epoch ${at}` : `after ${duration(1e6 * at)}`, ...lines].join("<br>");
}

function shortened(name) { // names of runs often differ in how they end
  return name.length <= 26 ? name : `${name.slice(0, 12)}…${name.slice(-13)}`;
}
