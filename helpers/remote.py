"""A model behind a server that speaks OpenAI's chat completions: vLLM, llama.cpp, Ollama, or a hosted model.

`generator` is to such a server what `helpers.models.generator` is to a model in this process. A server that fails is no bad
reply, so it raises. The key is never an argument: a secret is named, and what it holds goes into the request's header only.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx

from helpers import machine
from helpers.presets import Preset
from helpers.replies import MAX_LENGTH

PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before the second try, doubled before each further one; and at most
NO_DUMMY = 8  # characters; a shorter key, as local servers are given for form's sake, is not looked for in their replies
# Beyond the standard, because servers would else take their own settings or the model's (see Preset.sampling). vLLM and llama.cpp
# know these, Ollama ignores them and goes by its Modelfile, hosted models often refuse them.
LOCAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}


class RemoteError(RuntimeError):
    """A server did not answer as expected; the message says what to do."""


def generator(
    url: str,
    model: str,
    preset: Preset,
    secret: str = "",
    seed: int = 0,
    extra: Mapping = LOCAL,
    at_once: int = 8,
    timeout: float = 60.0,
    tries: int = 4,
) -> Callable[[Sequence], list[str]]:
    """A function that answers any number of chats with replies sampled as `preset` says, `at_once` at a time, in their order.

    url: as in "http://localhost:8000/v1". secret: the name of the secret that holds the key ("": none is sent). seed: of the
    replies, where the server heeds it. extra: further fields of a request; they replace others, and None leaves one out:
    `extra={}` suits most hosted models. timeout: seconds for which the server may be silent. tries: how often at most a chat
    is sent, when the server is busy, fails or cannot be reached.

    Raises ValueError for a bad url or secret; the function raises RemoteError. An empty reply is one only where the model
    stopped by itself, else no text was left.
    """
    server = Server(url, secret, timeout, tries)
    sampling = {
        "temperature": preset.sampling["temperature"],
        "top_p": preset.sampling["top_p"],
        "max_tokens": preset.sampling["max_new_tokens"],
    }
    sent = 0

    def generate(chats: Sequence) -> list[str]:
        nonlocal sent
        bodies = []
        for number, chat in enumerate(chats, sent):  # equal prompts must not get equal luck
            luck = {"seed": (seed * 1_000_003 + number) % 2**31}
            body = {"model": model, "messages": list(chat), **sampling, **luck, **extra}
            bodies.append({name: value for name, value in body.items() if value is not None})
        pool, over = ThreadPoolExecutor(at_once), Event()
        try:
            replies = list(pool.map(lambda body: server.reply(body, over), bodies))
        finally:  # after an error or an interrupt nothing more is sent
            over.set()
            pool.shutdown(cancel_futures=True)
        sent += len(chats)
        return replies

    return generate


class Server:
    """Asks one server. Safe to be used by several threads."""

    def __init__(self, url: str, secret: str, timeout: float, tries: int):
        if not re.fullmatch(r"https?://[^@?#\s]+", url):  # not quoted: a key may stand in it
            raise ValueError("expected url like http://localhost:8000/v1, without user, key or query in it")
        self.url, self.secret, self.timeout, self.tries = url.rstrip("/"), secret, timeout, tries
        self._key = key_in(secret) if secret else ""
        headers = {"Authorization": f"Bearer {self._key}"} if secret else {}
        self._client = httpx.Client(base_url=url, headers=headers | {"Content-Type": "application/json"}, timeout=timeout)

    def reply(self, body: Mapping, over: Event) -> str:
        """The reply to one chat. Raises RemoteError after `tries` failures, or at once where another try cannot help."""
        for tried in range(1, self.tries + 1):
            wait = ""
            try:
                response = self._client.post("chat/completions", content=json.dumps(body))
            except httpx.TimeoutException:
                failure = f"expected {self.url} to answer within {self.timeout:g} s, got nothing: raise timeout, or lower at_once"
            except httpx.RequestError as error:
                got = self._shown(f"{type(error).__name__}: {error}")
                failure = f"expected a server at {self.url}, got {got}: start it, or correct url"
            else:
                if response.status_code < 300:
                    return self._text(response, body)
                failure = self._refusal(response, body)
                if response.status_code not in (408, 429) and response.status_code < 500:
                    raise RemoteError(failure)
                wait = response.headers.get("retry-after", "")
            pause = max(PAUSE * 2 ** (tried - 1), float(wait) if wait.isdecimal() else 0.0)
            if tried == self.tries or over.wait(min(pause, LONGEST_PAUSE)):
                break
        raise RemoteError(f"{failure} (tried {tried} times)")

    def _text(self, response: httpx.Response, body: Mapping) -> str:
        """The text in an answer, cut where `replies.read` would refuse it anyway."""
        try:
            choice = json.loads(self._without_key(response.text))["choices"][0]
            text, why = choice["message"].get("content"), choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            text = self._shown(response.text)
            raise RemoteError(
                f"expected a chat completion (JSON with choices) from {self.url}, got {text}: a url usually ends in /v1"
            ) from None
        if not isinstance(text, str) or (not text and why != "stop"):
            mend = "a model that thinks first needs more max_new_tokens, or a field in extra that switches it off"
            raise RemoteError(f"expected text from {body['model']!r}, got none (finish_reason {self._shown(str(why))}): {mend}")
        return self._without_key(text)[: MAX_LENGTH + 1]

    def _refusal(self, response: httpx.Response, body: Mapping) -> str:
        """Why the server refused, and what to do."""
        status = response.status_code
        if status in (401, 403):  # its text is not quoted: it may hold a part of the key
            mend = f"correct the key in secret {self.secret}" if self.secret else "name the secret that holds its key"
            return f"expected {self.url} to let us in, got HTTP {status}: {mend}"
        said = self._shown(response.text)
        if status == 404:
            models = self._models()
            if models is None:
                return f"expected chat completions below {self.url}, got HTTP 404 ({said}): a url usually ends in /v1"
            if body["model"] not in models:
                names = self._shown(", ".join(models))
                return f"expected model to be one that {self.url} has ({names}), got {body['model']!r}"
        if status in (400, 422):
            mend = 'extra={} sends only standard fields, and a None in it, as in {"seed": None}, leaves one of those out'
            return f"expected {self.url} to take the request, got HTTP {status} ({said}): {mend}"
        return f"expected an answer from {self.url}, got HTTP {status} ({said})"

    def _models(self) -> list[str] | None:
        """The names of the server's models; None when it does not tell."""
        try:
            return [str(found["id"]) for found in json.loads(self._client.get("models").content)["data"]]
        except (httpx.RequestError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _shown(self, text: str) -> str:
        """The beginning of a server's text, for an error message: quoted, without the key."""
        return repr(" ".join(self._without_key(text).split())[:300])

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= NO_DUMMY else text


def key_in(secret: str) -> str:
    """The key that a secret holds. Raises ValueError, which quotes neither."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", secret):
        raise ValueError("expected secret to be the name of a secret in capitals, such as OPENAI_API_KEY, and not the key itself")
    key = (machine.secret(secret) or "").strip()
    if not key:
        raise ValueError(f"expected a key in secret {secret}, got none: add it to the platform's secrets or to the environment")
    if not re.fullmatch(r"[!-~]+", key):
        raise ValueError(f"expected the key in secret {secret} to be plain characters without spaces; copy it once more")
    return key
