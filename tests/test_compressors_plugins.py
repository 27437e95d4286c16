"""Compressors of other packages: found, checked, configured, and never anybody else's trouble.

One of them is that of docs/extending.md, whose blocks are run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import install, install_page_example, on_the_path, page_block

from compressa import plugins
from compressa.codecs import Codec, TopK
from compressa.compressors import COMPRESSORS, Family
from compressa.errors import ConfigError

GOOD = """
from typing import ClassVar
from compressa.codecs import TopK
from compressa.compressors import Entry, Family

class Mine(TopK):
    '''Mine, mostly.

    And more.
    '''
    name: ClassVar[str] = "NAME"
    wire_id: ClassVar[int] = 130

ROW = Entry(Mine, "As a row.", "Me 2030", Family.SPARSE)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder of installed packages."""
    with on_the_path(tmp_path):
        yield tmp_path


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plugins.load(name)
    return str(caught.value)


def test_there_are_none_unless_a_package_is_installed() -> None:
    assert plugins.plugins() == {}
    assert plugins.shadowed() == {}


def test_a_name_is_known_without_an_import_and_loaded_when_asked_for(site: Path) -> None:
    install(site, "plugged_class", {"mine": "plugged_class:Mine"}, GOOD.replace("NAME", "mine"))
    found = plugins.plugins()["mine"]
    assert (found.source, found.problem) == ("plugged_class 1.0", "")
    assert "plugged_class" not in sys.modules
    entry = plugins.load("mine")
    assert "plugged_class" in sys.modules
    assert issubclass(entry.compressor, TopK)
    assert (entry.summary, entry.paper, entry.family) == ("Mine, mostly.", "", Family.OTHER)
    assert plugins.versions(["mine", "int8"]) == {"plugged_class": "1.0"}


def test_an_entry_keeps_its_summary_paper_and_family(site: Path) -> None:
    install(site, "plugged_row", {"row": "plugged_row:ROW"}, GOOD.replace("NAME", "row"))
    entry = plugins.load("row")
    assert (entry.summary, entry.paper, entry.family) == ("As a row.", "Me 2030", Family.SPARSE)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('boom')", "can not be imported from {d}:Mine: RuntimeError: boom; "),
        ("raise SystemExit(3)", "can not be imported from {d}:Mine: SystemExit: 3; repair"),
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here"),
        ("", "AttributeError: module '{d}' has no attribute 'Mine'; repair, update or uninstall"),
        ("def Mine(): ...", "is no compressor: {d}:Mine is function; the entry point must name"),
        ("class Mine: ...", "is no compressor: {d}:Mine is Mine; the entry point must name a sub"),
        ("Mine = Entry(int, '')", "is no compressor: {d}:Mine is int; the entry point must name"),
        (
            "class Mine(Codec):\n    def decode(self): ...",
            "can not be imported from {d}:Mine: TypeError: Mine.decode: every codec's ",
        ),
        ("class Mine(Codec): name = NAME", "is not complete: Mine must define bias, decode_add, "),
        ("class Mine(TopK): wire_id = 130", "calls itself 'topk': the entry point and Mine.name "),
        ("class Mine(TopK): name = NAME", "has the wire id 6: smaller ones are compressa's own; "),
        (
            "class Mine(TopK): name, wire_id = NAME, 256",
            "has the wire id 256: smaller ones are compressa's own; choose one from 128 to 255",
        ),
        (
            "@dataclass(frozen=True, kw_only=True)\nclass Mine(TopK):\n"
            "    name: ClassVar[str] = NAME\n    wire_id: ClassVar[int] = 130\n    level: int",
            "has no defaults: TypeError: ",
        ),
        (
            "class Mine(TopK):\n    name, wire_id = NAME, 130\n"
            "    def __post_init__(self): raise ConfigError('level too high')",
            "has no defaults: ConfigError: level too high; give every hyper-parameter a default",
        ),
    ],
)
def test_what_is_broken_is_refused_with_its_distribution_and_the_fix(
    site: Path, code: str, message: str
) -> None:
    head = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from compressa.codecs import Codec, TopK\nfrom compressa.compressors import Entry\n"
        "from compressa.errors import ConfigError\n"
    )
    distribution = site.name  # no other test imports a module of this name
    install(
        site,
        distribution,
        {"mine": f"{distribution}:Mine"},
        head + code.replace("NAME", "'mine'"),
    )
    text = refusal("mine")
    assert text.startswith(f'compressor "mine" of {distribution} 1.0 ')
    assert message.format(d=distribution) in text


def test_a_name_that_two_distributions_claim_belongs_to_neither(site: Path) -> None:
    install(site, "first_claim", {"both": "first_claim:Mine"}, GOOD.replace("NAME", "both"))
    install(site, "second_claim", {"both": "second_claim:Mine"}, GOOD.replace("NAME", "both"))
    text = refusal("both")
    assert "first_claim 1.0" in text
    assert "second_claim 1.0" in text
    assert text.endswith("uninstall one of them")
    assert not {"first_claim", "second_claim"} & set(sys.modules)


def test_a_distribution_that_is_installed_twice_counts_once(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = GOOD.replace("NAME", "twice")
    install(site, "plugged_twice", {"twice": "plugged_twice:Mine"}, code)
    earlier = tmp_path_factory.mktemp("earlier")
    install(earlier, "plugged_twice", {"twice": "plugged_twice:Mine"}, code, "2.0")
    monkeypatch.syspath_prepend(earlier)
    assert plugins.load("twice")
    assert plugins.plugins()["twice"].version == "2.0"


def test_the_library_s_own_names_can_not_be_taken(site: Path) -> None:
    install(site, "taker", {"int8": "taker:Mine"}, "raise RuntimeError")
    assert "int8" not in plugins.plugins()
    problem = plugins.shadowed()["int8"].problem
    assert problem.startswith('compressor "int8" of taker 1.0 is not used: the name is that of one')
    assert problem.endswith("give it another name, or uninstall taker")


def test_damaged_metadata_is_a_problem_of_that_distribution_alone(site: Path) -> None:
    install(site, "plugged_well", {"well": "plugged_well:Mine"}, GOOD.replace("NAME", "well"))
    install(site, "damaged", "[compressa.compressors]\nno equals sign\n")
    (site / "unreadable-1.0.dist-info").mkdir()
    (site / "unreadable-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    assert plugins.load("well")
    assert refusal("damaged").startswith("the entry_points.txt of damaged 1.0 can not be read (")
    assert set(plugins.plugins()) == {"damaged", "well"}


def test_the_library_leaves_the_upper_wire_ids_to_others() -> None:
    rows = [row.compressor for row in COMPRESSORS.values() if issubclass(row.compressor, Codec)]
    assert not {codec.wire_id for codec in rows} & set(plugins.WIRE_IDS)


def answers(site: Path, code: str) -> Any:
    """Run code with the folder on its path; return what it assigns to `answer`."""
    program = f"import json\n{code}\nprint('ANSWER', json.dumps(answer))\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("ANSWER ")[2])


CONFIGURED = """
import sys
from compressa import ConfigError, load_config
from compressa.config import config_schema, config_toml, first_difference
from compressa.engine.start.startup import digest

