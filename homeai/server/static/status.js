// Draws what /api/status says and keeps it live over SSE.
// Data becomes text and CSS numbers only, never markup; elements that stay are kept, so nothing jumps.

const STATES = {
  stopped: ["Stopped", "The model is not loaded."],
  loading: ["Loading", "The model is being loaded."],
  warming: ["Warming up", "The model is loaded and takes its first steps."],
  resident: ["Resident", "Ready."],
  draining: ["Draining", "Finishing what is running, taking nothing new."],
  sleeping: ["Asleep", "The model is not loaded."],
  yielded: ["Lent", "The model made room for other programs."],
  failed: ["Failed", "The model could not be kept running."],
};

const WAITS = {
  token_budget: () => "Waits for room in a coming step",
  sequence_slot: (status) => `Waits for a seat, all ${status.batch.max_num_seqs} are taken`,
  kv_space: () => "Waits for room in the context memory",
  class_cap: () => "Waits for others of its class, which has all it may",
  source_cap: () => "Waits for its source's other requests, which have all they may",
  shared_prefix: () => "Waits for a beginning that another request computes",
  batch_mode: () => "Waits for the next batch",
  single_mode: () => "Waits for its turn, one request at a time",
  not_resident: () => "Waits for the model to load",
  paused: () => "Waits until its class is resumed",
};

const MODES = { continuous: "continuous, everyone in one batch", single: "single, one request at full speed",
  static: "static, one batch after another", window: "window, collect and then run a batch" };
const ACCESS = { none: "no key needed", auto: "API key, except on this machine", keys: "API key" };
const RULES = { key: "Key", header: "X-HomeAI-Source", openwebui: "Open WebUI’s", address: "Address", user: "User",
  user_agent: "Program", else: "Anybody else" };
const PINNED = { kept: "", waiting: ", not read yet", refused: ", left out" };
const ORDER = { running: 0, preempted: 1, waiting: 2 };

const QUIET_MS = 15000; // an idle server still speaks every five seconds
const RETRY_MS = 3000;
const MAX_SEATS_DRAWN = 64;

// ---- words for numbers ----

const num = (value) => (value == null ? "–" : value.toLocaleString("en"));

function bytes(value) {
  if (value == null) return "–";
  const [unit, size] = value >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return `${(value / size).toFixed(unit === "GiB" ? 1 : 0)} ${unit}`;
}

function duration(seconds) {
  if (seconds == null) return "–";
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return s % 60 && m < 10 ? `${m} min ${s % 60} s` : `${m} min`;
  const h = Math.floor(m / 60);
  return h < 24 ? `${h} h ${m % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

const milliseconds = (seconds) => (seconds == null ? "–" : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`);
const percent = (fraction) => `${Math.round(fraction * 100)} %`;
const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const share = (part, whole) => (whole > 0 ? Math.min(Math.max(part / whole, 0), 1) : 0);

// ---- the page ----

const byId = (id) => document.getElementById(id);

// Text is written only when it changed: a screen reader hears news, not repetition.
function write(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}
const put = (id, text) => write(byId(id), text);
const fill = (element, fraction) => element.style.setProperty("--fill", fraction.toFixed(4));
const field = (element, name) => element.querySelector(`[data-field="${name}"]`);

