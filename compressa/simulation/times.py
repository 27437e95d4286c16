"""Times of units: those that were measured, or what follows from them for others.

Where units are cut in another way, a codec's time goes to parameters by their elements, and from
there to the units that hold them; these are ready when the last of their parameters is. Of another
compression nothing is known of codecs.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compressa.compressor import Compressor
from compressa.config import Config, ConfigWarning, assign, load_config
from compressa.engine.units.units import UnitSizes, build_units
from compressa.parameters import Layout, ParameterInfo
from compressa.schedulers import UnitTimes
from compressa.simulation.scenario import Scenario


def unit_times(
    scenario: Scenario, layouts: Sequence[Layout], needs: Mapping[str, float]
) -> list[UnitTimes]:
    """Return each unit's times.

    Args:
        scenario: What was measured, and what is to be simulated.
        layouts: The units.
        needs: By parameter name, when the forward uses it; those that are missing, at once.
    """
    file = scenario.file
    known = {row.name: row.times for row in file.units}
    same = not scenario.recompressed and [each.name for each in layouts] == [*known]
    ready = {row.name: row.ready_s for row in file.parameters}
    codecs = {} if same or scenario.recompressed else _codec_times(scenario)
    found = []
    for layout in layouts:
        names = [segment.parameter.name for segment in layout.segments]
        need_s = min(needs.get(name, 0.0) for name in names)
        if same:
            found.append(replace(known[layout.name], need_s=need_s))
            continue
        shares = [(codecs.get(s.parameter.name, (0.0, 0.0)), s.elems) for s in layout.segments]
        encode_s, decode_s = (sum(each[i] * elems for each, elems in shares) for i in (0, 1))
        found.append(UnitTimes(max(ready[name] for name in names), need_s, encode_s, decode_s))
    return found


def _codec_times(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """By parameter: seconds of encoding and of decoding for each element, as measured."""
    file = scenario.file
    known = {row.name: row.times for row in file.units}
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for layout in _measured_layouts(scenario):
        times = known.get(layout.name, UnitTimes())
        for segment in layout.segments:
            share = segment.elems / layout.elems / segment.parameter.elems
            sums[segment.parameter.name][0] += times.encode_s * share
            sums[segment.parameter.name][1] += times.decode_s * share
    return {name: (encode_s, decode_s) for name, (encode_s, decode_s) in sums.items()}


def _measured_layouts(scenario: Scenario) -> list[Layout]:
    file = scenario.file
    config, infos = load_config(file.configuration), file.infos
    compressors = compressors_of(config, infos)
    now = {p.name: compressors[p.name].at(file.step).for_parameter(p) for p in infos}
    return [unit.layout for unit in build_units(infos, now, UnitSizes.of(config))]


def compressors_of(config: Config, parameters: Sequence[ParameterInfo]) -> dict[str, Compressor]:
    """Return the compressor of each parameter, by name.

    Of rules without effect nothing is said: that was told when steps were measured.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return assign(config, parameters)
