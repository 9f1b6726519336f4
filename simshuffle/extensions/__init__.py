"""Extensions of the simulator: verbs, functions, formats and figures that the core does
without.

Each folder registers them in its module ``extension`` and in modules ``verb``. No other
room imports an extension. Without this folder everything else works, with fewer verbs.

`doctor` says what a real training waits for; `calibration` measures, fits and
validates; `interop` reads and writes the files of other tools; `planning` searches for
what to buy and how long a month takes; `resuming` kills real loaders and counts;
`learning` joins time and accuracy.
"""
