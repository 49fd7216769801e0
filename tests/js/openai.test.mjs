import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { assertBlind, assertLight, blind, collect, light, nobodyWaits, tooLong, url } from "./house.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
const model = "default";
const messages = [{ role: "user", content: "The light in the kitchen, please." }];
const chat = { model, messages, temperature: 0, max_tokens: 12 };
const tools = [
  { type: "function", function: { name: "set_light", description: "Switch a light.", parameters: light } },
  { type: "function", function: { name: "set_blind", description: "Move a blind.", parameters: blind } },
];
const named = { type: "function", function: { name: "set_blind" } };
const forced = { ...chat, max_tokens: 64, tools, tool_choice: named, parallel_tool_calls: false };

test("a streamed chat is the whole one in pieces", async () => {
  const whole = await client.chat.completions.create(chat);
  const stream = await client.chat.completions.create({
    ...chat,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = await collect(stream);
  const text = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta.content ?? "");
  assert.equal(text.join(""), whole.choices[0].message.content);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.ok(whole._request_id);
});

test("the stream helper puts the whole chat together", async () => {
  const runner = client.chat.completions.stream(chat);
  const heard = [];
  runner.on("content", (delta) => heard.push(delta));
  const final = await runner.finalChatCompletion();
  assert.equal(heard.join(""), final.choices[0].message.content);
  assert.equal(final.choices[0].finish_reason, "length");
});

test("the named tool is called, and no other", async () => {
  const whole = await client.chat.completions.create(forced);
  const [call, ...others] = whole.choices[0].message.tool_calls;
  assert.deepEqual(others, []);
  assert.equal(call.function.name, "set_blind");
  assertBlind(JSON.parse(call.function.arguments));
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
});

test("the named tool is called in a stream", async () => {
  const final = await client.chat.completions.stream(forced).finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "set_blind");
  assert.ok(call.id);
  assertBlind(JSON.parse(call.function.arguments));
  assert.equal(final.choices[0].finish_reason, "tool_calls");
});

test("a tool that nobody declared is refused by name", async () => {
  const body = { ...forced, tool_choice: { type: "function", function: { name: "set_oven" } } };
  await assert.rejects(client.chat.completions.create(body), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /set_oven/);
    return true;
  });
});

test("an answer keeps to its schema, whole and streamed", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "light", strict: true, schema: light } };
  const body = { ...chat, max_tokens: 64, response_format };
  const whole = await client.chat.completions.create(body);
  assertLight(JSON.parse(whole.choices[0].message.content));
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  assertLight(JSON.parse(streamed.choices[0].message.content));
});

test("a text is continued, twice if asked", async () => {
  const body = { model, prompt: "One two three", max_tokens: 4, n: 2, seed: 7 };
  const whole = await client.completions.create(body);
  assert.deepEqual(whole.choices.map((choice) => choice.index).sort(), [0, 1]);
  const chunks = await collect(await client.completions.create({ ...body, n: 1, stream: true }));
  assert.ok(chunks.some((chunk) => chunk.choices[0]?.text));
});

test("a response streams every event up to its completion", async () => {
  const body = { model, input: "Name a herb.", max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(body);
  const stream = client.responses.stream(body);
  const events = await collect(stream);
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, index) => index),
  );
  assert.equal(events[0].type, "response.created");
  assert.match(events.at(-1).type, /^response\.(completed|incomplete)$/);
  assert.equal((await stream.finalResponse()).output_text, whole.output_text);
});

test("a response calls the named tool", async () => {
  const flat = tools.map((tool) => ({ type: "function", ...tool.function, strict: true }));
  const body = { model, input: "Move the blind.", tools: flat, tool_choice: { type: "function", name: "set_blind" } };
  const whole = await client.responses.create({ ...body, temperature: 0, max_output_tokens: 64 });
  const call = whole.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "set_blind");
  assertBlind(JSON.parse(call.arguments));
});

test("a response keeps to its schema", async () => {
  const text = { format: { type: "json_schema", name: "light", strict: true, schema: light } };
  const body = { model, input: "The light?", text, temperature: 0, max_output_tokens: 64 };
  assertLight(JSON.parse((await client.responses.create(body)).output_text));
});

test("embeddings are the same numbers in both encodings", async () => {
  const packed = await client.embeddings.create({ model, input: ["kitchen", "hall"] }); // base64 on the wire
  const plain = await client.embeddings.create({ model, input: ["kitchen", "hall"], encoding_format: "float" });
  assert.equal(packed.data.length, 2);
  packed.data.forEach((item, i) => {
    assert.equal(item.embedding.length, plain.data[i].embedding.length);
    item.embedding.forEach((x, j) => assert.ok(Math.abs(x - plain.data[i].embedding[j]) < 1e-3));
  });
});

test("the models are listed page by page, and found", async () => {
  const listed = await collect(await client.models.list());
  assert.equal(listed.length, 1);
  assert.equal((await client.models.retrieve(listed[0].id)).id, listed[0].id);
});

test("errors are the SDK's own classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...chat, model: "nobody" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  for (const stream of [false, true]) {
    const body = { ...chat, stream, messages: [{ role: "user", content: tooLong }] };
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.code, "context_length_exceeded");
      assert.ok(error.requestID);
      return true;
    });
  }
  await assert.rejects(client.chat.completions.create({ ...chat, temperature: 5 }), { status: 400, param: "temperature" });
});

test("an aborted stream ends the request", async () => {
  const stream = await client.chat.completions.create({ ...chat, max_tokens: 4000, ignore_eos: true, stream: true });
  let heard = 0;
  for await (const _chunk of stream) {
    heard += 1;
    if (heard === 3) stream.controller.abort();
  }
  assert.ok(heard >= 3 && heard < 4000);
  await nobodyWaits();
});

test("an aborted call ends the request", async () => {
  const leaves = new AbortController();
  const body = { ...chat, max_tokens: 4000, ignore_eos: true };
  const call = client.chat.completions.create(body, { signal: leaves.signal });
  leaves.abort();
  await assert.rejects(call, OpenAI.APIUserAbortError);
  await nobodyWaits();
});
