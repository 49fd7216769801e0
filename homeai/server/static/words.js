// Plain words for what the server says in its own.

export const STATES = {
  stopped: ["Stopped", "The model is not loaded."],
  loading: ["Loading", "The model is being loaded."],
  warming: ["Warming up", "The model is loaded and takes its first steps."],
  resident: ["Resident", "Ready."],
  draining: ["Draining", "Finishing what is running, taking nothing new."],
  sleeping: ["Asleep", "The model is not loaded."],
  yielded: ["Lent", "The model made room for other programs."],
  failed: ["Failed", "The model could not be kept running."],
};

export const WAITS = {
  token_budget: () => "for room in a coming step",
  sequence_slot: (status) => `for a seat, all ${status.batch.max_num_seqs} are taken`,
  kv_space: () => "for room in the context memory",
  class_cap: () => "for others of its class, which has all it may",
  source_cap: () => "for its source’s other requests, which have all they may",
  shared_prefix: () => "for a beginning that another request computes",
  batch_mode: () => "for the next batch",
  single_mode: () => "for its turn, one request at a time",
  not_resident: () => "for the model to load",
  paused: () => "until its class is resumed",
};

export const MODES = { continuous: "continuous, everyone in one batch", single: "single, one request at full speed",
  static: "static, one batch after another", window: "window, collect and then run a batch" };
export const ACCESS = { none: "no key needed", auto: "API key, except on this machine", keys: "API key" };
export const STAYS = { pinned: "always", schedule: "by the hours", idle: "until nobody asks for a while" };
export const RULES = { key: "Key", header: "X-HomeAI-Source", openwebui: "Open WebUI’s", address: "Address", user: "User",
  user_agent: "Program", else: "Anybody else" };
export const PINNED = { kept: "", waiting: ", not read yet", refused: ", left out" };
export const PARTS = { weights: "Weights", context: "Context (KV)", saved: "Saved context", engine: "Engine, work space",
  server: "Server", others: "Other programs", free: "Free", running: "In use", pinned: "Pinned",
  kept: "Kept for reuse", spare: "Not used" };

export const num = (value) => (value == null ? "–" : value.toLocaleString("en"));

export const count = (value, name) => `${num(value)} ${name}${value === 1 ? "" : "s"}`;
export const perSecond = (rate) => `${rate < 10 ? rate.toFixed(1) : num(Math.round(rate))} a second`;

export function bytes(value) {
  if (value == null) return "–";
  const [unit, size] = value >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return `${(value / size).toFixed(unit === "GiB" ? 1 : 0)} ${unit}`;
}

export function duration(seconds) {
  if (seconds == null) return "–";
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return s % 60 && m < 10 ? `${m} min ${s % 60} s` : `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 24) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  return h % 24 ? `${Math.floor(h / 24)} d ${h % 24} h` : `${h / 24} d`;
}

// Three digits, for what may be short.
export function exactly(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toPrecision(seconds < 10 ? 2 : 3)} s` : duration(seconds);
}

export const milliseconds = (seconds) => (seconds == null ? "–" : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`);
export const percent = (fraction) => `${Math.round(fraction * 100)} %`;
export const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const share = (part, whole) => (whole > 0 ? Math.min(Math.max(part / whole, 0), 1) : 0);

// Of Unix time; the day where it is not today's.
export function clock(at, { seconds = false } = {}) {
  const date = new Date(at * 1000);
  const day = date.toDateString() === new Date().toDateString() ? {} : { day: "numeric", month: "short" };
  return date.toLocaleString([], { ...day, hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) });
}
