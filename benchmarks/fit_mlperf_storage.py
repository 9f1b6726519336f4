"""Fits what hosts read in MLPerf Storage v1.0 and writes validation/mlperf_storage.csv from
validation/data/mlperf_storage_v1.csv. Its output is the same every time.

python benchmarks/fit_mlperf_storage.py            # half a minute
simshuffle study validate --only mlperf_storage --out FOLDER
python benchmarks/fit_mlperf_storage.py FOLDER     # writes docs/validation-machines.md, and
                                                   # docs/reference/validation-mlperf-storage.md

Three laws, each fitted on the smallest configurations that determine it:

- what a step costs the framework (``fixed``): on one accelerator, whose storage is idle;
- what a host reads (``client_bandwidth``): on one host;
- what several hosts read together, where no configuration of one host determines it: that many
  hosts bind, or the servers; so both are fitted, and each is the spread of the other.

A configuration determines a bandwidth if its utilisation is nearer to the share that passes than to
that of idle storage, and if it has at most 64 accelerators. Nothing is fitted on any other.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

import pandas as pd
from validation_tables import put

from simshuffle.extensions.calibration.validation import emulation
from simshuffle.extensions.calibration.validation.table import COLUMNS

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "validation" / "data" / "mlperf_storage_v1.csv"
ROWS = ROOT / "validation" / "mlperf_storage.csv"
PAGE = ROOT / "docs" / "validation-machines.md"
POINTS = ROOT / "docs" / "reference" / "validation-mlperf-storage.md"
MOST = 64
"""Accelerators of a configuration on which something is fitted."""
SERVERS = "cluster.parallel_file_system"
FIXED = "workload.model.accelerators.emulated.fixed"


@dataclass(frozen=True)
class Workload:
    """What is emulated.

    Attributes:
        label: in the rows.
        share: of the time in pauses with which a run passes.
        pauses: s of a step by accelerator.
        batch, size: samples of a step, and bytes of one.
        slower: what is set for an A100; the scenario is that of an H100.
        idle: the system of which one accelerator has storage that is idle.
    """

    label: str
    share: float
    pauses: dict[str, float]
    batch: int
    size: int
    slower: str
    idle: str

    @property
    def floor(self) -> float:
        """Utilisation of the accelerator on which `FIXED` is fitted."""
        return next(each.au for each in configurations() if each.is_idle(self))

    @property
    def fixed(self) -> str:
        """What a step costs beside its pause."""
        return f"{self.pauses['h100'] * (1 / self.floor - 1) * 1e3:.3f} ms"


WORKLOADS = {
    "unet3d": Workload(
        "U-Net3D",
        0.9,
        {"h100": 0.323, "a100": 0.636},
        7,
        146600628,
        "636 ms / 21",
        "Juicedata",
    ),
    "resnet50": Workload(
        "ResNet-50",
        0.9,
        {"h100": 0.224, "a100": 0.435},
        400,
        114660,
        "435 ms / 1200",
        "simplyblock",
    ),
    "cosmoflow": Workload(
        "CosmoFlow",
        0.7,
        {"h100": 0.0035, "a100": 0.00551},
        1,
        2828486,
        "5.51 ms / 3",
        "Juicedata",
    ),
}
LARGE_READS = ("unet3d", "resnet50")
"""Workloads whose bandwidth is taken for others of the same system, in this order."""
SYSTEMS = {
    "AI400X2T": "DDN",
    "Cray_C500": "HPE C500",
    "Cray_ClusterStor_E1000": "HPE E1000",
    "Hammerspace": "Hammerspace",
    "OceanStor": "Huawei",
    "AS13000_16x7.68TiB_NVMe_4xNDR400_3xStorageNode_AMDHost": "IEI AMD",
    "AS13000_16x7.68TiB_NVMe_4xNDR400_3xStorageNode_IntelHost": "IEI Intel",
    "JuiceFS": "Juicedata",
    "Lightbits-3": "Lightbits 3 clients",
    "Lightbits-6": "Lightbits 6 clients",
    "1-client-amd-nvme-tcp-dpu": "MangoBoost AMD DPU",
    "1-client-intel-nvme-tcp-dpu": "MangoBoost Intel DPU",
    "1-client-intel-nvme-tcp-sw": "MangoBoost Intel",
    "Micron_6500": "Micron 6500",
    "Micron_9400": "Micron 9400",
    "Micron_9550": "Micron 9550",
    "weka": "WEKA",
    "resnet-h100": "simplyblock",
}
"""Our names of systems, by how theirs begin: submissions of the same servers and the same make of
hosts are one."""


@dataclass(frozen=True)
class Configuration:
    """The runs of one number of accelerators: means, and the smallest and largest.

    Attributes:
        system: our name.
        workload, accelerator: keys of `WORKLOADS` and of its pauses.
        count, hosts: accelerators in all, and hosts.
        au, au_low, au_high: utilisation.
        rate, rate_low, rate_high: samples/s.
        path: folder of the submission.
    """

    system: str
    workload: str
    accelerator: str
    count: int
    hosts: int
    au: float
    au_low: float
    au_high: float
    rate: float
    rate_low: float
    rate_high: float
    path: str

    @property
    def place(self) -> str:
        """System and hosts, as the rows name them."""
        many = "host" if self.hosts == 1 else "hosts"
        return f"{WORKLOADS[self.workload].label}, {self.system}, {self.hosts} {many}"

    @property
    def case(self) -> str:
        """As the rows name it."""
        return f"{self.place}, {self.count} {self.accelerator.upper()}"

    def is_idle(self, workload: Workload) -> bool:
        """Whether what a step costs beside its pause is fitted on it."""
        same = WORKLOADS[self.workload] is workload
        return same and self.count == 1 and self.system == workload.idle

    @property
    def is_a_choice(self) -> bool:
        """Whether the submitter stopped before the most that pass: at the samples a second of the
        slowest of its runs, one accelerator more on each host would have passed."""
        return self.with_more >= WORKLOADS[self.workload].share

    @property
    def with_more(self) -> float:
        """Utilisation of one accelerator more on each host, which get no more samples together."""
        return self.au_low * self.count / (self.count + self.hosts)

    @property
    def determines(self) -> bool:
        """Whether a bandwidth can be fitted on it."""
        of = WORKLOADS[self.workload]
        return self.count <= MOST and self.au < (of.share + of.floor) / 2


@cache
def configurations() -> tuple[Configuration, ...]:
    """Of all submissions, in the order of the file."""
    runs = defaultdict(list)
    with RUNS.open(encoding="utf-8", newline="") as file:
        for run in csv.DictReader(file):
            runs[
                run["system"], run["workload"], run["accelerator"], run["accelerators"]
            ].append(run)
    return tuple(_configuration(each) for each in runs.values())


def _configuration(runs: list[dict[str, str]]) -> Configuration:
    first = runs[0]
    shares = [float(run["au"]) / 100 for run in runs]
    rates = [float(run["samples_s"]) for run in runs]
    count = int(first["accelerators"])
    workload, accelerator = _named(first, mean(rates) / count / mean(shares))
    return Configuration(
        next(
            name for start, name in SYSTEMS.items() if first["system"].startswith(start)
        ),
        workload,
        accelerator,
        count,
        int(first["hosts"]),
        mean(shares),
        min(shares),
        max(shares),
        mean(rates),
        min(rates),
        max(rates),
        first["path"].partition("/results/")[0] + f"/results/{first['system']}",
    )


def _named(run: dict[str, str], rate: float) -> tuple[str, str]:
    """Workload and accelerator of a run; where it names none, those whose samples a second while
    they pause come closest."""
    near = {
        (workload, accelerator): abs(of.batch / pause / rate - 1)
        for workload, of in WORKLOADS.items()
        for accelerator, pause in of.pauses.items()
        if run["workload"] in (workload, "?")
        and run["accelerator"] in (accelerator, "?")
    }
    return min(near, key=lambda each: near[each])


@dataclass(frozen=True)
class Law:
    """What hosts read, fitted.

    Attributes:
        anchor: where.
        total: bytes/s of all its hosts together.
    """

    anchor: Configuration
    total: float

    def values(self) -> str:
        """What is set in a scenario."""
        each = f"{SERVERS}.client_bandwidth={self.total / self.anchor.hosts / 1e9:.4f} GB/s"
        if self.anchor.hosts == 1:
            return each
        return f"{each};{SERVERS}.read_bandwidth={self.total / 1e9:.4f} GB/s"

    def spread(self, hosts: int) -> str:
        """What is not known on another number of hosts."""
        fitted = self.anchor.hosts
        if fitted in {1, hosts}:
            return ""
        free = "client_bandwidth" if hosts < fitted else "read_bandwidth"
        bound = self.total / (fitted if hosts < fitted else 1)
        return f"{SERVERS}.{free}={bound / 1e9:.4f} GB/s..10 TB/s"


def chosen(each: Configuration, bandwidths: str) -> str:
    """The values of a row but its counts."""
    of = WORKLOADS[each.workload]
    slower = [f"workload.model.accelerators.emulated.forward={of.slower}"]
    parts = [bandwidths] * bool(bandwidths) + [
        f"{FIXED}={of.fixed}",
        f"hosts={each.hosts}",
    ]
    return ";".join(parts + slower * (each.accelerator == "a100"))


def fitted(anchor: Configuration) -> Law:
    """The law of a configuration: its utilisation grows with bandwidth, nearly in proportion."""
    of = WORKLOADS[anchor.workload]
    asked_for = of.batch * of.size / of.pauses[anchor.accelerator]
    law = Law(anchor, anchor.count * anchor.au * asked_for)
    for _ in range(8):
        reached = predicted(anchor, law, "utilisation")
        if abs(reached - anchor.au) < 2e-5:
            break
        law = Law(anchor, law.total * anchor.au / reached)
    return law


def predicted(each: Configuration, law: Law, quantity: str) -> float:
    """What the simulator says."""
    values = dict(part.split("=", 1) for part in asked(each, law, quantity).split(";"))
    return emulation.emulate_accelerators(scenario(each), values, quantity)


def asked(each: Configuration, law: Law | None, quantity: str) -> str:
    """The values of a row."""
    share = WORKLOADS[each.workload].share
    last = (
        f"share={share}"
        if quantity == "largest count"
        else f"accelerators={each.count}"
    )
    return f"{chosen(each, law.values() if law else '')};{last}"


def scenario(each: Configuration) -> str:
    """Its name."""
    return f"validation/mlperf-storage-{each.workload}"


def anchors() -> dict[tuple[str, str], Configuration]:
    """The smallest configuration that determines what hosts read, by system and workload; only
    those that predict another one."""
    found: dict[tuple[str, str], Configuration] = {}
    for each in sorted(configurations(), key=lambda each: (each.hosts, each.count)):
        if each.determines:
            found.setdefault((each.system, each.workload), each)
    others = [
        each
        for each in configurations()
        if each not in found.values() and not each.is_idle(WORKLOADS[each.workload])
    ]
    used = {anchor_of(each, found) for each in others}
    return {key: anchor for key, anchor in found.items() if anchor in used}


def anchor_of(
    each: Configuration, found: dict[tuple[str, str], Configuration]
) -> Configuration | None:
    """Where the law that predicts a configuration is fitted, if anywhere."""
    for workload in (each.workload, *LARGE_READS):
        anchor = found.get((each.system, workload))
        if anchor is not None and anchor != each:
            return anchor
    return None


REMARKS = {
    (
        "HPE E1000",
        5,
    ): "The same servers' make, but other hosts (32 cores for 128) and another"
    " network: what a host read is not known to be the same.",
    (
        "IEI AMD",
        6,
    ): "Nothing binds here but hosts: the servers' rate shows on many hosts only, and"
    " would have to be fitted above 64 accelerators. They gave 20 k files/s.",
    ("IEI AMD", 10): "As on 6 hosts; servers gave 380 GB/s of large files.",
    ("IEI AMD", 12): "As on 10 hosts.",
    (
        "HPE C500",
        3,
    ): "One accelerator a host, for two on the host of the fit; these servers bind"
    " at less than two hosts' reading.",
}


def row(each: Configuration, quantity: str, use: str, **more: str) -> dict[str, str]:
    """A row of the file."""
    whole = quantity == "largest count"
    measured = {
        "utilisation": (f"{each.au:.5f}", f"{each.au_low:.5f}", f"{each.au_high:.5f}"),
        "throughput": (
            f"{each.rate:.6g}",
            f"{each.rate_low:.6g}",
            f"{each.rate_high:.6g}",
        ),
        "largest count": (str(each.count), "", ""),
    }[quantity]
    return {
        "set": "mlperf_storage",
        "case": f"{each.place}, {each.accelerator.upper()}" if whole else each.case,
        "quantity": quantity,
        "unit": "1/s" if quantity == "throughput" else "1",
        **dict(zip(("measured", "low", "high"), measured, strict=True)),
        "use": use,
        "kind": "emulated" if use != "none" else "",
        "scenario": scenario(each) if use != "none" else "",
        "source": "github.com/mlcommons/storage_results_v1.0 (1c5efa7, Apache-2.0),"
        f" {each.path}; validation/data/mlperf_storage_v1.csv",
        **more,
    }


def rows() -> Iterable[dict[str, str]]:
    """Of the file: fits of a system before what they predict."""
    places = anchors()
    laws = {anchor: fitted(anchor) for anchor in places.values()}
    largest: dict[str, int] = {}
    for each in configurations():
        of = f"{each.place}, {each.accelerator}"
        largest[of] = max(each.count, largest.get(of, 0))
    for each in configurations():
        anchor = anchor_of(each, places)
        if each.is_idle(WORKLOADS[each.workload]):
            reason = (
                f"{FIXED} of {WORKLOADS[each.workload].label}, on storage that is idle"
            )
            yield row(
                each, "utilisation", "fit", values=asked(each, None, ""), reason=reason
            )
        elif each in laws:
            name = "client_bandwidth" if each.hosts == 1 else "read_bandwidth"
            with_it = (
                "" if each.hosts == 1 else ", and client_bandwidth as its equal part"
            )
            reason = f"{SERVERS}.{name} of this system{with_it}; the smallest that determines it"
            values = asked(each, laws[each], "")
            yield row(each, "utilisation", "fit", values=values, reason=reason)
        elif anchor is None:
            yield row(each, "utilisation", "none", reason=unpredicted(each))
        else:
            law = laws[anchor]
            remark = REMARKS.get((each.system, each.hosts), "")
            reason = " ".join(filter(None, (f"Fitted on {anchor.case}.", remark)))
            quantities = ["utilisation"]
            quantities += ["throughput"] if each.hosts != anchor.hosts else []
            top = largest[f"{each.place}, {each.accelerator}"] == each.count
            quantities += ["largest count"] if top else []
            for quantity in quantities:
                if quantity == "largest count" and each.is_a_choice:
                    yield row(each, quantity, "none", reason=chosen_by_submitter(each))
                    continue
                values = asked(each, law, quantity)
                spread = law.spread(each.hosts)
                about = {"values": values, "spread": spread, "reason": reason}
                yield row(each, quantity, "predict", **about)


def chosen_by_submitter(each: Configuration) -> str:
    """Why the largest count of a configuration is not the most that pass."""
    more = each.count + each.hosts
    return (
        f"The most that were submitted, not the most that pass: at the samples a second measured,"
        f" {more} would pause for {each.with_more:.1%}, and pass.".replace("%", " %")
    )


def unpredicted(each: Configuration) -> str:
    """Why nothing predicts a configuration."""
    of = WORKLOADS[each.workload]
    if each.count > MOST:
        return f"Of more than {MOST} accelerators, and no smaller one of this system to fit on."
    if each.au >= (of.share + of.floor) / 2:
        return "Near to idle storage, so that it determines no bandwidth; nor does a smaller one."
    return "The only one of this system that determines a bandwidth, which would predict nothing."


HEAD = (
    "fitted on | predicted | utilisation measured | predicted | samples/s measured | predicted"
    " | most that pass measured | predicted | by division"
)


def tables(predictions: pd.DataFrame) -> tuple[str, str]:
    """The scores of the predictions of all rows, and a row for every configuration."""
    by_row = {(r["case"], r["quantity"]): r for r in predictions.to_dict("records")}
    places = anchors()
    laws = {anchor: fitted(anchor) for anchor in places.values()}
    groups = defaultdict(list)
    lines = []
    for each in configurations():
        anchor = anchor_of(each, places)
        row_of = by_row.get((each.case, "utilisation"))
        if anchor is None or row_of is None or row_of["use"] != "predict":
            continue
        share = row_of["predicted"]
        pause = WORKLOADS[each.workload].pauses[each.accelerator]
        rate = share * each.count * WORKLOADS[each.workload].batch / pause
        top = by_row.get((f"{each.place}, {each.accelerator.upper()}", "largest count"))
        cells = [_fit(each, anchor), each.case]
        cells += [f"{each.au:.3f}", f"{share:.3f}", f"{each.rate:.4g}", f"{rate:.4g}"]
        if top is None or top["measured"] != each.count:
            cells += ["", "", ""]
        else:
            divided = divided_count(each, laws[anchor])
            counts = (
                None
                if each.is_a_choice
                else (each.count, int(top["predicted"]), divided)
            )
            told = counts or (f"at least {each.count}", "", divided)
            cells += [str(one) for one in told]
            groups[group(each, anchor)].append((share / each.au, counts))
        lines.append("| " + " | ".join(cells) + " |")
    rule = "|---|---|" + "---:|" * 7
    return _scores(groups), "\n".join([f"| {HEAD} |", rule, *lines])


def _fit(each: Configuration, anchor: Configuration) -> str:
    """Where the law is from, short: what differs from the configuration that it predicts."""
    label = (
        ""
        if anchor.workload == each.workload
        else f"{WORKLOADS[anchor.workload].label}, "
    )
    many = (
        ""
        if anchor.hosts == each.hosts
        else f"{anchor.hosts} host{'s' * (anchor.hosts > 1)}, "
    )
    return f"{label}{many}{anchor.count} {anchor.accelerator.upper()}"


def group(each: Configuration, anchor: Configuration) -> str:
    """What is new in a configuration."""
    if anchor.workload != each.workload:
        return "another workload"
    return (
        "another number of hosts"
        if anchor.hosts != each.hosts
        else "other accelerators"
    )


def divided_count(each: Configuration, law: Law) -> int:
    """How many pass if bandwidth alone binds: bytes that come by those that are asked for."""
    values = dict(part.split("=", 1) for part in chosen(each, law.values()).split(";"))
    hosts = int(values.pop("hosts"))
    share = WORKLOADS[each.workload].share
    return hosts * emulation.bandwidth_bound_count(scenario(each), values, hosts, share)


def _scores(groups: dict[str, list[tuple[float, tuple[int, int, int] | None]]]) -> str:
    """A line for each group: mean and median errors of utilisation and of the most that pass."""
    head = (
        "what is new | counts | utilisation, mean error | most that pass, mean error | median"
        " | within 5 % | by division, mean error"
    )
    lines = [f"| {head} |", "|---|" + "---:|" * 6]
    for name in sorted(groups):
        shares = [abs(share - 1) for share, _ in groups[name]]
        known = [counts for _, counts in groups[name] if counts is not None]
        counts = [abs(got / true - 1) for true, got, _ in known]
        divided = [abs(by / true - 1) for true, _, by in known]
        within = sum(error <= 0.05 for error in counts)
        cells = [name, str(len(counts)), f"{mean(shares):.1%}", f"{mean(counts):.1%}"]
        cells += [f"{median(counts):.1%}", str(within), f"{mean(divided):.1%}"]
        lines.append("| " + " | ".join(cells).replace("%", " %") + " |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:]:
        scores, points = tables(pd.read_csv(Path(sys.argv[1]) / "validation.csv"))
        put(PAGE, "mlperf storage", scores)
        put(POINTS, "mlperf storage points", points)
        return
    table = list(rows())
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
