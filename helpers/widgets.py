"""The reward lab, a seat to play from, and episodes to scrub through.

The lab shows what a rubric thinks of one reply and of the whole gallery, live under sliders, or as a static page. All of it
comes from `lab_data`, which is pure: every number in the lab is one of `helpers.rewards` or `helpers.gallery`, and a slider only
changes a weight. Rewards are linear in the weights, so the gallery is judged once and reweighted. The seat shows a
`helpers.human.HumanSeat`.
"""

import base64
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from random import Random
from typing import Any

from helpers import GAMES
from helpers.card import transcript
from helpers.gallery import GALLERY, Strategy, earnings
from helpers.game import Game, IllegalAction, ParseError, Seat, replay
from helpers.human import HumanSeat
from helpers.players import competent, mixed_player
from helpers.plots import UNFOLDING
from helpers.rewards import RUBRICS, TERMS, Rubric, judge
from helpers.rollout import VALID, Episode, Player, play

GALLERY_SEEDS = VALID[:20]  # episodes in which each strategy of the gallery is judged
POSITIONS = VALID[:100]  # seeds that the position picker offers
COLOURS = {"good": "#0072B2", "bad": "#E69F00", "cheating": "#D55E00"}  # of a strategy's kind; safe for colour-blind readers


@cache
def mixed_play(game: Game, seed: int) -> tuple[str, ...]:
    """The actions of one episode of mixed play."""
    return tuple(play(game, [seed], dict.fromkeys(game.seats, mixed_player(game)))[0].actions)


@cache
def gallery_earnings(game: Game) -> dict[str, dict[str, float]]:
    """For each strategy of the game's gallery what it earns in each term (see `earnings`)."""
    return {name: earnings(game, strategy, GALLERY_SEEDS) for name, strategy in GALLERY[game.name].items()}


def lab_data(game: Game, rubric: Rubric, seed: int, actions: Sequence[str], reply: str) -> dict[str, Any]:
    """Everything that the lab shows for `reply` at decision point (seed, actions), as plain data.

    seat, turn (from 1), prompt: the decision point. action, error: what the rules made of the reply; error is None when it
    was legal. terms: {name: (value, weight, value x weight)} for every term there is. total: `rubric.reward`.
    ranking: [(strategy of the gallery, its mean reward per episode)], best first.
    """
    judgement = judge(game, seed, actions, [reply])[0]
    weights = {name: rubric.weights.get(name, 0.0) for name in TERMS}
    values = {name: term.value(judgement) for name, term in TERMS.items()}
    weighted = {name: weights[name] * value + 0.0 for name, value in values.items()}  # + 0.0 makes 0.0 of -0.0
    rewards = {
        name: sum(weights[term] * value for term, value in earned.items()) for name, earned in gallery_earnings(game).items()
    }
    return {
        "seat": judgement.seat,
        "turn": len(actions) + 1,
        "prompt": game.describe(game.view(judgement.before, judgement.seat)),
        "reply": reply,
        "action": str(judgement.action),
        "error": judgement.error,
        "terms": {name: (values[name], weights[name], weighted[name]) for name in TERMS},
        "total": rubric.reward(judgement),
        "ranking": [(GALLERY[game.name][name], rewards[name]) for name in sorted(rewards, key=rewards.get, reverse=True)],
        "rubric": rubric.to_json(),
    }


