// The visible window of a timeline: moved by wheel, drag, pinch, keys and buttons.

const STEP = 1.35; // of one step of zooming
const PAN = 0.15; // of the window, by one key

class Zoom {
  constructor(element, changed) {
    this.element = element; // takes the gestures
    this.changed = changed;
    this.whole = [0, 1];
    this.window = [0, 1];
    this.least = 1; // the smallest window
    this.inset = [0, 0]; // what is left and right of the drawing, in pixels
    this.pointers = new Map();
    this.moved = null; // where the pointer was moved last: the wheel zooms only then, and scrolls the page otherwise
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, (event) => this.up(event));
    element.addEventListener("keydown", (event) => this.key(event));
    this.scrolled = () => (this.moved = null);
    addEventListener("scroll", this.scrolled, { passive: true });
  }

  leave() {
    removeEventListener("scroll", this.scrolled);
  }

  set(begin, end) {
    const [first, last] = this.whole;
    const length = Math.min(Math.max(end - begin, this.least), last - first);
    begin = Math.min(Math.max(begin, first), last - length);
    if (begin === this.window[0] && begin + length === this.window[1]) return false;
    this.window = [begin, begin + length];
    this.changed();
    return true;
  }

  zoom(factor, share = 0.5) { // about a point of the window
    const [begin, end] = this.window;
    const length = Math.min(Math.max((end - begin) * factor, this.least), this.whole[1] - this.whole[0]);
    const fixed = begin + share * (end - begin);
    return this.set(fixed - share * length, fixed + (1 - share) * length);
  }

  pan(share) {
    const by = share * (this.window[1] - this.window[0]);
    return this.set(this.window[0] + by, this.window[1] + by);
  }

  width() {
    return Math.max(1, this.element.clientWidth - this.inset[0] - this.inset[1]);
  }

  share(x) {
    const place = x - this.element.getBoundingClientRect().left - this.inset[0];
    return Math.min(1, Math.max(0, place / this.width()));
  }

  wheel(event) {
    if (!this.moved && !event.ctrlKey) return; // the page is being scrolled past
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const done = sideways ? this.pan(event.deltaX / this.width()) : this.zoom(STEP ** (event.deltaY / 100), this.share(event.clientX));
    if (done || event.ctrlKey || event.deltaY < 0) event.preventDefault();
  }

  down(event) {
    if (event.button) return;
    this.element.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    this.element.classList.add("held");
  }

  move(event) {
    if (event.movementX || event.movementY) this.moved = true;
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) return;
    if (this.pointers.size === 1) this.pan((before - event.clientX) / this.width());
    else this.pinch(event, before);
    this.pointers.set(event.pointerId, event.clientX);
  }

  pinch(event, before) {
    const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    const [old, now] = [Math.abs(before - other), Math.abs(event.clientX - other)];
    if (old > 4 && now > 4) this.zoom(old / now, this.share((event.clientX + other) / 2));
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    if (!this.pointers.size) this.element.classList.remove("held");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => this.pan(-PAN), ArrowRight: () => this.pan(PAN), PageUp: () => this.pan(-1), PageDown: () => this.pan(1),
      "+": () => this.zoom(1 / STEP), "=": () => this.zoom(1 / STEP), "-": () => this.zoom(STEP),
      0: () => this.set(...this.whole), Home: () => this.set(this.whole[0], this.whole[0] + this.window[1] - this.window[0]),
      End: () => this.set(this.whole[1] - this.window[1] + this.window[0], this.whole[1]),
    }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  }
}
