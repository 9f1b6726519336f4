"""The page of the networks that come with simshuffle."""

from __future__ import annotations

from simshuffle.layers import LayerList, layer_list
from simshuffle.layers.shipped import FAMILIES
from simshuffle.reference.markdown import RENEWED, code, plain, table

ABOUT = """\
Networks that `workload.model.layers` may name; [Models](../models.md) explains them. Operations are
those of a forward pass of one sample: two for each multiplication of convolutions, linear layers
and attention. Kept are values of one sample for the backward pass; a value has 4 B, or 2 B in mixed
precision."""
HEAD = ("name", "sample", "layers", "parameters", "10^9 operations", "10^6 values kept")


def page() -> str:
    """The page: a section for each family."""
    sections = []
    for family in FAMILIES:
        title, _, rest = (family.__doc__ or "").partition("\n\n")
        paragraphs = [plain(title), *map(plain, filter(str.strip, rest.split("\n\n")))]
        rows = [_row(layer_list(name)) for name in family.NETWORKS]
        heading = family.__name__.rpartition(".")[2]
        texts = "\n\n".join(paragraphs)
        sections.append(f"\n## {heading}\n\n{texts}\n\n{table(HEAD, rows)}")
    return f"# Networks\n\n{ABOUT}\n\n{RENEWED}\n" + "".join(sections)


def _row(network: LayerList) -> list[str]:
    return [
        code(network.name),
        " x ".join(map(str, network.input)),
        f"{len(network):,}",
        f"{network.parameters:,}",
        f"{network.flops / 1e9:,.2f}",
        f"{network.saved / 1e6:,.2f}",
    ]
