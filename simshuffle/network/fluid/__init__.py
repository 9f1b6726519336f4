"""The engine of the fluid network: max-min fair sharing of links, kept up to date from event to
event, in compiled code.

A rate vector is max-min fair exactly if it is feasible and every flow has a bottleneck: a saturated
link on which no other flow is faster (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2).
So all flows that have their bottleneck on one link have one rate, the *level* of that link, and the
state of the network is one level for each saturated link and one bottleneck for each flow. Let the
*other load* of a link be what the flows with a bottleneck elsewhere take of it. Then ``level =
(capacity - other load) / flows of its own``.

Three things follow, and the code is made of them:

*Virtual time.* The flows of a link drain at one level, so they end in the order of ``served + bytes
left``, where ``served`` integrates the level. A new level moves the next end of the link, but no
flow: a link holds its flows in a heap by that key, and only the links have a place in time.
(Processor sharing in virtual time, as in fair queueing: Demers, Keshav & Shenker, SIGCOMM 1989.)

*Influence runs upwards.* A level depends on lower levels only (the bottleneck structure of
Ros-Giralt et al., SIGMETRICS 2020). After an arrival or a departure the links are visited from the
lowest changed one upwards; a link whose level changes passes the difference on to the links that
its flows cross. A flow changes its bottleneck when a visit finds a lower level on its route.

*Two ways to visit.* While few links change, those that do are kept in a heap by level
(``repair.py``). When an event moves most levels, as in a dense all-to-all, the links are visited in
the order of their levels before the event, which is nearly right; one that comes out below its
predecessor is moved forward (``sweep.py``). An order that does not decrease proves the bottleneck
condition. When much of the network starts at one instant, all is filled anew (``fill.py``:
progressive filling).

Where to read, each file standing on those before it:

- ``records.py``: the arrays, by owner, with the meaning and unit of each field; ``check.py``: what
  holds between them after every event, in plain Python;
- ``ends.py``: the next end of a flow; ``members.py``: the flows of a link; ``ahead.py``: what
  is needed next, fetched into the caches where a network is larger than they are;
- ``repair.py``, ``sweep.py``, ``fill.py``: three ways to make rates fair again; ``shares.py``
  chooses among them, and ends flows;
- ``events.py``, ``posting.py``, ``transfers.py``: the life of a transfer around its draining:
  dependencies, delays, pairs, groups; the loop of events;
- ``network.py``: `FluidNetwork`, the whole of it for Python;
- ``solve.py``: explicit flows over explicit links, with ``binding.py`` (links that can never be a
  bottleneck) and ``symmetry.py`` (one flow stands for all that are equivalent).
"""
