// What was: where the model was when, the events, how fast, and where the time of the last requests went.

import { byId, drawSpark, field, fill, put, reconcile, setNumber, tone, write } from "./dom.js";
import { MODES, STATES, WAITS, clock, count, duration, exactly, num, perSecond, percent, share } from "./words.js";

const LONGEST_S = 86400;
const SHORTEST_S = 300;
const NUM_EVENTS = 6;
const NUM_RECENT = 12;
const LEAST_S = 0.05;
const PHASES = [["queued", "waiting"], ["prefill", "reading"], ["parked", "set aside"], ["decode", "writing"]];
const PROBLEMS = { "queue_timeout": "It waited longer than its class allows." };

export function drawPast(status) {
  drawTimeline(status);
  drawEvents(status.events);
  drawRecent(status);
  drawPaces(status);
  drawShares(status);
}

// ---- the model's whereabouts ----

function drawTimeline({ history, now }) {
  byId("timeline-section").hidden = !history.length;
  if (!history.length) return;
  const from = Math.max(now - LONGEST_S, Math.min(history[0].began_at, now - SHORTEST_S));
  const spans = history.map((span, i) => ({ ...span, ended_at: history[i + 1]?.began_at ?? now, begins: span.began_at }));
  const shown = spans.filter((span) => span.ended_at > from).map((span) => ({ ...span, began_at: Math.max(span.began_at, from) }));
  const before = { state: "unknown", begins: 0, began_at: from, ended_at: shown[0]?.began_at ?? now };
  const all = before.ended_at > from ? [before, ...shown] : shown;
  reconcile(byId("timeline"), byId("block"), all, (span) => `${span.begins} ${span.state}`, (block, span) => {
    block.dataset.lamp = span.state;
    block.title = span.state === "unknown" ? "not running" : `${nameOf(span.state)}, ${clock(span.began_at)}, ${duration(span.ended_at - span.began_at)}`;
    setNumber(block, "--fill", Math.max(0, span.ended_at - span.began_at) / (now - from));
  });
  const times = new Map();
  for (const { state, began_at, ended_at } of shown) {
    const named = state === "warming" ? "loading" : state;
    times.set(named, (times.get(named) ?? 0) + ended_at - began_at);
  }
  const known = [...times.values()].reduce((sum, seconds) => sum + seconds, 0);
  const parts = [...times].filter(([, seconds]) => seconds >= 0.005 * known).sort((a, b) => b[1] - a[1]);
  put("timeline-from", clock(from));
  reconcile(byId("timeline-legend"), byId("legend-row"), parts, ([state]) => state, (row, [state, seconds]) => {
    row.dataset.lamp = state;
    write(field(row, "legend"), `${nameOf(state)} ${percent(share(seconds, known))}`);
  });
  const words = parts.map(([state, seconds]) => `${nameOf(state)} ${percent(share(seconds, known))}`).join(", ");
  byId("timeline").setAttribute("aria-label", `Since ${clock(from)}: ${words}`);
}

const nameOf = (state) => STATES[state]?.[0] ?? state;

let showsAllEvents = false;
let lastEvents = [];

function drawEvents(events) {
  lastEvents = events;
  const shown = showsAllEvents ? events : events.slice(0, NUM_EVENTS);
  byId("events-more").hidden = events.length <= NUM_EVENTS;
  reconcile(byId("events"), byId("event-row"), shown, (event) => `${event.at} ${event.kind}`, (row, event) => {
    row.dataset.lamp = event.kind;
    write(field(row, "event-at"), clock(event.at));
    field(row, "event-at").dateTime = new Date(event.at * 1000).toISOString();
    write(field(row, "event"), eventWords(event));
  });
}

function eventWords({ kind, detail, count }) {
  if (kind === "crash") return `The engine died, and came back: ${detail}`;
  if (kind === "owner") return `The owner said: ${detail}`;
  if (kind === "mode") return `Batching: ${(MODES[detail] ?? detail).split(",")[0]}${count > 1 ? `, after ${num(count)} changes` : ""}`;
  return detail ? `${nameOf(kind)}: ${detail}` : nameOf(kind);
}

byId("events-more").addEventListener("click", ({ currentTarget }) => {
  showsAllEvents = !showsAllEvents;
  currentTarget.setAttribute("aria-expanded", String(showsAllEvents));
  write(currentTarget, showsAllEvents ? "Show fewer" : "Show all");
  drawEvents(lastEvents);
});

// ---- where the time of the last requests went ----

