"""Rules by which ranks find their partners, one file each. To add one, write a file and add it to
`RULES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simshuffle.exchange.partners.base import PartnerRule, Pool
from simshuffle.exchange.partners.importance_sorted import ImportanceSorted
from simshuffle.exchange.partners.random import RandomPermutation
from simshuffle.exchange.partners.random_pairs import RandomPairs

RULES: dict[str, PartnerRule] = {
    rule.name: rule for rule in (RandomPermutation(), RandomPairs(), ImportanceSorted())
}
"""All rules by the name that ``partner_rule`` gives them."""

if TYPE_CHECKING:
    PartnerRuleName = str
else:
    PartnerRuleName = Literal[tuple(RULES)]

__all__ = ["RULES", "PartnerRule", "PartnerRuleName", "Pool"]
