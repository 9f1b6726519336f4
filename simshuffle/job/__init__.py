"""A training job on a machine, from its scenario to its timeline.

In: a scenario (`scenario`), which names a cluster and a workload. Out: a timeline, one
row for each phase of each rank, and the bytes of every link.

The steps: `plan` says what every epoch will do, as arrays without a clock, and what
bounds it; `lowering` makes transfers of the plan; `sim` lets them pass in time, with
SimPy as the clock of ranks, faults and checkpoints. `reliability` says how often hosts
fail, `uncertainty` how far a prediction may be off, `verdict` what is known before
anything is simulated.

To read: `scenario.scenario`, `plan.epochs`, `lowering.messages`, `sim.epoch` (the loop
of a rank).
"""
