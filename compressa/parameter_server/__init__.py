"""A parameter server: push(keys, values), pull(keys), wait(handle), with compressed traffic.

    group = dist.group.WORLD                     # 2 workers and a server, 3 ranks
    node = open_parameter_server(
        group, {"w": (1024, 512), "b": (512,)}, {"compressor": {"name": "int8"}},
        servers=1, colocated=False,
    )
    if isinstance(node, Server):
        node.serve()                             # until all workers have closed
    else:
        with node as worker:
            for step in range(100):
                worker.push(["w", "b"], gradients())
                means = worker.wait(worker.pull(["w", "b"]))

Keys are spread evenly over the servers. A server decodes what all workers push of a step, adds it
up in the order of workers, divides by their number, and answers pulls with that mean, encoded
once; so all workers get the same bits, which depend neither on timing nor on who serves. Feedback
is kept on both sides (`coding`). With compressor none, it is the mean of a dense all-reduce, bit
for bit. Steps follow each other for each key by itself; `protocol` says how far one may be ahead.

With a `Consistency`, servers keep values instead, which workers update without all meeting: see
`centre`. `StaleCopy` (`stale_copy`) is what a worker trains then.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), and
for colocated servers Jiang et al., "A Unified Architecture for Accelerating Distributed DNN
Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020).
"""

from compressa.parameter_server.clocks import Consistency
from compressa.parameter_server.handle import Handle
from compressa.parameter_server.opening import open_parameter_server
from compressa.parameter_server.server import Server
from compressa.parameter_server.worker import Worker

__all__ = ["Consistency", "Handle", "Server", "Worker", "open_parameter_server"]
