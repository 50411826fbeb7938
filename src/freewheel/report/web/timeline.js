// Timelines: a row for each stage, a block for each action.

const ROW = 46, AXIS = 26; // pixels
const FILLS = { F: "forward", R: "recompute", B: "backward", U: "update", S: "sync" };
const LISTED = 300; // rows of the data table

function timelines(parent, run) {
  const part = section(parent, "timeline", "Timeline");
  part.put("keys", legendOf([run.measured, run.planned]));
  if (!run.measured.missing || !run.planned.missing) {
    part.put("help", h("p", { class: "help" }, "Zoom with the wheel, two fingers or + and −; move by dragging or with the arrow keys; 0 shows the whole."));
  }
  const planned = run.planned.missing ? 0 : Math.max(-1, ...run.planned.batch) + 1;
  const left = insetOf([run.measured, run.planned]);
  timeline(part, "measured", "Measured", run.name, run.measured, planned || 12, left);
  if (run.measured.note) part.put("drawn", h("p", { class: "note" }, run.measured.note));
  timeline(part, "planned", "Planned", run.name, run.planned, planned, left);
  part.close();
}

// The room for the names of rows, the same for both.
function insetOf(found) {
  return Math.min(130, 14 + 6.6 * Math.max(0, ...found.flatMap((each) => each.rows ?? []).map((name) => name.length)));
}

function legendOf(found) {
  const ops = new Map(found.filter((each) => !each.missing).flatMap((each) => each.ops.filter((op) => op.computes).map((op) => [op.name, op.text])));
  const order = Object.keys(FILLS);
  const known = [...ops].sort(([one], [two]) => (order.indexOf(one) + 99) % 99 - (order.indexOf(two) + 99) % 99);
  const waits = found.some((each) => !each.missing && each.ops.some((op) => !op.computes));
  return h("ul", { class: "keys", "aria-label": "Colours of the blocks" },
    known.map(([name, text]) => h("li", {}, h("i", { style: `background: var(--${FILLS[name] ?? "sync"})` }, name), text)),
    waits ? h("li", {}, h("i", { style: "background: var(--wait)" }), "waiting, or sending") : null,
    ops.size ? h("li", {}, "Large: the batch. Small: the version of the weights.") : null);
}

function timeline(parent, key, title, name, data, first, left) {
  if (data.missing) {
    parent.put(key, h("div", {}, h("h3", {}, title), missing(data.missing)));
    return;
  }
  const element = parent.place(`${key} drawn`, () => makeTimeline(key, title));
  element.timeline.show(data, name, first, left);
  const inside = placesOf(element.querySelector("details > div"));
  inside.put("table", listed(data, `${title} actions of ${name}`));
  inside.close();
}

function makeTimeline(key, title) {
  const drawing = h("div", { class: "chart timeline", role: "application", tabindex: 0, id: `${key}-timeline`, "aria-describedby": `${key}-where` });
  const where = h("output", { class: "where", id: `${key}-where` });
  const track = h("div", { class: "track", "aria-hidden": "true" }, h("span"));
  const made = h("figure", {}, h("figcaption", {}, h("h3", {}, title)), drawing, track, h("div", { class: "bar" }), h("details", {}, h("summary", {}, "Data table"), h("div")));
  const act = new Timeline(title, drawing, where, track.firstChild);
  const button = (text, label, press) => h("button", { type: "button", "aria-label": `${title}: ${label}`, title: label, onclick: press }, text);
  made.querySelector(".bar").append(
    button("+", "zoom in", () => act.zoom.zoom(0.5)), button("−", "zoom out", () => act.zoom.zoom(2)),
    button("←", "earlier", () => act.zoom.pan(-0.5)), button("→", "later", () => act.zoom.pan(0.5)),
    button("Whole", "show the whole", () => act.zoom.set(...act.zoom.whole)), where);
  made.timeline = act;
  made.addEventListener("leave", () => act.leave());
  return made;
}

class Timeline {
  constructor(title, drawing, where, track) {
    Object.assign(this, { title, drawing, where, track, name: null, data: null, pending: 0 });
    this.chart = new Chart(drawing, "canvas");
    this.zoom = new Zoom(drawing, () => this.redraw());
  }

  leave() {
    this.chart.leave();
    this.zoom.leave();
  }

