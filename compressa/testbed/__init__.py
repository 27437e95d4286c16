"""Several hosts on one machine, joined by links as slow as you ask for.

Gradient compression pays where the network is slow, and few desks have a slow network with four
computers on it. Linux can be one: network namespaces are hosts with TCP stacks of their own, a
bridge joins them, and a token bucket at both ends of each link holds it to a rate. The testbed
measures itself before anybody measures on it.

    with open_testbed(hosts=4, link="100mbit") as bed:
        ranks = [bed.spawn(i, [sys.executable, "train.py"]) for i in range(4)]

Root is not needed where the kernel permits user namespaces. Where it does not, the hosts are plain
processes on loopback and `bed.notice` says what that means for results.
"""

from compressa.pacing import Pacer
from compressa.testbed._probing import Probes
from compressa.testbed._records import sweep as sweep_testbeds
from compressa.testbed.base import Counters, Host, Testbed
from compressa.testbed.link import LinkSpec
from compressa.testbed.loopback import LoopbackTestbed
from compressa.testbed.manage import (
    TestbedStatus,
    attach_testbed,
    list_testbeds,
    open_testbed,
    start_testbed,
    stop_testbed,
)
from compressa.testbed.netns import NetnsTestbed
from compressa.testbed.selfcheck import Measurement, check_links
from compressa.testbed.watch import Queue, QueueReader, Watch, burstiness

__all__ = [
    "Counters",
    "Host",
    "LinkSpec",
    "LoopbackTestbed",
    "Measurement",
    "NetnsTestbed",
    "Pacer",
    "Probes",
    "Queue",
    "QueueReader",
    "Testbed",
    "TestbedStatus",
    "Watch",
    "attach_testbed",
    "burstiness",
    "check_links",
    "list_testbeds",
    "open_testbed",
    "start_testbed",
    "stop_testbed",
    "sweep_testbeds",
]
