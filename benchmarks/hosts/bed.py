"""Testbeds of network namespaces, for what has to be measured between hosts."""

from __future__ import annotations

from compressa.errors import BackendUnavailable
from compressa.testbed import NetnsTestbed, open_testbed


def opened_hosts(hosts: int, link: str) -> NetnsTestbed:
    """Open a testbed whose links are not checked yet.

    Args:
        hosts: How many.
        link: Speed of their links, as `LinkSpec` writes it.

    Raises:
        BackendUnavailable: There are no network namespaces here; the message says why.
    """
    try:
        bed = open_testbed(hosts, link, kind="netns", self_check=False)
    except BackendUnavailable as refusal:
        raise BackendUnavailable(
            f"this benchmark measures between network namespaces only. {refusal}"
        ) from refusal
    assert isinstance(bed, NetnsTestbed)
    return bed