def refused(raw):
    try:
        load_config(raw)
    except ConfigError as error:
        return str(error)

load_config({"compressor": "int8"})
early = "fixed16" in sys.modules
rule = {"match": {"role": "bias"}, "compressor": {"name": "fixed16", "block": 64}}
config = load_config({"rules": [rule]})
late = "fixed16" in sys.modules
schema = config_schema()
table, name_alone = schema["properties"]["compressor"]["anyOf"]
other = load_config({})
answer = {
    "imported": [early, late],
    "built": repr(config.rules[0].compressor.build()),
    "named": repr(load_config({"compressor": "fixed16"}).compressor.build()),
    "again": load_config(config) == config == load_config(config.canonical()),
    "equal": hash(config) == hash(load_config({"rules": [rule]})),
    "toml": config_toml(load_config({"compressor": "fixed16"})).splitlines()[2:5],
    "wrong": [
        refused({"compressor": {"name": "fixed16", "block": 4}}),
        refused({"compressor": {"name": "fixed16", "blok": 64}}),
        refused({"rules": [{**rule, "compressor": {"name": "fixed16", "block": "x"}}]}),
        refused({"compressor": "fixed61"}),
        refused({"compressor": "fixed16", "exchange": {"kind": "all_reduce"}}),
    ],
    "schema": [table["oneOf"][-1]["properties"], name_alone["enum"][-1]],
    "branches": len(table["oneOf"]) - len(name_alone["enum"]),
    "digest": digest(config, None, [], "tcp")["library"],
    "difference": first_difference(digest(config, None, [], "tcp"), digest(other, None, [], "tcp")),
    "none": digest(None, "cannot start", [], None)["library"].get("fixed16"),
}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = tmp_path_factory.mktemp("site")
    install_page_example(site)
    found: dict[str, Any] = answers(site, CONFIGURED)
    return found


