// As much of a browser as the page's scripts touch when they start: enough to run them without one.

class Text {
  constructor(text) {
    this.textContent = text;
  }
}

export class Element {
  constructor(tag, id = "") {
    Object.assign(this, { tag, id, children: [], attributes: {}, listeners: {}, style: {}, dataset: {} });
    Object.assign(this, { hidden: false, value: "", scrollTop: 0, clientHeight: 400, clientWidth: 600, parentElement: null });
  }
  get textContent() {
    return this.children.map((child) => child.textContent).join("");
  }
  set textContent(text) {
    this.children = [new Text(text)];
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(name, listener) {
    (this.listeners[name] ??= []).push(listener);
  }
  /** Tell the listeners, as a browser does. */
  fire(name, event = {}) {
    for (const listener of this.listeners[name] ?? [])
      listener({ preventDefault() {}, stopPropagation() {}, target: this, ...event });
  }
  append(...children) {
    for (const child of children) this.children.push(typeof child === "object" ? child : new Text(String(child)));
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  remove() {}
  focus() {}
  showModal() {}
  setPointerCapture() {}
  getBoundingClientRect() {
    return { left: 0, top: 0, width: 800, height: 600 };
  }
  getContext() {
    return (this.pen ??= new Pen());
  }
  /** The first element inside with this tag. */
  querySelector(tag) {
    for (const child of this.children) {
      if (!(child instanceof Element)) continue;
      const found = child.tag === tag ? child : child.querySelector(tag);
      if (found) return found;
    }
    return null;
  }
}

/** A 2D context that notes the texts that are drawn. */
class Pen {
  constructor() {
    this.texts = [];
    return new Proxy(this, { get: (own, name) => own[name] ?? (() => {}) });
  }
  fillText(text) {
    this.texts.push(text);
  }
  measureText(text) {
    return { width: text.length * 6 };
  }
}

/** What scripts find in their global scope. `elements` holds everything that was looked up by id. */
export const browser = (source) => {
  const elements = new Map();
  const find = (id) => {
    if (!elements.has(id)) elements.set(id, new Element("div", id));
    return elements.get(id);
  };
  find("source").textContent = JSON.stringify(source);
  const listeners = new Element("document");
  const document = {
    body: new Element("body"),
    documentElement: new Element("html"),
    createElement: (tag) => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    createTextNode: (text) => new Text(text),
    getElementById: find,
    addEventListener: (name, listener) => listeners.addEventListener(name, listener),
  };
  const window = { devicePixelRatio: 1, addEventListener() {} };
  class Observer {
    observe() {}
  }
  return {
    elements,
    fire: (name, event) => listeners.fire(name, event),
    globals: {
      document,
      window,
      Node: class {
        static [Symbol.hasInstance](value) {
          return value instanceof Element || value instanceof Text;
        }
      },
      HTMLInputElement: class {},
      HTMLSelectElement: class {},
      ResizeObserver: Observer,
      Path2D: class {
        moveTo() {}
        lineTo() {}
      },
      localStorage: { getItem: () => null, setItem() {} },
      getComputedStyle: (element) => ({ color: element.style.color }),
      matchMedia: () => ({ matches: true, addEventListener() {} }),
      requestAnimationFrame: (draw) => {
        draw(0);
        return 0;
      },
      cancelAnimationFrame() {},
    },
  };
};