function drawRecent(status) {
  const recent = status.recent.slice(0, NUM_RECENT);
  const longest = Math.max(...recent.map(total), 0.001);
  byId("recent-empty").hidden = recent.length > 0;
  reconcile(byId("recent"), byId("past-row"), recent, (request) => request.id, (row, request) => {
    const parts = PHASES.map(([phase, words]) => ({ phase, words, seconds: request[`${phase}_s`] }));
    const most = parts.reduce((a, b) => (b.seconds > a.seconds ? b : a));
    row.dataset.tone = tone(status, request.class);
    write(field(row, "when"), clock(request.ended_at, { seconds: true }));
    write(field(row, "past-source"), request.source);
    write(field(row, "took"), exactly(total(request)));
    write(field(row, "mostly"), request.problem ? "not complete" : total(request) >= LEAST_S ? `mostly ${most.words}` : "");
    for (const { phase, seconds } of parts) fill(row.querySelector(`.phases .${phase}`), seconds / longest);
    reconcile(field(row, "why"), byId("text-row"), why(status, request), String, write);
  });
}

const total = (request) => request.queued_s + request.prefill_s + request.parked_s + request.decode_s;

function why(status, request) {
  const waited = request.queued_s + request.parked_s;
  const ahead = others(request, "ahead_s", waited);
  const beside = others(request, "beside_s", total(request) - waited);
  const says = [];
  if (request.queued_s >= LEAST_S) {
    const reason = request.wait_reason ? ` ${WAITS[request.wait_reason]?.(status) ?? "for its turn"}` : "";
    says.push(`Waited ${exactly(request.queued_s)}${reason}.`);
  } else {
    says.push("Did not have to wait.");
  }
  if (request.prefill_s > 0) says.push(`Read ${reading(request)} in ${exactly(request.prefill_s)}.`);
  if (request.num_preemptions) {
    const again = request.num_recomputed_tokens ? `; ${count(request.num_recomputed_tokens, "token")} had to be read again` : "";
    says.push(`Was set aside for others ${request.num_preemptions === 1 ? "once" : `${num(request.num_preemptions)} times`}, ${exactly(request.parked_s)} in all${again}.`);
  }
  if (request.num_output_tokens && request.decode_s > 0) {
    const speed = request.num_output_tokens > 1 ? `, ${perSecond(request.num_output_tokens / request.decode_s)}` : "";
    says.push(`Wrote ${count(request.num_output_tokens, "token")} in ${exactly(request.decode_s)}${speed}.`);
  }
  if (ahead) says.push(`While it ${request.queued_s >= LEAST_S ? "waited" : "was set aside"} ran ${ahead}.`);
  if (beside) says.push(`Shared its steps with ${beside}.`);
  if (request.problem) says.push(PROBLEMS[request.problem] ?? `It ended early: ${request.problem.replaceAll("_", " ")}.`);
  return says;
}

// Who ran meanwhile; for how long, where that was not all the time.
function others(request, key, of) {
  const names = request.in_the_way.filter((other) => other[key] >= LEAST_S).map((other) => {
    const part = other[key] < 0.9 * of ? `, for ${exactly(other[key])}` : "";
    const name = other.source === request.source && other.class === request.class ? "its own other requests" : other.source;
    return `${name} (${other.class}${part})`;
  });
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
}

function reading({ num_prompt_tokens: all, num_cached_tokens: known }) {
  if (!known) return `its prompt of ${count(all, "token")}`;
  return `${num(all - known)} of its prompt’s ${count(all, "token")} (the others were known already)`;
}

// ---- how fast, and how fair ----

function drawPaces(status) {
  const classes = status.pace?.classes ?? {};
  const shown = status.classes.filter((entry) => classes[entry.name]);
  byId("pace-empty").hidden = shown.length > 0;
  reconcile(byId("paces"), byId("pace-row"), shown, (entry) => entry.name, (row, entry) => {
    const pace = classes[entry.name];
    row.dataset.tone = tone(status, entry.name);
    write(field(row, "pace-class"), entry.name);
    write(field(row, "ttft"), quantiles(pace.ttft_p50_s, pace.ttft_p95_s, entry.ttft_target_s));
    write(field(row, "itl"), quantiles(pace.itl_p50_s, pace.itl_p95_s, entry.itl_target_s));
    drawSpark(field(row, "ttft-spark"), pace.ttft_s, entry.ttft_target_s);
    drawSpark(field(row, "itl-spark"), pace.itl_s, entry.itl_target_s);
  });
}

function quantiles(half, most, target) {
  if (half == null) return "–";
  return `${exactly(half)}, p95 ${exactly(most)}${target ? ` (≤\u00a0${exactly(target).replace(" ", "\u00a0")})` : ""}`;
}

function drawShares(status) {
  byId("shares-empty").hidden = status.shares.length > 0;
  reconcile(byId("shares"), byId("share-row"), status.shares, (entry) => `${entry.class}\n${entry.source}`, (row, entry) => {
    row.dataset.tone = tone(status, entry.class);
    write(field(row, "share-source"), entry.source);
    write(field(row, "share-class"), entry.class);
    write(field(row, "share-words"), `${percent(entry.served)}, due ${percent(entry.due)}`);
    fill(field(row, "share-bar"), entry.served);
    setNumber(row, "--due", entry.due);
  });
}