def bars(values: dict[str, float], colours: dict[str, str]) -> str:
    """Horizontal bars as SVG: one for each value, left of the zero line when negative. Names are escaped."""
    low, high = min(0.0, *values.values()), max(0.0, *values.values())
    scale = 200 / (high - low or 1.0)
    zero = 130 - low * scale
    rows = []
    for i, (name, value) in enumerate(values.items()):
        x, y = zero + min(value, 0) * scale, 22 * i
        rows.append(
            f'<text x="120" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{abs(value) * scale:.1f}" height="16" fill="{colours[name]}"/>'
            f'<text x="340" y="{y + 15}">{value:+.2f}</text>'
        )
    height = 22 * len(values)
    line = f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}" stroke="currentColor"/>'
    size = f'width="390" height="{height}" font-family="sans-serif" font-size="13" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(rows)}{line}</svg>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table; every cell is escaped."""
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def lab_html(data: dict[str, Any]) -> str:
    """`lab_data` as HTML: the position, the judged reply, its terms, the gallery's ranking, and the rubric as JSON."""
    verdict = f"not usable ({data['error']}), so the rules play {data['action']}" if data["error"] else f"legal: {data['action']}"
    terms = [(name, f"{v:+.3f}", f"{w:g}", f"{x:+.3f}") for name, (v, w, x) in data["terms"].items()]
    weighted = {name: x for name, (_, _, x) in data["terms"].items()} | {"total": data["total"]}
    ranking: list[tuple[Strategy, float]] = data["ranking"]
    places = [(f"{i}", s.name, s.kind, f"{x:+.2f}") for i, (s, x) in enumerate(ranking, 1)]
    return "".join(
        [
            '<div style="line-height: 1.4">',
            f"<b>Turn {data['turn']}: seat {escape(data['seat'])} is asked</b><pre>{escape(data['prompt'])}</pre>",
            f"<p>Reply: <code>{escape(data['reply'][:300])}</code><br>It is {escape(verdict)}.</p>",
            f"<b>Its reward: {data['total']:+.3f}</b>",
            side_by_side(
                table(("term", "value", "weight", "value x weight"), terms),
                bars(weighted, dict.fromkeys(weighted, "#56B4E9") | {"total": "#0072B2"}),
            ),
            "<b>The gallery under these weights: mean reward of an episode</b>",
            side_by_side(
                table(("", "strategy", "kind", "reward"), places),
                bars({s.name: x for s, x in ranking}, {s.name: COLOURS[s.kind] for s, _ in ranking}),
            ),
            "<b>This rubric, for notebook 04 (parameter RUBRIC)</b>",
            f'<pre style="user-select: all">{escape(data["rubric"])}</pre></div>',
        ]
    )


def side_by_side(*parts: str) -> str:
    return f'<div style="display: flex; flex-wrap: wrap; align-items: center; gap: 16px">{"".join(parts)}</div>'


@dataclass
class Lab:
    """What the last line of a notebook cell shows: the widgets in `box` or, without a front end, `page` as static HTML.

    rubric: the weights now on the sliders. data: the newest `lab_data`. controls: the widgets by name.
    """

    rubric: Rubric
    data: dict[str, Any]
    controls: dict[str, Any] = field(default_factory=dict)
    box: Any = None

    @property
    def page(self) -> str:
        return lab_html(self.data)

    def _ipython_display_(self):
        from IPython.display import HTML, display

        display(self.box or HTML(self.page))


def reward_lab(game: Game, rubric: Rubric, seed: int = POSITIONS[0], turn: int = 1, reply: str | None = None) -> Lab:
    """The lab, opened at turn `turn` (from 1; of a shorter episode at the last) of the mixed-play episode of `seed` (one of
    POSITIONS).

    reply: the text to judge; None: what the competent player would write there.
    """
    actions = mixed_play(game, seed)[:-1][: turn - 1]
    if reply is None:
        state = replay(game, seed, actions)
        reply = str(competent(game)(game.view(state, game.turn(state)), Random(seed)))
    lab = Lab(rubric, lab_data(game, rubric, seed, actions, reply))
    if not headless():
        add_controls(lab, game, seed)
    return lab


def headless() -> bool:
    """Whether nobody can move a slider: PARLEY_HEADLESS is set, ipywidgets is missing, or no notebook kernel runs this."""
    if os.environ.get("PARLEY_HEADLESS") == "1":
        return True
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return True
    return not hasattr(get_ipython(), "kernel")


