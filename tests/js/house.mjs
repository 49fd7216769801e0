// What the scripts share: where the daemon is, a tool whose call can be forced, and when nobody is being answered.
import assert from "node:assert/strict";

export const url = process.env.HOMEAI_URL;
assert.ok(url, "HOMEAI_URL says where the daemon is");

export const light = {
  type: "object",
  properties: { room: { enum: ["kitchen", "hall"] }, on: { type: "boolean" } },
  required: ["room", "on"],
  additionalProperties: false,
};
export const blind = { ...light, properties: { room: { enum: ["kitchen", "hall"] }, on: { enum: [3] } } };
export const tooLong = "long ".repeat(200_000);

export function assertLight(value) {
  assert.deepEqual(Object.keys(value).sort(), ["on", "room"]);
  assert.ok(light.properties.room.enum.includes(value.room));
  assert.equal(typeof value.on, "boolean");
}

export function assertBlind(value) {
  assert.ok(blind.properties.room.enum.includes(value.room));
  assert.equal(value.on, 3);
}

/** Resolves once no request is live: whoever left was let go. */
export async function nobodyWaits() {
  for (let tries = 0; tries < 600; tries += 1) {
    const status = await (await fetch(`${url}/api/status`)).json();
    if (status.requests.length === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("a request outlived its client");
}

export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}