  show(data, name, first, left) {
    const same = this.left === left && this.name === name && this.data && this.data.end === data.end && this.data.begin.length === data.begin.length;
    if (same) return;
    const rows = data.rows.length, fresh = this.name !== name;
    Object.assign(this, { data, name, left });
    this.drawing.style.height = `${rows * ROW + AXIS}px`;
    this.drawing.setAttribute("aria-label", `${this.title} timeline of ${name}: ${rows} rows, ${data.begin.length} actions in ${this.time(data.end)}. ` +
      "Arrow keys move, plus and minus zoom, 0 shows the whole.");
    this.zoom.inset = [this.left, 8];
    this.zoom.whole = [0, data.end];
    this.zoom.least = Math.max(1, Math.min(...data.length.filter((_, i) => data.ops[data.op[i]].computes)) / 2);
    if (fresh) this.zoom.window = this.opening(first);
    this.chart.instance.resize();
    this.chart.show(() => this.option());
    this.said();
  }

  // The part that is shown first: as many batches as the plan draws, but no more time than blocks can be read in, or
  // than it takes until each row has one.
  opening(batches) {
    const { data } = this, most = Math.max(6, (this.drawing.clientWidth - this.left) / (data.micro ? 34 : 17));
    const until = data.opens + batches, forwards = [], firsts = {};
    let begin = data.batch[0] === data.opens ? 0 : data.end, end = 0;
    for (let i = 0; i < data.begin.length; i++) {
      const op = data.ops[data.op[i]], to = data.begin[i] + data.length[i];
      if (op.name === "F") forwards.push(data.length[i]);
      if (data.batch[i] === data.opens) begin = Math.min(begin, data.begin[i]);
      if (!op.computes || data.batch[i] < data.opens || data.batch[i] >= until) continue;
      firsts[data.row[i]] ??= to;
      end = Math.max(end, to);
    }
    const usual = forwards.sort((one, two) => one - two)[forwards.length >> 1] ?? data.end;
    const read = Math.max(begin + usual * Math.floor(most), ...Object.values(firsts));
    return [begin, Math.min(begin + (end - begin) * 1.01, read, data.end)];
  }

