"""What stands beside the simulator and uses it. Each folder adds verbs, functions, files that are
read or written and figures by its module ``extension`` and by modules ``verb``; no other room
imports one. Without this folder everything else works, with fewer verbs.

`doctor` says what a real training waits for; `calibration` measures, fits and validates; `interop`
reads and writes the files of other tools; `planning` searches for what to buy and how long a month
takes; `resuming` kills real loaders and counts; `learning` joins time and accuracy.
"""
