// What there is: memory, jobs, the model, the settings, the sums.

import { byId, field, fill, put, reconcile, setNumber, tone, write } from "./dom.js";
import { ACCESS, MODES, PARTS, PINNED, RULES, STAYS, bytes, duration, num, percent, share } from "./words.js";

const OF_CONTEXT = new Set(["running", "pinned", "kept", "spare"]);

export function drawFacts(status) {
  drawMemory(status);
  drawBatches(status);
  drawModel(status.model);
  drawPins(status);
  drawPolicy(status);
  drawRules(status);
  drawTotals(status.totals);
}

// ---- memory ----

function drawMemory(status) {
  const { memory_map: map, memory } = status;
  if (!map) return;
  const context = map.parts.filter((part) => OF_CONTEXT.has(part.kind));
  const size = context.reduce((sum, part) => sum + part.num_bytes, 0);
  const rest = map.parts.filter((part) => !OF_CONTEXT.has(part.kind));
  const [weights, ...others] = rest.some((part) => part.kind === "weights") ? rest : [null, ...rest];
  const parts = [weights, size ? { kind: "context", num_bytes: size } : null, ...others].filter(Boolean);
  put("memory-where", `${map.where}, ${bytes(map.total_bytes)}`);
  drawMap("memory-map", "memory-parts", status, parts, map.total_bytes);
  byId("context").hidden = !size;
  drawMap("context-map", "context-parts", status, context, size);

  byId("gpu").hidden = !memory.gpu;
  if (memory.gpu) put("gpu", `${memory.gpu.name}, ${percent(memory.gpu.utilisation)} busy`);
}

function drawMap(map, list, status, parts, total) {
  const key = (part) => `${part.kind} ${part.source ?? ""}`;
  const dress = (element, part) => {
    element.dataset.part = part.kind;
    element.dataset.tone = part.source ? toneOf(status, part.source) : "";
  };
  reconcile(byId(map), byId("block"), parts, key, (block, part) => {
    dress(block, part);
    setNumber(block, "--fill", share(part.num_bytes, total));
  });
  reconcile(byId(list), byId("part-row"), parts, key, (row, part) => {
    dress(row, part);
    write(field(row, "part"), part.source ?? PARTS[part.kind] ?? part.kind);
    write(field(row, "size"), bytes(part.num_bytes));
  });
}

const toneOf = (status, source) => tone(status, status.requests.find((request) => request.source === source)?.class);

// ---- jobs ----

function drawBatches({ batches }) {
  byId("batches-empty").hidden = batches.length > 0;
  reconcile(byId("batches"), byId("batch-row"), batches, (batch) => batch.id, (row, batch) => {
    const done = batch.num_completed + batch.num_failed;
    const failed = batch.num_failed ? `, ${num(batch.num_failed)} failed` : "";
    const left = done ? `, about ${duration((batch.age_s / done) * (batch.num_lines - done))} to go` : "";
    row.title = batch.id;
    write(field(row, "batch-source"), batch.source);
    write(field(row, "done"), `${num(done)} of ${num(batch.num_lines)} done${failed}${left}`);
    fill(field(row, "done-bar"), share(done, batch.num_lines));
  });
}

// ---- model and settings ----

function drawModel(model) {
  put("model-name", model.name ?? "–");
  put("model-file", model.file ?? "–");
  put("model-size", bytes(model.size_bytes));
  put("model-device", model.device === "cpu" ? "CPU" : (model.device ?? "–").toUpperCase());
  put("model-length", `${num(model.max_model_len)} tokens`);
  put("model-template", model.template ?? "none");
}

function drawPins({ pins }) {
  byId("pins-section").hidden = !pins.length;
  reconcile(byId("pins"), byId("pin-row"), pins, (pin) => pin.name, (row, pin) => {
    write(field(row, "pin"), pin.name);
    write(field(row, "pinned"), pin.num_tokens ? `${num(pin.num_tokens)} tokens${PINNED[pin.state]}` : "left out");
  });
}

function drawPolicy(status) {
  const { policy, batch, classes, residency } = status;
  const chosen = policy.mode === "auto" ? "chosen by load" : "fixed";
  put("policy-mode", `${MODES[batch.mode] ?? batch.mode} (${chosen})`);
  put("policy-seats", `up to ${num(batch.max_num_seqs)} requests`);
  put("policy-budget", `up to ${num(batch.max_num_batched_tokens)}`);
  put("policy-chunks", policy.chunked_prefill ? `read ${num(policy.max_chunk_tokens)} tokens at a time` : "read in one piece");
  const leaves = residency.expires_in_s == null ? "" : `, leaves in ${duration(residency.expires_in_s)}`;
  put("policy-residency", `${STAYS[residency.policy] ?? residency.policy}${leaves}`);
  put("policy-auth", ACCESS[policy.auth] ?? policy.auth);
  reconcile(byId("classes"), byId("class-row"), classes, (entry) => entry.name, (row, entry) => {
    row.dataset.tone = tone(status, entry.name);
    write(field(row, "class-name"), entry.name);
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