  redraw() {
    this.said();
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.chart.draw();
    });
  }

  said() {
    const [begin, end] = this.zoom.window, whole = this.data.end || 1;
    const show = this.data.unit === "ticks" ? (value) => this.ticks(value) : (value) => moment(value, (end - begin) / 100);
    this.where.textContent = `${begin === 0 ? "0" : show(begin)} to ${show(end)} of ${this.time(this.data.end)}`;
    this.drawing.dataset.window = `${begin} ${end}`;
    this.track.style.left = `${(100 * begin) / whole}%`;
    this.track.style.width = `${(100 * (end - begin)) / whole}%`;
  }

  time(value) {
    return this.data.unit === "ticks" ? `${this.ticks(value)} ticks` : duration(value);
  }

  ticks(value) {
    return value % 1000 ? (value / 1000).toFixed(1) : `${value / 1000}`;
  }

  option() {
    const { data } = this, [begin, end] = this.zoom.window;
    const ticks = data.unit === "ticks", whole = ticks ? wholeTicks(begin, end) : undefined;
    const label = ticks ? (value) => `${value / 1000}` : (value) => moment(value, (end - begin) / 100, end);
    return {
      grid: { left: this.left, right: 8, top: 0, bottom: AXIS },
      tooltip: tooltip({ trigger: "item", formatter: (given) => this.told(given.value[0]) }),
      xAxis: axis({ type: "value", min: begin, max: end, splitLine: { show: true, lineStyle: { color: colour("grid") } }, axisTick: { customValues: whole, lineStyle: { color: colour("line") } },
        axisLabel: { customValues: whole, color: colour("muted"), fontSize: 12, hideOverlap: true, showMinLabel: ticks, showMaxLabel: ticks, formatter: label } }),
      yAxis: axis({ type: "category", data: data.rows, inverse: true, axisTick: { show: false }, splitLine: { show: true, lineStyle: { color: colour("grid") } },
        axisLabel: { color: colour("text"), fontSize: 12, width: this.left - 10, overflow: "break", interval: 0 } }),
      series: [{ type: "custom", coordinateSystem: "cartesian2d", dimensions: ["i", "begin", "end", "row"], encode: { x: [1, 2], y: 3 }, clip: true,
        data: this.visible(begin, end), renderItem: (params, api) => this.block(params, api, data), silent: false }],
    };
  }

  // The blocks in the window; of those that would share a pixel, one.
  visible(begin, end) {
    const { data } = this, pixel = (end - begin) / this.zoom.width();
    const until = data.rows.map(() => [-Infinity, -Infinity]), waits = [], works = [];
    for (let i = 0; i < data.begin.length; i++) {
      const [from, to] = [data.begin[i], data.begin[i] + data.length[i]];
      if (to < begin || from > end) continue;
      const computes = data.ops[data.op[i]].computes ? 1 : 0;
      const last = until[data.row[i]];
      if (to < last[computes] + pixel) continue;
      last[computes] = to;
      (computes ? works : waits).push([i, from, to, data.row[i]]);
    }
    return [...waits, ...works];
  }

  block(params, api, data) {
    const i = api.value(0), op = data.ops[data.op[i]];
    const [x, y] = api.coord([api.value(1), api.value(3)]), [end] = api.coord([api.value(2), api.value(3)]);
    const height = op.computes ? ROW - 12 : ROW - 26, top = y - height / 2;
    const box = params.coordSys, left = Math.max(x, box.x), right = Math.min(end, box.x + box.width);
    if (right < left) return null;
    const gap = end - x > 5 ? 1 : 0, width = Math.max(0.6, right - left - gap);
    const rect = { type: "rect", shape: { x: left, y: top, width, height, r: width > 6 ? 2 : 0 }, style: { fill: colourOf(op) } };
    if (!op.computes) return rect;
    const version = data.version[i], batch = numberOf(data, i);
    const children = [rect], middle = left + width / 2;
    if (width > 7.5 * batch.length + 4) {
      const letter = width > 7.5 * (batch.length + op.name.length) + 12 ? `${op.name} ` : "";
      children.push({ type: "text", silent: true, style: { text: letter + batch, x: middle, y: y - (version < 0 ? 0 : 6), fill: INK, font: `600 13px ${FONT}`, align: "center", verticalAlign: "middle" } });
      if (version >= 0 && width > 6 * `${version}`.length + 4) {
        children.push({ type: "text", silent: true, style: { text: `${version}`, x: middle, y: y + 9, fill: INK, font: `10.5px ${FONT}`, align: "center", verticalAlign: "middle" } });
      }
    }
    return { type: "group", children };
  }

  told(i) {
    const { data } = this, op = data.ops[data.op[i]];
    const micro = data.micro && data.micro[i] >= 0 ? `, micro-batch ${data.micro[i]}` : "";
    const version = data.version[i] >= 0 ? `<br>version ${data.version[i]} of the weights` : "";
    const from = data.begin[i], length = data.length[i], measured = data.unit !== "ticks";
    const show = measured ? (value) => moment(value, length / 100) : (value) => this.time(value);
    return `<b>${escaped(op.text)}</b>, ${escaped(data.rows[data.row[i]])}<br>batch ${data.batch[i]}${micro}${version}<br>` +
      `${show(from)} to ${show(from + length)}${measured ? ` (${duration(length)})` : ""}`;
  }
}

const INK = "#11161c";

function numberOf(data, i) { // the batch, and the micro-batch if there are any
  return data.micro && data.micro[i] >= 0 ? `${data.batch[i]}.${data.micro[i]}` : `${data.batch[i]}`;
}

function colourOf(op) {
  return colour(op.computes ? FILLS[op.name] ?? "sync" : "wait");
}

function wholeTicks(begin, end) { // sixteen at most
  const least = (end - begin) / 16;
  const step = 1000 * ([1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => 1000 * each >= least) ?? 1000);
  const first = Math.ceil(begin / step), count = Math.floor(end / step) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) * step);
}

function listed(data, caption) {
  const show = data.unit === "ticks" ? (value) => `${value / 1000}` : (value, i) => moment(value, data.length[i] / 10);
  const rows = data.begin.slice(0, LISTED).map((begin, i) => [data.rows[data.row[i]], data.ops[data.op[i]].text,
    numberOf(data, i), data.version[i] < 0 ? "–" : data.version[i], show(begin, i), show(begin + data.length[i], i)]);
  const note = data.begin.length > LISTED ? `, the first ${LISTED} of ${data.begin.length.toLocaleString("en-US")}` : "";
  return table(["row", "action", "batch", "version", "begin", "end"], rows, `${caption}${note}`, { tall: true });
}
