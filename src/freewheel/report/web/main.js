// The page: rendered from data, again whenever there are others.

const root = placesOf(document.getElementById("main"));
const state = { run: null, over: "epochs" };
let shown = null;

function render(data) {
  shown = data;
  root.open();
  document.getElementById("title").textContent = data.title;
  document.title = `${data.title} · Freewheel`;
  overview(root, data);
  if (data.runs.length) curves(root, data);
  const run = chosenRun(data);
  if (run) {
    if (data.runs.length > 1) chooser(root, data, run);
    timelines(root, run);
    stages(root, run);
    configuration(root, run);
  }
  root.close();
}

function chosenRun(data) {
  return data.runs.find((run) => run.name === state.run) ?? data.runs[0];
}

function chooser(parent, data, run) {
  const options = data.runs.map((each) => [each.name, each.name]);
  const names = options.map(([name]) => name).join("\n");
  const element = parent.place(`chooser ${names}`, () =>
    h("div", { class: "chooser" }, choice("run", "Details of", options, run.name, (name) => {
      state.run = name;
      render(shown);
    })));
  element.hidden = false;
}

setTheme(wantedTheme());
render(JSON.parse(document.getElementById("data").textContent));
if (LIVE) follow();
