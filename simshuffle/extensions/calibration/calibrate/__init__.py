"""Parameters of a scenario from measurements: nccl-tests, OSU micro-benchmarks, IOR,
mdtest, epoch logs.

Readers make one tidy table (`rows`), laws fit it (`collectives`, `messages`, `storage`,
`training`), and `fragment` writes what a scenario includes. `docs/calibrate.md` has the
formats, the laws and how the intervals are made.
"""
