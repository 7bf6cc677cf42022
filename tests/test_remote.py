"""Models behind a server: a stub on loopback answers late, never, with errors and with nonsense. The key stays hidden."""

import json
import logging
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers import remote
from helpers.games.bargaining import Bargaining
from helpers.games.market import Market
from helpers.players import Model, random_player
from helpers.presets import PRESETS
from helpers.replies import MAX_LENGTH
from helpers.rollout import append, messages_of, play

KEY = "sk-0123456789abcdef"
PRESET = replace(PRESETS["smollm2"], temperature=0.9, max_new_tokens=40)
CHATS = [({"role": "system", "content": "Trade."}, {"role": "user", "content": f"prompt {i}"}) for i in range(8)]


def completion(text, **more):
    """An answer as servers give it."""
    message = {"role": "assistant", "content": text}
    return 200, {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"} | more], "usage": {}}


def echo(body, number):
    return completion(f"reply to {body['messages'][-1]['content']}")


class Stub(ThreadingHTTPServer):
    """Answers chat completions with `answer(body, number of the request)`: (status, JSON or text, headers if any)."""

    daemon_threads, request_queue_size = True, 64
    models = {"data": [{"id": "small"}, {"id": "large"}]}

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked, self.answer, self.lock, self.now, self.most = [], echo, threading.Lock(), 0, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send(200, self.server.models) if self.path == "/v1/models" else self.send(404, {"detail": "Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            return self.send(404, {"detail": "Not Found"})
        with self.server.lock:
            self.server.asked.append((body, self.headers["Authorization"]))
            number = len(self.server.asked)
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        answer = self.server.answer(body, number)
        with self.server.lock:
            self.server.now -= 1
        self.send(*answer)

    def send(self, status, data, headers=()):
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        with suppress(ConnectionError):  # whoever asked may have given up
            self.send_response(status)
            for name, value in {"Content-Length": len(content), **dict(headers)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    for name in ("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")  # as it is when a line is copied
    return "MY_KEY"


def fails(stub, **given):
    """The message with which asking `stub` fails."""
    with pytest.raises(remote.RemoteError) as caught:
        remote.generator(given.pop("url", stub.url), given.pop("model", "small"), PRESET, **given)(CHATS[:1])
    return str(caught.value)


def test_a_request_holds_the_chat_and_the_presets_sampling_and_nothing_is_left_to_the_server(stub):
    assert remote.generator(stub.url, "small", PRESET)(CHATS[:1]) == ["reply to prompt 0"]
    [(body, header)] = stub.asked
    assert header is None  # no secret was named, so no key is sent
    assert body.pop("seed") == 0 and body == {
        "model": "small",
        "messages": list(CHATS[0]),
        "temperature": 0.9,
        "top_p": 1.0,
        "max_tokens": 40,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "repeat_penalty": 1.0,
    }


def test_fields_are_added_replaced_and_left_out_by_extra(stub):
    extra = {"max_tokens": None, "max_completion_tokens": 500, "temperature": 1.0}
    remote.generator(stub.url, "small", PRESET, extra=extra)(CHATS[:1])
    [(body, _)] = stub.asked
    assert set(body) == {"model", "messages", "top_p", "seed", "max_completion_tokens", "temperature"}
    assert body["max_completion_tokens"] == 500 and body["temperature"] == 1.0


def test_equal_prompts_get_luck_of_their_own_and_the_same_calls_the_same_luck(stub):
    def seeds(seed):
        stub.asked.clear()
        generate = remote.generator(stub.url, "small", PRESET, seed=seed, at_once=1)
        generate(CHATS[:1] * 3)
        generate(CHATS[:1] * 2)
        return [body["seed"] for body, _ in stub.asked]

    first = seeds(0)
    assert len(set(first)) == 5 and seeds(0) == first and not set(first) & set(seeds(1))


def test_replies_stand_in_the_order_of_the_chats_although_answers_arrive_in_another(stub):
    arrived, gate = [], threading.Barrier(len(CHATS))

    def backwards(body, number):
        gate.wait(60)  # all have been asked
        place = int(body["messages"][-1]["content"].split()[1])
        deadline = time.monotonic() + 60
        while len(arrived) < len(CHATS) - 1 - place and time.monotonic() < deadline:
            time.sleep(0.001)
        arrived.append(place)
        return echo(body, number)

    stub.answer = backwards
    assert remote.generator(stub.url, "small", PRESET)(CHATS) == [f"reply to prompt {i}" for i in range(8)]
    assert arrived == list(range(7, -1, -1))


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_requests_are_under_way_than_at_once(stub, at_once):
    together = threading.Barrier(at_once)

    def answer(body, number):
        if number <= at_once:
            together.wait(60)
        return echo(body, number)

    stub.answer = answer
    remote.generator(stub.url, "small", PRESET, at_once=at_once)(CHATS)
    assert stub.most == at_once


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_that_fails_twice_is_asked_a_third_time_with_the_same_request(stub, status):
    stub.answer = lambda body, number: (status, {"error": {"message": "busy"}}) if number < 3 else echo(body, number)
    assert remote.generator(stub.url, "small", PRESET)(CHATS[:1]) == ["reply to prompt 0"]
    assert len(stub.asked) == 3 and stub.asked[0] == stub.asked[1] == stub.asked[2]


def test_a_broken_connection_is_tried_again(stub):
    stub.answer = lambda body, number: (*echo(body, number), {"Content-Length": 9999} if number == 1 else {})
    assert remote.generator(stub.url, "small", PRESET)(CHATS[:1]) == ["reply to prompt 0"]
    assert len(stub.asked) == 2


def test_pauses_double_and_are_as_long_as_the_server_asks_for_within_reason(stub, monkeypatch):
    pauses = []

    class Patient(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)

    monkeypatch.setattr(remote, "Event", Patient)
    headers = [{}, {}, {"Retry-After": "7"}, {"Retry-After": "86400"}, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}, {}]
    stub.answer = lambda body, number: (429, {}, headers[number - 1])
    assert "HTTP 429" in fails(stub, tries=6)
    assert pauses == [0.01, 0.02, 7.0, 30.0, 0.16]  # none after the last try


def test_a_server_that_keeps_failing_is_an_error_that_quotes_it(stub):
    stub.answer = lambda body, number: (503, {"error": {"message": "Loading model"}})
    said = fails(stub, tries=3)
    assert len(stub.asked) == 3 and "HTTP 503" in said and "Loading model" in said and said.endswith("(tried 3 times)")


def test_a_server_that_hangs_is_given_up_after_the_time_out_and_not_asked_for_the_rest(stub):
    released = threading.Event()
    stub.answer = lambda body, number: released.wait(60) and echo(body, number)
    with pytest.raises(remote.RemoteError) as caught:
        remote.generator(stub.url, "small", PRESET, timeout=0.2, tries=2, at_once=2)(CHATS)
    released.set()
    assert "within 0.2 s, got nothing: raise timeout" in str(caught.value)
    assert len(stub.asked) < 2 * len(CHATS)


@pytest.fixture
def interrupts():
    """Ctrl-C interrupts, also where the tests were started in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_after_an_interrupt_nothing_more_is_sent(stub, interrupts, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 60.0)  # whoever waits for this pause fails the test

    def interrupt(body, number):
        os.kill(os.getpid(), signal.SIGINT)
        return 500, {}

    stub.answer = interrupt
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        remote.generator(stub.url, "small", PRESET, at_once=1)(CHATS)
    assert time.monotonic() - start < 60 and len(stub.asked) == 1


def test_without_a_server_the_address_is_named(stub):
    url = stub.url
    stub.server_close()
    said = fails(stub, url=url)
    assert f"expected a server at {url}, got 'ConnectError" in said and "start it, or correct url (tried 4 times)" in said


def test_a_wrong_path_an_unknown_model_and_a_refused_field_are_told_apart(stub):
    assert 'got HTTP 404 (\'{"detail": "Not Found"}\'): a url usually ends in /v1' in fails(stub, url=stub.url[:-3])
    stub.answer = lambda body, number: (404, {"error": {"message": "no such model"}})
    assert fails(stub, model="huge") == f"expected model to be one that {stub.url} has ('small, large'), got 'huge'"
    stub.answer = lambda body, number: (400, {"error": {"message": "Unrecognized request argument supplied: top_k"}})
    assert "argument supplied: top_k" in (said := fails(stub)) and "extra={}" in said
    stub.answer = lambda body, number: (301, b"", {"Location": "http://127.0.0.1:1/elsewhere"})
    assert "got HTTP 301" in fails(stub)  # and nobody was followed elsewhere with a key
    assert len(stub.asked) == 3  # none of these is tried twice


@pytest.mark.parametrize("models", [{"data": 1}, [], {"data": ["small"]}])
def test_a_list_of_models_that_cannot_be_read_is_no_second_error(stub, models):
    stub.models = models
    stub.answer = lambda body, number: (404, {})
    assert "HTTP 404" in fails(stub)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>Welcome to the hotel's network</html>",
        b'{"choices": [{"message": {"content": "cut',
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b"null",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": "many"}',
        b'{"choices": [{"text": "of the older interface"}]}',
        b'{"choices": [{"message": "text"}]}',
        b'{"choices": [["message"]]}',
        b'{"error": {"message": "model crashed"}}',
    ],
)
def test_garbage_in_an_answer_is_an_error_that_quotes_its_beginning(stub, answer):
    stub.answer = lambda body, number: (200, answer)
    said = fails(stub)
    assert said.startswith("expected a chat completion (JSON with choices) from http://127.0.0.1") and len(said) < 1500
    assert len(stub.asked) == 1


@pytest.mark.parametrize("text, why", [(None, "length"), (None, "stop"), ("", "length"), ([{"text": "pass()"}], "stop")])
def test_an_answer_without_text_is_an_error_with_the_likely_reason(stub, text, why):
    stub.answer = lambda body, number: completion(text, finish_reason=why)
    said = fails(stub)
    assert f"got none (finish_reason '{why}')" in said and "max_new_tokens" in said


def test_a_model_that_stops_at_once_has_replied_nothing(stub):
    stub.answer = lambda body, number: completion("")
    assert remote.generator(stub.url, "small", PRESET)(CHATS[:2]) == ["", ""]


def test_an_endless_reply_is_kept_only_as_far_as_to_show_that_it_is_too_long(stub):
    stub.answer = lambda body, number: completion("x" * 10 * MAX_LENGTH)
    [reply] = remote.generator(stub.url, "small", PRESET)(CHATS[:1])
    assert len(reply) == MAX_LENGTH + 1


# --- the key


def test_the_key_goes_into_the_header_without_the_blanks_around_it(stub, key):
    remote.generator(stub.url, "small", PRESET, secret=key)(CHATS[:1])
    assert stub.asked[0][1] == f"Bearer {KEY}"


ECHOES = {  # a server that sends everything back
    "reply": lambda body, number: completion(f"my key is {KEY}"),
    "server error": lambda body, number: (500, {"error": {"message": f"bad {KEY}"}}),
    "refusal": lambda body, number: (401, {"error": {"message": f"Incorrect API key provided: {KEY[:6]}***{KEY[-4:]}"}}),
    "bad request": lambda body, number: (400, {"headers": [f"Authorization: Bearer {KEY}"]}),
    "across the cut": lambda body, number: (400, ("x" * 290 + KEY).encode()),
    "unknown model": lambda body, number: (404, {"error": KEY}),
    "garbage": lambda body, number: (200, f"<p>Bearer {KEY}</p>".encode()),
    "no text": lambda body, number: completion(None, finish_reason=KEY),
    "broken": lambda body, number: (200, KEY.encode(), {"Content-Length": 9999}),
}


@pytest.mark.parametrize("name", ECHOES)
def test_the_key_reaches_no_reply_error_traceback_log_episode_or_representation(stub, key, name, caplog, capfd, tmp_path):
    caplog.set_level(logging.DEBUG)  # of httpx and what it uses, too
    stub.answer, stub.models = ECHOES[name], {"data": [{"id": KEY}]}
    generate = remote.generator(stub.url, "small", PRESET, secret=key, tries=2)
    player, game, told = Model("remote", generate), Market(rounds=1), ""
    try:
        append(tmp_path / "e.jsonl", play(game, [0], dict.fromkeys("BCD", random_player(game)) | {"A": player}))
        told += (tmp_path / "e.jsonl").read_text()
    except remote.RemoteError as error:
        told += "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    told += caplog.text + "".join(capfd.readouterr()) + repr(player) + repr(vars(remote))
    assert stub.asked[0][1] == f"Bearer {KEY}"
    assert ("[key]" in told or name in ("refusal", "broken")) and "send_request_headers" in told  # hidden, and logged
    assert KEY not in told and KEY[:6] not in told


@pytest.mark.parametrize("given", ["sk-0123456789abcdef", "hf_abcdefgh", "my key", "\u00b5KEY"])
def test_a_key_given_in_place_of_its_secrets_name_is_refused_and_not_quoted(given):
    with pytest.raises(ValueError, match="expected secret to be the name of a secret in capitals") as caught:
        remote.generator("http://127.0.0.1:1/v1", "small", PRESET, secret=given)
    assert given not in str(caught.value)


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_secret_that_is_not_there_or_empty_is_named(stub, monkeypatch, value):
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ValueError, match="expected a key in secret MY_KEY, got none"):
        remote.generator(stub.url, "small", PRESET, secret="MY_KEY")


@pytest.mark.parametrize("value", ["sk-two\nlines123", "sk-\u00e4\u00f6\u00fc12345", "sk-one two three"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(stub, monkeypatch, value):
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ValueError, match="plain characters without spaces") as caught:
        remote.generator(stub.url, "small", PRESET, secret="MY_KEY")
    assert value not in str(caught.value)


def test_a_dummy_key_changes_no_reply(stub, monkeypatch):
    monkeypatch.setenv("MY_KEY", "reply")
    assert remote.generator(stub.url, "small", PRESET, secret="MY_KEY")(CHATS[:1]) == ["reply to prompt 0"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/v1", "ftp://host/v1", "http://user:sk-1@host/v1", "http://host/v1?api_key=sk-1", "no"]
)
def test_an_address_that_is_none_or_holds_a_key_is_refused_and_not_quoted(url):
    with pytest.raises(ValueError, match="expected url like http://localhost:8000/v1") as caught:
        remote.generator(url, "small", PRESET)
    assert url not in str(caught.value).removesuffix("without user, key or query in it")


# --- as a player


@pytest.mark.parametrize("game", [Market(rounds=1), Bargaining()], ids=lambda game: game.name)
def test_a_remote_player_is_sent_the_prompts_that_every_model_gets_and_all_seats_of_a_tick_at_once(stub, game):
    text, together = str(game.fallback(game.view(game.deal(0), game.seats[0]))), threading.Barrier(4)

    def answer(body, number):
        if number <= 4:
            together.wait(60)
        return completion(text)

    stub.answer = answer
    episodes = play(game, range(4), dict.fromkeys(game.seats, Model("remote", remote.generator(stub.url, "small", PRESET))))
    view = game.view(game.deal(2), game.turn(game.deal(2)))
    assert list(messages_of(game, view)) in [body["messages"] for body, _ in stub.asked[:4]]
    assert not [turn for episode in episodes for turn in episode.turns if turn.error]


def test_text_that_is_no_unicode_reaches_the_server_as_it_stands(stub):
    chat = ({"role": "user", "content": "half a pair: \ud800"},)
    remote.generator(stub.url, "small", PRESET)([chat])
    assert stub.asked[0][0]["messages"] == list(chat)