// Makes `parent` hold one element per item, in order; an element stays with its key.
function reconcile(parent, template, items, key, update) {
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

function draw(status) {
  drawState(status);
  drawNotes(status);
  drawSeats(status);
  drawContext(status);
  drawStep(status);
  drawRequests(status);
  drawModel(status.model);
  drawMemory(status);
  drawPins(status);
  drawBatches(status);
  drawPolicy(status);
  drawRules(status);
  drawTotals(status.totals);
}

function drawState(status) {
  const [name, says] = STATES[status.state] ?? [status.state, ""];
  document.documentElement.dataset.state = isStuck(status) ? "failed" : status.state;
  document.title = `${name} · homeai`;
  put("version", status.version);
  put("state", name);
  put("headline", headline(status, says));
  fill(byId("load-bar"), status.load?.fraction ?? 0);
}

// A device that is gone, or has no room, shows as what it is: nobody is answered.
const isStuck = (status) => Boolean(status.failure) && status.state !== "resident";

function headline(status, says) {
  if (status.failure) return status.failure;
  if (status.state === "sleeping" || status.state === "yielded") return `${says} ${capitalised(status.residency.reason)}.`;
  if (status.load) return `${capitalised(status.load.stage)}, ${percent(status.load.fraction)}`;
  if (status.state !== "resident") return says;
  return `${status.model.name} is loaded on ${deviceName(status)} and ready. Up ${duration(status.uptime_s)}.`;
}

const deviceName = (status) => (status.model.device === "cpu" ? "the CPU" : (status.memory.gpu?.name ?? status.model.device));

const seatOf = new Map(); // request id -> seat, kept while it runs so that seats do not shuffle

function drawSeats(status) {
  const { max_num_seqs: total, num_running: running, num_waiting: waiting } = status.batch;
  put("seats-used", num(running));
  put("seats-total", `of ${num(total)} taken`);
  put("seats-note", waiting ? `${num(waiting)} waiting` : "Nobody waits");

  const seated = status.requests.filter((request) => request.status === "running");
  const ids = new Set(seated.map((request) => request.id));
  for (const id of seatOf.keys()) if (!ids.has(id)) seatOf.delete(id);
  const taken = new Map([...seatOf].map(([id, seat]) => [seat, id]));
  for (const { id } of seated) {
    if (seatOf.has(id)) continue;
    let seat = 0;
    while (taken.has(seat)) seat += 1;
    seatOf.set(id, seat);
    taken.set(seat, id);
  }
  const tones = new Map(seated.map((request) => [request.id, tone(status, request.class)]));
  const seats = [...Array(Math.min(total ?? 0, MAX_SEATS_DRAWN)).keys()];
  reconcile(byId("seats"), byId("seat"), seats, String, (element, seat) => {
    element.dataset.tone = tones.get(taken.get(seat)) ?? "";
  });
}

function drawNotes({ notes }) {
  byId("notes-section").hidden = !notes.length;
  reconcile(byId("notes"), byId("note-row"), notes, String, write);
}

// What is kept for reuse gives way at once: the bar's first part is what somebody needs.
function drawContext({ kv }) {
  put("kv-total", kv.total ? `of ${num(kv.total)} tokens` : "tokens");
  put("kv-used", num(kv.used - kv.kept));
  const kept = kv.kept ? `, ${num(kv.kept)} more kept for reuse` : "";
  put("kv-note", kv.total ? `${percent(share(kv.used - kv.kept, kv.total))} in use${kept}` : "Comes with the model");
  fill(byId("kv-bar"), share(kv.used - kv.kept, kv.total));
  fill(byId("kv-kept-bar"), share(kv.kept, kv.total));
}

function drawStep({ batch }) {
  const { num_decode_tokens: decode, num_prefill_tokens: prefill, max_num_batched_tokens: budget } = batch;
  const busy = batch.num_running > 0;
  put("step-tokens", num(decode + prefill));
  put("step-budget", `of ${num(budget)} tokens`);
  put("step-note", busy ? `${num(decode)} written, ${num(prefill)} read, in ${milliseconds(batch.step_s)} (${milliseconds(batch.predicted_s)} foreseen)` : "Idle");
  fill(byId("decode-bar"), share(decode, budget));
  fill(byId("prefill-bar"), share(prefill, budget));
}

// ---- requests ----

// Classes are told apart by one of a few tones, in the order in which the server lists them.
function tone(status, name) {
  return String(Math.max(0, status.classes.findIndex((entry) => entry.name === name)) % 5);
}

function drawRequests(status) {
  const listed = status.requests;
  const live = status.batch.num_running + status.batch.num_waiting;
  const known = new Set(status.classes.map((entry) => entry.name));
  const others = [...new Set(listed.map((request) => request.class))].filter((name) => !known.has(name));
  const groups = [...known, ...others].filter((name) => listed.some((request) => request.class === name));

  put("requests-summary", live ? `${num(status.batch.num_running)} running, ${num(status.batch.num_waiting)} waiting` : "");
  byId("requests-empty").hidden = listed.length > 0;
  byId("requests-more").hidden = live <= listed.length;
  put("requests-more", `and ${num(live - listed.length)} more`);
  reconcile(byId("requests"), byId("class-group"), groups, String, (element, name) => drawGroup(element, status, name));
}

function drawGroup(element, status, name) {
  const requests = status.requests.filter((request) => request.class === name);
  requests.sort((a, b) => ORDER[a.status] - ORDER[b.status] || a.source.localeCompare(b.source) || b.age_s - a.age_s);
  element.dataset.tone = tone(status, name);
  write(field(element, "name"), name);
  reconcile(field(element, "list"), byId("request-row"), requests, (request) => request.id, (row, request) =>
    drawRequest(row, status, request),
  );
}

function drawRequest(row, status, request) {
  const read = Math.min(request.num_computed_tokens, request.num_prompt_tokens);
  row.dataset.status = request.status;
  row.title = request.id;
  write(field(row, "source"), request.source);
  write(field(row, "doing"), doing(status, request));
  write(field(row, "age"), duration(request.age_s));
  write(field(row, "prompt"), `${num(read)} / ${num(request.num_prompt_tokens)} read`);
  write(field(row, "answer"), `${num(request.num_output_tokens)} / ${num(request.max_tokens)} written`);
  field(row, "text").hidden = !request.text;
  write(field(row, "text"), request.text ?? "");
  fill(field(row, "prompt-bar"), share(read, request.num_prompt_tokens));
  fill(field(row, "answer-bar"), share(request.num_output_tokens, request.max_tokens));
}

function doing(status, request) {
  if (request.status === "running") return request.num_output_tokens ? "Writing" : "Reading the prompt";
  const why = WAITS[request.wait_reason]?.(status) ?? "Waits for its turn";
  return request.status === "preempted" ? `Set aside. ${why}` : why;
}

// ---- facts ----

function drawModel(model) {
  put("model-name", model.name ?? "–");
  put("model-file", model.file ?? "–");
  put("model-size", bytes(model.size_bytes));
  put("model-device", model.device === "cpu" ? "CPU" : (model.device ?? "–").toUpperCase());
  put("model-length", `${num(model.max_model_len)} tokens`);
  put("model-template", model.template ?? "none");
}

function drawMemory({ memory, kv }) {
  const own = (memory.engine_rss_bytes ?? 0) + (memory.server_rss_bytes ?? 0);
  const other = Math.max(memory.total_bytes - memory.available_bytes - own, 0);
  put("memory-own", bytes(own));
  put("memory-other", bytes(other));
  put("memory-available", `${bytes(memory.available_bytes)} of ${bytes(memory.total_bytes)}`);
  put("memory-model", bytes(memory.model_bytes));
  put("memory-kv", bytes(memory.kv_bytes));
  put("memory-host", bytes(kv.host_bytes));
  fill(byId("memory-own-bar"), share(own, memory.total_bytes));
  fill(byId("memory-other-bar"), share(other, memory.total_bytes));

  const { gpu } = memory;
  byId("gpu").hidden = !gpu;
  if (!gpu) return;
  put("gpu-name", gpu.name);
  put("gpu-memory", `${bytes(gpu.used_bytes)} of ${bytes(gpu.total_bytes)}`);
  put("gpu-busy", gpu.utilisation == null ? "–" : percent(gpu.utilisation));
  fill(byId("gpu-bar"), share(gpu.used_bytes, gpu.total_bytes));
}

function drawPins({ pins }) {
  byId("pins-section").hidden = !pins.length;
  reconcile(byId("pins"), byId("pin-row"), pins, (pin) => pin.name, (row, pin) => {
    write(field(row, "name"), pin.name);
    write(field(row, "pinned"), pin.num_tokens ? `${num(pin.num_tokens)} tokens${PINNED[pin.state]}` : "left out");
  });
}

function drawBatches({ batches }) {
  byId("batches-section").hidden = !batches.length;
  reconcile(byId("batches"), byId("batch-row"), batches, (batch) => batch.id, (row, batch) => {
    const done = batch.num_completed + batch.num_failed;
    const failed = batch.num_failed ? `, ${num(batch.num_failed)} failed` : "";
    row.title = batch.id;
    write(field(row, "source"), batch.source);
    write(field(row, "done"), `${num(done)} of ${num(batch.num_lines)} done${failed}`);
    fill(field(row, "done-bar"), share(done, batch.num_lines));
  });
}

function drawPolicy(status) {
  const { policy, batch, classes } = status;
  const chosen = policy.mode === "auto" ? "chosen by load" : "fixed";
  put("policy-mode", `${MODES[batch.mode] ?? batch.mode} (${chosen})`);
  put("policy-seats", `up to ${num(batch.max_num_seqs)} requests`);
  put("policy-budget", `up to ${num(batch.max_num_batched_tokens)}`);
  put("policy-chunks", policy.chunked_prefill ? `read ${num(policy.max_chunk_tokens)} tokens at a time` : "read in one piece");
  put("policy-auth", ACCESS[policy.auth] ?? policy.auth);
  reconcile(byId("classes"), byId("class-row"), classes, (entry) => entry.name, (row, entry) => {
    row.dataset.tone = tone(status, entry.name);
    write(field(row, "name"), entry.name);
    write(field(row, "weight"), num(entry.weight));
    write(field(row, "running"), num(entry.running));
    write(field(row, "waiting"), `${num(entry.waiting)} / ${num(entry.max_waiting)}`);
    write(field(row, "timeout"), duration(entry.queue_timeout_s));
  });
}

// In the order in which they are looked at. The last one is for everybody else.
function drawRules({ rules }) {
  byId("rules-section").hidden = rules.length < 2;
  const key = (rule) => [rule.by, rule.match, rule.source].join("\n");
  reconcile(byId("rules"), byId("rule-row"), rules, key, (row, rule) => {
    write(field(row, "rule"), `${RULES[rule.by] ?? rule.by} ${rule.match}`);
    write(field(row, "asking"), `${rule.source} (${rule.class})`);
  });
}

function drawTotals(totals) {
  put("total-finished", num(totals.finished));
  put("total-rejected", num(totals.rejected));
  put("total-failed", num(totals.failed));
  put("total-preemptions", num(totals.preemptions));
  put("total-out-of-room", num(totals.out_of_room));
}

// ---- the connection ----

const KEY = "homeai-key"; // in localStorage, so that a phone need not ask again
let connection = new AbortController();
let heardAt = 0; // ms since the epoch

class KeyNeeded extends Error {}

function show(state, words) {
  document.documentElement.dataset.connection = state;
  put("connection", words);
  byId("stale").hidden = state !== "lost";
  byId("key-form").hidden = state !== "locked";
}

function heard(status) {
  heardAt = Date.now();
  show("live", "Live");
  draw(status);
}

function lost() {
  const since = heardAt ? ` This is how it was at ${new Date(heardAt).toLocaleTimeString()}.` : "";
  put("stale", `Disconnected, retrying.${since}`);
  show("lost", "Disconnected");
}

function locked() {
  put("state", "Key needed");
  put("headline", localStorage.getItem(KEY) ? "This key is not accepted." : "This server shows its status to holders of an API key.");
  show("locked", "Not signed in");
}

async function get(path, signal) {
  const key = localStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { cache: "no-store", headers, signal });
  if (response.status === 401) throw new KeyNeeded();
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

// Server-sent events by fetch, because EventSource cannot send a key. Returns when the server ends the stream.
async function follow(signal) {
  heard(await (await get("api/status", signal)).json());
  const response = await get("api/status/events", signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    const last = parts.findLast((part) => part.startsWith("data:"));
    if (last) heard(JSON.parse(last.slice("data:".length)));
  }
}

// One connection at a time, and none for a hidden page: browsers allow only six to a server.
async function start() {
  connection.abort();
  connection = new AbortController();
  const { signal } = connection;
  while (!document.hidden && !signal.aborted) {
    try {
      await follow(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof KeyNeeded) return locked();
      console.warn(error);
    }
    if (!signal.aborted) lost();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// A cable that was pulled says nothing: after a silence, start over.
function checkSilence() {
  const isLocked = document.documentElement.dataset.connection === "locked";
  if (document.hidden || isLocked || Date.now() - heardAt < QUIET_MS) return;
  lost();
  start();
}

function takeKey(event) {
  event.preventDefault();
  localStorage.setItem(KEY, byId("key").value.trim());
  start();
}

byId("key-form").addEventListener("submit", takeKey);
document.addEventListener("visibilitychange", start);
setInterval(checkSilence, QUIET_MS);
start();
