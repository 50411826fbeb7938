// Elements, and places that are only changed where what they show has changed.

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// The children of an element by key: `put` keeps those that are as they were, `close` removes those that were not put.
class Places {
  constructor(element) {
    this.element = element;
    this.known = new Map();
    this.open();
  }

  open() {
    this.used = new Set();
    this.last = null;
    return this;
  }

  place(key, make) { // an element that is made once
    let element = this.known.get(key);
    if (!element) this.known.set(key, (element = make()));
    this.used.add(key);
    const next = this.last ? this.last.nextSibling : this.element.firstChild;
    if (next !== element) this.element.insertBefore(element, next);
    this.last = element;
    return element;
  }

  put(key, made) { // an element that is replaced where it differs
    const old = this.known.get(key);
    if (old && !old.isEqualNode(made)) {
      if (this.last === old) this.last = made;
      const [top, left, focused] = [old.scrollTop, old.scrollLeft, old === document.activeElement];
      old.replaceWith(made);
      made.scrollTo?.(left, top);
      if (focused) made.focus({ preventScroll: true });
      this.known.set(key, made);
    }
    return this.place(key, () => made);
  }

  close() {
    for (const [key, element] of this.known) {
      if (this.used.has(key)) continue;
      element.dispatchEvent(new Event("leave"));
      element.remove();
      this.known.delete(key);
    }
  }
}

const places = new WeakMap();

function placesOf(element) {
  if (!places.has(element)) places.set(element, new Places(element));
  return places.get(element).open();
}

function section(parent, id, title, first = false) {
  const element = parent.place(id, () =>
    h("section", { id, class: first ? "section first" : "section", "aria-labelledby": `${id}-title` },
      h("h2", { id: `${id}-title` }, title), h("div")));
  return placesOf(element.lastChild);
}

function choice(name, legend, options, chosen, choose) {
  return h("fieldset", { class: "choice" }, h("legend", {}, legend), options.map(([value, text]) =>
    h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), text)));
}

function table(columns, rows, caption, { tall = false, parted = false, kind = null } = {}) {
  const numbers = columns.map((_, i) => i > 0 && rows.every((row) => row[i] === "" || row[i] === "–" || /^[−\d]/.test(`${row[i]}`)));
  const cell = (tag, i, text, more = {}) => h(tag, { class: numbers[i] ? "number" : null, ...more }, `${text}`);
  return h("div", { class: ["scroll", tall && "tall", parted && "parted"].filter(Boolean).join(" "), role: "region", tabindex: 0, "aria-label": caption },
    h("table", { class: kind, "aria-label": caption },
      h("thead", {}, h("tr", {}, columns.map((text, i) => cell("th", i, text, { scope: "col" })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((text, i) =>
        i ? cell("td", i, text) : cell("th", i, text, { scope: "row" })))))));
}

function missing(sentence) {
  return h("p", { class: "missing" }, sentence);
}
