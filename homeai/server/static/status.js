// Keeps the page live over server-sent events: one connection, none while nobody looks, and back by itself.

import { KEY, drawControls } from "./controls.js";
import { byId, put } from "./dom.js";
import { drawFacts } from "./facts.js";
import { drawNow } from "./now.js";
import { drawPast } from "./past.js";

const QUIET_MS = 15000; // an idle server still speaks every five seconds
const RETRY_MS = 3000;

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
  drawNow(status);
  drawPast(status);
  drawFacts(status);
  drawControls(status);
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
