"""Which mechanism costs what: an exchange taken apart switch by switch, and how much of it an epoch
can hide.

`ablate` and `hiding` simulate; `shapley` and `figures` read their tables alone; `folder` keeps
them, `text` prints them.
"""
