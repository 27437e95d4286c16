"""The file that `compressa init` writes: settings, each with a comment that says why."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from compressa.cli._tables import ms
from compressa.compressors import COMPRESSORS
from compressa.config.emit import toml_line
from compressa.recommend import CODEC_S, LEVELS, Model, Recommendation

_FAR_MS = 10.0
_SETTINGS: dict[str, list[tuple[str, int | float, str]]] = {
    "int8": [("block", 256, "elements that share a scale; fewer lose less and send more")],
    "int4": [("block", 128, "elements that share a scale; fewer lose less and send more")],
    "powersgd": [("rank", 4, "of the factors; more keep more of a gradient and send more")],
    "topk": [("density", 0.01, "share of the elements that is sent; the rest is sent later")],
}
"""What to turn first, at its default."""


class Question(NamedTuple):
    """What the file is for.

    Attributes:
        link: A rate, or the file of a measured link.
        ranks: How many.
        factory: The model's module and callable, if it was given by them.
        model: What is known of it.
        compute_ms: What a step takes to compute; 0 if that is not known.
    """

    link: str
    ranks: int
    factory: str | None
    model: Model
    compute_ms: float

    @property
    def measured(self) -> bool:
        """Whether the link is a file."""
        return Path(self.link).is_file()


def starter(chosen: Recommendation, question: Question, out: Path) -> str:
    """Return the file's text.

    Args:
        chosen: What it is to say.
        question: What it is for.
        out: Where it is to be.
    """
    blocks = [
        "\n".join(_head(chosen, question, out)),
        "\n".join(_compressor(chosen)),
        *_spared(chosen),
        "\n".join(_exchange(question)),
    ]
    return "\n\n".join(blocks) + "\n"


def _head(chosen: Recommendation, question: Question, out: Path) -> Iterator[str]:
    yield f"# Written by: {_command(chosen, question)}"
    yield "#"
    yield f"# What a step's gradients ({question.model.elems:,} parameters) should take on"
    yield f"# {question.ranks} ranks: the network by the cost model of `compressa explain`,"
    yield f"# encoding and decoding at {1e9 * CODEC_S:.0f} ns an element."
    yield "#"
    for name, seconds in chosen.seconds.items():
        mark = "   <- chosen" if name == chosen.name else ""
        yield f"#   {name:10}{ms(seconds):>14} ms{mark}"
    yield "#"
    yield f'# Accuracy "{chosen.level}" allows {LEVELS[chosen.level].summary}.'
    yield "# Of those that are nearly as fast as the fastest, the one that loses least is chosen."
    if question.compute_ms:
        yield f"# Less than the {question.compute_ms:g} ms of computing counts as no faster."
    yield "#"
    yield "# In the script, once the model is wrapped in DistributedDataParallel:"
    yield f'#   handle = compressa.register_comm_hook(model, "{out.name}")'


def _command(chosen: Recommendation, question: Question) -> str:
    words = ["compressa", "init", "--link", question.link, "--ranks", str(question.ranks)]
    if question.factory is None:
        words += ["--parameters", str(question.model.elems)]
    else:
        words += ["--model", question.factory]
    words += ["--accuracy", chosen.level]
    if question.compute_ms:
        words += ["--compute-ms", f"{question.compute_ms:g}"]
    return shlex.join(words)


def _compressor(chosen: Recommendation) -> Iterator[str]:
    yield "[compressor]  # of every parameter that no rule names"
    yield f"# {COMPRESSORS[chosen.name].summary}"
    yield f'name = "{chosen.name}"'
    for key, value, why in _SETTINGS.get(chosen.name, []):
        yield f"{toml_line(key, value)}  # {why}"


def _spared(chosen: Recommendation) -> Iterator[str]:
    if not chosen.strong:
        return
    rule, warmup = chosen.settings["rules"][0], chosen.settings["warmup"]
    yield (
        "[[rules]]  # few elements, and most of the harm: 16 bits for them\n"
        f"match = {{ role = {json.dumps(rule['match']['role'])} }}\n"
        f"{toml_line('compressor', rule['compressor'])}"
    )
    yield (
        "[warmup]  # gradients change quickly at first\n"
        f"steps = {warmup['steps']}\n"
        f"{toml_line('compressor', warmup['compressor'])}"
    )


def _exchange(question: Question) -> Iterator[str]:
    if question.measured:
        yield "[exchange]  # sums go by the algorithm that is fastest on this link"
        yield toml_line("link", question.link)
        return
    yield "# Measured, your network chooses the algorithm of sums. Start this on every rank:"
    yield "#   torchrun ... -m compressa link --out link.json"
    yield "# [exchange]"
    yield '# link = "link.json"'
    if _delay_ms(question.link) >= _FAR_MS:
        yield "#"
        yield "# The hosts are far apart, and every step waits for it. Ranks may meet less often,"
        yield "# by compressa.attach and [strategy]: docs/guides/strategies.md."


def _delay_ms(link: str) -> float:
    from compressa.testbed.link import LinkSpec

    return LinkSpec.parse(link).delay_ms
