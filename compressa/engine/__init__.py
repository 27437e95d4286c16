"""The engine: units, worker threads, the communication thread and its driver.

Users enter by `compressa.open_engine`. Of the engine's modules, these are for other parts of the
package, and the rest for the engine alone:

- Clients, which combine tensors or open sessions of their own: `opening`, `session`, `engine`,
  `device_stream`, `communication`, `undo`, `compilation`, `start.process_groups`, `start.startup`,
  `start.store_gather`, `replicas.broadcast_buckets`, `replicas.broadcasting`, `replicas.integrity`.
- What is measured, and files of it: `measuring.stats`, `measuring.profiler`,
  `measuring.profile_file`, `start.link_file`, `start.cores`.
- Simulation, forecasts and the test kit, which run the same code on a virtual clock: `driver`,
  `task`, `units.units`, `units.phase`, `units.sums`, `units.unit_runtime`, `units.partition`,
  `units.lockstep`, `units.world`.
"""
