// Loss, metric and speed over epochs or time; of several runs, over each other.

const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow", "circle"];

function curves(parent, data) {
  const part = section(parent, "curves", "Curves");
  const drawn = data.runs.filter((run) => !run.curves.missing);
  if (!drawn.length) {
    part.put("missing", missing(data.runs[0]?.curves.missing ?? "No epoch has ended."));
    part.close();
    return;
  }
  part.place("over", () => choice("over", "Over", [["epochs", "epochs"], ["seconds", "time"]], state.over, (value) => {
    state.over = value;
    render(shown);
  }));
  const pair = placesOf(part.place("pair", () => h("div", { class: "pair" })));
  const several = data.runs.length > 1;
  curve(pair, "loss", "Loss", drawn, several, [["loss", "training"], ["validation_loss", "validation"]], short);
  if (drawn.some((run) => run.curves.metric)) {
    const { metric_name: name, metric_is_share: share } = drawn.find((run) => run.curves.metric).curves;
    const title = name[0].toUpperCase() + name.slice(1);
    curve(pair, "metric", title, drawn, several, [["metric", "validation"]], share ? (value) => percent(value, 1) : short);
  } else {
    pair.put("no metric", missing("No accuracy or other metric was measured between the epochs."));
  }
  curve(pair, "rate", "Samples per second", drawn, several, [["rate", "training"]], short);
  pair.close();
  const broken = drawn.filter((run) => run.curves.complete.includes(false)).map((run) => run.name);
  if (broken.length) part.put("broken", h("p", { class: "note" }, `The last epoch was broken off: ${broken.join(", ")}.`));
  part.close();
}

function curve(parent, key, title, runs, several, lines, format) {
  const found = runs.flatMap((run, place) => lines.filter(([name]) => run.curves[name]).map(([name, kind], line) => ({
    name: several ? (lines.length > 1 ? `${run.name}, ${kind}` : run.name) : kind,
    place: several ? place : line, dashed: line > 0, values: run.curves[name], run,
  })));
  const over = state.over, what = over === "epochs" ? "epoch" : "seconds";
  const columns = ["run", "epoch", "seconds", ...new Set(found.map((each) => each.name))];
  const rows = runs.flatMap((run) => run.curves.epochs.map((epoch, i) => [run.name, epoch, short(run.curves.seconds[i]),
    ...columns.slice(3).map((name) => {
      const each = found.find((one) => one.name === name && one.run === run);
      return each ? cellOf(each.values[i], format) : "";
    })]));
  const last = found.map((each) => `${each.name} ends at ${cellOf(each.values.at(-1), format)}`).join("; ");
  figure(parent, key, {
    title, height: 250,
    label: `${title} over ${over === "epochs" ? "epochs" : "time"}: ${last}.`,
    data: table(columns, rows, `${title} of each epoch`, { tall: true }),
    make: () => lineOption(found, over, what, format),
  });
}

function cellOf(value, format) {
  return value === null || value === undefined ? "–" : format(value);
}

function lineOption(found, over, what, format) {
  const colours = seriesColours();
  const named = found.length > 1;
  const few = Math.max(...found.map((each) => each.values.length)) <= 30;
  return {
    grid: { left: 4, right: 16, top: named ? 34 : 12, bottom: 4, containLabel: true },
    legend: named ? legend({ data: found.map((each) => each.name) }) : { show: false },
    tooltip: tooltip({ trigger: "axis", axisPointer: { lineStyle: { color: colour("muted") } }, valueFormatter: (value) => cellOf(value, format) }),
    xAxis: axis({ type: "value", name: what, nameLocation: "end", nameGap: 4, nameTextStyle: { color: colour("muted"), align: "right", verticalAlign: "top", padding: [22, 0, 0, 0] },
      min: over === "epochs" ? 1 : 0, minInterval: over === "epochs" ? 1 : 0, splitLine: { show: false } }),
    yAxis: axis({ type: "value", scale: true, axisLabel: { color: colour("muted"), fontSize: 12, formatter: format }, splitNumber: 4 }),
    series: found.map((each) => ({
      type: "line", name: each.name, data: each.values.map((value, i) => [each.run.curves[over][i], value]), connectNulls: false,
      color: colours[each.place % colours.length], symbol: SYMBOLS[each.place % SYMBOLS.length], symbolSize: 6,
      showSymbol: few, lineStyle: { width: 2, type: each.dashed ? [5, 4] : "solid" },
    })),
  };
}