def add_controls(lab: Lab, game: Game, seed: int) -> None:
    """Gives `lab` its widgets; each change of one judges again and rewrites the page."""
    import ipywidgets as w

    wide = {"style": {"description_width": "130px"}, "layout": w.Layout(width="400px")}
    games = GAMES | {game.name: game}
    starts = RUBRICS | {lab.rubric.name: lab.rubric}
    sliders = {}
    for name in TERMS:
        weight = lab.rubric.weights.get(name, 0.0)
        bound = max(2.0, abs(weight))
        sliders[name] = w.FloatSlider(value=weight, min=-bound, max=bound, step=0.05, description=name, **wide)
    length = len(mixed_play(game, seed))
    lab.controls = sliders | {
        "game": w.Dropdown(options=list(games), value=game.name, description="game", **wide),
        "start": w.Dropdown(options=list(starts), value=lab.rubric.name, description="start from rubric", **wide),
        "seed": w.IntSlider(value=seed, min=POSITIONS[0], max=POSITIONS[-1], description="position: seed", **wide),
        "turn": w.IntSlider(value=lab.data["turn"], min=1, max=length, description="position: turn", **wide),
        "reply": w.Textarea(value=lab.data["reply"], description="reply", **wide),
    }
    page = w.HTML(value=lab.page)

    def refresh(_):
        values = {name: control.value for name, control in lab.controls.items()}
        playing = games[values["game"]]
        actions = mixed_play(playing, values["seed"])
        lab.controls["turn"].max = len(actions)
        weights = {name: round(values[name], 4) for name in TERMS}  # a front end says 0.2999999999999998 for 0.3
        weights = {name: weight for name, weight in weights.items() if weight} or weights
        start = starts[values["start"]]
        lab.rubric = start if weights == start.weights else Rubric("mine", weights)
        actions = actions[: lab.controls["turn"].value - 1]
        lab.data = lab_data(playing, lab.rubric, values["seed"], actions, values["reply"])
        page.value = lab.page

    def restart(change):
        for name, slider in sliders.items():
            slider.value = starts[change["new"]].weights.get(name, 0.0)

    lab.controls["start"].observe(restart, "value")
    for name, control in lab.controls.items():
        if name != "start":
            control.observe(refresh, "value")
    lab.box = w.HBox([w.VBox(list(lab.controls.values()), layout=w.Layout(flex="none")), page])
    lab.controls["page"] = page


# --- a seat to play from


@dataclass
class Board:
    """What the last line of a notebook cell shows to a person who plays: the widgets in `box` or, without a front end, one line.

    controls: the widgets by name.
    """

    table: HumanSeat
    controls: dict[str, Any] = field(default_factory=dict)
    box: Any = None

    @property
    def episode(self) -> Episode | None:
        """The whole episode, once it is over."""
        return self.table.episode

    def _ipython_display_(self):
        from IPython.display import display

        if self.box:
            display(self.box)
        else:
            print(f"seat {self.table.seat} waits for a person: open this notebook in Jupyter, Colab or Kaggle and run this cell")


def play_seat(game: Game, seed: int, seat: Seat, players: Mapping[Seat, Player]) -> Board:
    """Lets a person play `seat` of the episode of `seed` against `players`, which hold the other seats. When it is over, the
    board's `episode` can be kept like any other: `append(path, [board.episode])`."""
    board = Board(HumanSeat(game, seed, seat, players))
    if not headless():
        add_seat(board)
    return board


def board_html(table: HumanSeat, trouble: str) -> str:
    """What a person is shown: the prompt as a model would get it, or the whole episode; and before it what went wrong."""
    if table.episode:
        parts = [(f"The episode is over. You were {table.seat}.", transcript(table.episode))]
    elif table.request:
        parts = [(message["role"], message["content"]) for message in table.request.messages]
    else:
        parts = []
    shown = [f"<b>{escape(head)}</b>{pre(text)}" for head, text in parts]
    if trouble:
        shown.insert(0, f'<div style="color: #D55E00">{pre(trouble)}</div>')
    return f'<div style="line-height: 1.4">{"".join(shown)}</div>'


def pre(text: str) -> str:
    return f'<pre style="white-space: pre-wrap">{escape(text)}</pre>'


