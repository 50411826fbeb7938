// Charts: one ECharts instance in each figure, drawn anew when its data, its width or the theme changes.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';

class Chart {
  constructor(element, renderer) {
    this.element = element;
    this.instance = echarts.init(element, null, { renderer });
    this.make = null;
    this.draw = () => {
      if (!this.make) return;
      const option = { ...base(), ...this.make(element.clientWidth) };
      const selected = this.instance.getOption()?.legend?.[0]?.selected; // what the reader has switched off stays off
      if (selected && option.legend) option.legend.selected = selected;
      this.instance.setOption(option, true);
    };
    themed.add(this.draw);
    this.observer = new ResizeObserver(() => {
      if (this.instance.getWidth() === element.clientWidth && this.instance.getHeight() === element.clientHeight) return;
      this.instance.resize();
      this.draw();
    });
    this.observer.observe(element);
  }

  show(make) {
    this.make = make;
    this.draw();
  }

  leave() {
    themed.delete(this.draw);
    this.observer.disconnect();
    this.instance.dispose();
  }
}

function base() {
  return { animation: false, textStyle: { fontFamily: FONT, color: colour("text") } };
}

function tooltip(more = {}) {
  return {
    backgroundColor: colour("page"), borderColor: colour("line"), confine: true, appendTo: undefined,
    textStyle: { color: colour("text"), fontSize: 13, fontFamily: FONT }, extraCssText: "box-shadow: 0 2px 8px rgb(0 0 0 / .18)",
    ...more,
  };
}

function axis(more = {}) {
  return {
    axisLine: { lineStyle: { color: colour("line") } }, axisTick: { lineStyle: { color: colour("line") } },
    axisLabel: { color: colour("muted"), fontSize: 12, hideOverlap: true }, splitLine: { lineStyle: { color: colour("grid") } },
    nameTextStyle: { color: colour("muted"), fontSize: 12 }, ...more,
  };
}

function legend(more = {}) {
  return {
    type: "scroll", top: 0, left: 0, itemWidth: 26, itemHeight: 9, itemGap: 14, pageIconColor: colour("muted"),
    pageTextStyle: { color: colour("muted") }, inactiveColor: colour("line"), textStyle: { color: colour("text"), fontSize: 12 }, ...more,
  };
}

// A figure with a heading, the meaning of its marks, a chart and the table of its data; the last two are made again where
// what they are made from has changed.
function figure(parent, key, { title, label, height, from, data, make, keys = null }) {
  const element = parent.place(key, () => {
    const drawing = h("div", { class: "chart", role: "img" });
    const made = h("figure", {}, h("figcaption", {}, h("h3", {}, title)), h("div"), drawing,
      h("details", {}, h("summary", {}, "Data table"), h("div")));
    made.drawing = drawing;
    made.addEventListener("leave", () => made.chart.leave());
    return made;
  });
  element.querySelector("h3").textContent = title;
  const explained = placesOf(element.querySelector("figcaption + div"));
  if (keys) explained.put("keys", keys);
  explained.close();
  element.drawing.setAttribute("aria-label", label);
  element.drawing.style.height = `${height}px`;
  element.chart ??= new Chart(element.drawing, "svg");
  const drawn = JSON.stringify(from);
  if (element.drawn === drawn) return;
  element.drawn = drawn;
  element.chart.show(make);
  const details = element.querySelector("details");
  details.ontoggle = () => details.open && listedIn(details, data);
  if (!LIVE || details.open) listedIn(details, data); // a long table is costly, and while a run goes on often another one
}

function listedIn(details, data) {
  const inside = placesOf(details.lastChild);
  inside.put("table", data());
  inside.close();
}

function escaped(text) {
  return `${text}`.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

function percent(value, digits = 1) {
  return `${(100 * value).toFixed(digits)}%`;
}

function trimmed(value) { // a percentage at an axis
  return percent(value, 4).replace(/\.?0+%$/, "%");
}

function exact(value) { // a number at an axis: those beside it differ
  return Math.abs(value) >= 1000 ? value.toLocaleString("en-US") : `${Number(value.toPrecision(9))}`;
}

function short(value) { // a number with at most four digits
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : `${Number(value.toPrecision(4))}`;
}

function moment(micro, step, from = micro) { // microseconds in the unit that suits `from`; those a step apart differ
  const [unit, name] = Math.abs(from) < 1000 ? [1, "µs"] : Math.abs(from) < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  return `${(micro / unit).toLocaleString("en-US", { maximumFractionDigits: Math.max(0, Math.ceil(Math.log10(unit / step))) })} ${name}`;
}

function duration(micro) { // microseconds, in the unit that suits them
  if (Math.abs(micro) < 1000) return `${short(micro)} µs`;
  return Math.abs(micro) < 1e6 ? `${short(micro / 1e3)} ms` : `${short(micro / 1e6)} s`;
}
