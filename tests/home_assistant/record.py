"""Runs the integrations of a wheel against answers from a script, and keeps the requests that they make.

python -m tests.home_assistant.record WHEEL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.home_assistant.exchanges import FOLDER, Exchange
from tests.home_assistant.house import House
from tests.home_assistant.relay import Answer, Relay, Request
from tests.home_assistant.wheel import Wheel

CALLS = [("HassTurnOn", {"area": "kitchen", "domain": ["light"]}), ("GetLiveContext", {"area": "kitchen"})]
SENTENCES = "Light in the kitchen, please. How warm is it there?", "Thanks! Anything else on?"
SPOKEN = "It is on, and 21.5 °C there."
DATA = {"room": "hall", "lit": True, "light": "half"}
KEY = "sk-0000000000000000000"


async def record(path: Path) -> dict[str, list[Request]]:
    """Requests by what they are part of."""
    house, told = House(path), {}
    try:
        with Relay(ollama_answer) as relay:
            entry = await house.set_up("ollama", {"url": relay.url})
            told["ollama-set-up"] = relay.seen[:]
            relay.seen.clear()
            await house.say("ollama", entry, *SENTENCES)
            told["ollama-conversation"] = relay.seen[:]
            relay.seen.clear()
            await house.make("ollama", entry, house.task(), think=False, keep_alive=300)
            told["ollama-task"] = relay.seen[:]
        with Relay(openai_answer) as relay:
            os.environ["OPENAI_BASE_URL"] = f"{relay.url}/v1"
            entry = await house.set_up("openai_conversation", {"api_key": KEY})
            told["openai-set-up"] = relay.seen[:]
            relay.seen.clear()
            await house.say("openai_conversation", entry, *SENTENCES, max_tokens=300)
            told["openai-conversation"] = relay.seen[:]
            relay.seen.clear()
            await house.make("openai_conversation", entry, house.task(), max_tokens=500)
            told["openai-task"] = relay.seen[:]
    finally:
        await house.close()
    return told


def awaits_calls(request: Request) -> bool:
    """Its last message is the first one of a person, and there are tools."""
    body = request.json
    messages = body.get("messages") or body.get("input")
    return (
        bool(body.get("tools")) and [message.get("role") for message in messages][-1:] == ["user"] and len(messages) < 3
    )


def text_for(request: Request) -> str:
    body = request.json
    return json.dumps(DATA) if body.get("format") or body.get("text") else SPOKEN


def ollama_answer(request: Request) -> Answer:
    if request.path == "/api/tags":
        model = {"name": "default", "model": "default", "size": 1, "digest": "0", "details": {}}
        return Answer(200, "application/json", [json.dumps({"models": [model]}).encode()])
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if awaits_calls(request):
        message["tool_calls"] = [{"function": {"name": name, "arguments": arguments}} for name, arguments in CALLS]
    else:
        message["content"] = text_for(request)
    base = {"model": "default", "created_at": "2026-02-14T07:30:00Z"}
    end = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    lines = [base | {"message": message, "done": False}, base | end]
    return Answer(200, "application/x-ndjson", [json.dumps(line).encode() + b"\n" for line in lines])


def openai_answer(request: Request) -> Answer:
    events = enumerate(openai_events(request))
    pieces = [
        f"event: {event['type']}\ndata: {json.dumps(event | {'sequence_number': number})}\n\n".encode()
        for number, event in events
    ]
    return Answer(200, "text/event-stream", pieces)


def openai_events(request: Request) -> Iterator[dict[str, Any]]:
    response = {"id": "resp_1", "object": "response", "created_at": 0, "model": "default", "output": [], "usage": None}
    yield {"type": "response.created", "response": response | {"status": "in_progress"}}
    if awaits_calls(request):
        for index, (name, arguments) in enumerate(CALLS):
            written = json.dumps(arguments, separators=(",", ":"))
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}", "name": name}
            place = {"output_index": index, "item_id": item["id"]}
            yield {"type": "response.output_item.added", "output_index": index, "item": item | {"arguments": ""}}
            yield {"type": "response.function_call_arguments.delta", "delta": written} | place
            yield {"type": "response.function_call_arguments.done", "arguments": written, "name": name} | place
            yield {"type": "response.output_item.done", "output_index": index, "item": item | {"arguments": written}}
    else:
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
        place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.output_text.delta", "delta": text_for(request), "logprobs": []} | place
        yield {"type": "response.output_item.done", "output_index": 0, "item": item | {"status": "completed"}}
    yield {"type": "response.completed", "response": response | {"status": "completed"}}


def main() -> None:
    path = Path(sys.argv[1])
    with Wheel(path) as wheel:
        version = wheel.version
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for part, requests in asyncio.run(record(path)).items():
        for number, request in enumerate(requests, 1):
            Exchange.of(request, version).write(FOLDER / f"{part}-{number}.json")
        print(f"{part}: {len(requests)}")


if __name__ == "__main__":
    main()