def add_seat(board: Board) -> None:
    """Gives `board` its widgets. What cannot be used stays in the box with the reason above it."""
    import ipywidgets as w

    table, auto = board.table, w.Layout(width="auto")
    page = w.HTML()
    reply = w.Textarea(placeholder=f"your reply for {table.seat}, as a model would write it", layout=w.Layout(width="95%"))
    send = w.Button(description="Send", button_style="primary", layout=auto)
    fallback = w.Button(description="Write the fallback for me", layout=auto)
    again = w.Button(description="Ask the other players again", layout=auto)
    buttons = (send, fallback, again)

    def show(trouble: str = "") -> None:
        page.value = board_html(table, trouble)
        send.disabled = fallback.disabled = table.request is None
        again.disabled = bool(table.request or table.episode)

    def move(act: Callable[[], None]) -> None:
        """Does `act`, and shows what came of it."""
        asked, trouble = table.request, ""
        for button in buttons:
            button.disabled = True
        try:
            act()
        except (ParseError, IllegalAction) as reason:
            trouble = f"Not usable: {reason}"
        except Exception as reason:  # raised by another player; an exception in a widget would be seen by nobody
            trouble = f"Another player failed ({type(reason).__name__}): {reason}"
        if table.request is not asked:
            reply.value = ""
        show(trouble)

    def write_fallback(_) -> None:
        reply.value = table.fallback

    send.on_click(lambda _: move(lambda: table.answer(reply.value)))
    fallback.on_click(write_fallback)
    again.on_click(lambda _: move(table.go_on))
    board.controls = {"page": page, "reply": reply, "send": send, "fallback": fallback, "again": again}
    board.box = w.VBox([page, reply, w.HBox(buttons)])
    move(table.go_on)


# --- episodes, turn by turn


@dataclass
class Viewer:
    """What the last line of a notebook cell shows: the widgets in `box` or, without a front end, `page` as static HTML.

    controls: the widgets by name.
    """

    page: str
    controls: dict[str, Any] = field(default_factory=dict)
    box: Any = None

    def _ipython_display_(self):
        from IPython.display import HTML, display

        display(self.box or HTML(self.page))


def watch(game: Game, episodes: Sequence[Episode]) -> Viewer:
    """Shows episodes of `game` turn by turn: sliders pick one and how much of it is shown. Without a front end it is the whole
    of the first."""
    viewer = Viewer(viewer_html(game, episodes[0], len(episodes[0].turns)))
    if not headless():
        add_sliders(viewer, game, episodes)
    return viewer


def viewer_html(game: Game, episode: Episode, turns: int) -> str:
    """The first `turns` turns (from 1): the picture of plots.UNFOLDING, if the game has one, and what was said; of the last of
    them also the reply as it was written, with what the other seats do not see of it."""
    last = episode.turns[turns - 1]
    said = f"<b>Turn {turns}, {escape(last.seat)} ({escape(episode.players[last.seat])}) writes</b>{pre(last.reply)}"
    parts = [f'<div style="flex: 1; min-width: 360px"><b>So far</b>{pre(transcript(episode, stop=turns))}{said}</div>']
    if game.name in UNFOLDING:
        parts.insert(0, picture(UNFOLDING[game.name](game, episode, turns)))
    return f'<div style="line-height: 1.4">{side_by_side(*parts)}</div>'


def picture(ax) -> str:
    """The figure of `ax` as an HTML image; it is closed."""
    from matplotlib import pyplot as plt

    file = io.BytesIO()
    ax.figure.savefig(file, format="png")
    plt.close(ax.figure)
    return f'<img alt="{escape(ax.get_title())}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"/>'


def add_sliders(viewer: Viewer, game: Game, episodes: Sequence[Episode]) -> None:
    """Gives `viewer` its widgets."""
    import ipywidgets as w

    wide = {"style": {"description_width": "60px"}, "layout": w.Layout(width="500px")}
    number = w.IntSlider(value=1, min=1, max=len(episodes), description="episode", **wide)
    turns = w.IntSlider(value=len(episodes[0].turns), min=1, max=len(episodes[0].turns), description="turn", **wide)
    page = w.HTML(value=viewer.page)

    def show(_):
        viewer.page = page.value = viewer_html(game, episodes[number.value - 1], turns.value)

    def pick(_):
        turns.max = len(episodes[number.value - 1].turns)
        show(_)

    number.observe(pick, "value")
    turns.observe(show, "value")
    viewer.controls = {"episode": number, "turn": turns, "page": page}
    viewer.box = w.VBox([number, turns, page])
