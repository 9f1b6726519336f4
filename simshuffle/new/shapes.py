"""The network of a new machine as commented YAML: of each shape what its few numbers leave open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from simshuffle.errors import refuse
from simshuffle.new.questions import SOURCE
from simshuffle.topology import RailOptimised

_PORTS = """\
{ports?}
  ports: {ports}
"""
_TAPER = """\
{taper?}
  taper: {taper}
"""
_LINK = """\
{hca_bandwidth?}
  link_bandwidth: {hca_bandwidth}"""
NETWORKS = {
    "fat_tree": f"""\
topology:
  kind: fat_tree
  hosts: {{hosts}}
{_PORTS}{_TAPER}\
  rails: {{hcas}}  # one for each HCA, on leaf switches of its own
{_LINK}""",
    "dragonfly": f"""\
topology:  # Dragonfly+ and other keys: docs/topologies.md
  kind: dragonfly
  hosts: {{hosts}}  # spread evenly over all switches
{{groups?}}
  groups: {{groups}}
  # A switch of {{ports}} ports, shared as in a balanced dragonfly (Kim et al., ISCA 2008):
  # a quarter for hosts, and as many for other groups. Estimates, if you do not know better.
  hosts_per_switch: {{hosts_per_switch}}
  switches_per_group: {{switches_per_group}}  # as the hosts of a group need; all linked
  global_links_per_switch: {{global_links}}  # to other groups; some may be unused
  hcas_per_host: {{hcas}}  # all on one switch
{_LINK}""",
    "rail_optimised": f"""\
topology:
  kind: rail_optimised
  hosts: {{hosts}}
  rails: {{hcas}}  # one for each HCA
{_PORTS}{_TAPER}\
  # As in NVIDIA's DGX SuperPOD (RA-11333-001): a pod has one leaf switch for each rail, and so as
  # many hosts as that has ports down.
  hosts_per_pod: {{hosts_per_pod}}
  pods: {{pods}}
  spine_layout: {{spine_layout}}  # the first of shared, rail and pod for which there are ports
{_LINK}""",
    "torus": f"""\
topology:
  kind: torus
  hosts: {{hosts}}  # spread evenly over all switches
{{shape?}}
  shape: {{dimensions}}
  hosts_per_switch: {{hosts_per_switch}}  # as many as the hosts need
  hcas_per_host: {{hcas}}  # all on one switch
  links: 1  # between two switches; estimate
{_LINK}""",
    "network": """\
topology:
  kind: custom
  path: {path}""",
}
"""By what a new machine begins from."""


def _nothing(answers: Mapping[str, str]) -> dict[str, str]:
    """The answers say all."""
    return {}


def _network(answers: Mapping[str, str]) -> dict[str, str]:
    return {"path": str(Path(answers["topology"]).resolve())}


def _torus(answers: Mapping[str, str]) -> dict[str, str]:
    sizes, hosts = answers["shape"].split("x"), int(answers["hosts"])
    switches = math.prod(map(int, sizes))
    if switches > hosts:
        rule = f"must have at most {hosts} switches: each needs one of the hosts"
        refuse("--shape", rule, f"{answers['shape']} = {switches}", "Use fewer.", SOURCE)
    return {
        "dimensions": f"[{', '.join(sizes)}]",
        "hosts_per_switch": str(-(-hosts // switches)),
    }


def _dragonfly(answers: Mapping[str, str]) -> dict[str, str]:
    hosts, groups, hcas, ports = (int(answers[of]) for of in ("hosts", "groups", "hcas", "ports"))
    found = _balanced(hosts, groups, hcas, ports)
    if found is None:
        near = sorted(range(1, min(hosts, 4096) + 1), key=lambda count: abs(count - groups))
        fitting = next((count for count in near if _balanced(hosts, count, hcas, ports)), None)
        remedy = "Use switches with more ports." if fitting is None else f"Use {fitting}."
        rule = f"must be such that {ports} ports of a switch join {hosts} hosts with {hcas} HCAs"
        refuse("--groups", rule, str(groups), remedy, SOURCE)
    names = ("switches_per_group", "hosts_per_switch", "global_links")
    return dict(zip(names, map(str, found), strict=True))


def _balanced(hosts: int, groups: int, hcas: int, ports: int) -> tuple[int, int, int] | None:
    """Switches of a group, hosts on each and its links to other groups; None if there are too few
    ports.

    A balanced dragonfly has p links to hosts on a switch, 2p switches in a group and p links to
    other groups, with p + (2p - 1) + p ports (Kim, Dally, Scott & Abts, ISCA 2008).
    """
    if groups > hosts:
        return None
    on_switch = max((ports + 1) // 4 // hcas, 1)
    switches = min(-(-hosts // (groups * on_switch)), hosts // groups)
    on_switch = -(-hosts // (groups * switches))
    least = max(-(-(groups - 1) // switches), 1)
    left = ports - on_switch * hcas - (switches - 1)
    return (switches, on_switch, min(left, max(on_switch * hcas, least))) if left >= least else None


def _rail_optimised(answers: Mapping[str, str]) -> dict[str, str]:
    hosts, ports, taper = int(answers["hosts"]), int(answers["ports"]), float(answers["taper"])
    up = math.floor(ports / (taper + 1) + 1e-3)
    each = min(max(math.floor(up * taper + 1e-3), 1), hosts)
    numbers = {"hosts_per_pod": each, "pods": -(-hosts // each)}
    given = {
        "kind": "rail_optimised",
        "hosts": hosts,
        "rails": int(answers["hcas"]),
        "ports": ports,
        "taper": taper,
        "link_bandwidth": answers["hca_bandwidth"],
        **numbers,
    }
    layouts = ("shared", "rail", "pod")
    possible = [layout for layout in layouts if _is_valid({**given, "spine_layout": layout})]
    if not possible:
        rule = (
            f"must be enough for {hosts} hosts with {answers['hcas']} HCAs, and spines above them"
        )
        remedy = "Use switches with more ports, another --taper, or --topology fat_tree."
        refuse("--ports", rule, str(ports), remedy, SOURCE)
    return {**{key: str(of) for key, of in numbers.items()}, "spine_layout": possible[0]}


def _is_valid(given: Mapping[str, object]) -> bool:
    try:
        RailOptimised.model_validate(given)
    except ValidationError:
        return False
    return True


VALUES: dict[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "fat_tree": _nothing,
    "dragonfly": _dragonfly,
    "rail_optimised": _rail_optimised,
    "torus": _torus,
    "network": _network,
}
"""What each of `NETWORKS` asks for beside the answers, from these: texts by name. Raises an
InputError where numbers make no such network."""
