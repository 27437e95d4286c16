"""torch.distributed.pipelining: what crosses the edges of a pipeline, compressed."""

from compressa.integrations.pipelining.edges import Edge, compress_edge

__all__ = ["Edge", "compress_edge"]
