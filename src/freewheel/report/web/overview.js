// What the run has come to: tiles for one run, a table for several.

const BESIDE = 4; // so many runs are columns; more are rows

function overview(parent, data) {
  const part = section(parent, "overview", data.runs.length > 1 ? "Side by side" : "At a glance", true);
  data.groups.forEach((group) => part.put(`group ${group.name}`, described(group)));
  if (data.runs.length === 0) part.put("none", missing("None of these runs has begun yet."));
  if (data.runs.length === 1) single(part, data.runs[0]);
  if (data.runs.length > 1) part.put("runs", compared(data.runs));
  part.close();
}

function badge(status) {
  return h("span", { class: `badge ${status.name}` }, status.text);
}

function single(part, run) {
  part.put("state", h("p", { class: "state" }, badge(run.status), run.status.sentence));
  const { done } = run.status;
  if (done !== null) part.put("done", h("p", {}, h("progress", { max: 1, value: done, "aria-label": "part of the batches that have begun" }), ` ${percent(done, 0)}`));
  part.put("tiles", h("dl", { class: "tiles" }, run.figures.map((figure) =>
    h("div", {}, h("dt", {}, figure.label), h("dd", {}, h("div", { class: "value" }, figure.text),
      figure.note ? h("div", { class: "about" }, figure.note) : null)))));
}

function described(group) {
  const said = `${group.name}: ${group.begun} of ${group.of} runs ${group.begun < group.of ? "have begun" : "shown"}.`;
  const rows = group.statistics.map((each) => [each.name, each.median, each.mean, each.least, each.most]);
  return h("div", {}, h("p", { class: "state" }, badge(group.status), said, group.status.sentence ? ` ${group.status.sentence}` : ""),
    rows.length ? table(["figure", "median", "mean", "least", "most"], rows, `Statistics over the runs of ${group.name}`, { parted: true }) : null);
}

function compared(runs) {
  const keys = new Map();
  runs.forEach((run) => run.figures.forEach((figure) => keys.set(figure.key, keys.get(figure.key) ?? figure.label)));
  const text = (run, key) => run.figures.find((figure) => figure.key === key)?.text ?? "–";
  const columns = ["run", "status", ...keys.values()];
  const rows = runs.map((run) => [run.name, run.status.text, ...[...keys.keys()].map((key) => text(run, key))]);
  const beside = runs.length <= BESIDE;
  const turned = columns.slice(1).map((name, i) => [name, ...rows.map((row) => row[i + 1])]);
  const made = table(beside ? ["run", ...runs.map((run) => run.name)] : columns, beside ? turned : rows,
    "Headline figures of all runs", { kind: beside ? "compare beside" : "compare" });
  const cells = [...made.querySelectorAll(beside ? "tbody tr:first-child td" : "tbody tr td:nth-child(2)")];
  runs.forEach((run, i) => cells[i].replaceChildren(badge(run.status)));
  return made;
}

function configuration(parent, run) {
  const part = section(parent, "configuration", "Configuration");
  const { groups, repeat, command, no_command: none, folder } = run.configuration;
  if (repeat) part.put("repeat", h("div", {}, h("h3", {}, "Repeats this run"), copied(repeat)));
  else part.put("none", missing(none));
  if (command && command !== repeat) part.put("command", h("div", {}, h("h3", {}, "Was typed"), copied(command)));
  part.put("folder", h("p", { class: "note" }, "Folder: ", h("code", {}, folder)));
  groups.forEach(({ title, rows }) => {
    const values = h("table", { class: "values", "aria-label": title },
      h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)))));
    const kept = part.place(`group ${title}`, () => h("details", { open: title !== "All options" }, h("summary", {}, title), h("div")));
    const inside = placesOf(kept.lastChild);
    inside.put("values", values);
    inside.close();
  });
  part.close();
}

function copied(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // no permission, or no secure context: the text is selected in place of it
      getSelection().selectAllChildren(button.previousSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return h("div", { class: "command" }, h("pre", {}, h("code", {}, text)), h("button", { type: "button", onclick: copy }, "Copy"));
}
