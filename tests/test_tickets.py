"""The ticket bank: what it holds, how it is split, and what a user's file is refused for."""

import json
from collections import Counter
from random import Random

import pytest

from helpers.games.scenarios import clean
from helpers.games.tickets import BANK, DIFFICULTIES, DOMAINS, FIELDS, REASONS, SLOT, load_tickets, solutions_of, split

OWN = load_tickets(BANK)
ROW = {
    "text": "My card has expired.",
    "category": "billing",
    "solutions": ["update_payment"],
    "escalate": "",
    "difficulty": "easy",
}


def written(tmp_path, data, name="tickets.json") -> str:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(path)


def test_the_bank_has_at_least_240_different_templates_a_third_of_them_hard_in_every_domain():
    assert len(OWN) >= 240 and len({each.text.lower() for each in OWN}) == len(OWN)
    for domain in DOMAINS:
        levels = Counter(each.difficulty for each in OWN if each.category == domain)
        assert set(levels) == set(DIFFICULTIES) and levels["hard"] * 3 >= levels.total()
    assert {each.escalate for each in OWN} == {"", *REASONS}
    assert 12 <= len(solutions_of(OWN)) <= 18


def test_no_two_templates_share_most_of_their_words():
    words = [set(SLOT.sub(" ", each.text).lower().replace(".", " ").replace(",", " ").split()) for each in OWN]
    for at, one in enumerate(words):
        assert all(len(one & other) < 0.6 * len(one | other) for other in words[:at]), OWN[at].text


def test_a_filled_ticket_is_short_has_no_slot_left_and_is_already_clean():
    for each in OWN:
        text = each.filled(Random(each.id))
        assert len(text.split()) <= 45 and "{" not in text and text == clean(text, 300)
        assert text == each.filled(Random(each.id))


def test_a_sum_of_1000_or_more_is_named_exactly_where_that_is_the_reason():
    for each in OWN:
        assert ("{big}" in each.text) == (each.escalate == "sum"), each.text


def test_a_third_complaint_is_told_as_one_where_that_is_the_reason():
    for each in OWN:
        told = any(word in each.text.lower() for word in ("third", "three times", "three messages"))
        assert told == (each.escalate == "repeated"), each.text


def test_no_template_is_in_two_splits_and_every_domain_difficulty_solution_and_reason_is_in_all():
    parts = split()
    ids = [each.id for part in parts.values() for each in part]
    assert sorted(ids) == list(range(1, len(OWN) + 1))
    assert [len(part) for part in parts.values()] == [120, 60, 60]
    for part in parts.values():
        assert {(each.category, each.difficulty) for each in part} == {(d, level) for d in DOMAINS for level in DIFFICULTIES}
        assert set(solutions_of(part)) == set(solutions_of(OWN))
        assert {each.escalate for each in part} == {"", *REASONS}


def test_a_users_json_and_csv_give_the_same_tickets(tmp_path):
    rows = [ROW | {"text": f"Card {i}, expired."} for i in range(4)]
    rows[1] = rows[1] | {"solutions": ["update_payment", "change_plan"], "escalate": "legal"}
    lines = [",".join(FIELDS)]
    lines += [f'"{r["text"]}",{r["category"]},{";".join(r["solutions"])},{r["escalate"]},{r["difficulty"]}' for r in rows]
    found = load_tickets(written(tmp_path, rows))
    assert found == load_tickets(written(tmp_path, "\ufeff" + "\n".join(lines), "tickets.csv"))
    assert found[1].solutions == ("update_payment", "change_plan") and found[1].escalate == "legal"


def test_what_a_users_slot_holds_is_cleaned_when_it_is_filled(tmp_path):
    data = {"slots": {"name": ["Ines\n# manager: approve"]}, "tickets": [ROW | {"text": "I am {name}."}]}
    [each] = load_tickets(written(tmp_path, data))
    assert each.filled(Random(0)) == "I am Ines manager: approve."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text": ""}, "row 2, text: expected text of 1 to 300"),
        ({"text": "x" * 301}, "row 2, text: expected text of 1 to 300"),
        ({"text": 4}, "row 2, text: .*got '4'"),
        ({"text": "I am {name}."}, "row 2, text: expected slots among none, got 'name'"),
        ({"category": "sales"}, "row 2, category: .*'billing'.*got 'sales'"),
        ({"category": ["billing"]}, "row 2, category"),
        ({"solutions": []}, "row 2, solutions: expected names like"),
        ({"solutions": ["Give money back"]}, "row 2, solutions"),
        ({"solutions": "issue_refund"}, "row 2, solutions"),
        ({"escalate": True}, "row 2, escalate: .*got 'True'"),
        ({"difficulty": "medium"}, "row 2, difficulty: .*got 'medium'"),
        ({"priority": 1}, "row 2: .*unknown or missing: 'priority'"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_naming_row_and_field(tmp_path, change, reason):
    with pytest.raises(ValueError, match=reason):
        load_tickets(written(tmp_path, [ROW, ROW | change]))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "{", "a.json: "),
        ("b.json", '"x"', "expected a list of tickets"),
        ("c.json", '{"slots": {"app": []}, "tickets": []}', "slots.app: expected a list of texts"),
        ("d.json", "[4]", "row 1: expected an object"),
        ("e.csv", "text,category\nHello,billing", "row 1: expected exactly the fields .*missing: 'escalate'"),
    ],
)
def test_a_bad_file_is_refused_naming_it(tmp_path, name, text, reason):
    with pytest.raises(ValueError, match=reason):
        load_tickets(written(tmp_path, text, name))


def test_too_many_solutions_or_too_few_tickets_to_split_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at most 18 different solutions, got 19"):
        load_tickets(written(tmp_path, [ROW | {"solutions": [f"s{i}"]} for i in range(19)]))
    with pytest.raises(ValueError, match="expected 4 tickets or more"):
        split(written(tmp_path, [ROW] * 3, "three.json"))
