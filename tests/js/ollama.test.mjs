import assert from "node:assert/strict";
import { test } from "node:test";

import { Ollama } from "ollama";

import { assertBlind, assertLight, blind, collect, light, nobodyWaits, tooLong, url } from "./house.mjs";

const client = new Ollama({ host: url });
const model = "default";
const options = { temperature: 0, num_predict: 12 };
const messages = [{ role: "user", content: "The light in the kitchen, please." }];
const chat = { model, messages, options };
const tools = [
  { type: "function", function: { name: "set_light", description: "Switch a light.", parameters: light } },
  { type: "function", function: { name: "set_blind", description: "Move a blind.", parameters: blind } },
];
const named = { tool_choice: { type: "function", function: { name: "set_blind" } }, parallel_tool_calls: false };
const forced = { ...chat, options: { ...options, num_predict: 64 }, tools, ...named };

test("a streamed chat is the whole one in lines", async () => {
  const whole = await client.chat(chat);
  const lines = await collect(await client.chat({ ...chat, stream: true }));
  assert.equal(lines.map((line) => line.message.content).join(""), whole.message.content);
  assert.deepEqual([lines.at(-1).done, lines.at(-1).done_reason], [true, whole.done_reason]);
  assert.ok(Number.isInteger(lines.at(-1).eval_duration));
  assert.equal(lines.at(-1).eval_count, whole.eval_count);
  assert.ok(!Number.isNaN(Date.parse(whole.created_at)));
});

test("a text is generated, whole and streamed", async () => {
  const body = { model, prompt: "One two three", raw: true, options };
  const whole = await client.generate(body);
  const lines = await collect(await client.generate({ ...body, stream: true }));
  assert.equal(lines.map((line) => line.response).join(""), whole.response);
  assert.equal(lines.at(-1).done, true);
});

test("the named tool is called with an object", async () => {
  const whole = await client.chat(forced);
  const [call, ...others] = whole.message.tool_calls;
  assert.deepEqual(others, []);
  assert.equal(call.function.name, "set_blind");
  assertBlind(call.function.arguments);
});

test("the named tool is called in a stream", async () => {
  const lines = await collect(await client.chat({ ...forced, stream: true }));
  const [call] = lines.flatMap((line) => line.message.tool_calls ?? []);
  assert.equal(call.function.name, "set_blind");
  assertBlind(call.function.arguments);
});

test("an answer keeps to its format", async () => {
  const body = { ...chat, options: { ...options, num_predict: 64 }, format: light };
  assertLight(JSON.parse((await client.chat(body)).message.content));
  const lines = await collect(await client.chat({ ...body, stream: true }));
  assertLight(JSON.parse(lines.map((line) => line.message.content).join("")));
  const free = await client.generate({ model, prompt: "A light as JSON:", format: light, options: body.options });
  assertLight(JSON.parse(free.response));
});

test("texts become vectors", async () => {
  const { embeddings } = await client.embed({ model, input: ["kitchen", "hall"] });
  assert.equal(embeddings.length, 2);
  assert.equal(embeddings[0].length, embeddings[1].length);
  assert.ok(embeddings[0].length > 0);
});

test("the model is listed, shown, running and pulled already", async () => {
  const { models } = await client.list();
  assert.equal(models.length, 1);
  assert.equal((await client.ps()).models[0].name, models[0].name);
  assert.ok((await client.show({ model })).capabilities.includes("completion"));
  assert.equal((await client.pull({ model })).status, "success");
  assert.deepEqual(
    (await collect(await client.pull({ model, stream: true }))).map((line) => line.status),
    ["success"],
  );
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+/);
});

test("a chat without messages loads", async () => {
  assert.equal((await client.chat({ model, messages: [] })).done_reason, "load");
});

test("errors carry Ollama's words and a status", async () => {
  const unknown = { name: "ResponseError", status_code: 404, error: "model 'nobody' not found" };
  await assert.rejects(client.chat({ ...chat, model: "nobody" }), unknown);
  await assert.rejects(client.show({ model: "nobody" }), unknown);
  for (const stream of [false, true]) {
    const body = { ...chat, stream, messages: [{ role: "user", content: tooLong }] };
    await assert.rejects(client.chat(body), { status_code: 400, message: /prompt is too long/ });
  }
  await assert.rejects(client.create({ model: "x", from: model }), { status_code: 501 });
});

test("an aborted stream ends the request", async () => {
  const stream = await client.generate({ model, prompt: "1 2 3", raw: true, stream: true, options: { num_predict: -1 } });
  await assert.rejects(async () => {
    for await (const _line of stream) stream.abort();
  }, { name: "AbortError" });
  await nobodyWaits();
});
