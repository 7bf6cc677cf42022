"""From raw text to exactly one action: the reports of users (facts.md, last section) as a table, and fuzz."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.game import ParseError
from helpers.games.market import Market
from helpers.replies import MAX_LENGTH, read, without_thinking

GAME = Market()
TRADE = "propose_trade(B, {Iron: 1}, {Stone: 1})"

READ = {  # reply -> the action in it
    "the bare action": (TRADE, TRADE),
    "case and spacing": ("Propose_Trade( b , {iron : 1} , {Stone:1} ) ", TRADE),
    "capitals": ("PASS ( )", "pass()"),
    "no spaces": ("propose_trade(B,{Iron:1},{Stone:1})", TRADE),
    "over several lines": ("propose_trade(\n  B,\n  {Iron: 1},\n  {Stone: 1}\n)", TRADE),
    "quoted names": ("propose_trade('B', {\"Iron\": 1}, {'Stone': 1})", TRADE),
    "goods in another order": (
        "propose_trade(B, {Coal: 2, Iron: 1}, {Stone: 1})",
        "propose_trade(B, {Iron: 1, Coal: 2}, {Stone: 1})",
    ),
    "largest quantity": ("propose_trade(B, {Iron: 99}, {Stone: 1})", "propose_trade(B, {Iron: 99}, {Stone: 1})"),
    "id as it is shown": ("accept_trade(#t7)", "accept_trade(t7)"),
    "id in capitals": ("accept_trade(T7)", "accept_trade(t7)"),
    "seats in another order": ("form_coalition([d, A], let us share)", "form_coalition([A, D], let us share)"),
    "coalition without words": ("form_coalition([A, D])", "form_coalition([A, D], share goods)"),
    "an action quoted in the description": ("form_coalition([A, D], then pass() all)", "form_coalition([A, D], then pass all)"),
    "prose before": (f"I need Stone, so I offer Iron: {TRADE}", TRADE),
    "text after the action": (f"{TRADE} because I need Stone (urgently).", TRADE),
    "unbalanced braces before": ("{{{ ((( [ so: pass()", "pass()"),
    "a verb without parentheses is prose": ("I pass on t1 and build_project()", "build_project()"),
    "part of another word": ("bypass(x) is no action, my_pass() neither: accept_trade(t1)", "accept_trade(t1)"),
    "blank line before a json fence": (f"\n```json\n{TRADE}\n```", TRADE),
    "any fence language": (f"```python\n{TRADE}\n```", TRADE),
    "unclosed fence": (f"```\n{TRADE}", TRADE),
    "closed thinking": ("<think>accept_trade(t1)? No, build_project()!</think>pass()", "pass()"),
    "two thinking blocks": ("<think>pass()</think>\naccept_trade(t1)\n<think>pass()</think>", "accept_trade(t1)"),
    "thinking whose start is in the prompt": ("pass() looks weak.\n</think>\naccept_trade(t1)", "accept_trade(t1)"),
    "unclosed thinking after the action": ("accept_trade(t1)\n<think>or pass()", "accept_trade(t1)"),
    "a fence beats a move quoted in prose": (
        "I will not accept_trade(t1).\n```\npropose_trade(B, {Iron: 99}, {Stone: 1})\n```",
        "propose_trade(B, {Iron: 99}, {Stone: 1})",
    ),
    "the last of two fences": ("```\npass()\n```\nNo:\n```\naccept_trade(t1)\n```", "accept_trade(t1)"),
    "the last line": ("Not pass(), not accept_trade(t1), but\nbuild_project()\n\n", "build_project()"),
}

REFUSED = {  # reply -> what the error says
    "empty": ("", "no action found"),
    "white space": (" \n\t\n ", "no action found"),
    "prose": ("I can't do that trade.", "no action found in \"I can't do that trade"),
    "a verb alone": ("pass", "no action found"),
    "a verb in full-width letters": ("ｐａｓｓ()", "no action found"),
    "an unknown verb": ("steal(B)", "no action found"),
    "two on one line": ("maybe pass() ... or build_project()", r"ambiguous: found 2 actions \(pass\(\), build_project\(\)\)"),
    "the same twice": ("pass() pass()", "ambiguous: found 2"),
    "two in the last fence": ("```\npass()\nbuild_project()\n```", "ambiguous: found 2"),
    "two, and prose beside the last": ("pass()\nI mean build_project() now", "ambiguous: found 2"),
    "two, and the last fence holds words too": ("pass()?\n```\nso: build_project()\n```", "ambiguous: found 2"),
    "only thinking": ("<think>accept_trade(t1)", "no action found"),
    "unclosed thinking before the action": ("<think>\npass()", "no action found"),
    "an unclosed call": ("propose_trade(B, {Iron: 1}, {Stone: 1}", "with parentheses, got 'propose_trade"),
    "a call cut by the token limit": ("propose_trade(B, {Iron: 1}, {St", "with parentheses, got 'propose_trade"),
    "an unclosed call before another": ("accept_trade(t1\npass( now", "with parentheses, got 'pass"),
    "zero": ("propose_trade(B, {Iron: 0}, {Stone: 1})", "1 to 99, got '0'"),
    "negative": ("propose_trade(B, {Iron: -3}, {Stone: 1})", "1 to 99, got '-3'"),
    "a fraction": ("propose_trade(B, {Iron: 1.5}, {Stone: 1})", "1 to 99, got '1.5'"),
    "scientific": ("propose_trade(B, {Iron: 1e3}, {Stone: 1})", "1 to 99, got '1e3'"),
    "NaN": ("propose_trade(B, {Iron: NaN}, {Stone: 1})", "1 to 99, got 'NaN'"),
    "true": ("propose_trade(B, {Iron: true}, {Stone: 1})", "1 to 99, got 'true'"),
    "a hundred": ("propose_trade(B, {Iron: 100}, {Stone: 1})", "1 to 99, got '100'"),
    "leading zero": ("propose_trade(B, {Iron: 03}, {Stone: 1})", "1 to 99, got '03'"),
    "plus sign": ("propose_trade(B, {Iron: +3}, {Stone: 1})", "1 to 99"),
    "a number in words": ("propose_trade(B, {Iron: three}, {Stone: 1})", "1 to 99"),
    "a thousands sign": ("propose_trade(B, {Iron: 1_0}, {Stone: 1})", "1 to 99"),
    "full-width digits": ("propose_trade(B, {Iron: ３}, {Stone: 1})", "1 to 99, got '３'"),
    "arabic digits": ("propose_trade(B, {Iron: ٣}, {Stone: 1})", "1 to 99, got '٣'"),
    "full-width digit in an id": ("accept_trade(t７)", r"expected accept_trade\(ID\)"),
    "9 times 5000": ("propose_trade(B, {Iron: " + "9" * 5000 + "}, {Stone: 1})", "expected"),
    "nothing given": ("propose_trade(B, {}, {Stone: 1})", "expected GOOD: QTY"),
    "a good twice": ("propose_trade(B, {Iron: 1, Iron: 1}, {Stone: 1})", "named twice"),
    "three goods on one side": ("propose_trade(B, {Iron: 1, Coal: 1, Wood: 1}, {Stone: 1})", "at most 2 goods"),
    "an unknown good": ("propose_trade(B, {Silk: 1}, {Stone: 1})", "good among Iron.*'Silk: 1'"),
    "an unknown seat": ("propose_trade(E, {Iron: 1}, {Stone: 1})", r"seat \(A, B, C, D\), got 'E'"),
    "one bundle": ("propose_trade(B, {Iron: 1})", "expected propose_trade"),
    "a third bundle": ("propose_trade(B, {Iron: 1}, {Stone: 1}, {Coal: 1})", "expected"),
    "no id": ("accept_trade()", r"expected accept_trade\(ID\)"),
    "two ids": ("accept_trade(t1, t2)", r"expected accept_trade\(ID\)"),
    "an id that is a number": ("accept_trade(7)", r"expected accept_trade\(ID\)"),
    "an argument where none belongs": ("build_project(Steel Mill)", "takes no arguments, got 'Steel Mill'"),
    "a coalition without brackets": ("form_coalition(A, B)", "expected form_coalition"),
    "an empty coalition": ("form_coalition([], friends)", "expected a seat"),
    "too long": ("pass() " + "x" * MAX_LENGTH, "at most 20,000 characters, got 20,007"),
}


@pytest.mark.parametrize(("reply", "action"), READ.values(), ids=READ)
def test_a_reply_with_exactly_one_action_is_that_action(reply, action):
    assert str(read(GAME, reply)) == action


@pytest.mark.parametrize(("reply", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_reply_without_exactly_one_action_is_refused_with_what_was_found(reply, reason):
    with pytest.raises(ParseError, match=reason):
        read(GAME, reply)


def test_a_stray_tag_inside_thinking_does_not_free_what_was_thought():
    assert without_thinking("<think>a<think>b</think>c") == "c"
    assert without_thinking("a</think>b<think>c</think>d") == "bd"


FRAGMENTS = (
    "pass()", "pass(", "build_project", "accept_trade(", "t1", "#", "propose_trade(B, ", "{Iron: 1}", "{", "}", "(", ")", "[",
    "]", ",", ":", " ", "\n", "```", "```json\n", "<think>", "</think>", "form_coalition([A", "9", "９", "'", '"', "\\", "\x00",
    "\u2028", "İ", "ſ",
)  # fmt: skip


@given(st.one_of(st.text(st.characters()), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)))
@example("\ud800pass(\udfff")
def test_no_text_raises_anything_but_a_parse_error_and_what_is_read_prints_and_parses_back(reply):
    try:
        action = read(GAME, reply)
    except ParseError as reason:
        assert str(reason)
    else:
        assert read(GAME, str(action)) == action


@pytest.mark.parametrize(
    "piece",
    [
        "pass(",
        "pass(\n",
        "(",
        ")",
        "<think>",
        "<think></think>",
        "</think>",
        "```\n",
        "```",
        "pass()",
        " ",
        "propose_trade(B,{",
        "p",
    ],
    ids=repr,
)
@pytest.mark.parametrize("frame", ["{}", "propose_trade({})", "accept_trade({})", "form_coalition([{}])", "pass({}"])
def test_reading_20_000_adversarial_characters_takes_under_a_second(piece, frame):
    room = MAX_LENGTH - len(frame)
    reply = frame.replace("{}", (piece * room)[:room])
    start = time.process_time()
    try:
        read(GAME, reply)
    except ParseError as reason:
        assert len(str(reason)) < 400
    assert time.process_time() - start < 1
