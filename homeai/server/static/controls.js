// What the owner may do: /api/admin. A key is asked for only when the server wants one.

import { byId, put, reconcile, write } from "./dom.js";

export const KEY = "homeai-key"; // to look, in localStorage, so that a phone need not ask again
const ADMIN_KEY = "homeai-admin-key"; // in sessionStorage: gone with the tab
const SAID = {
  load: "The model is wanted.",
  unload: "The model leaves when what runs has ended; the next request loads it.",
  pin: "The model is wanted, and stays whatever the settings say.",
  yield: "The device is lent to other programs.",
};

let refused = null; // what was asked for without a key that will do

export function drawControls({ classes, residency }) {
  reconcile(byId("pauses"), byId("pause-button"), classes, (entry) => entry.name, (button, { name }) => {
    const isPaused = residency.paused.includes(name);
    button.dataset.class = name;
    button.dataset.paused = isPaused ? "yes" : "";
    write(button, `${isPaused ? "Resume" : "Pause"} ${name}`);
  });
}

async function ask(what, fields = {}, says = SAID[what]) {
  const key = sessionStorage.getItem(ADMIN_KEY) ?? localStorage.getItem(KEY);
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(`api/admin/${what}`, { method: "POST", headers, body: JSON.stringify(fields) });
  if (response.status === 401 || response.status === 403) return refuse(what, fields, says, response.status);
  byId("admin").close();
  const body = await response.json();
  put("control-said", response.ok ? says : (body.error?.message ?? `The server answered ${response.status}.`));
}

function refuse(what, fields, says, code) {
  const had = sessionStorage.getItem(ADMIN_KEY) !== null;
  sessionStorage.removeItem(ADMIN_KEY);
  refused = [what, fields, says];
  put("admin-said", !had ? "" : code === 403 ? "This key is not an admin’s." : "This key is not accepted.");
  byId("admin-key").value = "";
  if (!byId("admin").open) byId("admin").showModal();
  byId("admin-key").focus();
}

const failed = () => put("control-said", "The server could not be asked.");

function clicked({ target }) {
  const { do: what } = target.dataset;
  if (what) {
    const seconds = byId("yield-for").value;
    ask(what, what === "yield" && seconds ? { seconds: Number(seconds) } : {}).catch(failed);
  }
  const { class: name } = target.dataset;
  if (!name) return;
  const isPaused = target.dataset.paused === "yes";
  const says = isPaused ? `${name} goes on.` : `New requests of ${name} wait; what runs goes on.`;
  ask(isPaused ? "resume" : "pause", { class: name }, says).catch(failed);
}

const hasRoom = matchMedia("(min-width: 60rem)");
const unfold = () => (byId("controls").open ||= hasRoom.matches); // where it cannot be unfolded by hand
byId("controls").open = hasRoom.matches;
hasRoom.addEventListener("change", unfold);
byId("controls").addEventListener("click", clicked);
byId("admin-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(ADMIN_KEY, byId("admin-key").value.trim());
  ask(...refused).catch(failed);
});
byId("admin-cancel").addEventListener("click", () => byId("admin").close());
