// What is going on: the state, the gauges, the requests.

import { byId, drawSpark, field, fill, put, reconcile, tone, write } from "./dom.js";
import { STATES, WAITS, capitalised, duration, milliseconds, num, percent, share } from "./words.js";

const ORDER = { running: 0, preempted: 1, waiting: 2 };
const MAX_SEATS_DRAWN = 64;
const MAX_SEATS_NAMED = 16;

export function drawNow(status) {
  drawState(status);
  drawNotes(status);
  drawSeats(status);
  drawContext(status);
  drawStep(status);
  drawSpeed(status.pace);
  drawRequests(status);
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

function drawNotes({ notes }) {
  byId("notes-section").hidden = !notes.length;
  reconcile(byId("notes"), byId("text-row"), notes, String, write);
}

// ---- the batch ----

const seatOf = new Map(); // request id -> seat, kept while it runs so that seats do not shuffle

function drawSeats(status) {
  const { max_num_seqs: total, num_running: running, num_waiting: waiting } = status.batch;
  put("seats-used", num(running));
  put("seats-total", `of ${num(total)} taken`);

  const seated = new Map(status.requests.filter((request) => request.status === "running").map((request) => [request.id, request]));
  for (const id of seatOf.keys()) if (!seated.has(id)) seatOf.delete(id);
  const taken = new Map([...seatOf].map(([id, seat]) => [seat, id]));
  for (const id of seated.keys()) {
    if (seatOf.has(id)) continue;
    let seat = 0;
    while (taken.has(seat)) seat += 1;
    seatOf.set(id, seat);
    taken.set(seat, id);
  }
  const named = total <= MAX_SEATS_NAMED;
  const seats = [...Array(Math.min(total ?? 0, MAX_SEATS_DRAWN)).keys()];
  byId("seats").classList.toggle("named", named);
  reconcile(byId("seats"), byId("seat"), seats, String, (element, seat) => {
    const request = seated.get(taken.get(seat));
    const reads = request && !request.num_output_tokens;
    element.dataset.tone = request ? tone(status, request.class) : "";
    element.dataset.reads = reads ? "yes" : "";
    write(element, named && request ? (reads ? `reads ${num(request.num_step_tokens)}` : "writes") : "");
  });
  const counts = countClasses(seated.values());
  const who = counts.length ? counts.map(([name, count]) => `${count} ${name}`).join(", ") : "Nobody runs";
  put("seats-note", `${who}; ${waiting ? `${num(waiting)} waiting` : "nobody waits"}`);
}

function countClasses(requests) {
  const counts = new Map();
  for (const request of requests) counts.set(request.class, (counts.get(request.class) ?? 0) + 1);
  return [...counts];
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

// The last interval still grows: it counts together with the one before it.
function drawSpeed(pace) {
  if (!pace) return;
  const seconds = pace.interval_s + pace.last_s;
  const rate = (counts) => Math.round((counts.at(-1) + counts.at(-2)) / seconds);
  put("speed", num(rate(pace.written)));
  put("speed-note", `${num(rate(pace.read))} tokens/s read`);
  drawSpark(byId("speed-spark"), pace.written);
}

// ---- requests ----

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
  if (request.status === "running") {
    if (request.num_output_tokens) return "Writing";
    return request.num_step_tokens ? `Reading the prompt, ${num(request.num_step_tokens)} tokens a step` : "Reading the prompt";
  }
  const why = `Waits ${WAITS[request.wait_reason]?.(status) ?? "for its turn"}`;
  if (request.status === "preempted") return `Set aside. ${why}`;
  return request.expected_wait_s == null ? why : `${why}; about ${duration(Math.max(1, request.expected_wait_s))} to go`;
}
