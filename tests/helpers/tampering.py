"""Inside a real vLLM server, between it and its guard: spoils what it has sampled, as a file says."""

import json
import os
from pathlib import Path


def choices(change):
    def spoil(body):
        reply = json.loads(body)
        change(reply["choices"])
        return json.dumps(reply).encode()

    return spoil


def tokens(change):
    """Changes the first response's ids and log-probabilities alike."""
    return choices(lambda found: change(found[0], found[0]["logprobs"]["content"]))


def rename(choice, content, token):
    choice["token_ids"][0] = content[0]["token_id"] = token


def shorten(choice, content):
    del choice["token_ids"][-1], content[-1]


def lengthen(choice, content):
    content += content[-1:] * 200
    choice["token_ids"] += choice["token_ids"][-1:] * 200


def prepend(choice, content):
    """An end token where the response goes on."""
    last = content[-1]["token_id"]
    rename(choice, content, last)


SPOILS = {
    "seven choices": choices(lambda found: found.pop()),
    "nine choices": choices(lambda found: found.append({**found[0], "index": len(found)})),
    "one choice": choices(lambda found: found.__delitem__(slice(1, None))),
    "a number twice": choices(lambda found: found[1].update(index=0)),
    "a number beyond": choices(lambda found: found[1].update(index=99)),
    "token -1": tokens(lambda choice, content: rename(choice, content, -1)),
    "token beyond the vocabulary": tokens(lambda choice, content: rename(choice, content, 10**6)),
    "token 3.5": tokens(lambda choice, content: rename(choice, content, 3.5)),
    "token true": tokens(lambda choice, content: rename(choice, content, True)),
    "too few log-probabilities": tokens(lambda choice, content: content.pop()),
    "no log-probabilities": tokens(lambda choice, content: choice.update(logprobs=None)),
    "log-probabilities of other tokens": tokens(lambda choice, content: content[0].update(token_id=5)),
    "a positive log-probability": tokens(lambda choice, content: content[0].update(logprob=0.5)),
    "a log-probability that is text": tokens(lambda choice, content: content[0].update(logprob="x")),
    "NaN": tokens(lambda choice, content: content[0].update(logprob=float("nan"))),
    "Infinity": tokens(lambda choice, content: content[0].update(logprob=float("-inf"))),
    "1e999": lambda body: body.replace(b'"logprob":-', b'"logprob":-1e999,"was":', 1),
    "an end before the end": tokens(prepend),
    "no end": tokens(shorten),
    "longer than asked for": tokens(lengthen),
    "nothing": tokens(lambda choice, content: (choice.update(token_ids=[]), content.clear())),
    "no JSON": lambda body: b"<html>Bad Gateway</html>",
    "a list": lambda body: b"[]",
    "an empty body": lambda body: b"",
    "half of it": lambda body: body[: len(body) // 2],
    "bad UTF-8": lambda body: body.replace(b"choices", b"cho\xffces", 1),
    "names twice": lambda body: body[:-1] + b',"choices":[]}',
    "deep nesting": lambda body: b"[" * 200_000 + b"]" * 200_000,
    "a digit too many": lambda body: b"9" * 10_000,
    "10 MB more": lambda body: body[:-1] + b',"x":"' + b"x" * 10**7 + b'"}',
}


class Tamper:
    """``TAMPERING`` names a file: what is to be spoilt, and how often."""

    def __init__(self, app):
        self.app, self.file = app, Path(os.environ["TAMPERING"])

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] != "/inference/v1/generate" or not self.file.exists():
            return await self.app(scope, receive, send)
        kind, left = json.loads(self.file.read_text())
        if left <= 0:
            return await self.app(scope, receive, send)
        self.file.write_text(json.dumps([kind, left - 1]))
        parts, start = [], {}

        async def hold(message):
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                start["headers"] = [pair for pair in start["headers"] if pair[0] != b"content-length"]
                await send(start)
                await send({"type": "http.response.body", "body": SPOILS[kind](b"".join(parts))})

        await self.app(scope, receive, hold)