def test_a_plug_in_is_imported_when_a_configuration_names_it(configured: dict[str, Any]) -> None:
    assert configured["imported"] == [False, True]


def test_a_plug_in_is_configured_like_any_other(configured: dict[str, Any]) -> None:
    assert configured["built"] == "Fixed16(block=64)"
    assert configured["named"] == "Fixed16(block=256)"
    assert configured["again"] is True
    assert configured["equal"] is True
    assert configured["toml"] == ["[compressor]", 'name = "fixed16"', "block = 256"]


def test_mistakes_in_a_plug_in_s_hyper_parameters_are_told(configured: dict[str, Any]) -> None:
    bounds, unknown, type_, name, combination = configured["wrong"]
    assert "compressor.block: must be at least 8 and at most 65536, not 4" in bounds
    assert 'compressor.blok: is not a setting; did you mean "block"?' in unknown
    assert 'rules[0].compressor.block: must be a whole number, not "x"' in type_
    assert name.endswith('did you mean "fixed16"?')
    assert "payloads of fixed16 can not be summed" in combination


def test_the_schema_has_a_branch_for_a_plug_in(configured: dict[str, Any]) -> None:
    properties, name = configured["schema"]
    block = properties["block"]
    assert properties["name"]["const"] == "fixed16"
    assert (block["minimum"], block["maximum"], block["default"]) == (8, 65536, 256)
    assert block["description"] == "Elements that share a scale."
    assert name == "fixed16"
    assert configured["branches"] == 0


def test_ranks_compare_the_versions_of_plug_ins_in_use(configured: dict[str, Any]) -> None:
    assert configured["digest"]["fixed16"] == "1.0"
    assert configured["difference"] == ["library.fixed16", "1.0", "(absent)"]
    assert configured["none"] is None


def test_the_page_s_example_conforms_and_trains(tmp_path: Path) -> None:
    install_page_example(tmp_path)
    # Fewer ranks than by default, for time.
    whole, fewer = "check_compressor(Fixed16())", "check_compressor(Fixed16(), most_ranks=2)"
    check = page_block("python", whole).replace(whole, fewer)
    train = page_block("python", "LoopbackWorld(")
    file = tmp_path / "compressa.toml"
    file.write_text(page_block("toml", "block = 512"), encoding="utf-8")
    last = (
        "answer = [world.next_step, world.states[0].vectors['residual/weight'].any().item(), "
        f"load_config({str(file)!r}).compressor.build().block]"
    )
    assert answers(tmp_path, f"{check}\n{train}\n{last}") == [2, True, 512]


