// Writing into the page. Data becomes text and CSS numbers only, never markup; elements that stay are kept.

export const byId = (id) => document.getElementById(id);
export const field = (element, name) => element.querySelector(`[data-field="${name}"]`);

// Text is written only when it changed: a screen reader hears news, not repetition.
export function write(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}
export const put = (id, text) => write(byId(id), text);
export const fill = (element, fraction) => setNumber(element, "--fill", fraction);

export function setNumber(element, name, value) {
  const text = value.toFixed(4);
  if (element.style.getPropertyValue(name) !== text) element.style.setProperty(name, text);
}

// Makes `parent` hold one element per item, in order; an element stays with its key.
export function reconcile(parent, template, items, key, update) {
  const kept = new Map([...parent.children].map((element) => [element.dataset.key, element]));
  const elements = items.map((item) => {
    const element = kept.get(String(key(item))) ?? template.content.firstElementChild.cloneNode(true);
    kept.delete(String(key(item)));
    element.dataset.key = key(item);
    update(element, item);
    return element;
  });
  for (const gone of kept.values()) gone.remove();
  elements.forEach((element, i) => {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null);
  });
}

// Classes are told apart by one of a few tones, in the order in which the server lists them.
export function tone(status, name) {
  return String(Math.max(0, status.classes.findIndex((entry) => entry.name === name)) % 5);
}

// Bars of one unit's width; those above `limit` are drawn as late ones, and a line marks it.
export function drawSpark(svg, values, limit = null) {
  const highest = Math.max(limit ?? 0, ...values.map((value) => value ?? 0)) || 1;
  const paths = { bars: "", late: "", limit: "" };
  values.forEach((value, i) => {
    if (value == null || value === 0) return;
    const height = Math.max(1.2, (19 * value) / highest).toFixed(1);
    paths[limit != null && value > limit ? "late" : "bars"] += `M${i + 0.5} 20v-${height}`;
  });
  if (limit != null) paths.limit = `M0 ${(20 - (19 * limit) / highest).toFixed(1)}H${values.length}`;
  for (const [name, d] of Object.entries(paths)) {
    const path = svg.querySelector(`.${name}`) ?? addPath(svg, name);
    if (path.getAttribute("d") !== d) path.setAttribute("d", d);
  }
}

function addPath(svg, name) {
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("class", name);
  return svg.appendChild(path);
}
