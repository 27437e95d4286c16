"""Profiles: what all ranks have measured of their steps, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compressa.config import Config
from compressa.engine.engine import Engine
from compressa.engine.measuring import profile_file
from compressa.engine.start.link_file import Shared


class Profiled(Protocol):
    """What a profile is made of."""

    config: Config
    next_step: int

    @property
    def engine(self) -> Engine:
        """What has measured."""


def save_profile(handle: Profiled, link: Shared, path: Path) -> None:
    """Write the profile of all ranks, on rank 0; see `Handle.save_profile`.

    Args:
        handle: What is in force.
        link: What is known of the network.
        path: Of the file.
    """
    engine, session = handle.engine, handle.engine.session
    planning, parameters = engine.planning, engine.parameters

    def tell() -> str:
        return profile_file.measured(planning.profiler, parameters)

    texts = session.call_on_all("handle.save_profile", tell)

    def write() -> str:
        if session.rank == 0:
            about = {
                "configuration": profile_file.configuration_of(handle.config),
                "step": max(handle.next_step - 1, 0),
                "threads": session.threads,
                "backend_sums": session.transport.sums,
                "link": link.figures,
            }
            file = profile_file.merged(texts, parameters, planning.unit_names, about)
            path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return ""

    session.call_on_all("handle.save_profile, its file", write)
