import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import { assertBlind, assertLight, blind, collect, light, nobodyWaits, tooLong, url } from "./house.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "unused" });
const model = "claude-of-the-house";
const messages = [
  { role: "user", content: "1 2 3 4 5 6 7 8" },
  { role: "assistant", content: "9 10 11 12" }, // goes on for as long as one lets it
];
const ask = { model, messages, max_tokens: 12, temperature: 0 };
const tools = [
  { name: "set_light", description: "Switch a light.", input_schema: light },
  { name: "set_blind", description: "Move a blind.", input_schema: blind },
];
const question = [{ role: "user", content: "The blind in the kitchen, please." }];
const one = { type: "tool", name: "set_blind", disable_parallel_tool_use: true };
const forced = { ...ask, messages: question, max_tokens: 64, tools, tool_choice: one };

test("a streamed message is the whole one in events", async () => {
  const whole = await client.messages.create(ask);
  const events = await collect(await client.messages.create({ ...ask, stream: true }));
  const text = events.filter((event) => event.type === "content_block_delta").map((event) => event.delta.text);
  assert.equal(text.join(""), whole.content[0].text);
  assert.deepEqual([events[0].type, events.at(-1).type], ["message_start", "message_stop"]);
  assert.deepEqual([whole.stop_reason, whole.stop_sequence], ["max_tokens", null]);
  assert.equal(whole.usage.output_tokens, 12);
});

test("the stream helper puts the whole message together", async () => {
  const stream = client.messages.stream(ask);
  const heard = [];
  stream.on("text", (delta) => heard.push(delta));
  const final = await stream.finalMessage();
  assert.equal(heard.join(""), final.content[0].text);
  assert.equal(final.usage.output_tokens, 12);
});

test("a stop sequence is honoured and reported", async () => {
  const final = await client.messages.create({ ...ask, max_tokens: 40, stop_sequences: ["15"] });
  assert.deepEqual([final.stop_reason, final.stop_sequence], ["stop_sequence", "15"]);
});

test("the named tool is called, whole and streamed", async () => {
  for (const final of [await client.messages.create(forced), await client.messages.stream(forced).finalMessage()]) {
    const [call] = final.content.filter((block) => block.type === "tool_use");
    assert.equal(call.name, "set_blind");
    assertBlind(call.input);
    assert.equal(final.stop_reason, "tool_use");
  }
});

test("an answer keeps to its format", async () => {
  const output_config = { format: { type: "json_schema", schema: light } };
  const final = await client.messages.create({ ...ask, messages: question, max_tokens: 64, output_config });
  assertLight(JSON.parse(final.content[0].text));
});

test("tokens are counted", async () => {
  const few = await client.messages.countTokens({ model, messages });
  const more = await client.messages.countTokens({ model, messages, tools, system: "A house." });
  assert.ok(few.input_tokens > 0 && more.input_tokens > few.input_tokens);
});

test("the models are listed page by page", async () => {
  const listed = await collect(await client.models.list());
  assert.equal(listed.length, 1);
  assert.equal((await client.models.retrieve(listed[0].id)).type, "model");
});

test("errors are the SDK's own classes", async () => {
  await assert.rejects(client.messages.create({ ...ask, model: "nobody" }), Anthropic.NotFoundError);
  const body = { ...ask, messages: [{ role: "user", content: tooLong }] };
  for (const stream of [false, true]) {
    await assert.rejects(client.messages.create({ ...body, stream }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.match(error.message, /prompt is too long: (at least )?\d+ tokens > \d+ maximum/);
      assert.equal(error.error.error.type, "invalid_request_error");
      assert.ok(error.requestID);
      return true;
    });
  }
  const undeclared = { ...forced, tool_choice: { type: "tool", name: "set_oven" } };
  await assert.rejects(client.messages.create(undeclared), /set_oven/);
});

test("an aborted stream ends the request", async () => {
  const stream = client.messages.stream({ ...ask, max_tokens: 4000 });
  stream.on("text", () => stream.abort());
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  await nobodyWaits();
});