BROKEN = """
import warnings
from compressa import ConfigError, load_config
from compressa.config import config_schema
from compressa.facts import survey
from compressa.plugins import PluginWarning

def refused(raw):
    try:
        load_config(raw)
    except ConfigError as error:
        return str(error)

load_config({"compressor": "topk"})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    taken = load_config({"compressor": {"name": "int8", "block": 64}})
names = config_schema()["properties"]["compressor"]["anyOf"][1]["enum"]
found, problems = survey()
answer = {
    "warnings": [[w.category.__name__, str(w.message)] for w in caught],
    "taken": repr(taken.compressor.build()),
    "failing": refused({"rules": [{"match": {"name": "*"}, "compressor": "failing"}]}),
    "odd": refused({"compressor": "odd"}),
    "same": [refused({"compressor": name}) for name in ("same", "other")],
    "both": refused({"compressor": "same", "warmup": {"steps": 1, "compressor": "other"}}),
    "schema": [n for n in names if n in ("failing", "odd", "same", "other", "slow")],
    "found": [f.name for f in found if f.source != "compressa"],
    "problems": problems,
}
"""
ODD = """
class Odd: ...

@dataclass(frozen=True, kw_only=True)
class Mine(TopK):
    name: ClassVar[str] = "odd"
    wire_id: ClassVar[int] = 131
    thing: Odd = Odd()
"""
SLOW = """
class Mine(TopK):
    name, wire_id = "slow", 132
    def wire_bytes(self, elems): raise ZeroDivisionError("slow")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = tmp_path_factory.mktemp("site")
    head = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from compressa.codecs import TopK\n"
    )
    install(site, "taker", {"int8": "taker:Mine"}, "raise RuntimeError")
    install(site, "failing", {"failing": "failing:Mine"}, "raise RuntimeError('boom')")
    install(site, "odd", {"odd": "odd:Mine"}, head + ODD)
    install(site, "slow", {"slow": "slow:Mine"}, head + SLOW)
    install(site, "same", {"same": "same:Mine"}, GOOD.replace("NAME", "same"))
    install(site, "other", {"other": "other:ROW"}, GOOD.replace("NAME", "other"))
    found: dict[str, Any] = answers(site, BROKEN)
    return found


def test_a_taken_name_warns_when_it_is_used_and_the_library_s_own_is_built(
    broken: dict[str, Any],
) -> None:
    assert broken["taken"].startswith("Int8(block=64")
    (category, text) = broken["warnings"][0]
    assert category == "PluginWarning"
    assert "taker 1.0 is not used" in text


def test_a_broken_plug_in_is_an_error_where_it_is_named_and_nowhere_else(
    broken: dict[str, Any],
) -> None:
    assert "rules[0].compressor: " in broken["failing"]
    assert "of failing 1.0 can not be imported from failing:Mine: Runtime" in broken["failing"]
    assert "of odd 1.0 has hyper-parameters that can not be read" in broken["odd"]


def test_one_wire_id_can_not_be_used_twice_in_one_configuration(broken: dict[str, Any]) -> None:
    assert broken["same"] == [None, None]
    assert "warmup.compressor: other has the wire id 130, as same has" in broken["both"]


def test_the_schema_leaves_out_what_can_not_be_used(broken: dict[str, Any]) -> None:
    assert broken["schema"] == ["other", "same", "slow"]


def test_the_survey_lists_what_works_and_says_what_does_not(broken: dict[str, Any]) -> None:
    assert broken["found"] == ["other", "same"]
    starts = [
        'compressor "int8" of taker 1.0 is not used',
        'compressor "failing" of failing 1.0 can not be imported',
        'compressor "odd" of odd 1.0 has hyper-parameters',
        'compressor "slow" of slow 1.0 does not work: ZeroDivisionError: slow; update or unins',
        'compressor "other" of other 1.0 shares the wire id 130 with another',
        'compressor "same" of same 1.0 shares the wire id 130 with another',
    ]
    pairs = zip(broken["problems"], starts, strict=True)
    assert [problem[: len(start)] for problem, start in pairs] == starts
